"""Whether a machine can serve an engine: the versions that built it, its GPUs, its memory. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from trtb.build import compatibility
from trtb.build.manifest import EngineManifest
from trtb.build.planning import findings
from trtb.build.planning.findings import Finding
from trtb.build.planning.plan import num_blocks_of
from trtb.build.planning.preflight_gpu import GpuDevice, check_world, devices_of, largest_pool
from trtb.build.planning.preflight_host import check_cache_share, check_host_memory, gib
from trtb.build.probe.hardware_info import HardwareInfo, HostInfo, MemoryInfo

# what an engine's files are read by, as their distributions are called
OPENVINO_RUNTIME: Final[tuple[str, ...]] = ("openvino", "openvino-genai", "openvino-tokenizers")
TRTLLM_RUNTIME: Final[tuple[str, ...]] = ("tensorrt_llm", "tensorrt")


def runtime_of(manifest: EngineManifest, host: HostInfo, installed: Mapping[str, str]) -> dict[str, str]:
    """Return the versions that would serve an engine here: the installed ones, or those of its container.

    `installed` is what `compatibility.installed_versions` finds of the two runtimes' distributions. A
    container counts where Docker answers and can give it GPUs.
    """
    if manifest.backend == "openvino":
        return dict(installed)
    here = _plain(installed)
    if "tensorrt_llm" in here or not host.docker.has_nvidia_runtime:
        return here
    release = compatibility.get_release_of_image(manifest.container or "")
    release = release or compatibility.get_release(_plain(manifest.toolchain).get("tensorrt_llm", ""))
    return {} if release is None else {"tensorrt_llm": release.version, "tensorrt": release.tensorrt}


def check_runtime(
    manifest: EngineManifest, runtime: Mapping[str, str], devices: Sequence[GpuDevice] = ()
) -> Iterator[Finding]:
    """Yield findings where an engine would be loaded by other versions than those that built it.

    A TensorRT plan loads in exactly the release that made it, down to the fourth digit; OpenVINO's files
    load in other releases, whose answers may differ.

    Args:
        manifest: The engine's.
        runtime: Distribution name to version, of what would serve it; empty where nothing would.
        devices: The GPUs here, to be named beside the versions.
    """
    if manifest.backend == "tensorrt_llm":
        yield from _check_trtllm_runtime(manifest, runtime, devices)
        return
    built = {name: manifest.toolchain[name] for name in OPENVINO_RUNTIME if name in manifest.toolchain}
    missing = [name for name in built if name not in runtime]
    if missing:
        yield Finding(
            "runtime_missing",
            "blocks",
            f"engine {manifest.reference}: {', '.join(missing)} not installed",
            ", ".join(f"{name} {version}" for name, version in built.items()),
            "install trtb with its dependencies again",
        )
    other = [name for name in built if name in runtime and runtime[name] != built[name]]
    if other:
        yield Finding(
            "runtime_differs",
            "warns",
            f"engine {manifest.reference}: built with {_tell(built, other)}; here is {_tell(runtime, other)}",
            "the same versions",
            f"build it again for answers of this version: {rebuild_command(manifest)}",
        )


def check_engine_devices(manifest: EngineManifest, devices: Sequence[GpuDevice]) -> Iterator[Finding]:
    """Yield findings where too few GPUs have an engine's compute capability, or the memory for it."""
    if manifest.backend != "tensorrt_llm":
        return
    sm = int(manifest.compute_capability.removeprefix("sm_"))
    world = world_size(manifest)
    yield from check_world(devices, world, sm, f"engine {manifest.reference}")
    pool = largest_pool(devices, sm)
    if len(pool) < world:
        return
    weights = engine_bytes(manifest) // world
    limits = manifest.limits
    sequence = limits.max_seq_len * limits.kv_bytes_per_token
    free = sorted((device.free_bytes for device in pool), reverse=True)[world - 1]
    if weights + sequence > free:
        yield Finding(
            "gpu_memory_small",
            "blocks",
            f"engine {manifest.reference}: {gib(free)} of GPU memory free",
            f"more than {gib(weights + sequence)}: its files and one sequence of {limits.max_seq_len} tokens",
            "end what holds GPU memory, or build with a smaller --max-seq-len or fewer bits",
            findings.MEMORY_REFERENCE,
        )


