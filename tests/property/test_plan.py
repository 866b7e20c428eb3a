"""What holds for every plan: a check of the build refuses none of them, and the figures add up."""

from __future__ import annotations

import pytest
from fakes.machine import GIB, fake_hardware, fake_host, fake_memory
from hypothesis import assume, event, given
from hypothesis import strategies as st

from trtb.build.errors import ConfigError
from trtb.build.manifest import ModelShape
from trtb.build.planning.gpu_catalogue import GPUS
from trtb.build.planning.plan import Plan, PlanOptions, Workload
from trtb.build.planning.plan_cpu import plan_cpu
from trtb.build.planning.plan_gpu import needs_of, plan_gpu
from trtb.build.planning.plan_memory import Sizes
from trtb.build.planning.preflight import check_build, is_blocked
from trtb.build.planning.preflight_gpu import devices_named
from trtb.build.quant_schemes import SCHEMES

GPU_SCHEMES = [row for row in SCHEMES if row.backend == "tensorrt_llm"]
CPU_SCHEMES = [row for row in SCHEMES if row.backend == "openvino"]


@st.composite
def models(draw: st.DrawFn) -> Sizes:
    head_dim = draw(st.sampled_from([64, 80, 128, 256]))
    num_kv_heads = draw(st.sampled_from([1, 2, 3, 4, 8]))
    num_heads = num_kv_heads * draw(st.sampled_from([1, 2, 4, 8]))
    hidden = draw(st.sampled_from([576, 2048, 3584, 4096, 8192]))
    inner = draw(st.sampled_from([1536, 11008, 14336, 18944, 28672]))
    vocab = draw(st.sampled_from([32000, 49152, 128256, 152064]))
    num_layers = draw(st.integers(1, 96))
    tied = draw(st.booleans())
    shape = ModelShape(
        architecture="llama", num_layers=num_layers, num_heads=num_heads, num_kv_heads=num_kv_heads,
        head_dim=head_dim, hidden_size=hidden, vocab_size=vocab,
        max_position_embeddings=draw(st.sampled_from([2048, 8192, 131072])),
    )  # fmt: skip
    linears = 2 * hidden * head_dim * (num_heads + num_kv_heads) + 3 * hidden * inner
    num_parameters = num_layers * (linears + 2 * hidden) + (1 if tied else 2) * vocab * hidden + hidden
    return Sizes("any", shape, inner, num_parameters, tied)


