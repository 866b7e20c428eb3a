"""What the host around the engine must have: platform, memory, shared memory, disk, limits, ports. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Literal

from trtb.build.planning import findings
from trtb.build.planning.findings import Finding
from trtb.build.probe.hardware_info import DiskInfo, HostInfo, MemoryInfo

Purpose = Literal["build", "serve", "run"]

MIN_SHARED_MEMORY_BYTES: Final = 64 << 20  # what Triton asks for each instance of a python model
TRTLLM_SHARED_MEMORY_BYTES: Final = 2 << 30  # what TensorRT-LLM's ranks are started with
MIN_OPEN_FILES: Final = 1024
# the most of the memory that a KV cache may take, and the least that is kept for everything but the engine
MAX_CACHE_SHARE: Final = 0.7
MIN_RESERVE_SHARE: Final = 0.3
GOOD_RESERVE_SHARE: Final = 0.5

_LOW_PRECISION: Final = frozenset({"avx512_bf16", "avx512_vnni", "avx_vnni", "amx_bf16", "amx_int8"})


def check_host(host: HostInfo, backend: str, purpose: Purpose) -> Iterator[Finding]:
    """Yield what is to be said of the machine itself, whatever is built or served on it."""
    yield from _check_cpu(host, backend, purpose)
    yield from _check_limits(host, backend)
    if purpose != "build":
        yield from _check_shared_memory(host, backend)
        yield from _check_ports(host)
    for disk in host.disks:
        yield from _check_disk(disk)
    if host.is_clock_synchronised is False:
        yield Finding(
            "clock_unsynchronised",
            "informs",
            "clock: not synchronised",
            "a synchronised one",
            "start a time service; the times in reports and logs may be wrong until then",
        )


def check_host_memory(memory: MemoryInfo, needed_bytes: int, what: str) -> Iterator[Finding]:
    """Yield a finding where less memory is free than `what` takes at its peak."""
    if needed_bytes <= memory.available_bytes:
        return
    limit = "" if memory.limit_bytes is None else f", within a control group's {gib(memory.limit_bytes)}"
    yield Finding(
        "host_memory_small",
        "blocks",
        f"host memory: {gib(memory.available_bytes)} free of {gib(memory.total_bytes)}{limit}",
        f"{gib(needed_bytes)} for {what}",
        "stop other work, raise the container's memory limit, or choose a smaller model or quantisation",
    )


def check_cache_share(memory: MemoryInfo, pool_bytes: int, engine_bytes: int) -> Iterator[Finding]:
    """Yield findings where a KV cache in host memory, or the whole engine, leaves too little to the rest."""
    usable = memory.usable_bytes
    if pool_bytes > MAX_CACHE_SHARE * usable:
        yield Finding(
            "kv_pool_large",
            "blocks",
            f"KV cache: {gib(pool_bytes)} of {gib(usable)} of memory",
            f"at most {MAX_CACHE_SHARE:.0%}",
            f"--num-kv-blocks with at most {MAX_CACHE_SHARE:.0%} of that",
        )
    left = 1 - (pool_bytes + engine_bytes) / usable
    if left < GOOD_RESERVE_SHARE:
        is_small = left < MIN_RESERVE_SHARE
        yield Finding(
            "memory_reserve_small",
            "blocks" if is_small else "warns",
            f"host memory: {max(0.0, left):.0%} of {gib(usable)} left beside the engine",
            f"at least {MIN_RESERVE_SHARE:.0%}, better {GOOD_RESERVE_SHARE:.0%}",
            "a smaller --num-kv-blocks, fewer bits for the weights, or a machine with more memory",
        )


def check_free_disk(disk: DiskInfo, needed_bytes: int, what: str) -> Iterator[Finding]:
    """Yield a finding where a path's file system has less room than `what` takes."""
    if needed_bytes > disk.free_bytes:
        yield Finding(
            "disk_full",
            "blocks",
            f"{disk.path}: {gib(disk.free_bytes)} free on {disk.mount_point}",
            f"{gib(needed_bytes)} for {what}",
            "free some space, or point TRTB_HOME at a larger disk",
        )


def gib(num_bytes: float) -> str:
    """Return a size in GiB as findings tell it, or in MiB where it is small.

    >>> gib(24 << 30), gib(64 << 20)
    ('24.0 GiB', '64 MiB')
    """
    return f"{num_bytes / (1 << 30):.1f} GiB" if num_bytes >= 1 << 30 else f"{num_bytes / (1 << 20):.0f} MiB"