def check_engine_memory(
    manifest: EngineManifest, memory: MemoryInfo, num_kv_blocks: int
) -> Iterator[Finding]:
    """Yield findings where a CPU engine's files and its pool of so many blocks do not fit the host."""
    limits = manifest.limits
    pool = num_kv_blocks * limits.kv_bytes_per_token * limits.tokens_per_block
    held = 2 * engine_bytes(manifest)  # the files mapped, and compiled
    yield from check_host_memory(memory, pool + held, f"engine {manifest.reference}")
    yield from check_cache_share(memory, pool, held)
    if num_kv_blocks < num_blocks_of(limits.max_seq_len):
        yield Finding(
            "kv_pool_small",
            "warns",
            f"engine {manifest.reference}: a KV cache of {num_kv_blocks} blocks, "
            f"{num_kv_blocks * limits.tokens_per_block} tokens",
            f"{limits.max_seq_len} tokens: its longest request",
            f"--num-kv-blocks {num_blocks_of(limits.max_seq_len)}, where the memory allows it",
        )


def runnable_on(manifest: EngineManifest, hardware: HardwareInfo) -> list[str]:
    """Return the labels of the devices that an engine can run on: "CPU", or GPUs of its kind."""
    if manifest.backend == "openvino":
        return ["CPU"] if hardware.host.architecture == "x86_64" else []
    sm = int(manifest.compute_capability.removeprefix("sm_"))
    pool = largest_pool(devices_of(hardware), sm)
    return [device.label for device in pool] if len(pool) >= world_size(manifest) else []


def world_size(manifest: EngineManifest) -> int:
    """Return how many ranks an engine was built for."""
    sizes = (manifest.build_config.get(name, 1) for name in ("tp_size", "pp_size"))
    first, second = (size if isinstance(size, int) else 1 for size in sizes)
    return first * second


def engine_bytes(manifest: EngineManifest) -> int:
    """Return the size of an engine's weights: all its files but the tokenizer."""
    return sum(entry.size_bytes for entry in manifest.files if not entry.path.startswith("tokenizer/"))


def rebuild_command(manifest: EngineManifest) -> str:
    """Return the command that builds an engine like this one on this machine."""
    pin = manifest.checkpoint
    return f"trtb build --model {pin.name} --quant {manifest.quant} --backend {manifest.backend}"


def _check_trtllm_runtime(
    manifest: EngineManifest, runtime: Mapping[str, str], devices: Sequence[GpuDevice]
) -> Iterator[Finding]:
    built = _plain(manifest.toolchain)
    here = _plain(runtime)
    wanted = {name: built[name] for name in TRTLLM_RUNTIME if name in built}
    image = manifest.container
    release = compatibility.get_release(wanted.get("tensorrt_llm", ""))
    if image is None and release is not None:
        image = release.image
    where = f"serve it in {image}, or build it again: " if image else "build it again: "
    made = f"built with {_tell(wanted, wanted)} for {manifest.compute_capability}"
    sms = ", ".join(f"sm_{sm}" for sm in sorted({device.sm for device in devices}))
    if not any(name in here for name in TRTLLM_RUNTIME):
        yield Finding(
            "runtime_missing",
            "blocks",
            f"engine {manifest.reference}: {made}; none of it is here",
            "the same versions",
            f"serve it in {image}" if image else "install the versions that built it",
            findings.SUPPORT_MATRIX,
        )
    elif any(here.get(name, wanted[name]) != wanted[name] for name in wanted):
        yield Finding(
            "runtime_differs",
            "blocks",
            f"engine {manifest.reference}: {made}; here is {_tell(here, wanted)}, {sms or 'no GPU'}",
            "exactly the same versions",
            where + rebuild_command(manifest),
            findings.SUPPORT_MATRIX,
        )


def _plain(versions: Mapping[str, str]) -> dict[str, str]:
    return {name.replace("-", "_"): version for name, version in versions.items()}


def _tell(versions: Mapping[str, str], names: Sequence[str] | Mapping[str, str]) -> str:
    shown = {"tensorrt_llm": "TensorRT-LLM", "tensorrt": "TensorRT"}
    return ", ".join(f"{shown.get(name, name)} {versions.get(name, 'none')}" for name in names)
