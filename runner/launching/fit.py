"""Whether an engine can be served here, asked before anything starts: versions, GPUs, driver, memory.

A server that does not fit is found out by itself only after minutes of loading, in a log that ends with a
stack trace. What is asked here is what preflight asks, of the GPUs that the server would really get.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from trtb.build import compatibility
from trtb.build.errors import ConfigError, EngineCorruptError
from trtb.build.hardware import probe
from trtb.build.manifest import EngineManifest
from trtb.build.planning import findings
from trtb.build.planning.findings import Finding, ordered, raise_if_blocked
from trtb.build.planning.plan_memory import GPU_PEER_BYTES, GPU_RUNTIME_BYTES
from trtb.build.planning.preflight import check_engine, check_machine
from trtb.build.planning.preflight_engine import check_engine_memory, check_runtime, engine_bytes, world_size
from trtb.build.planning.preflight_gpu import devices_of
from trtb.build.planning.preflight_host import check_host_memory, gib
from trtb.build.probe.hardware_info import HardwareInfo, MemoryInfo
from trtb.build.probe.host_probe import probe_memory
from trtb.model_repo.deploy_config import DeployConfig, limits_as_served
from trtb.model_repo.render import num_blocks_for_machine
from trtb.model_repo.trtllm_engine import read_engine
from trtb.runner.launching.devices import Group, choose_devices, shown, visible, with_devices
from trtb.runner.launching.place import DockerPlace, EmbeddedPlace, Place, built_with

# a container is given these by its own options
_GIVEN_TO_CONTAINERS = frozenset({"shared_memory_small", "locked_memory_limited"})


@dataclass(frozen=True, slots=True)
class Fit:
    """What servers of an engine would get here, and what is to be said of it."""

    groups: tuple[Group, ...]  # the GPUs of each server; an empty group sees them all
    findings: tuple[Finding, ...]  # the gravest first


def require_fit(
    engine_dir: Path, manifest: EngineManifest, place: Place, groups: Sequence[Group], deploy: DeployConfig
) -> Fit:
    """Return the servers' GPUs where nothing speaks against them.

    Raises:
        HardwareError: This machine does not fit the engine; on one line, with what to do.
        EngineCorruptError: The engine's files are not what its manifest says.
    """
    fit = find_fit(engine_dir, manifest, place, groups, deploy)
    raise_if_blocked(fit.findings)
    return fit


def find_fit(
    engine_dir: Path, manifest: EngineManifest, place: Place, groups: Sequence[Group], deploy: DeployConfig
) -> Fit:
    """Return the servers' GPUs, and everything that is to be said of them; reads this machine.

    Raises:
        ConfigError: GPUs are given twice, or the engine is of a release that trtb does not serve.
        EngineCorruptError: The engine's files are not what its manifest says.
    """
    if isinstance(place, EmbeddedPlace):
        return Fit(((),), tuple(check_embedded(manifest, place, probe_memory(Path("/")), deploy)))
    if len(deploy.trtllm.gpu_device_ids) > 1:
        raise ConfigError(
            "parameter gpu_device_ids: several groups are instances in TensorRT-LLM's orchestrator mode, "
            "which is not started here",
            "--device-ids starts a server for each group",
        )
    if groups and deploy.trtllm.gpu_device_ids:
        raise ConfigError(
            f"device_ids: {shown(groups)}, and TensorRT-LLM's parameter gpu_device_ids; expected one of them",
            "leave the parameter out",
        )
    check_release_of_files(engine_dir, manifest)
    return fit_gpus(probe(), manifest, place, groups, deploy)


def check_embedded(
    manifest: EngineManifest, place: EmbeddedPlace, memory: MemoryInfo, deploy: DeployConfig
) -> list[Finding]:
    """Return what speaks against serving an engine with the embedded server; the gravest first."""
    limits = limits_as_served(manifest, deploy.kv_cache_dtype)
    num_blocks = deploy.num_kv_blocks or num_blocks_for_machine(limits)
    served = manifest.model_copy(update={"limits": limits})
    found = [*check_runtime(manifest, place.runtime), *check_engine_memory(served, memory, num_blocks)]
    return ordered(found)


def fit_gpus(
    machine: HardwareInfo,
    manifest: EngineManifest,
    place: Place,
    groups: Sequence[Group],
    deploy: DeployConfig,
) -> Fit:
    """Return each server's GPUs, chosen here where none were asked for, and what is to be said of them."""
    machine = visible(machine)
    # GPUs that TensorRT-LLM's own parameter names are counted among those that the server sees
    by_itself = () if deploy.trtllm.gpu_device_ids else choose_devices(machine, manifest)
    chosen = tuple(groups) or (by_itself,)
    found: dict[str, Finding] = {}
    for group in chosen:
        seen = with_devices(machine, group) if group else machine
        for finding in _check_server(seen, machine, manifest, place, group, deploy):
            found.setdefault(finding.message, finding)  # of several servers it is said once
    for finding in _check_host_cache(machine, manifest, deploy, len(chosen)):
        found.setdefault(finding.message, finding)
    return Fit(chosen, tuple(ordered(found.values())))


