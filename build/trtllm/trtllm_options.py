"""The options of trtllm-build as a typed record, read from what a person types and rendered as its arguments.

The names, kinds and defaults are those of the releases in `build/compatibility.py`. What an engine depends
on is always written out, default or not, so that another release's default cannot change an engine. What
`trtb` decides itself, and what would make an engine that cannot be served, is refused by name.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import Field, ValidationError
from pydantic.fields import FieldInfo

from trtb.build.errors import ConfigError
from trtb.build.manifest import Record

PREFIX = "trtllm option"


@dataclass(frozen=True, slots=True)
class Flag:
    """How an option is written and what it means."""

    meaning: str
    is_always_written: bool = False
    is_bare: bool = (
        False  # a flag without a value, there or not; other switches are written enable or disable
    )


Dtype = Literal["auto", "float16", "float32", "bfloat16", "int32", "disable"]
Fp8Plugin = Literal["fp8", "disable"]


class TrtllmOptions(Record):
    """One compilation's options; None leaves an option out, which is TensorRT-LLM's own default."""

    max_batch_size: Annotated[int, Flag("requests in one step, at the most", True)] = Field(2048, ge=1)
    max_num_tokens: Annotated[int, Flag("tokens computed in one step, at the most", True)] = Field(8192, ge=1)
    max_input_len: Annotated[
        int, Flag("tokens of a prompt; without effect while padding is removed and context FMHA is on", True)
    ] = Field(1024, ge=1)
    # TensorRT-LLM would take the model's whole context: 131072 for Llama-3.1
    max_seq_len: Annotated[int, Flag("tokens of prompt and answer together", True)] = Field(ge=2)
    max_beam_width: Annotated[int, Flag("beams of one request", True)] = Field(1, ge=1)
    opt_num_tokens: Annotated[int | None, Flag("tokens of the step that is optimised for")] = Field(
        None, ge=1
    )
    kv_cache_type: Annotated[
        Literal["continuous", "paged", "disabled"], Flag("layout of the KV cache", True)
    ] = "paged"
    tokens_per_block: Annotated[int, Flag("tokens of one KV block", True)] = Field(32, ge=1)

    gpt_attention_plugin: Annotated[Dtype, Flag("attention kernels of decoders", True)] = "auto"
    gemm_plugin: Annotated[
        Literal["auto", "float16", "float32", "bfloat16", "int32", "fp8", "nvfp4", "disable"] | None,
        Flag("matrix products through cuBLASLt"),
    ] = None
    gemm_swiglu_plugin: Annotated[Fp8Plugin, Flag("gated MLP as one FP8 kernel, Hopper only")] = "disable"
    low_latency_gemm_plugin: Annotated[Fp8Plugin, Flag("FP8 products for small batches")] = "disable"
    low_latency_gemm_swiglu_plugin: Annotated[
        Fp8Plugin, Flag("gated MLP as one FP8 kernel, for small batches")
    ] = "disable"
    fp8_rowwise_gemm_plugin: Annotated[Dtype, Flag("products of row-wise scaled FP8 weights")] = "disable"
    gemm_allreduce_plugin: Annotated[
        Literal["float16", "bfloat16", "disable"], Flag("product and all-reduce as one kernel")
    ] = "disable"
    nccl_plugin: Annotated[Dtype, Flag("communication between GPUs")] = "auto"
    moe_plugin: Annotated[Dtype, Flag("kernels of mixtures of experts")] = "auto"

    context_fmha: Annotated[bool, Flag("fused attention over prompts", True)] = True
    remove_input_padding: Annotated[bool, Flag("requests packed without padding", True)] = True
    use_paged_context_fmha: Annotated[bool, Flag("KV reuse and prompts in chunks", True)] = True
    use_fp8_context_fmha: Annotated[bool, Flag("prompt attention in FP8", True)] = True
    multiple_profiles: Annotated[bool, Flag("kernels chosen for several sizes of step", True)] = False
    reduce_fusion: Annotated[bool, Flag("all-reduce, residual and norm as one kernel")] = False
    user_buffer: Annotated[bool, Flag("all-reduce without copies")] = False
    norm_quant_fusion: Annotated[bool, Flag("norm and quantisation as one kernel")] = False
    fuse_fp4_quant: Annotated[bool, Flag("attention writes FP4")] = False
    use_fused_mlp: Annotated[bool, Flag("both inputs of a gated MLP as one product")] = True
    pp_reduce_scatter: Annotated[bool, Flag("less traffic between pipeline stages, Mixtral only")] = False

    logits_dtype: Annotated[Literal["float16", "float32"] | None, Flag("type of the logits")] = None
    gather_context_logits: Annotated[bool, Flag("logits of prompts can be returned", is_bare=True)] = False
    max_prompt_embedding_table_size: Annotated[int, Flag("rows of a prompt embedding table")] = Field(0, ge=0)

    weight_streaming: Annotated[bool, Flag("weights may stay in host memory while serving", is_bare=True)] = (
        False
    )
    weight_sparsity: Annotated[bool, Flag("uses 2:4 sparsity of the weights", is_bare=True)] = False
    fast_build: Annotated[bool, Flag("compiles faster, computes slower", is_bare=True)] = False
    monitor_memory: Annotated[bool, Flag("logs memory while compiling", is_bare=True)] = False
    workers: Annotated[int, Flag("ranks compiled at a time, one GPU each", True)] = Field(1, ge=1)
    profiling_verbosity: Annotated[
        Literal["layer_names_only", "detailed", "none"], Flag("what the engine tells profilers of its layers")
    ] = "layer_names_only"
    log_level: Annotated[
        Literal["info", "verbose", "debug"], Flag("how much is logged; less would hide what trtb reads")
    ] = "info"
    input_timing_cache: Annotated[str | None, Flag("kernel timings of an earlier build, a file")] = None

    lora_plugin: Annotated[Dtype, Flag("adapters beside the weights")] = "disable"
    dora_plugin: Annotated[bool, Flag("DoRA adapters")] = False
    lora_dir: Annotated[tuple[str, ...], Flag("folders of adapters, the first gives the sizes")] = ()
    lora_ckpt_source: Annotated[Literal["hf", "nemo"], Flag("format of the adapters")] = "hf"
    lora_target_modules: Annotated[tuple[str, ...], Flag("modules that adapters change")] = ()
    max_lora_rank: Annotated[int, Flag("rank of an adapter, at the most")] = Field(64, ge=1)

    speculative_decoding_mode: Annotated[
        Literal["draft_tokens_external", "lookahead_decoding", "medusa", "explicit_draft_tokens", "eagle"]
        | None,
        Flag("where drafts come from"),
    ] = None
    max_draft_len: Annotated[int, Flag("tokens of a draft, at the most")] = Field(0, ge=0)


# Said of a name that trtllm-build knows, or once knew, and that is no option here.
REFUSED: Mapping[str, str] = {
    "max_batch_size": "use --max-batch-size",
    "max_num_tokens": "use --max-num-tokens",
    "max_seq_len": "use --max-seq-len",
    "max_decoder_seq_len": "use --max-seq-len",
    "max_output_len": "use --max-seq-len, which counts prompt and answer",
    "max_input_len": "it follows from --max-seq-len",
    "tp_size": "use --tp-size: the checkpoint carries the parallelism",
    "pp_size": "use --pp-size: the checkpoint carries the parallelism",
    "checkpoint_dir": "trtb sets it",
    "output_dir": "trtb sets it",
    "output_timing_cache": "trtb sets it, outside the engine",
    "model_config": "the checkpoint's own config.json is used",
    "build_config": "it would replace every other option; give each by its name",
    "model_cls_file": "it would run code that is not the toolchain's",
    "model_cls_name": "it would run code that is not the toolchain's",
    "paged_kv_cache": "use kv_cache_type",
    "max_multimodal_len": "use max_prompt_embedding_table_size",
    "max_encoder_input_len": "trtb serves decoders only",
    "bert_attention_plugin": "trtb serves decoders only",
    "bert_context_fmha_fp32_acc": "trtb serves decoders only",
    "mamba_conv1d_plugin": "trtb serves transformers only",
    "paged_state": "trtb serves transformers only",
    "strip_plan": "an engine without weights cannot be served",
    "dry_run": "use trtb build --dry-run",
    "visualize_network": "it makes no engine",
    "enable_debug_output": "its extra outputs are not served",
    "gather_generation_logits": "it is a choice of each request since TensorRT-LLM 0.20",
    "gather_all_token_logits": "use gather_context_logits",
    "streamingllm": "TensorRT-LLM no longer supports it",
    "enable_xqa": "TensorRT-LLM decides it since 0.16",
    "auto_parallel": "TensorRT-LLM dropped it with 1.0; use --tp-size and --pp-size",
    "cluster_key": "TensorRT-LLM dropped it with 1.0",
    "use_custom_all_reduce": "TensorRT-LLM decides it",
}
_SWITCH = {"enable": True, "true": True, "on": True, "disable": False, "false": False, "off": False}


def parse_options(given: Mapping[str, str | int | bool]) -> dict[str, Any]:
    """Return a person's options with the types of `TrtllmOptions`; only those that were given.

    >>> parse_options({"reduce-fusion": "enable", "workers": "2"})
    {'reduce_fusion': True, 'workers': 2}

    Raises:
        ConfigError: A name is unknown or not for a person to set, or a value is not one of its option's.
    """
    parsed: dict[str, Any] = {}
    for typed, value in given.items():
        name = typed.strip().lstrip("-").replace("-", "_")
        field = _find(name, typed)
        if name in parsed:
            raise ConfigError(f"{PREFIX} {name}: given twice")
        parsed[name] = _convert(name, value, field)
    probe = {**parsed, "max_seq_len": 2}
    try:
        TrtllmOptions(**probe)
    except ValidationError as exc:
        first = exc.errors(include_url=False)[0]
        name = str(first["loc"][0])
        raise ConfigError(f"{PREFIX} {name}: {given_text(parsed[name])}; {first['msg']}") from exc
    return parsed


def render_argv(options: TrtllmOptions, checkpoint_dir: PurePath, output_dir: PurePath) -> list[str]:
    """Return the arguments of trtllm-build, the program's own name left out."""
    argv = ["--checkpoint_dir", str(checkpoint_dir), "--output_dir", str(output_dir)]
    for name, field in TrtllmOptions.model_fields.items():
        value = getattr(options, name)
        flag = flag_of(field)
        if value is None or not (flag.is_always_written or value != field.default):
            continue
        if flag.is_bare:
            argv.append(f"--{name}")
        elif isinstance(value, tuple):
            argv += [f"--{name}", *value]
        else:
            argv += [f"--{name}", given_text(value)]
    return argv


