"""What `trtb plan` prints: bytes and blocks of one pool, and what they are counted in."""

from __future__ import annotations

from typing import Any

import pytest
from fakes.machine import fake_hardware, fake_host
from fakes.manifest import fake_manifest
from fakes.model_sizes import model_sizes

from trtb.build.errors import ConfigError, HardwareError
from trtb.build.manifest import EngineManifest
from trtb.build.planning.gpu_catalogue import get_gpu
from trtb.build.planning.plan import Plan, PlanOptions
from trtb.build.planning.plan_cpu import plan_cpu
from trtb.build.planning.plan_gpu import plan_gpu
from trtb.build.planning.preflight_gpu import devices_named
from trtb.build.quantization import get_scheme
from trtb.tools.plan import show, to_json
from trtb.tools.plan_subject import Target, _check_built_for, _fixed_by


def gpu_plan(margin: float) -> Plan:
    devices = devices_named(get_gpu("H100"), 1)
    scheme = get_scheme("tensorrt_llm", "fp8")
    return plan_gpu(model_sizes("llama-3.1-8b"), scheme, devices, PlanOptions(margin=margin))


def cpu_plan(*flags: str) -> Plan:
    host = fake_host()
    host = host.model_copy(update={"cpu": host.cpu.model_copy(update={"flags": flags})})
    return plan_cpu(model_sizes("smollm2-135m"), get_scheme("openvino", "int8_wo"), host, PlanOptions())


def test_the_margin_is_named_and_taken_from_all_figures(capsys: pytest.CaptureFixture[str]) -> None:
    made = gpu_plan(0.2)
    show(made, [], "./llama")
    told = capsys.readouterr().out
    tokens = made.memory.num_tokens
    assert (
        f"KV cache     {tokens * 65536 / 2**30:.1f} GiB: {tokens // 32} blocks of 32, {tokens} tokens" in told
    )
    assert "after a margin of 20% of what TensorRT-LLM takes" in told
    assert "settings     trtb build --model ./llama --backend tensorrt_llm" in told
    assert to_json(made)["memory"]["pool_bytes"] == tokens * 65536
    show(gpu_plan(0.0), [], "./llama")
    assert "margin" not in capsys.readouterr().out


@pytest.mark.parametrize(("flags", "keeps_bf16"), [(("avx2", "avx512_bf16"), True), (("avx2",), False)])
def test_a_cpu_plan_says_what_its_pool_is_counted_in(
    flags: tuple[str, ...], keeps_bf16: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    show(cpu_plan(*flags), [], "smollm2-135m")
    told = capsys.readouterr().out
    assert "46080 bytes a token in f32" in told
    assert ("without --deterministic this CPU keeps bf16" in told) == keeps_bf16


def gpu_engine(**limits: int) -> EngineManifest:
    made = fake_manifest()
    return made.model_copy(
        update={
            "backend": "tensorrt_llm",
            "compute_capability": "sm_90",
            "build_config": {"tp_size": 2, "pp_size": 1, "kv_cache_dtype": "fp8", "max_seq_len": None},
            "limits": made.limits.model_copy(update=limits),
        }
    )


def test_a_plan_for_an_engine_takes_what_it_was_built_with() -> None:
    options = _fixed_by(gpu_engine(max_seq_len=4096), PlanOptions())
    assert (options.tp_size, options.kv_cache_dtype, options.max_seq_len) == (2, "fp8", 4096)
    assert _fixed_by(gpu_engine(max_seq_len=4096), PlanOptions(tp_size=2, max_seq_len=4096)) == options


@pytest.mark.parametrize("asked", [{"tp_size": 1}, {"max_seq_len": 8192}, {"kv_cache_dtype": "int8"}])
def test_a_plan_for_an_engine_refuses_what_it_was_not_built_with(asked: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"{next(iter(asked))}: .*was built with"):
        _fixed_by(gpu_engine(max_seq_len=4096), PlanOptions(**asked))


def test_a_plan_for_an_engine_refuses_a_gpu_on_which_it_does_not_load() -> None:
    hardware = fake_hardware()
    for name, is_fine in (("H100", True), ("H200", True), ("L4", False), ("B200", False)):
        devices = devices_named(get_gpu(name), 2)
        target = Target("tensorrt_llm", "named", hardware, devices, is_elsewhere=True)
        if is_fine:
            _check_built_for(gpu_engine(), target)
        else:
            with pytest.raises(HardwareError, match=r"compiled for sm_90; .* is sm_"):
                _check_built_for(gpu_engine(), target)
