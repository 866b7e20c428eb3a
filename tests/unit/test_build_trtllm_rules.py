"""Which options of trtllm-build go together, and which trtb chooses."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from trtb.build.errors import ConfigError
from trtb.build.trtllm.trtllm_options import render_argv
from trtb.build.trtllm.trtllm_rules import CompileTarget, recommend, resolve_options

GOLDEN = Path(__file__).parents[1] / "golden" / "trtllm_build"
LLAMA = CompileTarget(
    quant="fp8", kv_cache_dtype="fp8", architecture="LlamaForCausalLM", max_seq_len=8192, sm=90
)


def target(**changes: Any) -> CompileTarget:
    return dataclasses.replace(LLAMA, **changes)


BF16 = target(quant="bf16", kv_cache_dtype="bf16")
INT4 = target(quant="int4_awq", kv_cache_dtype="bf16")
TP4 = target(tp_size=4, num_gpus=4)


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("llama-3.1-8b-fp8", LLAMA),
        ("llama-3.1-8b-int4_awq", INT4),
        ("llama-3.1-70b-fp8-tp4", TP4),
        ("smollm2-135m-bf16", target(quant="bf16", kv_cache_dtype="bf16", max_seq_len=2048)),
    ],
)
def test_the_arguments_are_the_golden_ones(name: str, wanted: CompileTarget) -> None:
    options = resolve_options(wanted, {}).options
    argv = render_argv(options, PurePosixPath("CHECKPOINT"), PurePosixPath("ENGINE"))
    text = "".join(f"{flag} {value}\n" for flag, value in zip(argv[::2], argv[1::2], strict=True))
    golden = GOLDEN / f"{name}.txt"
    if os.environ.get("TRTB_UPDATE_GOLDEN"):
        golden.write_text(text)
    assert text == golden.read_text()


@pytest.mark.parametrize("wanted", [LLAMA, BF16, INT4, TP4, target(quant="nvfp4", sm=100)])
def test_each_choice_has_a_reason_and_the_choices_pass_their_own_check(wanted: CompileTarget) -> None:
    resolved = resolve_options(wanted, {})
    assert set(resolved.reasons) == set(recommend(wanted))
    assert all(resolved.reasons.values())
    assert resolved.warnings == ()


def test_a_persons_option_wins_and_loses_its_reason() -> None:
    resolved = resolve_options(LLAMA, {"multiple_profiles": "disable"}, max_batch_size=64)
    assert not resolved.options.multiple_profiles
    assert resolved.options.max_batch_size == 64
    assert {"multiple_profiles", "max_batch_size"}.isdisjoint(resolved.reasons)


def test_a_small_engine_gets_no_more_tokens_than_it_can_hold() -> None:
    small = resolve_options(target(max_seq_len=128), {}, max_batch_size=4).options
    assert small.max_num_tokens == 512


@pytest.mark.parametrize("kv_cache_dtype", ["fp8", "int8"])
def test_a_kv_cache_that_rules_out_reuse_is_built_without_it_and_says_so(kv_cache_dtype: str) -> None:
    resolved = resolve_options(target(quant="int4_awq", kv_cache_dtype=kv_cache_dtype, max_seq_len=16384), {})
    assert not resolved.options.use_paged_context_fmha
    assert resolved.options.max_num_tokens == 16384
    assert "no KV reuse" in resolved.warnings[0]


def test_fp8_weights_without_an_fp8_kv_cache_keep_reuse_and_lose_fp8_attention() -> None:
    options = resolve_options(target(kv_cache_dtype="bf16"), {}).options
    assert (options.use_paged_context_fmha, options.use_fp8_context_fmha) == (True, False)


REFUSED = [
    (BF16, {"remove_input_padding": "disable"}, "remove_input_padding: disable; in-flight batching"),
    (BF16, {"kv_cache_type": "continuous"}, "kv_cache_type: continuous; in-flight batching"),
    (BF16, {"gpt_attention_plugin": "disable"}, "gpt_attention_plugin: disable; in-flight batching"),
    (BF16, {"tokens_per_block": 48}, "tokens_per_block: 48; expected a power of two: 32 or 64"),
    (
        BF16,
        {"opt_num_tokens": 512, "multiple_profiles": "enable"},
        "opt_num_tokens: 512; multiple_profiles covers",
    ),
    (BF16, {"opt_num_tokens": 9000}, "opt_num_tokens: 9000; at most max_num_tokens, 8192"),
    (BF16, {"tokens_per_block": 16384}, "max_num_tokens: 8192; at least tokens_per_block, 16384"),
    (BF16, {"context_fmha": "disable"}, "use_paged_context_fmha: enable; needs context_fmha enable"),
    (BF16, {"use_fp8_context_fmha": "enable"}, "use_fp8_context_fmha: enable; needs --quant fp8, nvfp4"),
    (
        target(sm=86),
        {"use_fp8_context_fmha": "enable", "use_paged_context_fmha": "disable"},
        "use_fp8_context_fmha: enable; needs SM 89 or later, and this GPU is SM 86",
    ),
    (
        target(kv_cache_dtype="bf16"),
        {"use_fp8_context_fmha": "enable"},
        "use_fp8_context_fmha: enable; with use_paged_context_fmha it needs --kv-cache-dtype fp8",
    ),
    (
        LLAMA,
        {"use_fp8_context_fmha": "disable"},
        "use_fp8_context_fmha: disable; use_paged_context_fmha with",
    ),
    (
        target(quant="int4_awq"),
        {"use_paged_context_fmha": "enable"},
        "use_paged_context_fmha: enable; not with int4_awq weights and a fp8 KV cache",
    ),
    (BF16, {"gemm_plugin": "fp8"}, "gemm_plugin: fp8; needs --quant fp8; auto suits bf16"),
    (BF16, {"weight_streaming": True}, "weight_streaming: enable; needs gemm_plugin=disable"),
    (BF16, {"gemm_swiglu_plugin": "fp8"}, "gemm_swiglu_plugin: fp8; needs --quant fp8"),
    (target(sm=89), {"gemm_swiglu_plugin": "fp8"}, "gemm_swiglu_plugin: fp8; for Hopper (SM 90) only"),
    (target(sm=100), {"low_latency_gemm_plugin": "fp8"}, "no such kernel for SM 100"),
    (
        LLAMA,
        {"low_latency_gemm_swiglu_plugin": "fp8", "use_fused_mlp": "disable"},
        "low_latency_gemm_swiglu_plugin: fp8; needs use_fused_mlp enable",
    ),
    (LLAMA, {"fp8_rowwise_gemm_plugin": "auto"}, "fp8_rowwise_gemm_plugin: auto; for weights scaled by rows"),
    (LLAMA, {"fuse_fp4_quant": "enable"}, "fuse_fp4_quant: enable; needs --quant nvfp4"),
    (LLAMA, {"norm_quant_fusion": "enable"}, "norm_quant_fusion: enable; for a Llama with --quant nvfp4"),
    (LLAMA, {"reduce_fusion": "enable"}, "reduce_fusion: enable; it joins GPUs: needs --tp-size"),
    (
        target(tp_size=2, architecture="QWenForCausalLM"),
        {"reduce_fusion": "enable"},
        "reduce_fusion: enable; not for QWenForCausalLM",
    ),
    (TP4, {"reduce_fusion": "disable", "user_buffer": "enable"}, "user_buffer: enable; needs reduce_fusion"),
    (
        target(quant="bf16", kv_cache_dtype="bf16", tp_size=2),
        {"user_buffer": "enable"},
        "user_buffer: enable; for a Llama with --quant fp8 only",
    ),
    (BF16, {"gemm_allreduce_plugin": "bfloat16"}, "gemm_allreduce_plugin: bfloat16; it joins GPUs"),
    (BF16, {"pp_reduce_scatter": "enable"}, "pp_reduce_scatter: enable; for Mixtral only"),
    (BF16, {"workers": 2}, "workers: 2; at most one for each rank: 1"),
    (target(tp_size=4, num_gpus=2), {"workers": 4}, "workers: 4; at most one for each GPU here: 2"),
    (BF16, {"lora_dir": "adapter"}, "lora_dir: adapter; needs lora_plugin=auto"),
    (BF16, {"lora_plugin": "auto"}, "lora_plugin: auto; needs lora_dir or lora_target_modules"),
    (BF16, {"speculative_decoding_mode": "eagle"}, "speculative_decoding_mode: eagle; needs a checkpoint"),
    (BF16, {"max_draft_len": 4}, "max_draft_len: 4; needs speculative_decoding_mode"),
    (
        BF16,
        {"speculative_decoding_mode": "lookahead_decoding"},
        "speculative_decoding_mode: lookahead_decoding; needs max_draft_len",
    ),
    (
        BF16,
        {
            "speculative_decoding_mode": "draft_tokens_external",
            "max_draft_len": 4,
            "gather_context_logits": True,
        },
        "gather_context_logits: enable; not together with drafts",
    ),
]


@pytest.mark.parametrize(("wanted", "given", "message"), REFUSED, ids=lambda value: str(value)[:60])
def test_options_that_do_not_go_together_are_refused_with_what_would_work(
    wanted: CompileTarget, given: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match="trtllm option") as caught:
        resolve_options(wanted, given)
    assert message in caught.value.message


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"max_num_tokens": 40960, "max_batch_size": 4}, "max_num_tokens: 40960; at most max_seq_len x"),
        ({"max_num_tokens": 16}, "max_num_tokens: 16; at least tokens_per_block, 32"),
    ],
)
def test_lengths_that_the_compiler_would_change_are_refused(limits: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve_options(LLAMA, {}, **limits)
    assert message in caught.value.message


def test_without_chunks_a_step_must_hold_the_longest_prompt() -> None:
    with pytest.raises(ConfigError, match="a prompt is computed in one step: set --max-num-tokens to 8192"):
        resolve_options(BF16, {"use_paged_context_fmha": "disable"}, max_num_tokens=4096)
    assert resolve_options(BF16, {"use_paged_context_fmha": "disable"}).options.max_num_tokens == 8192


@pytest.mark.parametrize(
    ("wanted", "given", "warning"),
    [
        (LLAMA, {"gemm_plugin": "auto"}, "gemm_plugin auto: disable suits fp8 better"),
        (BF16, {"gemm_plugin": "disable"}, "gemm_plugin disable: auto suits bf16 better"),
        (BF16, {"max_beam_width": 4}, "no request of trtb uses beams"),
        (BF16, {"fast_build": True}, "computes more slowly"),
        (
            BF16,
            {"lora_plugin": "auto", "lora_target_modules": "attn_q"},
            "lora_plugin: trtb sends no adapters",
        ),
        (
            BF16,
            {"speculative_decoding_mode": "lookahead_decoding", "max_draft_len": 3},
            "trtb sends no drafts",
        ),
    ],
)
def test_what_is_possible_and_seldom_wise_is_said(
    wanted: CompileTarget, given: dict[str, Any], warning: str
) -> None:
    assert any(warning in each for each in resolve_options(wanted, given).warnings)


def test_more_tokens_than_help_are_said() -> None:
    assert "more than 16384" in resolve_options(LLAMA, {}, max_num_tokens=20000).warnings[0]


def test_nvfp4_takes_its_own_kernels_without_a_word() -> None:
    wanted = target(quant="nvfp4", kv_cache_dtype="fp8", sm=100)
    assert resolve_options(wanted, {}).options.gemm_plugin is None
    assert resolve_options(wanted, {"gemm_plugin": "nvfp4"}).warnings == ()