@st.composite
def workloads(draw: st.DrawFn) -> Workload | None:
    if draw(st.booleans()):
        return None
    num_requests = draw(st.integers(1, 1000))
    prompt, output = draw(st.integers(1, 4000)), draw(st.integers(1, 2000))
    longest = draw(st.integers(prompt + output, 8000))
    blocks = -(-(prompt + output) // 32)
    return Workload(
        num_requests, num_requests * prompt, num_requests * output, longest, num_requests * blocks,
        draw(st.floats(0, 1)),
    )  # fmt: skip


def optional(values: st.SearchStrategy[int]) -> st.SearchStrategy[int | None]:
    return st.none() | values


OPTIONS = st.builds(
    PlanOptions,
    tp_size=optional(st.sampled_from([1, 2, 3, 4, 8])),
    pp_size=st.sampled_from([1, 2]),
    max_seq_len=optional(st.integers(64, 16384)),
    max_batch_size=optional(st.integers(1, 1024)),
    max_num_tokens=optional(st.integers(32, 16384)),
    kv_cache_dtype=st.sampled_from(["auto", "auto", "fp8", "int8"]),
    margin=st.sampled_from([0.0, 0.2, 0.5]),
)


def check_figures(plan: Plan, options: PlanOptions, num_requests: int | None) -> None:
    settings, memory = plan.settings, plan.memory
    assert plan.min_concurrency <= plan.max_concurrency
    assert settings.max_batch_size >= 1
    for name in ("tp_size", "max_seq_len", "max_batch_size"):
        asked = getattr(options, name)
        if asked is not None and plan.fits and plan.backend == "tensorrt_llm":
            assert getattr(settings, name) == asked
    if plan.fits and plan.backend == "tensorrt_llm":
        assert memory.needed_bytes <= memory.total_bytes
        assert memory.num_tokens >= settings.max_seq_len
        assert settings.max_num_tokens >= settings.max_batch_size
        if num_requests is None:
            assert plan.min_concurrency >= 1


@given(
    sizes=models(), scheme=st.sampled_from(GPU_SCHEMES), gpu=st.sampled_from(GPUS),
    count=st.sampled_from([1, 2, 4, 8]), options=OPTIONS, workload=workloads(),
)  # fmt: skip
def test_a_plan_never_recommends_what_the_check_refuses(sizes, scheme, gpu, count, options, workload) -> None:
    devices = devices_named(gpu, count)
    try:
        plan = plan_gpu(sizes, scheme, devices, options, workload, host_bytes=100 * GIB)
    except ConfigError:
        assume(False)
    event(f"fits: {plan.fits}")
    needs = needs_of(sizes, scheme, plan.settings)
    hardware = fake_hardware(host=fake_host(memory=fake_memory(10_000), disks=()))
    found = check_build(hardware, needs, devices)
    if plan.fits:
        assert not is_blocked(found), found
    check_figures(plan, options, workload.num_requests if workload else None)


@given(
    sizes=models(), scheme=st.sampled_from(CPU_SCHEMES), total_gib=st.integers(1, 600),
    share=st.floats(0.05, 1.0), workload=workloads(), blocks=optional(st.integers(2, 100_000)),
)  # fmt: skip
def test_a_cpu_plan_that_fits_leaves_memory_to_others(
    sizes, scheme, total_gib, share, workload, blocks
) -> None:
    memory = fake_memory(total_gib, total_gib * share)
    try:
        plan = plan_cpu(sizes, scheme, fake_host(memory=memory), PlanOptions(num_kv_blocks=blocks), workload)
    except ConfigError:
        assume(False)
    event(f"fits: {plan.fits}")
    if plan.fits:
        assert plan.memory.pool_bytes <= 0.7 * memory.usable_bytes
        assert plan.memory.needed_bytes <= 0.7 * memory.usable_bytes + 1
        assert plan.memory.needed_bytes <= memory.available_bytes
    check_figures(plan, PlanOptions(), workload.num_requests if workload else None)


def test_the_property_has_plans_that_fit_and_plans_that_do_not() -> None:
    """The two tests above would hold of a planner that always says no."""
    scheme = next(row for row in GPU_SCHEMES if row.name == "bf16")
    shape = ModelShape(
        architecture="llama", num_layers=32, num_heads=32, num_kv_heads=8, head_dim=128, hidden_size=4096,
        vocab_size=128256, max_position_embeddings=131072,
    )  # fmt: skip
    sizes = Sizes("8b", shape, 14336, 8_030_261_248, False)
    fits = {gpu.name: plan_gpu(sizes, scheme, devices_named(gpu, 1), PlanOptions()).fits for gpu in GPUS}
    assert fits == {name: name not in ("T4", "V100") for name in fits}


@pytest.mark.parametrize("scheme", CPU_SCHEMES, ids=lambda row: row.name)
def test_every_cpu_scheme_can_be_planned(scheme) -> None:
    shape = ModelShape(
        architecture="llama", num_layers=2, num_heads=4, num_kv_heads=4, head_dim=64, hidden_size=256,
        vocab_size=1024, max_position_embeddings=2048,
    )  # fmt: skip
    sizes = Sizes("tiny", shape, 512, 2 * (4 * 256 * 256 + 3 * 256 * 512) + 1024 * 256, True)
    assert plan_cpu(sizes, scheme, fake_host(), PlanOptions()).fits
