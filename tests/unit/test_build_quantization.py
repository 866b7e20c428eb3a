"""The table of schemes, and what it refuses of GPUs and KV caches."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import trtb.build.backends
from trtb.build.errors import ConfigError, HardwareError
from trtb.build.quantization import (
    SCHEMES,
    QuantScheme,
    check_compute_capability,
    get_scheme,
    is_calibrated,
    resolve_kv_cache_dtype,
)

TRTLLM = [scheme for scheme in SCHEMES if scheme.backend == "tensorrt_llm"]


def trtllm(quant: str) -> QuantScheme:
    return get_scheme("tensorrt_llm", quant)


def test_no_scheme_stands_twice_and_each_says_what_it_is() -> None:
    assert len({(scheme.backend, scheme.name) for scheme in SCHEMES}) == len(SCHEMES)
    for scheme in SCHEMES:
        assert scheme.summary
        assert 1.0 <= scheme.max_perplexity_ratio < 2.5


@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda scheme: f"{scheme.backend}-{scheme.name}")
def test_group_sizes_are_consistent(scheme: QuantScheme) -> None:
    assert (scheme.group_size is None) == (not scheme.group_sizes)
    assert scheme.group_size is None or scheme.group_size in scheme.group_sizes
    assert set(scheme.kernel_group_sizes) <= set(scheme.group_sizes)
    assert bool(scheme.scale_bytes) == bool(scheme.group_sizes)


@pytest.mark.parametrize("scheme", TRTLLM, ids=lambda scheme: scheme.name)
def test_what_needs_calibration_has_a_configuration_of_modelopt(scheme: QuantScheme) -> None:
    assert scheme.needs_calibration == (scheme.modelopt_config is not None)
    assert (scheme.quant_algo is None) == (scheme.weight_bits == 16)
    assert scheme.embedding_bits == 16


def test_the_worker_that_quantises_has_the_same_table() -> None:
    """The worker runs in another environment and cannot import ours."""
    path = Path(trtb.build.backends.__path__[0], "workers", "modelopt_config.py")
    rows = {
        tuple(argument.value for argument in node.args if isinstance(argument, ast.Constant))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Scheme"
    }
    assert rows == {(scheme.name, scheme.modelopt_config, scheme.quant_algo) for scheme in TRTLLM}


@pytest.mark.parametrize(
    ("quant", "group_size", "expected_mb"),
    [
        ("f16", None, 325.7),
        ("fp8", None, 219.5),
        ("int4_awq", 64, 173.3),
        ("w4a8_awq", 64, 173.4),
        ("int8_sq", None, 220.4),
        ("nvfp4", None, 173.1),
    ],
)
def test_bytes_per_weight_explain_the_sizes_of_real_checkpoints(
    quant: str, group_size: int | None, expected_mb: float
) -> None:
    """Sizes as ModelOpt 0.47 exported SmolLM2 135M; both tables of embeddings stay at 16 bits."""
    quantised, tables = 30 * 3_538_944, 2 * 49152 * 576
    num_bytes = quantised * trtllm(quant).bytes_per_weight(group_size) + 2 * tables
    assert num_bytes / 1e6 == pytest.approx(expected_mb, rel=0.005)


@pytest.mark.parametrize(
    ("quant", "sms"),
    [
        ("bf16", {80, 86, 89, 90, 100, 103, 120, 121}),
        ("f16", {80, 86, 89, 90, 100, 103, 120, 121}),
        ("fp8", {89, 90, 100, 103, 120, 121}),
        ("int8_wo", {80, 86, 89, 90, 120, 121}),
        ("int8_sq", {80, 86, 89, 90, 120, 121}),
        ("int4_awq", {80, 86, 89, 90}),
        ("int4_wo", {80, 86, 89, 90}),
        ("w4a8_awq", {89, 90}),
        ("nvfp4", {100, 103, 120, 121}),
    ],
)
def test_which_gpus_run_a_scheme(quant: str, sms: set[int]) -> None:
    listed = (70, 75, 80, 86, 89, 90, 100, 103, 120, 121)
    scheme = trtllm(quant)
    assert {sm for sm in listed if scheme.sm_fault(sm) is None} == sms
    for sm in listed:
        if sm in sms:
            check_compute_capability(scheme, sm)
        else:
            assert sm in scheme.unsafe_sms or sm < (scheme.min_sm or 0)
            with pytest.raises(HardwareError, match=f"{quant} on sm_{sm}: ") as caught:
                check_compute_capability(scheme, sm)
            if caught.value.hint.startswith("use --quant "):
                check_compute_capability(trtllm(caught.value.hint.removeprefix("use --quant ")), sm)
            else:
                assert sm < 80


@pytest.mark.parametrize(
    ("quant", "sm", "nearest"),
    [
        ("int4_awq", 120, "nvfp4"),
        ("int4_awq", 100, "nvfp4"),
        ("fp8", 80, "int8_wo"),
        ("nvfp4", 90, "int4_awq"),
    ],
)
def test_the_nearest_scheme_that_the_gpu_runs_is_named(quant: str, sm: int, nearest: str) -> None:
    with pytest.raises(HardwareError) as caught:
        check_compute_capability(trtllm(quant), sm)
    assert caught.value.hint == f"use --quant {nearest}"


def test_an_old_gpu_is_sent_to_the_other_backend() -> None:
    with pytest.raises(HardwareError, match="expected sm_80 or later") as caught:
        check_compute_capability(trtllm("bf16"), 75)
    assert caught.value.hint == "use another GPU, or --backend openvino"


def test_what_nobody_has_shown_is_remarked_and_not_refused() -> None:
    assert check_compute_capability(trtllm("int4_awq"), 90) == ()
    (remark,) = check_compute_capability(trtllm("int8_wo"), 120)
    assert remark.startswith("int8_wo on sm_120 is unverified: ")
    (remark,) = check_compute_capability(trtllm("bf16"), 87)
    assert "does not list this compute capability" in remark


@pytest.mark.parametrize(
    ("kv_cache_dtype", "sm", "is_refused"),
    [("fp8", 86, True), ("fp8", 89, False), ("int8", 86, False), ("int8", 103, True), ("auto", 80, False)],
)
def test_a_kv_cache_needs_a_gpu_for_it(kv_cache_dtype: str, sm: int, is_refused: bool) -> None:
    scheme = trtllm("bf16")
    if not is_refused:
        assert check_compute_capability(scheme, sm, kv_cache_dtype) == ()
        return
    with pytest.raises(HardwareError, match=f"kv_cache_dtype {kv_cache_dtype} on sm_{sm}") as caught:
        check_compute_capability(scheme, sm, kv_cache_dtype)
    assert caught.value.hint == "use --kv-cache-dtype auto"


@pytest.mark.parametrize(
    ("backend", "quant", "asked", "dtype", "resolved"),
    [
        ("tensorrt_llm", "fp8", "auto", "bf16", "bf16"),
        ("tensorrt_llm", "fp8", "fp8", "bf16", "fp8"),
        ("tensorrt_llm", "int4_awq", "int8", "f16", "int8"),
        ("tensorrt_llm", "f16", "f16", "f16", "f16"),
        ("openvino", "int8_wo", "auto", "f16", "f32"),
    ],
)
def test_the_kv_cache_is_what_was_asked_for(
    backend: str, quant: str, asked: str, dtype: str, resolved: str
) -> None:
    assert resolve_kv_cache_dtype(get_scheme(backend, quant), asked, dtype) == resolved


@pytest.mark.parametrize(
    ("backend", "quant", "asked"),
    [
        ("tensorrt_llm", "fp8", "int8"),
        ("tensorrt_llm", "bf16", "f16"),
        ("tensorrt_llm", "bf16", "f32"),
        ("openvino", "fp8", "fp8"),
    ],
)
def test_a_kv_cache_that_does_not_go_with_the_scheme_is_refused(backend: str, quant: str, asked: str) -> None:
    scheme = get_scheme(backend, quant)
    with pytest.raises(ConfigError, match=f"kv_cache_dtype: '{asked}'; {quant} in bf16 goes with") as caught:
        resolve_kv_cache_dtype(scheme, asked, "bf16")
    named = caught.value.hint.removeprefix("use --kv-cache-dtype ")
    assert resolve_kv_cache_dtype(scheme, named, "bf16") == named


def test_a_quantised_kv_cache_is_calibrated_even_without_quantised_weights() -> None:
    assert not is_calibrated(trtllm("bf16"), "bf16")
    assert is_calibrated(trtllm("bf16"), "fp8")
    assert is_calibrated(trtllm("int4_awq"), "bf16")
    assert not is_calibrated(get_scheme("openvino", "fp8"), "f32")
