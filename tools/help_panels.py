"""Help in panels: a command of many options shows them by what they are about."""

from __future__ import annotations

from typing import Any, Final

from typer.core import TyperCommand

# of `trtb run` and `trtb serve`; what is not named stands in the first panel
PANELS: Final = {
    "Server": (
        *("endpoint", "host", "grpc_port", "metrics_port", "launch", "device_ids", "trtllm_parameter"),
        *("start_timeout", "server_wait"),
    ),
    "KV cache of our own server": (
        *("num_kv_blocks", "kv_cache_gb", "kv_cache_dtype", "kv_host_cache_gb", "kv_reuse", "kv_retention"),
    ),
    "Answers": (
        *("deterministic", "default_max_tokens", "on_invalid", "model_alias", "strict_params"),
        *("max_line_bytes", "limit"),
    ),
    "Sending": (
        *("concurrency", "order", "queue_size", "dedup", "request_timeout", "max_attempts"),
        *("canary", "max_failure_rate", "grace"),
    ),
    "Result cache": ("cache", "cache_capacity_gb", "cache_ttl_hours", "cache_sync_interval"),
}
PANEL_OF: Final = {name: panel for panel, names in PANELS.items() for name in names}


class PanelCommand(TyperCommand):
    """A command whose options stand in the panels that PANELS names."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        for parameter in self.params:
            if panel := PANEL_OF.get(str(parameter.name)):
                parameter.rich_help_panel = panel  # type: ignore[attr-defined]
