"""Preflight: hold a machine against what is to be done on it. Pure: facts in, findings out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from trtb.build.manifest import EngineManifest
from trtb.build.planning.findings import Finding, is_blocked, ordered, raise_if_blocked
from trtb.build.planning.preflight_build import (
    BuildNeeds,
    check_devices,
    check_host_for_build,
    check_layout_of,
    needs_of_config,
)
from trtb.build.planning.preflight_engine import check_engine_devices, check_engine_memory, check_runtime
from trtb.build.planning.preflight_gpu import GpuDevice, check_gpus, devices_of
from trtb.build.planning.preflight_host import Purpose, check_host
from trtb.build.probe.hardware_info import HardwareInfo

__all__ = [
    "BuildNeeds",
    "Finding",
    "check_build",
    "check_engine",
    "check_machine",
    "is_blocked",
    "needs_of_config",
    "raise_if_blocked",
]


def check_machine(hardware: HardwareInfo, backend: str, purpose: Purpose) -> list[Finding]:
    """Return what is to be said of this machine for a backend, whatever the engine; the gravest first."""
    found = list(check_host(hardware.host, backend, purpose))
    if backend == "tensorrt_llm":
        found += check_gpus(hardware)
    found += _unread(hardware, backend)
    return ordered(found)


def check_build(
    hardware: HardwareInfo, needs: BuildNeeds, devices: Sequence[GpuDevice] | None = None
) -> list[Finding]:
    """Return what speaks against a build on this machine; the gravest first.

    Args:
        hardware: This machine.
        needs: The build, every option resolved.
        devices: GPUs to build for instead of this machine's, for a plan.
    """
    host = hardware.host
    found = [*check_layout_of(needs), *check_host_for_build(needs, host.memory, host.disks)]
    if needs.scheme.backend == "tensorrt_llm":
        found += check_devices(needs, devices_of(hardware) if devices is None else devices)
    return ordered(found)


def check_engine(
    hardware: HardwareInfo,
    manifest: EngineManifest,
    runtime: Mapping[str, str],
    num_kv_blocks: int | None = None,
) -> list[Finding]:
    """Return what speaks against serving an engine on this machine; the gravest first.

    Args:
        hardware: This machine.
        manifest: The engine's.
        runtime: Distribution name to version, of what would serve it.
        num_kv_blocks: The pool that would be taken, of a CPU engine.
    """
    devices = devices_of(hardware)
    found = [*check_runtime(manifest, runtime, devices), *check_engine_devices(manifest, devices)]
    if manifest.backend == "openvino" and num_kv_blocks is not None:
        found += check_engine_memory(manifest, hardware.host.memory, num_kv_blocks)
    return ordered(found)


def _unread(hardware: HardwareInfo, backend: str) -> list[Finding]:
    """Return what could not be read of this machine, where the backend has to do with it."""
    found = []
    for problem in hardware.problems:
        is_of_gpus = problem.what.startswith(("NVML", "GPU", "driver", "docker"))
        if problem.kind == "not_supported" or (is_of_gpus and backend != "tensorrt_llm"):
            continue
        if problem.what.startswith("NVML"):  # the check of the driver tells of it
            continue
        found.append(
            Finding(
                "not_readable",
                "informs",
                f"{problem.what}: not readable ({problem.why})",
                "",
                "nothing, where it does not matter to you",
            )
        )
    return found
