"""What the rules accept is built as it was asked for: the compiler changes nothing, and refuses none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fakes import trtllm_build
from fakes.trtllm_zeros import make_config
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from trtb.build.errors import ConfigError
from trtb.build.trtllm.trtllm_engine import EngineFolder, verify_engine
from trtb.build.trtllm.trtllm_options import REFUSED, TrtllmOptions, allowed_values, given_text, render_argv
from trtb.build.trtllm.trtllm_rules import CompileTarget, ResolvedOptions, resolve_options

ALGOS = {
    "bf16": None,
    "fp8": "FP8",
    "int4_awq": "W4A16_AWQ",
    "w4a8_awq": "W4A8_AWQ",
    "int8_sq": "W8A8_SQ_PER_CHANNEL",
    "int8_wo": "W8A16",
    "nvfp4": "NVFP4",
}
KV_ALGOS = {"bf16": None, "fp8": "FP8", "int8": "INT8"}
# no rule depends on these, or the compiler is meant to change them
LEFT_OUT = {
    *("lora_dir", "lora_plugin", "lora_target_modules", "lora_ckpt_source", "dora_plugin", "max_lora_rank"),
    *("max_draft_len", "speculative_decoding_mode", "input_timing_cache", "log_level", "profiling_verbosity"),
    *("logits_dtype", "moe_plugin", "nccl_plugin", "weight_sparsity", "monitor_memory", "fast_build"),
}
NAMES = sorted(TrtllmOptions.model_fields.keys() - LEFT_OUT - REFUSED.keys())


@st.composite
def targets(draw: st.DrawFn) -> CompileTarget:
    tp_size = draw(st.sampled_from([1, 2, 4]))
    return CompileTarget(
        quant=draw(st.sampled_from(sorted(ALGOS))),
        kv_cache_dtype=draw(st.sampled_from(sorted(KV_ALGOS))),
        architecture=draw(st.sampled_from(["LlamaForCausalLM", "Qwen2ForCausalLM"])),
        max_seq_len=draw(st.sampled_from([8192, 512, 64, 40000, 2])),
        tp_size=tp_size,
        sm=draw(st.sampled_from([80, 89, 90])),
        num_gpus=tp_size,
    )


@st.composite
def options(draw: st.DrawFn) -> dict[str, Any]:
    given_options: dict[str, Any] = {}
    for name in draw(st.lists(st.sampled_from(NAMES), max_size=3, unique=True)):
        field = TrtllmOptions.model_fields[name]
        if allowed := allowed_values(field):
            others = [value for value in allowed if value != given_text(field.default)]
            given_options[name] = draw(st.sampled_from(others if draw(st.booleans()) else allowed))
        elif name in {"tokens_per_block", "opt_num_tokens", "workers", "max_beam_width"}:
            given_options[name] = draw(st.sampled_from([1, 2, 16, 48, 64, 4096]))
    return given_options


def compile_in_thought(resolved: ResolvedOptions, wanted: CompileTarget, folder: Path) -> EngineFolder:
    """Take the compiler's decisions and leave out its work."""
    config = make_config(
        quant_algo=ALGOS[wanted.quant],
        kv_cache_quant_algo=KV_ALGOS[wanted.kv_cache_dtype],
        architecture=wanted.architecture,
        tp_size=wanted.tp_size,
        max_position_embeddings=131072,
    )
    args = trtllm_build.make_parser().parse_args(render_argv(resolved.options, Path("c"), Path("e")))
    machine = {**trtllm_build.MACHINE, "gpus": [["GPU", *divmod(wanted.sm or 90, 10)]]}
    trtllm_build.check_plugins(args, machine)
    built = trtllm_build.resolve(args, config, wanted.sm or 90)
    for rank in range(wanted.world_size):
        trtllm_build.save(rank, folder, built, config, machine)
    return verify_engine(folder, resolved.options, machine["tensorrt_llm"], config)


@settings(max_examples=500)
@given(
    wanted=targets(),
    given_options=options(),
    max_batch_size=st.sampled_from([None, 1, 7, 512]),
    max_num_tokens=st.sampled_from([None, 16, 100, 8192, 100000]),
)
def test_the_compiler_builds_exactly_what_the_rules_accept(
    wanted: CompileTarget,
    given_options: dict[str, Any],
    max_batch_size: int | None,
    max_num_tokens: int | None,
    tmp_path_factory: Any,
) -> None:
    limits = {"max_batch_size": max_batch_size, "max_num_tokens": max_num_tokens}
    try:
        resolved = resolve_options(wanted, given_options, **limits)
    except ConfigError:
        assert given_options or max_num_tokens or wanted.max_seq_len * (max_batch_size or 512) < 32
        return
    engine = compile_in_thought(resolved, wanted, tmp_path_factory.mktemp("engine"))
    assert engine.adjustments == []


@given(wanted=targets())
def test_the_choices_of_trtb_are_built_as_they_are_on_every_machine(
    wanted: CompileTarget, tmp_path_factory: Any
) -> None:
    assume(wanted.max_seq_len >= 64)
    resolved = resolve_options(wanted, {})
    assert compile_in_thought(resolved, wanted, tmp_path_factory.mktemp("engine")).adjustments == []
