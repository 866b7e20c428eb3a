"""Which options of trtllm-build go together, with what checkpoint and on what GPU, and which trtb chooses.

Where TensorRT-LLM would silently switch an option off or change a length, a person's wish is refused here
instead, before hours of work: an engine is what was asked for, or there is none. The rules are those of
TensorRT-LLM 1.0 to 1.2; the reasons name what was measured by its makers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from trtb.build.errors import ConfigError
from trtb.build.trtllm.trtllm_options import PREFIX, TrtllmOptions, given_text, parse_options

MAX_BATCH_SIZE = 512
MAX_NUM_TOKENS = 8192
MAX_NUM_TOKENS_OF_USE = 16384

UNQUANTISED = frozenset({"bf16", "f16"})
FP8_ATTENTION = frozenset({"fp8", "w4a8_awq", "nvfp4"})  # whose attention can compute in FP8
REDUCE_FUSION_ARCHITECTURES = frozenset({"LlamaForCausalLM", "Gemma2ForCausalLM", "MedusaForCausalLM"})
# these modes are built into the checkpoint, and no checkpoint of trtb has them
MODES_OF_CHECKPOINT = frozenset({"medusa", "explicit_draft_tokens", "eagle"})


@dataclass(frozen=True, slots=True)
class CompileTarget:
    """What an engine is compiled from and for."""

    quant: str  # "bf16", "f16", "fp8", "int4_awq", ...
    kv_cache_dtype: str  # "bf16", "f16", "fp8" or "int8"
    architecture: str  # as the checkpoint's config.json says: "LlamaForCausalLM"
    max_seq_len: int
    tp_size: int = 1
    pp_size: int = 1
    sm: int | None = None  # 90 for compute capability 9.0; None where no GPU is known yet
    num_gpus: int = 1  # that can compile at a time

    @property
    def world_size(self) -> int:
        """Return the number of ranks."""
        return self.tp_size * self.pp_size


@dataclass(frozen=True, slots=True)
class ResolvedOptions:
    """Every option of a compilation, why trtb chose what it chose, and what a person should know."""

    options: TrtllmOptions
    reasons: Mapping[str, str]  # option -> why, of those that trtb chose
    warnings: tuple[str, ...]


def resolve_options(
    target: CompileTarget,
    given: Mapping[str, str | int | bool],
    *,
    max_batch_size: int | None = None,
    max_num_tokens: int | None = None,
) -> ResolvedOptions:
    """Return a person's options over trtb's own, checked against each other and the target.

    Raises:
        ConfigError: An option is unknown, or does not go with the others or with the target.
    """
    parsed = parse_options(given)
    chosen = recommend(target)
    if parsed.get("use_paged_context_fmha") is False and max_num_tokens is None:
        chosen |= _whole_prompts(target)
    limits = {"max_batch_size": max_batch_size, "max_num_tokens": max_num_tokens}
    wished = {**parsed, **{name: value for name, value in limits.items() if value is not None}}
    if wished.get("opt_num_tokens") is not None and "multiple_profiles" not in wished:
        chosen["multiple_profiles"] = (False, "the size of step to optimise for is given")
    values: dict[str, Any] = {name: value for name, (value, _) in chosen.items()}
    values |= wished
    longest = target.max_seq_len * values["max_batch_size"]
    if max_num_tokens is None and values["max_num_tokens"] > longest:
        values["max_num_tokens"] = longest
    options = TrtllmOptions(**values)
    for name, found, works in _faults(options, target):
        raise ConfigError(f"{PREFIX} {name}: {given_text(found)}; {works}")
    reasons = {name: why for name, (_, why) in chosen.items() if name not in wished}
    return ResolvedOptions(options, reasons, tuple(_warnings(options, target)))


def recommend(target: CompileTarget) -> dict[str, tuple[Any, str]]:
    """Return the options that serve a batch of requests fastest, each with its reason."""
    is_paged = _can_page_context(target)
    chosen: dict[str, tuple[Any, str]] = {
        "max_seq_len": (target.max_seq_len, "the default is the model's whole context"),
        "max_input_len": (target.max_seq_len - 1, "the longest prompt that leaves room for a token"),
        "max_batch_size": (MAX_BATCH_SIZE, "the best of 64, 512 and 2048 (70B, TP 4, H100): +21 % over 2048"),
        "max_num_tokens": (MAX_NUM_TOKENS, "2048 to 16384 differ by 0.5 % (70B, TP 4, H100)"),
        "multiple_profiles": (True, "+19 % (70B, TP 4, H100) for a longer build"),
        "use_paged_context_fmha": (is_paged, "KV reuse and prompts in chunks need it"),
        "gemm_plugin": _gemm_plugin(target.quant),
        "workers": (max(1, min(target.world_size, target.num_gpus)), "one rank for each GPU at a time"),
    }
    uses_fp8 = _can_use_fp8_context_fmha(target, is_paged=is_paged)
    why = "FP8 weights and FP8 KV cache" if uses_fp8 else "needs FP8 weights, an FP8 KV cache and SM 89"
    chosen["use_fp8_context_fmha"] = (uses_fp8, why)
    if not is_paged:
        why = f"TensorRT-LLM has none for {target.quant} weights with a {target.kv_cache_dtype} KV cache"
        chosen["use_paged_context_fmha"] = (False, why)
        chosen |= _whole_prompts(target)
    if target.tp_size > 1 and target.architecture in REDUCE_FUSION_ARCHITECTURES:
        chosen["reduce_fusion"] = (True, "fewer kernels between GPUs: +0.5 % in BF16 (70B, TP 4, H100)")
        if target.quant == "fp8" and target.architecture == "LlamaForCausalLM":
            chosen["user_buffer"] = (True, "with reduce_fusion +13 % in FP8 (70B, TP 4, H100)")
    return chosen


def _whole_prompts(target: CompileTarget) -> dict[str, tuple[Any, str]]:
    length = max(MAX_NUM_TOKENS, target.max_seq_len)
    return {"max_num_tokens": (length, "without paged context FMHA a prompt is computed in one step")}


def _gemm_plugin(quant: str) -> tuple[str | None, str]:
    if quant in UNQUANTISED:
        return "auto", "+9 % for unquantised weights (70B, TP 4, H100)"
    if quant == "nvfp4":
        return None, "TensorRT-LLM takes its NVFP4 kernels by itself"
    return "disable", "TensorRT's own kernels are faster for quantised weights"


def _can_page_context(target: CompileTarget) -> bool:
    # an INT8 KV cache never goes with it; an FP8 one only where attention computes in FP8 too
    if target.kv_cache_dtype == "int8":
        return False
    return target.kv_cache_dtype != "fp8" or _has_fp8_attention(target)


def _has_fp8_attention(target: CompileTarget) -> bool:
    return target.quant in FP8_ATTENTION and (target.sm is None or target.sm >= 89)


def _can_use_fp8_context_fmha(target: CompileTarget, *, is_paged: bool) -> bool:
    return _has_fp8_attention(target) and (target.kv_cache_dtype == "fp8" or not is_paged)


Fault = tuple[str, object, str]  # option, its value, what would work


def _faults(options: TrtllmOptions, target: CompileTarget) -> Iterator[Fault]:
    yield from _serving_faults(options)
    yield from _length_faults(options, target)
    yield from _attention_faults(options, target)
    yield from _kernel_faults(options, target)
    yield from _parallel_faults(options, target)
    yield from _extra_faults(options)


def _serving_faults(options: TrtllmOptions) -> Iterator[Fault]:
    batching = "in-flight batching, which trtb serves with, needs"
    if not options.remove_input_padding:
        yield "remove_input_padding", False, f"{batching} it enabled"
    if options.kv_cache_type != "paged":
        yield "kv_cache_type", options.kv_cache_type, f"{batching} paged"
    if options.gpt_attention_plugin == "disable":
        yield "gpt_attention_plugin", "disable", f"{batching} it: auto"


def _length_faults(options: TrtllmOptions, target: CompileTarget) -> Iterator[Fault]:
    block = options.tokens_per_block
    if block & (block - 1):
        lower = 1 << (block.bit_length() - 1)
        yield "tokens_per_block", block, f"expected a power of two: {lower} or {2 * lower}"
    if options.opt_num_tokens is not None and options.multiple_profiles:
        works = "multiple_profiles covers every size of step; leave one of the two out"
        yield "opt_num_tokens", options.opt_num_tokens, works
    if options.opt_num_tokens is not None and options.opt_num_tokens > options.max_num_tokens:
        works = f"at most max_num_tokens, {options.max_num_tokens}"
        yield "opt_num_tokens", options.opt_num_tokens, works
    if options.max_num_tokens < block:
        works = f"at least tokens_per_block, {block}: raise --max-num-tokens"
        yield "max_num_tokens", options.max_num_tokens, works
    longest = target.max_seq_len * options.max_batch_size
    if options.max_num_tokens > longest:
        works = f"at most max_seq_len x max_batch_size, {longest}: lower --max-num-tokens"
        yield "max_num_tokens", options.max_num_tokens, works
    if not options.use_paged_context_fmha and options.max_num_tokens < target.max_seq_len - 1:
        works = (
            f"without use_paged_context_fmha a prompt is computed in one step: set --max-num-tokens to "
            f"{target.max_seq_len}, or lower --max-seq-len"
        )
        yield "max_num_tokens", options.max_num_tokens, works


def _attention_faults(options: TrtllmOptions, target: CompileTarget) -> Iterator[Fault]:
    if options.use_paged_context_fmha and not options.context_fmha:
        yield "use_paged_context_fmha", True, "needs context_fmha enable"
    if options.use_paged_context_fmha and not _can_page_context(target):
        works = (
            f"not with {target.quant} weights and a {target.kv_cache_dtype} KV cache: choose "
            "--kv-cache-dtype auto, or disable it and go without KV reuse and prompts in chunks"
        )
        yield "use_paged_context_fmha", True, works
    if not options.use_fp8_context_fmha:
        is_needed = options.use_paged_context_fmha and target.kv_cache_dtype == "fp8"
        if is_needed:
            yield (
                "use_fp8_context_fmha",
                False,
                "use_paged_context_fmha with an FP8 KV cache needs it: enable",
            )
        return
    if not options.context_fmha:
        yield "use_fp8_context_fmha", True, "needs context_fmha enable"
    if target.quant not in FP8_ATTENTION:
        yield "use_fp8_context_fmha", True, f"needs --quant {', '.join(sorted(FP8_ATTENTION))}; disable it"
    elif target.sm is not None and target.sm < 89:
        yield (
            "use_fp8_context_fmha",
            True,
            f"needs SM 89 or later, and this GPU is SM {target.sm}; disable it",
        )
    elif options.use_paged_context_fmha and target.kv_cache_dtype != "fp8":
        yield (
            "use_fp8_context_fmha",
            True,
            "with use_paged_context_fmha it needs --kv-cache-dtype fp8; disable it",
        )


def _kernel_faults(options: TrtllmOptions, target: CompileTarget) -> Iterator[Fault]:
    if options.gemm_plugin in {"fp8", "nvfp4"} and target.quant != options.gemm_plugin:
        yield (
            "gemm_plugin",
            options.gemm_plugin,
            f"needs --quant {options.gemm_plugin}; {_gemm_advice(target)}",
        )
    if options.weight_streaming and options.gemm_plugin not in {None, "disable"}:
        yield "weight_streaming", True, "needs gemm_plugin=disable: a plugin's weights stay on the GPU"
    for name in ("gemm_swiglu_plugin", "low_latency_gemm_plugin", "low_latency_gemm_swiglu_plugin"):
        if getattr(options, name) == "disable":
            continue
        if target.quant != "fp8":
            yield name, "fp8", "needs --quant fp8; leave it out"
        if target.sm is not None and 100 <= target.sm < 120:
            yield name, "fp8", f"TensorRT-LLM has no such kernel for SM {target.sm}; leave it out"
        if name.endswith("swiglu_plugin") and not options.use_fused_mlp:
            yield name, "fp8", "needs use_fused_mlp enable"
    if options.gemm_swiglu_plugin != "disable" and target.sm not in {None, 90}:
        yield "gemm_swiglu_plugin", "fp8", f"for Hopper (SM 90) only, and this GPU is SM {target.sm}"
    if options.fp8_rowwise_gemm_plugin != "disable":
        works = "for weights scaled by rows, which no --quant of trtb makes; leave it out"
        yield "fp8_rowwise_gemm_plugin", options.fp8_rowwise_gemm_plugin, works
    if options.fuse_fp4_quant and target.quant != "nvfp4":
        yield "fuse_fp4_quant", True, "needs --quant nvfp4"
    if options.norm_quant_fusion and (
        target.quant != "nvfp4" or target.architecture != "LlamaForCausalLM" or options.reduce_fusion
    ):
        yield "norm_quant_fusion", True, "for a Llama with --quant nvfp4 and without reduce_fusion"


def _gemm_advice(target: CompileTarget) -> str:
    return f"{_gemm_plugin(target.quant)[0] or 'leave it out'} suits {target.quant}"


def _parallel_faults(options: TrtllmOptions, target: CompileTarget) -> Iterator[Fault]:
    if options.reduce_fusion and target.tp_size == 1:
        yield "reduce_fusion", True, "it joins GPUs: needs --tp-size of 2 or more"
    if options.reduce_fusion and target.architecture not in REDUCE_FUSION_ARCHITECTURES:
        yield "reduce_fusion", True, f"not for {target.architecture}; leave it out"
    if options.user_buffer and not options.reduce_fusion:
        yield "user_buffer", True, "needs reduce_fusion=enable"
    if options.user_buffer and (target.quant != "fp8" or target.architecture != "LlamaForCausalLM"):
        yield "user_buffer", True, "for a Llama with --quant fp8 only"
    if options.gemm_allreduce_plugin != "disable" and target.tp_size == 1:
        yield (
            "gemm_allreduce_plugin",
            options.gemm_allreduce_plugin,
            "it joins GPUs: needs --tp-size of 2 or more",
        )
    if options.pp_reduce_scatter and target.architecture != "MixtralForCausalLM":
        yield "pp_reduce_scatter", True, f"for Mixtral only, and this is {target.architecture}"
    if options.workers > target.world_size:
        yield "workers", options.workers, f"at most one for each rank: {target.world_size}"
    if options.workers > max(1, target.num_gpus):
        yield "workers", options.workers, f"at most one for each GPU here: {max(1, target.num_gpus)}"


def _extra_faults(options: TrtllmOptions) -> Iterator[Fault]:
    lora = {"lora_dir": options.lora_dir, "lora_target_modules": options.lora_target_modules}
    if options.lora_plugin == "disable":
        for name, value in {**lora, "dora_plugin": options.dora_plugin}.items():
            if value:
                yield name, value, "needs lora_plugin=auto"
    elif not any(lora.values()):
        yield "lora_plugin", options.lora_plugin, "needs lora_dir or lora_target_modules"
    mode = options.speculative_decoding_mode
    if mode in MODES_OF_CHECKPOINT:
        yield (
            "speculative_decoding_mode",
            mode,
            "needs a checkpoint with draft heads, which trtb does not make",
        )
    if mode is None and options.max_draft_len:
        yield "max_draft_len", options.max_draft_len, "needs speculative_decoding_mode"
    if mode is not None and not options.max_draft_len:
        yield "speculative_decoding_mode", mode, "needs max_draft_len of 1 or more"
    if options.gather_context_logits and options.max_draft_len:
        yield "gather_context_logits", True, "not together with drafts: leave max_draft_len out"


def _warnings(options: TrtllmOptions, target: CompileTarget) -> Iterator[str]:
    if options.max_num_tokens > MAX_NUM_TOKENS_OF_USE:
        yield (
            f"max_num_tokens {options.max_num_tokens}: more than {MAX_NUM_TOKENS_OF_USE} gains nothing and "
            "may exceed what TensorRT can address"
        )
    if not options.use_paged_context_fmha:
        yield "use_paged_context_fmha is off: no KV reuse, and each prompt is computed in one step"
    is_plugin_off = options.gemm_plugin in {None, "disable"} or options.gemm_plugin == target.quant == "nvfp4"
    if is_plugin_off == (target.quant in UNQUANTISED) and not options.weight_streaming:
        yield f"gemm_plugin {options.gemm_plugin or 'disable'}: {_gemm_advice(target)} better"
    if options.max_beam_width > 1:
        yield f"max_beam_width {options.max_beam_width}: no request of trtb uses beams, and they cost memory"
    if options.fast_build:
        yield "fast_build: the engine computes more slowly; for trials, not for long files"
    if options.lora_plugin != "disable":
        yield "lora_plugin: trtb sends no adapters; the engine answers with the weights alone"
    if options.speculative_decoding_mode:
        yield f"speculative_decoding_mode {options.speculative_decoding_mode}: trtb sends no drafts"
