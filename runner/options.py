"""What a run is asked to do, and where it stands."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Literal

from trtb.build.manifest import EngineManifest
from trtb.build.planning.preflight_engine import engine_bytes
from trtb.model_repo.deploy_config import KvServedDtype
from trtb.model_repo.trtllm_engine import can_guide
from trtb.model_repo.trtllm_parameters import parse_pairs
from trtb.runner.launching.kv_options import KvOptions, num_blocks_asked
from trtb.runner.launching.launch import Choice
from trtb.runner.reader import DEFAULT_MAX_LINE_BYTES
from trtb.runner.request import Capabilities
from trtb.runner.scheduling.schedule import Order
from trtb.runner.tool_calls import style_of_template

DEFAULT_CONCURRENCY = 64
DEFAULT_MAX_TOKENS = 1024
DEFAULT_QUEUE_SIZE = 256
DEFAULT_CACHE_CAPACITY_GB = 10.0
DEFAULT_CANARY = 8
START_BASE_S = 300.0
LOAD_BYTES_PER_S = 100e6  # of an engine from a cold network disk


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What a run does; every field is an option of `trtb run`."""

    input_path: Path
    output: Path
    engine_dir: Path
    manifest: EngineManifest
    endpoints: tuple[str, ...] = ()  # empty: a server of our own
    concurrency: int = DEFAULT_CONCURRENCY
    request_timeout_s: float = 600.0
    max_attempts: int = 3
    server_wait_s: float = 60.0
    start_timeout_s: float = 300.0
    grace_s: float = 30.0
    on_invalid: Literal["refuse", "fail"] = "refuse"
    model_aliases: tuple[str, ...] = ()  # "*" accepts any
    strict_params: bool = False
    default_max_tokens: int = DEFAULT_MAX_TOKENS
    max_line_bytes: int = DEFAULT_MAX_LINE_BYTES
    limit: int | None = None
    overwrite: bool = False
    follow: Path | None = None
    deterministic: bool = False
    kv_cache_dtype: KvServedDtype = "auto"
    num_kv_blocks: int | None = None
    kv_cache_gb: float | None = None  # the same pool by its size
    kv_host_cache_gb: float | None = None  # for what it has no room for, on a GPU server of our own
    kv_reuse: bool | None = None  # shared prefixes are computed once; None: where the engine can
    kv_retention: bool = True  # requests say which of their blocks others will want
    trtllm_parameters: tuple[str, ...] = ()  # NAME=VALUE, for a GPU server of our own
    device_ids: tuple[str, ...] = ()  # the GPUs of each server of our own, "0,1"; empty: those that suit best
    launch: Choice = "auto"
    order: Order = "auto"
    queue_size: int = DEFAULT_QUEUE_SIZE  # most requests that wait, ready to be sent
    dedup: bool | None = None  # None: where the engine's answers do not depend on company
    canary: int = DEFAULT_CANARY  # requests that go alone, until one of them generates; 0 is none
    max_failure_rate: float | None = None  # None: stop only where every one of the first fails
    cache: bool = False  # answers of earlier runs are used, and those of this one kept
    cache_capacity_gb: float = DEFAULT_CACHE_CAPACITY_GB
    cache_ttl_hours: float | None = None  # older answers are computed again
    cache_sync_interval_s: float = 1.0  # a crash loses the answers of that time, to the cache alone

    @property
    def model_names(self) -> frozenset[str] | None:
        """Return every name that a line's body.model may have; None accepts any."""
        return accepted_models(self.manifest, self.model_aliases)

    @property
    def kv_options(self) -> KvOptions:
        """Return what is asked of the KV cache of the run's own servers."""
        return KvOptions(
            self.kv_cache_dtype, self.num_kv_blocks, self.kv_cache_gb, self.kv_host_cache_gb, self.kv_reuse
        )

    @property
    def num_blocks_asked(self) -> int | None:
        """Return the pool that is asked for, in blocks; None where it is left to the server."""
        return num_blocks_asked(self.kv_options, self.manifest)

    def capabilities(self) -> Capabilities:
        """Return what the engine can do beyond sampling text."""
        found = capabilities_of(self.engine_dir)
        parameters = parse_pairs(self.trtllm_parameters)
        return replace(found, guided=False) if parameters.get("guided_decoding_backend") == "off" else found

    def settings(self) -> dict[str, str | int | float | bool | None]:
        """Return what decides the answers, beside the input and the engine."""
        return {
            "default_max_tokens": self.default_max_tokens,
            "deterministic": self.deterministic,
            "limit": self.limit,
            "max_line_bytes": self.max_line_bytes,
            "model_aliases": ",".join(sorted(self.model_aliases)),
            "on_invalid": self.on_invalid,
            "strict_params": self.strict_params,
            **({} if self.kv_cache_dtype == "auto" else {"kv_cache_dtype": self.kv_cache_dtype}),
        }

    def job(self) -> dict[str, str | int | float | bool | list[str] | None]:
        """Return every option, resolved, in JSON's types."""
        resolved: dict[str, str | int | float | bool | list[str] | None] = {}
        for option in fields(self):
            value = getattr(self, option.name)
            if isinstance(value, tuple):
                resolved[option.name] = list(value)
            elif isinstance(value, Path):
                resolved[option.name] = str(value)
            elif not isinstance(value, EngineManifest):
                resolved[option.name] = value
        resolved["engine"] = self.manifest.reference
        return resolved


def default_start_timeout_s(manifest: EngineManifest) -> float:
    """Return how long a server of an engine may take to start: the longer, the larger its files."""
    return START_BASE_S + engine_bytes(manifest) // LOAD_BYTES_PER_S


def accepted_models(manifest: EngineManifest, aliases: tuple[str, ...]) -> frozenset[str] | None:
    """Return the names that mean an engine: its own, its checkpoint's, and the aliases; None is any."""
    if "*" in aliases:
        return None
    return frozenset({manifest.name, manifest.reference, manifest.checkpoint.name, *aliases})


def capabilities_of(engine_dir: Path) -> Capabilities:
    """Read an engine's capabilities from its folder."""
    try:
        template = (engine_dir / "tokenizer" / "chat_template.jinja").read_text(encoding="utf-8")
    except FileNotFoundError:
        template = ""
    return Capabilities(tool_style=style_of_template(template), guided=can_guide(engine_dir))


@dataclass(slots=True)
class Progress:
    """Where a run stands, for whoever shows it."""

    phase: str = "validating"
    total: int = 0
    num_resumed: int = 0  # results that were there when this session began
    num_completed: int = 0  # of this session
    num_failed: int = 0  # of this session
    num_tokens: int = 0  # output tokens of this session
    num_in_flight: int = 0
    phase_started: float = field(default_factory=time.monotonic)

    @property
    def num_done(self) -> int:
        """Return how many lines have a result."""
        return self.num_resumed + self.num_completed + self.num_failed

    def enter(self, phase: str) -> None:
        """Begin a phase."""
        self.phase = phase
        self.phase_started = time.monotonic()


Observer = Callable[[Progress], None]
