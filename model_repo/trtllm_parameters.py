"""The parameters of TensorRT-LLM's C++ backend as a typed record, read from and written as model parameters.

The backend reads each by name as text. A number that it cannot read, or a word that it does not know, is a
warning in its log and then its own default, so every value is checked here. Names are NVIDIA's own.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, get_args, get_origin

from pydantic import Field, ValidationError
from pydantic.fields import FieldInfo

from trtb.build.errors import ConfigError
from trtb.build.manifest import Record

PREFIX: Final = "parameter"
_MAX_INT32 = 2**31 - 1
_MAX_INT64 = 2**63 - 1
_SWITCH = {"true": True, "1": True, "false": False, "0": False}

Positive = Annotated[int, Field(ge=1, le=_MAX_INT32)]
Natural = Annotated[int, Field(ge=0, le=_MAX_INT32)]
Bytes = Annotated[int, Field(ge=0, le=_MAX_INT64)]
Fraction = Annotated[float, Field(gt=0, lt=1)]  # the executor refuses both ends
Group = Annotated[tuple[Natural, ...], Field(min_length=1)]
Path = Annotated[str, Field(min_length=1)]


@dataclass(frozen=True, slots=True)
class Parameter:
    """What a parameter means, and how a value of several numbers is written."""

    meaning: str
    form: Literal["plain", "groups", "tree"] = "plain"  # "0,1;2,3", or "{0}, {0, 1}"


class TrtllmDeployConfig(Record):
    """How TensorRT-LLM serves an engine; None and () leave a parameter out, which is the backend's default.

    Of the two switches that the engine must be built for, None is: on where it is.
    """

    gpt_model_type: Annotated[
        Literal["inflight_fused_batching", "inflight_batching"], Parameter("how requests are batched")
    ] = "inflight_fused_batching"
    max_beam_width: Annotated[Positive, Parameter("beams of one request, at the most")] = 1
    batch_scheduler_policy: Annotated[
        Literal["guaranteed_no_evict", "max_utilization"],
        Parameter("whether a request starts only when all its blocks are sure, or may be paused and redone"),
    ] = "guaranteed_no_evict"
    decoding_mode: Annotated[
        Literal["top_k", "top_p", "top_k_top_p", "beam_search", "medusa", "redrafter", "lookahead", "eagle"]
        | None,
        Parameter("how tokens are chosen; default top_k_top_p, or beam_search with several beams"),
    ] = None
    exclude_input_in_output: Annotated[bool, Parameter("answers without their prompts, unless asked")] = True
    normalize_log_probs: Annotated[
        bool | None, Parameter("log probabilities of beams by length; default true")
    ] = None

    kv_cache_free_gpu_mem_fraction: Annotated[
        Fraction, Parameter("KV cache as a share of the memory that is free after the engine has loaded")
    ] = 0.9
    max_tokens_in_paged_kv_cache: Annotated[
        Positive | None, Parameter("KV cache in tokens, at the most; the smaller of the two counts")
    ] = None
    enable_kv_cache_reuse: Annotated[
        bool | None, Parameter("shared prefixes are computed once; on where the engine can")
    ] = None
    kv_cache_host_memory_bytes: Annotated[
        Bytes | None, Parameter("host memory for blocks that the GPU has no room for; default none")
    ] = None
    kv_cache_onboard_blocks: Annotated[
        bool | None, Parameter("blocks on the host are copied back before use; default true")
    ] = None
    enable_chunked_context: Annotated[
        bool | None, Parameter("prompts over max_num_tokens come in pieces; on where the engine can")
    ] = None
    max_attention_window_size: Annotated[
        tuple[Positive, ...], Parameter("tokens attended to, one for all layers or a pattern of several")
    ] = ()
    sink_token_length: Annotated[
        Positive | None, Parameter("first tokens that stay in the attention window")
    ] = None

    gpu_device_ids: Annotated[
        tuple[Group, ...], Parameter("GPUs of each instance, one group for each", "groups")
    ] = ()
    participant_ids: Annotated[
        tuple[Group, ...], Parameter("MPI ranks of each instance, orchestrator mode", "groups")
    ] = ()
    num_nodes: Annotated[Positive | None, Parameter("machines of one engine; default 1")] = None
    executor_worker_path: Annotated[Path | None, Parameter("the worker program, orchestrator mode")] = None

    cancellation_check_period_ms: Annotated[
        Positive | None, Parameter("time until a cancel is seen, at the most; default 100")
    ] = None
    stats_check_period_ms: Annotated[
        Positive | None, Parameter("time between two readings of the metrics; default 100")
    ] = None
    recv_poll_period_ms: Annotated[
        Natural | None, Parameter("time between two looks for messages, orchestrator mode; default 0")
    ] = None
    iter_stats_max_iterations: Annotated[
        Natural | None, Parameter("steps whose figures are kept; default 1000")
    ] = None
    request_stats_max_iterations: Annotated[
        Natural | None, Parameter("steps whose requests' figures are kept; default 0")
    ] = None

    gpu_weights_percent: Annotated[
        float | None, Field(ge=0, le=1), Parameter("share of the weights on the GPU, 0 to 1; default 1")
    ] = None
    enable_context_fmha_fp32_acc: Annotated[
        bool | None, Parameter("attention over prompts sums in FP32; default false")
    ] = None
    multi_block_mode: Annotated[
        bool | None, Parameter("long sequences use several blocks of a GPU; default true")
    ] = None
    cuda_graph_mode: Annotated[bool | None, Parameter("steps are replayed; default false")] = None
    cuda_graph_cache_size: Annotated[
        Natural | None, Parameter("graphs that are kept for that; default 0")
    ] = None

    lora_cache_optimal_adapter_size: Annotated[
        Positive | None, Parameter("rank that the adapter cache is laid out for; default 8")
    ] = None
    lora_cache_max_adapter_size: Annotated[
        Positive | None, Parameter("rank of an adapter, at the most; default 64")
    ] = None
    lora_cache_gpu_memory_fraction: Annotated[
        Fraction | None, Parameter("adapter cache as a share of the GPU's memory; default 0.05")
    ] = None
    lora_cache_host_memory_bytes: Annotated[
        Bytes | None, Parameter("adapter cache in host memory; default 1 GiB")
    ] = None
    lora_prefetch_dir: Annotated[Path | None, Parameter("folder of adapters to load at the start")] = None

    lookahead_window_size: Annotated[Positive | None, Parameter("lookahead decoding: window")] = None
    lookahead_ngram_size: Annotated[Positive | None, Parameter("lookahead decoding: n-gram")] = None
    lookahead_verification_set_size: Annotated[
        Natural | None, Parameter("lookahead decoding: n-grams that are verified")
    ] = None
    medusa_choices: Annotated[tuple[Group, ...], Parameter("tree of Medusa's drafts", "tree")] = ()
    eagle_choices: Annotated[tuple[Group, ...], Parameter("tree of EAGLE's drafts", "tree")] = ()
    speculative_decoding_fast_logits: Annotated[
        bool | None, Parameter("drafts' logits go from GPU to GPU, orchestrator mode; default false")
    ] = None

    guided_decoding_backend: Annotated[
        Literal["auto", "xgrammar", "off"], Parameter("what holds answers to a grammar; auto: where it can")
    ] = "auto"


# Said of a name that the template knows, and that is not a person's to set.
REFUSED: Final[Mapping[str, str]] = {
    "gpt_model_path": "it is the engine's own folder",
    "encoder_model_path": "trtb serves decoders only",
    "cross_kv_cache_fraction": "trtb serves decoders only",
    "tokenizer_dir": "the C++ backend does not use it",
    "xgrammar_tokenizer_info_path": "it is the engine's own; use guided_decoding_backend",
    "enable_trt_overlap": "TensorRT-LLM ignores it",
    "worker_path": "use executor_worker_path",
    "FORCE_CPU_ONLY_INPUT_TENSORS": "trtb sets it",
    "max_queue_size": "use --max-queue-size",
}


def parse_parameters(given: Mapping[str, str]) -> TrtllmDeployConfig:
    """Return the record of what a person typed, by NVIDIA's names.

    >>> parse_parameters({"gpu_device_ids": "0,1;2,3"}).gpu_device_ids
    ((0, 1), (2, 3))

    Raises:
        ConfigError: A name is unknown or not for a person to set, or a value is not one of its parameter's.
    """
    fields = TrtllmDeployConfig.model_fields
    values: dict[str, Any] = {}
    for name, text in given.items():
        if name in REFUSED:
            raise ConfigError(f"{PREFIX} {name}: not an option of a server", REFUSED[name])
        if name not in fields:
            close = difflib.get_close_matches(name, [*fields, *REFUSED], n=1)
            nearest = f"did you mean {close[0]}?" if close else f"known: {', '.join(fields)}"
            raise ConfigError(f"{PREFIX} {name}: TensorRT-LLM's backend has no such parameter", nearest)
        values[name] = _read(name, text.strip(), fields[name])
    try:
        return TrtllmDeployConfig(**values)
    except ValidationError as exc:
        first = exc.errors(include_url=False)[0]
        name = str(first["loc"][0])
        problem = first["msg"].removeprefix("Input should be ")
        raise ConfigError(f"{PREFIX} {name}: {given[name]!r}; expected {problem}") from exc


def parse_pairs(pairs: Iterable[str]) -> dict[str, str]:
    """Return the names and texts of NAME=VALUE pairs.

    >>> parse_pairs(["gpu_device_ids=0,1;2,3"])
    {'gpu_device_ids': '0,1;2,3'}

    Raises:
        ConfigError: A pair is none, or a name stands twice.
    """
    given: dict[str, str] = {}
    for pair in pairs:
        name, is_pair, text = pair.partition("=")
        if not is_pair:
            raise ConfigError(f"{PREFIX} {pair!r}; expected NAME=VALUE, as in enable_kv_cache_reuse=false")
        if name.strip() in given:
            raise ConfigError(f"{PREFIX} {name.strip()}: given twice; expected one value")
        given[name.strip()] = text.strip()
    return given


def to_pairs(given: Mapping[str, str | bool | int | float]) -> tuple[str, ...]:
    """Return NAME=VALUE pairs, as a person types them, of plain values.

    >>> to_pairs({"enable_kv_cache_reuse": False, "kv_cache_free_gpu_mem_fraction": 0.5})
    ('enable_kv_cache_reuse=false', 'kv_cache_free_gpu_mem_fraction=0.5')
    """
    return tuple(f"{name}={_write(value, 'plain')}" for name, value in given.items())


def to_parameters(config: TrtllmDeployConfig) -> dict[str, str]:
    """Return the parameters of a record as the backend reads them; what is None or () is left out."""
    texts = {}
    for name, field in TrtllmDeployConfig.model_fields.items():
        value = getattr(config, name)
        if value is not None and value != ():
            texts[name] = _write(value, parameter_of(field).form)
    return texts


def parameter_of(field: FieldInfo) -> Parameter:
    """Return what a field of the record says of itself."""
    return next(each for each in field.metadata if isinstance(each, Parameter))


def allowed_values(field: FieldInfo) -> tuple[str, ...]:
    """Return the words that a parameter takes; empty where it takes numbers or any text."""
    kinds = [field.annotation, *get_args(field.annotation)]
    if bool in kinds:
        return ("true", "false")
    return next((get_args(kind) for kind in kinds if get_origin(kind) is Literal), ())


def _read(name: str, text: str, field: FieldInfo) -> Any:
    kinds = [field.annotation, *get_args(field.annotation)]
    kinds += [each for kind in kinds for each in get_args(kind)]
    form = parameter_of(field).form
    if allowed := allowed_values(field):
        if bool in kinds and text.lower() in _SWITCH:
            return _SWITCH[text.lower()]
        if bool not in kinds and text in allowed:
            return text
        raise ConfigError(f"{PREFIX} {name}: {text!r}; expected {' or '.join(allowed)}")
    try:
        if form == "tree":
            return tuple(_numbers(part.strip(" ,{")) for part in text.split("}")[:-1])
        if form == "groups":
            return tuple(_numbers(part) for part in text.split(";"))
        if get_origin(field.annotation) is tuple:
            return _numbers(text)
        for kind in (int, float):
            if kind in kinds:
                return kind(text)
    except ValueError as exc:
        raise ConfigError(f"{PREFIX} {name}: {text!r}; expected {_expected(form, kinds)}") from exc
    return text


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


def _expected(form: str, kinds: list[Any]) -> str:
    if form == "tree":
        return "groups such as {0}, {0, 1}"
    if form == "groups":
        return "groups such as 0,1;2,3"
    return "a number" if float in kinds else "whole numbers"


def _write(value: Any, form: str) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if form == "tree":
        return ", ".join("{" + ", ".join(map(str, group)) + "}" for group in value)
    if form == "groups":
        return ";".join(",".join(map(str, group)) for group in value)
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return repr(value) if isinstance(value, float) else str(value)