def _check_server(
    seen: HardwareInfo,
    machine: HardwareInfo,
    manifest: EngineManifest,
    place: Place,
    group: Group,
    deploy: DeployConfig,
) -> Iterator[Finding]:
    missing = [device for device in group if device not in {str(gpu.index) for gpu in machine.gpus}]
    if missing and machine.gpus:
        known = ", ".join(str(gpu.index) for gpu in machine.gpus)
        yield Finding(
            "gpu_missing",
            "blocks",
            f"GPU {', '.join(missing)}: not there, or hidden by CUDA_VISIBLE_DEVICES",
            f"of {known}",
            "nvidia-smi lists the GPUs of this machine",
        )
        return
    yield from check_engine(seen, manifest, place.runtime)
    yield from _check_driver(seen, manifest)
    for finding in check_machine(seen, "tensorrt_llm", "serve"):
        if isinstance(place, DockerPlace) and finding.code in _GIVEN_TO_CONTAINERS:
            continue
        if finding.code == "shared_memory_small" and world_size(manifest) > 1:
            yield replace(finding, severity="blocks")  # the ranks exchange their work through it
        elif finding.code != "driver_old":
            yield finding
    yield from _check_memory(seen, manifest, deploy)


def _check_driver(machine: HardwareInfo, manifest: EngineManifest) -> Iterator[Finding]:
    """Yield a finding where the driver is too old for the release that built the engine."""
    versions = {name.replace("-", "_"): version for name, version in manifest.toolchain.items()}
    release = compatibility.get_release(versions.get("tensorrt_llm", ""))
    major = machine.driver.major
    if release is None or major is None or major >= release.min_driver:
        return
    yield Finding(
        "driver_old",
        "blocks",
        f"engine {manifest.reference}: {_built(manifest)}; the NVIDIA driver is "
        f"{machine.driver.driver_version}",
        f"{release.min_driver} or newer for CUDA {release.cuda_major}",
        f"install driver {release.min_driver}, or build the engine with the release for older drivers",
        findings.CUDA_COMPATIBILITY,
    )


def _check_memory(machine: HardwareInfo, manifest: EngineManifest, deploy: DeployConfig) -> Iterator[Finding]:
    """Yield a finding where a GPU has not the memory for weights, the KV pool asked for, and the runtime."""
    world = world_size(manifest)
    sm = int(manifest.compute_capability.removeprefix("sm_"))
    free = sorted((device.free_bytes for device in devices_of(machine) if device.sm == sm), reverse=True)
    if len(free) < world:
        return  # that is told of as too few GPUs
    limits = manifest.limits
    asked = deploy.trtllm.max_tokens_in_paged_kv_cache
    if deploy.num_kv_blocks is not None:
        asked = deploy.num_kv_blocks * limits.tokens_per_block
    num_tokens = asked or limits.max_seq_len
    weights = engine_bytes(manifest) // world
    pool = num_tokens * limits.kv_bytes_per_token  # of one rank
    runtime = GPU_RUNTIME_BYTES + (GPU_PEER_BYTES if world > 1 else 0)
    if weights + pool + runtime > free[world - 1]:
        yield Finding(
            "gpu_memory_small",
            "blocks",
            f"engine {manifest.reference}: {gib(free[world - 1])} of GPU memory free",
            f"{gib(weights)} for its files, {gib(pool)} for a KV cache of {num_tokens} tokens, "
            f"{gib(runtime)} for the runtime",
            "end what holds GPU memory, choose other GPUs with --device-ids, or ask for a smaller pool",
            findings.MEMORY_REFERENCE,
        )


def _check_host_cache(
    machine: HardwareInfo, manifest: EngineManifest, deploy: DeployConfig, num_servers: int
) -> Iterator[Finding]:
    """Yield a finding where the host has not the memory for the blocks that the GPUs have no room for."""
    of_rank = deploy.kv_host_cache_bytes or deploy.trtllm.kv_cache_host_memory_bytes
    if of_rank:
        needed = of_rank * world_size(manifest) * num_servers
        for finding in check_host_memory(machine.host.memory, needed, "KV blocks on the host, pinned"):
            yield replace(finding, hint="ask for less: --kv-host-cache-gb is of each rank of each server")


def check_release_of_files(engine_dir: Path, manifest: EngineManifest) -> None:
    """Check that an engine's own config.json and its manifest tell of one TensorRT-LLM.

    Raises:
        EngineCorruptError: They do not, or the files are not what the manifest says.
        ConfigError: It was built with a release that trtb does not serve.
    """
    versions = {name.replace("-", "_"): version for name, version in manifest.toolchain.items()}
    told = versions.get("tensorrt_llm")
    found = read_engine(engine_dir, manifest).version
    if told is not None and found != told:
        raise EngineCorruptError(
            f"engine {manifest.reference}: its config.json says TensorRT-LLM {found}; its manifest says "
            f"{built_with(manifest)}",
            f"trtb engines verify {manifest.reference}",
        )


def _built(manifest: EngineManifest) -> str:
    return f"built with {built_with(manifest)}"