def flag_of(field: FieldInfo) -> Flag:
    """Return how an option is written."""
    return next(each for each in field.metadata if isinstance(each, Flag))


def allowed_values(field: FieldInfo) -> tuple[str, ...]:
    """Return the values an option takes, as they are typed; empty where any number or text will do."""
    if field.annotation is bool:
        return ("enable", "disable")
    kinds = [field.annotation, *get_args(field.annotation)]
    return next((get_args(kind) for kind in kinds if get_origin(kind) is Literal), ())


def given_text(value: object) -> str:
    """Return a value as a person types it."""
    if isinstance(value, bool):
        return "enable" if value else "disable"
    return ",".join(value) if isinstance(value, tuple) else str(value)


def _find(name: str, typed: str) -> FieldInfo:
    if name in REFUSED:
        raise ConfigError(f"{PREFIX} {name}: not an option of a build", REFUSED[name])
    fields = TrtllmOptions.model_fields
    if name not in fields:
        close = difflib.get_close_matches(name, [*fields, *REFUSED], n=1)
        nearest = f"did you mean {close[0]}?" if close else f"known: {', '.join(sorted(fields))}"
        raise ConfigError(f"{PREFIX} {typed!r}: trtllm-build has no such option", nearest)
    return fields[name]


def _convert(name: str, value: str | int | bool, field: FieldInfo) -> Any:
    text = given_text(value).strip()
    if field.annotation is bool:
        if text.lower() not in _SWITCH:
            raise ConfigError(f"{PREFIX} {name}: {text!r}; expected enable or disable")
        return _SWITCH[text.lower()]
    if allowed := allowed_values(field):
        if text not in allowed:
            raise ConfigError(f"{PREFIX} {name}: {text!r}; expected {' or '.join(allowed)}")
        return text
    if get_origin(field.annotation) is tuple:
        return tuple(part for part in text.split(",") if part)
    if int in (field.annotation, *get_args(field.annotation)):
        if not text.lstrip("+-").isdecimal():
            raise ConfigError(f"{PREFIX} {name}: {text!r}; expected a whole number")
        return int(text)
    return text
