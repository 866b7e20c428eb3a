"""What a build needs of the machine: GPUs that can run the engine, memory on both sides, disk. Pure.

The plan asks the same functions, so it does not recommend what they refuse.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from trtb.build.config import BuildConfig
from trtb.build.errors import ConfigError, HardwareError
from trtb.build.planning import findings
from trtb.build.planning.findings import Finding
from trtb.build.planning.plan_memory import (
    FREE_GPU_MEMORY_FRACTION,
    Sizes,
    checkpoint_bytes,
    gpu_reserve_bytes,
    gpu_weight_bytes,
    kv_bytes_per_token,
)
from trtb.build.planning.preflight_gpu import GpuDevice, check_world, largest_pool
from trtb.build.planning.preflight_host import check_free_disk, check_host_memory, gib
from trtb.build.probe.hardware_info import DiskInfo, MemoryInfo
from trtb.build.quant_schemes import QuantScheme
from trtb.build.quantization import check_compute_capability, check_layout, check_linears


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildNeeds:
    """A build as the machine sees it; every option resolved."""

    sizes: Sizes
    scheme: QuantScheme
    group_size: int | None
    tp_size: int = 1
    pp_size: int = 1
    kv_cache_dtype: str
    max_seq_len: int
    max_batch_size: int
    max_num_tokens: int
    peak_host_bytes: int

    @property
    def world_size(self) -> int:
        """Return how many ranks there are."""
        return self.tp_size * self.pp_size

    @property
    def disk_bytes(self) -> int:
        """Return what the build writes at the most: a 16-bit copy, the quantised weights, the engine."""
        return 3 * checkpoint_bytes(self.sizes)


def needs_of_config(
    sizes: Sizes, scheme: QuantScheme, config: BuildConfig, peak_host_bytes: int
) -> BuildNeeds:
    """Return what a build needs whose options a backend has resolved."""
    assert config.max_seq_len is not None
    assert config.max_batch_size is not None
    assert config.max_num_tokens is not None
    return BuildNeeds(
        sizes=sizes,
        scheme=scheme,
        group_size=config.group_size,
        tp_size=config.tp_size,
        pp_size=config.pp_size,
        kv_cache_dtype=config.kv_cache_dtype,
        max_seq_len=config.max_seq_len,
        max_batch_size=config.max_batch_size,
        max_num_tokens=config.max_num_tokens,
        peak_host_bytes=peak_host_bytes,
    )


def check_host_for_build(
    needs: BuildNeeds, memory: MemoryInfo, disks: Sequence[DiskInfo]
) -> Iterator[Finding]:
    """Yield findings where the host has less memory or disk than the build takes."""
    what = f"a build of {needs.sizes.name} as {needs.scheme.name}"
    yield from check_host_memory(memory, needs.peak_host_bytes, what)
    for disk in disks[:1]:  # the first is where builds are staged
        yield from check_free_disk(disk, needs.disk_bytes, what)


def check_layout_of(needs: BuildNeeds) -> Iterator[Finding]:
    """Yield a finding where the scheme cannot quantise the matrices, or the ranks cannot share them."""
    sizes, scheme = needs.sizes, needs.scheme
    try:
        if scheme.backend == "openvino":
            check_linears(scheme, sizes.linears(), needs.group_size, 1)
            return
        check_layout(
            scheme,
            sizes.shape,
            sizes.intermediate_size,
            sizes.linears(),
            group_size=needs.group_size,
            tp_size=needs.tp_size,
            pp_size=needs.pp_size,
        )
    except ConfigError as exc:
        yield Finding("layout_unsupported", "blocks", exc.message, "", exc.hint, "README: Quantisations")


def check_devices(needs: BuildNeeds, devices: Sequence[GpuDevice]) -> Iterator[Finding]:
    """Yield findings where no GPU can run the engine, or not enough equal ones, or with too little memory."""
    pool = largest_pool(devices)
    yield from check_world(devices, needs.world_size, None, f"{needs.scheme.name} of {needs.sizes.name}")
    if not pool:
        return
    try:
        remarks = check_compute_capability(needs.scheme, pool[0].sm, needs.kv_cache_dtype)
    except HardwareError as exc:
        yield Finding("quant_unsupported", "blocks", exc.message, "", exc.hint, findings.SUPPORT_MATRIX)
        return
    for remark in remarks:
        yield Finding(
            "quant_unverified", "warns", remark, "a combination that is known to work",
            "compare the engine's answers with those of bf16 before you trust it", findings.SUPPORT_MATRIX,
        )  # fmt: skip
    if len(pool) >= needs.world_size:
        yield from check_gpu_memory(needs, freest(pool, needs.world_size))


def check_gpu_memory(needs: BuildNeeds, devices: Sequence[GpuDevice]) -> Iterator[Finding]:
    """Yield a finding where a rank's weights, buffers and one whole sequence do not fit a device."""
    weights = gpu_weight_bytes(needs.sizes, needs.scheme, needs.group_size, needs.tp_size, needs.pp_size)
    reserve = gpu_reserve_bytes(needs.sizes, needs.max_batch_size, needs.max_num_tokens, needs.tp_size)
    per_token = kv_bytes_per_token(needs.sizes.shape, needs.kv_cache_dtype, needs.tp_size, needs.pp_size)
    sequence = per_token * needs.max_seq_len / FREE_GPU_MEMORY_FRACTION
    needed = weights + reserve + sequence
    for device in devices:
        if needed > device.free_bytes:
            yield Finding(
                "gpu_memory_small",
                "blocks",
                f"{device.label} ({device.name}): {gib(device.free_bytes)} of GPU memory free",
                f"{gib(needed)}: {gib(weights)} of weights, {gib(reserve)} of buffers, {gib(sequence)} for "
                f"one sequence of {needs.max_seq_len} tokens",
                "fewer bits (--quant), more GPUs (--tp-size), a smaller --max-seq-len, or a larger GPU",
                findings.MEMORY_REFERENCE,
            )
            return


def freest(devices: Sequence[GpuDevice], count: int) -> list[GpuDevice]:
    """Return the devices with the most free memory, the least of them first."""
    return sorted(devices, key=lambda device: device.free_bytes, reverse=True)[:count][::-1]
