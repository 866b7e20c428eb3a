"""What the parameters of a TensorRT-LLM server demand of each other and of the engine.

The executor checks few of these by itself, and tells of them only when it has loaded the engine: minutes
of waiting, or a setting that is dropped with a warning.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final

from trtb.build.errors import ConfigError
from trtb.model_repo.trtllm_engine import TrtllmEngine
from trtb.model_repo.trtllm_parameters import PREFIX, TrtllmDeployConfig, to_parameters

Fault = tuple[str, str]  # a parameter, and what it would have to be
_LOOKAHEAD: Final = ("lookahead_window_size", "lookahead_ngram_size", "lookahead_verification_set_size")
_LORA: Final = (
    "lora_cache_optimal_adapter_size",
    "lora_cache_max_adapter_size",
    "lora_cache_gpu_memory_fraction",
    "lora_cache_host_memory_bytes",
    "lora_prefetch_dir",
)
_TREES: Final = {"medusa_choices": "medusa", "eagle_choices": "eagle"}
_DRAFTING_MODES: Final = frozenset({"medusa", "redrafter", "lookahead", "eagle"})


def resolve(config: TrtllmDeployConfig, engine: TrtllmEngine) -> TrtllmDeployConfig:
    """Return the config with every choice that was left open made, checked against the engine.

    Raises:
        ConfigError: Parameters contradict each other or the engine; each is named.
    """
    can_guide = engine.has_tokenizer_info
    resolved = config.model_copy(
        update={
            "enable_kv_cache_reuse": _chosen(config.enable_kv_cache_reuse, engine.has_paged_context),
            "enable_chunked_context": _chosen(config.enable_chunked_context, engine.has_paged_context),
            "guided_decoding_backend": ("xgrammar" if can_guide else "off")
            if config.guided_decoding_backend == "auto"
            else config.guided_decoding_backend,
        }
    )
    faults = [fault for rule in _RULES for fault in rule(resolved, engine)]
    if faults:
        texts = to_parameters(resolved)
        lines = [
            f"{PREFIX} {name}: {texts.get(name, 'not set')}; expected {expected}" for name, expected in faults
        ]
        raise ConfigError("\n".join(lines), "leave a parameter out to have its default")
    return resolved


def _chosen(asked: bool | None, default: bool) -> bool:
    return default if asked is None else asked


def _check_kv_cache(config: TrtllmDeployConfig, engine: TrtllmEngine) -> Iterator[Fault]:
    if not engine.is_paged:
        yield (
            "gpt_model_type",
            "an engine with a paged KV cache and packed requests; this one was built otherwise",
        )
    for name in ("enable_kv_cache_reuse", "enable_chunked_context"):
        if getattr(config, name) and not engine.has_paged_context:
            yield name, "false: the engine was built without use_paged_context_fmha"
    if config.kv_cache_host_memory_bytes and not config.enable_kv_cache_reuse:
        yield "kv_cache_host_memory_bytes", "0 without enable_kv_cache_reuse: only shared blocks go there"
    if config.kv_cache_onboard_blocks is not None and not config.kv_cache_host_memory_bytes:
        yield "kv_cache_onboard_blocks", "nothing without kv_cache_host_memory_bytes"
    tokens = config.max_tokens_in_paged_kv_cache
    if tokens is not None and tokens < engine.max_seq_len:
        yield (
            "max_tokens_in_paged_kv_cache",
            f"at least {engine.max_seq_len}: one sequence of the engine's max_seq_len must fit",
        )
    if config.sink_token_length is not None and config.sink_token_length >= engine.max_seq_len:
        yield "sink_token_length", f"less than the engine's max_seq_len, {engine.max_seq_len}"


def _check_devices(config: TrtllmDeployConfig, engine: TrtllmEngine) -> Iterator[Fault]:
    for name in ("gpu_device_ids", "participant_ids"):
        for group in getattr(config, name):
            if len(group) != engine.world_size:
                yield name, f"{engine.world_size} in each group: the engine has so many ranks"
            elif len(set(group)) < len(group):
                yield name, "each at most once in a group"
    groups, ranks = config.gpu_device_ids, config.participant_ids
    if groups and ranks and len(groups) != len(ranks):
        yield "participant_ids", f"{len(groups)} groups, as gpu_device_ids has"
    uses = Counter(device for group in groups for device in set(group))
    shared = sorted(device for device, count in uses.items() if count > 1)
    if shared and config.max_tokens_in_paged_kv_cache is None:
        gpus = ", ".join(map(str, shared))
        yield "max_tokens_in_paged_kv_cache", f"a number: several instances would each fill GPU {gpus}"


def _check_decoding(config: TrtllmDeployConfig, engine: TrtllmEngine) -> Iterator[Fault]:
    mode = config.decoding_mode
    if config.max_beam_width > engine.max_beam_width:
        yield "max_beam_width", f"at most {engine.max_beam_width}, which the engine was built for"
    if mode is not None and (mode == "beam_search") != (config.max_beam_width > 1):
        yield "decoding_mode", "beam_search with max_beam_width over 1, and only then"
    if mode in _DRAFTING_MODES and mode != engine.drafting_mode:
        yield "decoding_mode", f"{engine.drafting_mode or 'no drafts'}, which the engine was built for"
    elif engine.drafting_mode not in (None, mode):
        yield "decoding_mode", f"{engine.drafting_mode}, which the engine was built for"
    for name, needed in _TREES.items():
        if getattr(config, name) and mode != needed:
            yield name, f"nothing without decoding_mode {needed}"
    for name in _LOOKAHEAD:
        if (getattr(config, name) is not None) != (mode == "lookahead"):
            yield name, "a number with decoding_mode lookahead, and only then"


def _check_features(config: TrtllmDeployConfig, engine: TrtllmEngine) -> Iterator[Fault]:
    if config.gpu_weights_percent not in (None, 1.0) and not engine.can_stream_weights:
        yield "gpu_weights_percent", "1: the engine was built without weight_streaming"
    if config.cuda_graph_cache_size and not config.cuda_graph_mode:
        yield "cuda_graph_cache_size", "0 without cuda_graph_mode"
    for name in _LORA:
        if getattr(config, name) is not None and not engine.has_lora:
            yield name, "nothing: the engine was built without lora_plugin"
    if config.guided_decoding_backend == "xgrammar" and not engine.has_tokenizer_info:
        yield "guided_decoding_backend", "off: the engine holds no vocabulary for it"


_RULES: Final[tuple[Callable[[TrtllmDeployConfig, TrtllmEngine], Iterator[Fault]], ...]] = (
    _check_kv_cache,
    _check_devices,
    _check_decoding,
    _check_features,
)