def _check_cpu(host: HostInfo, backend: str, purpose: Purpose) -> Iterator[Finding]:
    if backend == "openvino" and host.architecture != "x86_64":
        yield Finding(
            "platform_unsupported",
            "blocks",
            f"processor: {host.architecture}",
            "x86_64 for the openvino backend",
            "use another machine, or the tensorrt_llm backend where there is an NVIDIA GPU",
        )
    elif backend == "openvino" and "avx2" not in host.cpu.flags:
        yield Finding(
            "cpu_slow",
            "warns",
            f"processor: {host.cpu.model or 'unknown'} without AVX2",
            "AVX2 or AVX-512",
            "expect a fraction of the usual speed",
        )
    if backend == "openvino" and purpose != "build" and (flags := _LOW_PRECISION & set(host.cpu.flags)):
        yield Finding(
            "cpu_low_precision",
            "informs",
            f"processor: has {', '.join(sorted(flags))}, so the engine computes with fewer bits by default",
            "",
            "--deterministic computes in f32; see the README on determinism",
            "README: Determinism",
        )
    quota = host.cpu.quota_cpus
    if quota is not None and quota < host.cpu.num_usable_threads:
        yield Finding(
            "cpu_limited",
            "informs",
            f"processor: a control group allows {quota:g} of {host.cpu.num_usable_threads} threads",
            "",
            "raise the container's CPU limit if more is meant",
        )


def _check_limits(host: HostInfo, backend: str) -> Iterator[Finding]:
    limits = {limit.name: limit.soft for limit in host.ulimits}
    if (files := limits.get("nofile")) is not None and files < MIN_OPEN_FILES:
        yield Finding(
            "few_open_files",
            "warns",
            f"open files: at most {files}",
            f"{MIN_OPEN_FILES}: each request in flight holds a socket",
            f"ulimit -n {MIN_OPEN_FILES}, or a lower --concurrency",
        )
    if backend == "tensorrt_llm" and limits.get("memlock") is not None:
        yield Finding(
            "locked_memory_limited",
            "warns",
            f"locked memory: at most {gib(limits['memlock'] or 0)}",
            "no limit, for pinned buffers of the GPU",
            "ulimit -l unlimited, or docker run --ulimit memlock=-1",
        )
    if host.memory.limit_bytes is not None and host.memory.limit_bytes < host.memory.total_bytes:
        yield Finding(
            "memory_limited",
            "informs",
            f"memory: a control group allows {gib(host.memory.limit_bytes)} of "
            f"{gib(host.memory.total_bytes)}",
            "",
            "raise the container's memory limit if more is meant",
        )


def _check_shared_memory(host: HostInfo, backend: str) -> Iterator[Finding]:
    disk = host.shared_memory
    needed = TRTLLM_SHARED_MEMORY_BYTES if backend == "tensorrt_llm" else MIN_SHARED_MEMORY_BYTES
    if disk is not None and disk.free_bytes < needed:
        yield Finding(
            "shared_memory_small",
            "blocks" if disk.free_bytes < MIN_SHARED_MEMORY_BYTES else "warns",
            f"shared memory: {gib(disk.free_bytes)} free in {disk.path}",
            gib(needed),
            "start the container with --shm-size 2g, or remove old files there",
            findings.TRITON_PYTHON,
        )


def _check_ports(host: HostInfo) -> Iterator[Finding]:
    for port in host.ports:
        if not port.is_free:
            yield Finding(
                "port_taken",
                "warns",
                f"port {port.port}: taken",
                "a free one for trtb serve",
                "choose another: trtb serve --grpc-port 0 --metrics-port 0 takes free ones",
            )


def _check_disk(disk: DiskInfo) -> Iterator[Finding]:
    if not disk.is_writable:
        yield Finding(
            "disk_not_writable",
            "blocks",
            f"{disk.path}: not a folder that can be written",
            "a folder of ours",
            "change its owner or mode, or set TRTB_HOME to another folder",
        )
    if disk.is_network:
        yield Finding(
            "network_file_system",
            "warns",
            f"{disk.path}: on {disk.file_system}, a network file system",
            "a local disk: the ledger is a database that needs one",
            "set TRTB_HOME, and -o of trtb run, to a folder on a local disk",
        )
    if disk.is_memory:
        yield Finding(
            "disk_in_memory",
            "warns",
            f"{disk.path}: on {disk.file_system}, which is memory",
            "a disk: what is written there is taken from the engine and lost at a restart",
            "set TRTB_HOME to a folder on a disk",
        )
