"""What would fit where a plan does not: other schemes on the same GPUs, other GPUs for the same scheme."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from trtb.build.errors import ConfigError
from trtb.build.planning.gpu_catalogue import GPUS
from trtb.build.planning.plan import PlanOptions, Workload
from trtb.build.planning.plan_gpu import plan_gpu
from trtb.build.planning.plan_memory import Sizes
from trtb.build.planning.preflight_gpu import GpuDevice, devices_named
from trtb.build.quant_schemes import SCHEMES, QuantScheme

MAX_NAMED_GPUS = 3


def alternatives(
    sizes: Sizes,
    scheme: QuantScheme,
    devices: Sequence[GpuDevice],
    options: PlanOptions,
    workload: Workload | None,
) -> list[str]:
    """Return what to type instead, each with the GPUs it takes; empty where nothing fits."""
    return [
        *_other_schemes(sizes, scheme, devices, options, workload),
        *_other_gpus(sizes, scheme, options, workload),
    ]


def _other_schemes(
    sizes: Sizes,
    scheme: QuantScheme,
    devices: Sequence[GpuDevice],
    options: PlanOptions,
    workload: Workload | None,
) -> Iterator[str]:
    others = [row for row in SCHEMES if row.backend == scheme.backend and row is not scheme]
    for other in sorted(others, key=lambda row: row.max_perplexity_ratio):
        num_gpus = _num_gpus(sizes, other, devices, replace(options, group_size=None), workload)
        if num_gpus:
            yield f"--quant {other.name} ({_count(num_gpus)})"


def _other_gpus(
    sizes: Sizes, scheme: QuantScheme, options: PlanOptions, workload: Workload | None
) -> Iterator[str]:
    num_named = 0
    for gpu in sorted(GPUS, key=lambda gpu: gpu.memory_mib):
        num_gpus = _num_gpus(sizes, scheme, devices_named(gpu, 8), options, workload)
        if num_gpus and num_named < MAX_NAMED_GPUS:
            num_named += 1
            yield f"--gpu {gpu.name} ({_count(num_gpus)})"


def _num_gpus(
    sizes: Sizes,
    scheme: QuantScheme,
    devices: Sequence[GpuDevice],
    options: PlanOptions,
    workload: Workload | None,
) -> int:
    try:
        plan = plan_gpu(sizes, scheme, devices, options, workload)
    except ConfigError:  # this scheme cannot quantise this model, or not so
        return 0
    return plan.settings.world_size if plan.fits else 0


def _count(num_gpus: int) -> str:
    return f"{num_gpus} GPUs" if num_gpus > 1 else "1 GPU"
