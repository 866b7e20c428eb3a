"""Steps of an acceptance up to the engines: the machine, preflight, the checkpoint, the builds."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from pydantic import JsonValue

from trtb.build import checkpoint as checkpoints
from trtb.build.checkpoints.catalogue import CATALOGUE
from trtb.build.compatibility import installed_versions
from trtb.build.errors import ConfigError
from trtb.build.planning.findings import Finding, ordered, raise_if_blocked
from trtb.build.planning.preflight import check_machine
from trtb.build.planning.preflight_engine import TRTLLM_RUNTIME, engine_bytes
from trtb.build.probe.hardware_info import GpuInfo, HardwareInfo
from trtb.build.quantization import check_linears, get_scheme
from trtb.runner import run_folder
from trtb.runner.acceptance.accept_state import AcceptState
from trtb.runner.acceptance.accept_step import Figures
from trtb.runner.launching.launch_image import RELEASE_VARIABLE

FETCH_TIMEOUT_S: Final = 2 * 3600.0
BUILD_TIMEOUT_S: Final = 12 * 3600.0
# the best of each width first; what the GPU cannot run is passed over
_GPU_QUANTS: Final = (("fp8", "int8_wo", "bf16"), ("int4_awq", "nvfp4", "f16"))
_CPU_QUANTS: Final = ("int8_wo", "f16")


def default_quants(backend: str, sm: int | None) -> tuple[str, ...]:
    """Return the two quantisations that a backend is accepted with; `sm` is the GPU's, 90 for "9.0".

    >>> [default_quants("tensorrt_llm", sm) for sm in (80, 90, 100)]
    [('int8_wo', 'int4_awq'), ('fp8', 'int4_awq'), ('fp8', 'nvfp4')]
    """
    if backend == "openvino":
        return _CPU_QUANTS
    schemes = [[get_scheme(backend, quant) for quant in choice] for choice in _GPU_QUANTS]
    return tuple(
        next((each.name for each in choice if sm is None or each.sm_fault(sm) is None), choice[-1].name)
        for choice in schemes
    )


def find_machine(state: AcceptState, figures: Figures) -> None:
    """Tell what this machine is, and every version on it."""
    found = state.probe()
    host = found.host
    state.versions.update(_versions(found))
    figures.update(
        cpu=host.cpu.model,
        num_usable_threads=host.cpu.num_usable_threads,
        cpu_flags=" ".join(host.cpu.flags),
        memory_bytes=host.memory.usable_bytes,
        available_memory_bytes=host.memory.available_bytes,
        container=host.container,
        docker=host.docker.server_version,
        docker_runtimes=" ".join(host.docker.runtimes),
        disks=[{"file_system": disk.file_system, "free_bytes": disk.free_bytes} for disk in host.disks],
        gpus=[_gpu(gpu) for gpu in found.gpus],
        not_readable=[f"{problem.what}: {problem.why}" for problem in found.problems],
    )


def check_preflight(state: AcceptState, figures: Figures) -> None:
    """Hold the machine against building and running.

    Raises:
        HardwareError: Something blocks.
    """
    assert state.machine
    both = [check_machine(state.machine, state.backend, purpose) for purpose in ("build", "run")]
    unique: dict[str, Finding] = {finding.message: finding for found in both for finding in found}
    found = ordered(unique.values())
    told: list[JsonValue] = [
        {"severity": finding.severity, "code": finding.code, "message": finding.message} for finding in found
    ]
    figures["findings"] = told
    raise_if_blocked(found)


def fetch_checkpoint(state: AcceptState, figures: Figures) -> None:
    """Bring the checkpoint and pin it, in the form that the backend builds from."""
    model = state.options.model
    if model in CATALOGUE:
        form = "gguf" if state.backend == "openvino" else "hf"
        arguments: tuple[object, ...] = ("models", "fetch", model, "--format", form)
    elif model.startswith("hf:"):
        arguments = ("models", "fetch", model)
    elif Path(model).is_absolute():
        arguments = ("models", "pin", model)
    else:
        arguments = ("models", "verify", model)
    name = " ".join(map(str, arguments[:2]))
    told = state.commands.run(name, *arguments, "--json", timeout_s=FETCH_TIMEOUT_S)
    state.checkpoint = f"{told['name']}@{told['revision']}"
    pinned = checkpoints.resolve(state.checkpoint, state.options.home)
    pin = pinned.pin
    state.checkpoint_dir = pinned.path
    figures.update(
        checkpoint=state.checkpoint,
        format=pin.format,
        source=pin.source,
        license=pin.license,
        num_files=len(pin.files),
        size_bytes=pin.total_bytes,
    )


def build_engine(state: AcceptState, quant: str, figures: Figures) -> None:
    """Build an engine, or find that it is there, and hash its files once more."""
    arguments: list[object] = ["build", "--model", state.checkpoint, "--quant", quant]
    arguments += ["--backend", state.backend]
    if (group_size := fitting_group_size(state, quant)) is not None:
        arguments += ["--group-size", group_size]
    told = state.commands.run(f"build {quant}", *arguments, "--json", timeout_s=BUILD_TIMEOUT_S)
    stored = state.store.resolve(told["engine_id"])
    state.store.verify(stored)
    state.engines[quant] = stored
    manifest = stored.manifest
    state.versions.update(manifest.toolchain)
    quality = manifest.quality
    figures.update(
        engine=manifest.reference,
        engine_id=manifest.engine_id,
        group_size=group_size,
        compute_capability=manifest.compute_capability,
        image=manifest.container,
        size_bytes=engine_bytes(manifest),
        num_files=len(manifest.files),
        was_there=manifest.built_at < state.started_at,
        build_duration_s=round(manifest.build_duration_s, 3),
        peak_host_bytes=manifest.peak_host_bytes,
        steps=[step.model_dump() for step in manifest.steps],
        quality=None if quality is None else quality.model_dump(),
    )
    if manifest.container:
        state.versions["image"] = manifest.container


def fitting_group_size(state: AcceptState, quant: str) -> int | None:
    """Return the largest group size that divides the checkpoint's matrices; None leaves it to the build."""
    scheme = get_scheme(state.backend, quant)
    if state.backend != "tensorrt_llm" or len(scheme.group_sizes) < 2:
        return None
    from trtb.build.checkpoints.hf_checkpoint import read_hf

    assert state.checkpoint_dir
    linears = read_hf(state.checkpoint_dir).linears()
    for size in sorted(scheme.group_sizes, reverse=True):
        with contextlib.suppress(ConfigError):
            return check_linears(scheme, linears, size, 1)
    return None  # the build says what is wrong


