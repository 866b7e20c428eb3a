"""What a TensorRT-LLM engine was built for, read from its own config.json and held against its manifest."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from packaging.version import InvalidVersion, Version

from trtb.build.compatibility import TENSOR_CHANGES, TRTLLM_RELEASES, get_release, tensor_name_in
from trtb.build.errors import ConfigError, EngineCorruptError
from trtb.build.manifest import EngineManifest

ENGINE_FOLDER: Final = "engine"  # of a stored engine: config.json and a plan for each rank
# What holds answers to a grammar reads the vocabulary from here; an engine without it cannot.
TOKENIZER_INFO: Final = "tokenizer/xgrammar_tokenizer_info.json"
_LIMITS: Final = ("max_seq_len", "max_batch_size", "max_num_tokens")
# TensorRT-LLM's SpeculativeDecodingMode is a number in config.json -> the decoding_mode that serves it
_DRAFTING: Final = {4: "medusa", 8: "lookahead", 16: "redrafter", 32: "eagle"}


@dataclass(frozen=True, slots=True)
class TrtllmEngine:
    """The limits and features of one compiled engine."""

    version: str  # of TensorRT-LLM
    world_size: int  # GPUs of one instance
    max_seq_len: int
    max_batch_size: int
    max_num_tokens: int
    max_beam_width: int
    tokens_per_block: int
    is_paged: bool  # the KV cache is in blocks and requests are packed: what in-flight batching needs
    has_paged_context: bool  # prompts can be computed in pieces and their blocks shared
    can_stream_weights: bool
    has_lora: bool
    drafting_mode: str | None  # the decoding_mode that its drafts need; None where it has no drafts
    has_tokenizer_info: bool


def read_engine(engine_dir: Path, manifest: EngineManifest) -> TrtllmEngine:
    """Return what a stored engine was built for.

    Raises:
        ConfigError: It was built with a TensorRT-LLM whose model `trtb` does not speak to.
        EngineCorruptError: A file is missing, or differs from the manifest.
    """
    folder = engine_dir / ENGINE_FOLDER
    path = folder / "config.json"
    try:
        config = json.loads(path.read_bytes())
        engine = _parse(config, engine_dir)
    except FileNotFoundError as exc:
        raise EngineCorruptError(
            f"{path}: not found; expected the config.json that trtllm-build wrote", _rebuild(manifest)
        ) from exc
    except (ValueError, KeyError, TypeError, AttributeError) as exc:
        raise EngineCorruptError(
            f"{path}: {type(exc).__name__}: {exc}; expected the config.json of a TensorRT-LLM engine",
            _rebuild(manifest),
        ) from exc
    check_release(engine.version, manifest)
    for name in (*_LIMITS, "tokens_per_block"):
        found, expected = getattr(engine, name), getattr(manifest.limits, name)
        if found != expected:
            raise EngineCorruptError(
                f"{path}: {name}: {found}; the manifest of {manifest.reference} says {expected}",
                _rebuild(manifest),
            )
    for rank in range(engine.world_size):
        if not (plan := folder / f"rank{rank}.engine").is_file():
            raise EngineCorruptError(
                f"{plan}: not found; expected a plan for each of {engine.world_size} ranks",
                _rebuild(manifest),
            )
    return engine


def can_guide(engine_dir: Path) -> bool:
    """Return whether an engine, of either backend, can hold answers to a grammar."""
    return not (engine_dir / ENGINE_FOLDER).is_dir() or (engine_dir / TOKENIZER_INFO).is_file()


def check_release(version: str, manifest: EngineManifest) -> None:
    """Refuse the engine of a release whose tensors are not those of the contract, or are not known.

    Raises:
        ConfigError: The release is older than the contract's names, or not in the table of versions.
    """
    if get_release(version) is not None:
        return
    known = ", ".join(row.version for row in TRTLLM_RELEASES)
    hint = f"build it again with one of {known}: trtb build --model {manifest.checkpoint.name}"
    told = f"{manifest.reference}: built with TensorRT-LLM {version}"
    try:
        names = [(change.name, tensor_name_in(version, change.name)) for change in TENSOR_CHANGES]
        is_old = Version(version) < Version("1.0")
    except InvalidVersion as exc:
        raise ConfigError(f"{told}, which is no version; expected one of {known}", hint) from exc
    renamed = [f"{name} is called {old}" for name, old in names if old not in (name, None)]
    if renamed:
        raise ConfigError(f"{told}, where {' and '.join(renamed)}; trtb speaks the names of 1.x", hint)
    if is_old:
        raise ConfigError(f"{told}, before compiled engines were served as in 1.x", hint)
    raise ConfigError(f"{told}; expected one of {known}: of others it is not known what they declare", hint)


def _parse(config: dict[str, Any], engine_dir: Path) -> TrtllmEngine:
    built = config["build_config"]
    plugins = built["plugin_config"]
    return TrtllmEngine(
        version=str(config["version"]),
        world_size=int(config["pretrained_config"]["mapping"]["world_size"]),
        max_seq_len=int(built["max_seq_len"]),
        max_batch_size=int(built["max_batch_size"]),
        max_num_tokens=int(built["max_num_tokens"]),
        max_beam_width=int(built["max_beam_width"]),
        tokens_per_block=int(plugins["tokens_per_block"]),
        is_paged=_is_paged(built) and bool(plugins["remove_input_padding"]),
        has_paged_context=bool(plugins["use_paged_context_fmha"]),
        can_stream_weights=bool(built.get("weight_streaming")),
        has_lora=bool(plugins.get("lora_plugin")),
        drafting_mode=_drafting_mode(built),
        has_tokenizer_info=(engine_dir / TOKENIZER_INFO).is_file(),
    )


def _is_paged(built: dict[str, Any]) -> bool:
    return str(built["kv_cache_type"]).rpartition(".")[2].lower() == "paged"


def _drafting_mode(built: dict[str, Any]) -> str | None:
    return _DRAFTING.get(int(built.get("speculative_decoding_mode") or 0))


def _rebuild(manifest: EngineManifest) -> str:
    return f"trtb engines verify {manifest.reference}"
