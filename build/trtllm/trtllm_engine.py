"""An engine folder as trtllm-build leaves it, held against what was asked for.

TensorRT-LLM changes what does not fit and says so in a warning that scrolls by. What it may change without
taking anything that was promised is reported; anything else that differs is an error.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from trtb.build.errors import CompileError
from trtb.build.manifest import Record
from trtb.build.trtllm.trtllm_options import TrtllmOptions, given_text

CONFIG_FILE = "config.json"
MIN_ENGINE_BYTES = 1024  # an empty or cut plan is smaller than its own header

# Limits and features that clients and the server rely on: each must be as it was asked.
_PROMISED = (
    "max_batch_size",
    "max_beam_width",
    "max_num_tokens",
    "max_seq_len",
    "kv_cache_type",
    "gather_context_logits",
    "max_prompt_embedding_table_size",
    "weight_streaming",
)
_PROMISED_PLUGINS = ("tokens_per_block", "use_paged_context_fmha", "remove_input_padding", "context_fmha")
# Ways to compute faster: TensorRT-LLM may know that one does not apply.
_REPORTED = ("max_input_len", "opt_num_tokens", "max_draft_len")
_REPORTED_PLUGINS = (
    *("multiple_profiles", "reduce_fusion", "user_buffer", "use_fp8_context_fmha", "norm_quant_fusion"),
    *("gpt_attention_plugin", "gemm_plugin", "gemm_swiglu_plugin", "low_latency_gemm_plugin"),
    *("low_latency_gemm_swiglu_plugin", "gemm_allreduce_plugin", "fuse_fp4_quant", "pp_reduce_scatter"),
)


class Adjustment(Record):
    """One option that the compiler changed."""

    option: str
    asked: str
    built: str


class EngineFolder(Record):
    """What an engine folder holds, verified."""

    version: str  # of TensorRT-LLM
    num_ranks: int
    total_bytes: int
    adjustments: list[Adjustment]


def verify_engine(
    folder: Path, options: TrtllmOptions, version: str, checkpoint: Mapping[str, Any]
) -> EngineFolder:
    """Return what an engine folder holds, having found in it what was asked for and nothing else.

    Args:
        folder: What trtllm-build wrote.
        options: What it was told.
        version: Of the TensorRT-LLM that compiled.
        checkpoint: The config.json of the checkpoint that was compiled.

    Raises:
        CompileError: A file is missing, empty or unexpected, or the engine is not what was asked for.
    """
    config = _read_config(folder)
    if (found := config.get("version")) != version:
        raise CompileError(
            f"{folder / CONFIG_FILE}: version: {found!r}; expected {version}, of the compiler that was asked"
        )
    _check_model(folder, config["pretrained_config"], checkpoint)
    adjustments = list(_compare(folder, config["build_config"], options, str(checkpoint.get("dtype"))))
    num_ranks = int(checkpoint["mapping"]["world_size"])
    return EngineFolder(
        version=version,
        num_ranks=num_ranks,
        total_bytes=_check_files(folder, num_ranks, may_manage_weights=options.fast_build),
        adjustments=adjustments,
    )


def _read_config(folder: Path) -> dict[str, Any]:
    path = folder / CONFIG_FILE
    try:
        config: dict[str, Any] = json.loads(path.read_bytes())
    except FileNotFoundError as exc:
        raise CompileError(f"{path}: not found: trtllm-build ended well and wrote no engine") from exc
    except ValueError as exc:
        raise CompileError(f"{path}: not JSON: {exc}") from exc
    for part in ("pretrained_config", "build_config"):
        if not isinstance(config, dict) or not isinstance(config.get(part), dict):
            raise CompileError(
                f"{path}: {part}: not found; expected the config.json of a TensorRT-LLM engine"
            )
    return config


def _check_files(folder: Path, world_size: int, *, may_manage_weights: bool) -> int:
    expected = {CONFIG_FILE, *(f"rank{rank}.engine" for rank in range(world_size))}
    found = {path.name: path.stat().st_size for path in folder.iterdir() if path.is_file()}
    for name in sorted(expected - set(found)):
        raise CompileError(f"{folder}: {name}: not found; expected one engine for each of {world_size} ranks")
    for name in sorted(expected - {CONFIG_FILE}):
        if found[name] < MIN_ENGINE_BYTES:
            raise CompileError(f"{folder / name}: {found[name]} bytes; expected an engine: it was cut short")
    optional = {"quant_cfg.json"}
    if may_manage_weights:
        optional |= {f"rank{rank}_managed_weights.safetensors" for rank in range(world_size)}
    for name in sorted(set(found) - expected - optional):
        raise CompileError(f"{folder / name}: not expected; expected {world_size} ranks and {CONFIG_FILE}")
    return sum(found.values())


def _check_model(folder: Path, engine: Mapping[str, Any], checkpoint: Mapping[str, Any]) -> None:
    fields = (
        "architecture",
        "dtype",
        "num_hidden_layers",
        "num_attention_heads",
        "hidden_size",
        "vocab_size",
    )
    for name in fields:
        if engine.get(name) != checkpoint.get(name):
            raise _differs(folder, f"pretrained_config.{name}", engine.get(name), checkpoint.get(name))
    for part, names in (
        ("mapping", ("world_size", "tp_size", "pp_size")),
        ("quantization", ("quant_algo", "kv_cache_quant_algo")),
    ):
        for name in names:
            found, expected = ((config.get(part) or {}).get(name) for config in (engine, checkpoint))
            if found != expected:
                raise _differs(folder, f"pretrained_config.{part}.{name}", found, expected)


def _compare(
    folder: Path, built: Mapping[str, Any], options: TrtllmOptions, dtype: str
) -> Iterator[Adjustment]:
    plugins = built.get("plugin_config") or {}
    promised = [(name, built.get(name)) for name in _PROMISED]
    promised += [(name, plugins.get(name)) for name in _PROMISED_PLUGINS]
    reported = [(name, built.get(name)) for name in _REPORTED]
    reported += [(name, plugins.get(name)) for name in _REPORTED_PLUGINS]
    for name, value in promised:
        asked = getattr(options, name)
        if _is_same(asked, value, dtype):
            continue
        if not _may_grow(name, asked, value, options):
            raise _differs(folder, f"build_config.{name}", value, given_text(asked))
        yield Adjustment(option=name, asked=given_text(asked), built=_built_text(value))
    for name, value in reported:
        asked = getattr(options, name)
        if not (asked is None or _is_same(asked, value, dtype)):
            yield Adjustment(option=name, asked=given_text(asked), built=_built_text(value))


def _may_grow(name: str, asked: Any, built: Any, options: TrtllmOptions) -> bool:
    """Return whether drafts, which need room beside what was asked for, explain a larger limit."""
    has_room = options.max_draft_len > 0 and name in {"max_seq_len", "max_num_tokens"}
    return has_room and isinstance(built, int) and built > asked


def _is_same(asked: Any, built: Any, dtype: str) -> bool:
    if built is None or built is False:
        return asked in {None, False, "disable"}
    if asked == "auto":
        return built in {"auto", dtype}
    return str(asked).lower() == str(built).lower()


def _built_text(value: Any) -> str:
    return "disable" if value is None else given_text(value)


def _differs(folder: Path, place: str, found: Any, expected: Any) -> CompileError:
    return CompileError(
        f"{folder / CONFIG_FILE}: {place}: {found!r}; expected {expected!r}, as was asked for",
        "read build.log for what trtllm-build changed, and leave the option out that it changed",
    )