def _versions(found: HardwareInfo) -> dict[str, str]:
    """Return what is installed here, and what the machine runs; what is not there is left out."""
    host, driver = found.host, found.driver
    told: dict[str, str | None] = {
        **run_folder.versions(),
        **installed_versions(TRTLLM_RUNTIME),
        "kernel": host.kernel,
        "distribution": host.distribution,
        "libc": host.libc,
        "docker": host.docker.server_version,
        "driver": driver.driver_version,
        "cuda": driver.cuda_version,
        "image_release": os.environ.get(RELEASE_VARIABLE),
    }
    return {name: version for name, version in told.items() if version is not None}


def _gpu(gpu: GpuInfo) -> dict[str, Any]:
    """Return what a GPU is and how it is set; serial numbers say whose it is, and stay out."""
    return {
        "name": gpu.name,
        "compute_capability": gpu.compute_capability,
        "memory_bytes": gpu.memory_total_bytes,
        "free_bytes": gpu.memory_free_bytes,
        "mig": gpu.mig_mode,
        "ecc": gpu.ecc_mode,
        "power_limit_w": gpu.power_limit_w,
        "vbios": gpu.vbios,
    }


def gpu_free_bytes(gpus: Sequence[GpuInfo]) -> list[JsonValue]:
    """Return each GPU's free memory."""
    return [gpu.memory_free_bytes for gpu in gpus]
