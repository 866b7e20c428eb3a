"""What the GPUs and their driver must be: present, new enough, healthy, free. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from trtb.build import compatibility
from trtb.build.planning import findings
from trtb.build.planning.findings import Finding, Severity
from trtb.build.planning.gpu_catalogue import GpuModel, find_gpu
from trtb.build.planning.preflight_host import gib
from trtb.build.probe.hardware_info import GpuInfo, HardwareInfo

MIN_SM: Final = 80  # TensorRT-LLM dropped what is older in its releases 0.15 and 0.16
POWER_CAP_SHARE: Final = 0.9  # a cap below this share of the default costs speed that can be seen


@dataclass(frozen=True, slots=True)
class GpuDevice:
    """One device that an engine's rank can run on: a GPU, or a slice of one."""

    label: str  # "GPU 0"
    name: str
    sm: int
    total_bytes: int
    free_bytes: int
    is_slice: bool = False

    @property
    def model(self) -> str:
        """Return the catalogue's name of it, or its own."""
        known = None if self.is_slice else find_gpu(self.name)
        return known.name if known else self.name


def devices_of(hardware: HardwareInfo) -> list[GpuDevice]:
    """Return the devices that CUDA would find and that told what they are; the GPUs too old are left in."""
    devices: list[GpuDevice] = []
    for gpu in hardware.gpus:
        if gpu.sm is None or gpu.compute_mode == "prohibited":
            continue
        if gpu.mig_mode == "enabled":
            devices += [
                GpuDevice(
                    f"GPU {gpu.index} slice {part.index}",
                    part.name or "MIG slice",
                    gpu.sm,
                    part.memory_total_bytes,
                    part.memory_free_bytes or part.memory_total_bytes,
                    is_slice=True,
                )
                for part in gpu.mig_devices
                if part.memory_total_bytes is not None
            ]
        elif gpu.memory_total_bytes is not None:
            free = gpu.memory_total_bytes if gpu.memory_free_bytes is None else gpu.memory_free_bytes
            devices.append(
                GpuDevice(f"GPU {gpu.index}", gpu.name or "unknown", gpu.sm, gpu.memory_total_bytes, free)
            )
    return devices


def devices_named(model: GpuModel, count: int) -> list[GpuDevice]:
    """Return as many devices of a product, with all of their memory free: for a plan of another machine."""
    total = model.memory_bytes
    return [GpuDevice(f"GPU {index}", model.nvml_names[0], model.sm, total, total) for index in range(count)]


def check_gpus(hardware: HardwareInfo) -> Iterator[Finding]:
    """Yield what is to be said of the GPUs and their driver, whatever runs on them."""
    yield from _check_driver(hardware)
    for gpu in hardware.gpus:
        yield from _check_usable(gpu, has_other=len(hardware.gpus) > 1)
        yield from _check_health(gpu)
        yield from _check_speed(gpu)
    yield from _check_pool(hardware)


def check_world(
    devices: Sequence[GpuDevice], world_size: int, sm: int | None, what: str
) -> Iterator[Finding]:
    """Yield a finding where too few equal devices are there for an engine's ranks.

    `sm` is what they must be; None takes the most numerous kind that TensorRT-LLM runs on.
    """
    usable = largest_pool(devices, sm)
    if len(usable) >= world_size:
        return
    wanted = f"{world_size} equal GPUs" if world_size > 1 else "one GPU"
    fitting = ", ".join(device.label for device in usable) or "none"
    yield Finding(
        "gpu_pool_small",
        "blocks",
        f"GPUs that can run {what}: {fitting}; here: {tell_devices(devices)}",
        wanted + (f" of sm_{sm}" if sm else f" of sm_{MIN_SM} or newer"),
        "build the engine for this machine's GPUs, or use a smaller --tp-size and --pp-size"
        if devices
        else "use a machine with such GPUs; trtb plan --gpu NAME tells which would do",
        findings.SUPPORT_MATRIX,
    )


def largest_pool(devices: Iterable[GpuDevice], sm: int | None = None) -> list[GpuDevice]:
    """Return the devices of the kind there is most of; ranks must be alike, and a slice has no peers."""
    pools: dict[tuple[str, int], list[GpuDevice]] = {}
    for device in devices:
        if device.sm >= MIN_SM and sm in (None, device.sm):
            key = (device.label if device.is_slice else device.name, device.sm)
            pools.setdefault(key, []).append(device)
    return max(pools.values(), key=lambda pool: (len(pool), pool[0].total_bytes), default=[])


def tell_devices(devices: Sequence[GpuDevice]) -> str:
    """Return the devices on one line."""
    return ", ".join(f"{device.label} ({device.name}, sm_{device.sm})" for device in devices) or "no GPU"


def _check_driver(hardware: HardwareInfo) -> Iterator[Finding]:
    driver = hardware.driver
    kinds = {problem.kind: problem for problem in hardware.problems if problem.what.startswith("NVML")}
    if driver.driver_version is None:
        on_bus = hardware.host.nvidia_pci_devices
        if "version_mismatch" in kinds:
            hint = "restart the machine, or unload and load the nvidia kernel modules"
        elif "timeout" in kinds:
            hint = "look for Xid errors in the kernel's log, then restart the machine"
        elif on_bus:
            hint = "install the NVIDIA driver, or give the container its GPUs: docker run --gpus all"
        else:
            hint = "use --backend openvino, which needs no GPU, or a machine with an NVIDIA GPU"
        why = "; ".join(problem.why for problem in kinds.values()) or "none"
        seen = f"; on the bus: {', '.join(on_bus)}" if on_bus else ""
        yield Finding(
            "gpu_driver_missing", "blocks", f"NVIDIA driver: {why}{seen}", "a driver that answers", hint
        )
        return
    if not hardware.gpus:
        yield Finding(
            "gpu_missing",
            "blocks",
            f"GPUs: none that can be used, under driver {driver.driver_version}",
            "an NVIDIA GPU",
            "give the container its GPUs (docker run --gpus all), or use --backend openvino",
            findings.CONTAINER_TOOLKIT,
        )
    yield from check_driver_version(driver.major, driver.driver_version)


def check_driver_version(major: int | None, shown: str) -> Iterator[Finding]:
    """Yield a finding where the driver is too old for the containers that trtb knows."""
    primary, older = compatibility.PRIMARY_TRTLLM, compatibility.CUDA12_TRTLLM
    if major is None or major >= primary.min_driver:
        return
    is_usable = major >= older.min_driver
    yield Finding(
        "driver_old",
        "warns" if is_usable else "blocks",
        f"NVIDIA driver: {shown}",
        f"{primary.min_driver} or newer for TensorRT-LLM {primary.version} (CUDA {primary.cuda_major}), "
        f"{older.min_driver} for {older.version} (CUDA {older.cuda_major})",
        f"install driver {primary.min_driver}"
        + (f", or build and serve in {older.image}" if is_usable else ""),
        findings.CUDA_COMPATIBILITY,
    )


def _check_usable(gpu: GpuInfo, *, has_other: bool) -> Iterator[Finding]:
    place = _place(gpu)
    severity: Severity = "warns" if has_other else "blocks"
    if gpu.sm is None:
        yield Finding(
            "gpu_unreadable", severity, f"{place}: does not say what it is", "a GPU that answers",
            "look for Xid errors in the kernel's log; a GPU that is lost comes back with a restart",
            findings.NVML_REFERENCE,
        )  # fmt: skip
        return
    if gpu.sm < MIN_SM:
        yield Finding(
            "gpu_too_old", severity, f"{place}: compute capability {gpu.compute_capability}",
            f"{MIN_SM / 10} or newer for TensorRT-LLM {compatibility.PRIMARY_TRTLLM.version}",
            "use a newer GPU, or --backend openvino", findings.SUPPORT_MATRIX,
        )  # fmt: skip
    if gpu.compute_mode == "prohibited":
        yield Finding(
            "gpu_prohibited", severity, f"{place}: compute mode prohibited", "the default mode",
            f"nvidia-smi -i {gpu.index} -c DEFAULT", findings.NVML_REFERENCE,
        )  # fmt: skip
    if gpu.mig_mode == "enabled":
        num_slices = len(gpu.mig_devices)
        yield Finding(
            "gpu_sliced", "informs" if num_slices else severity, f"{place}: MIG mode, {num_slices} slices",
            "" if num_slices else "at least one slice",
            "an engine runs in one slice, without tensor parallelism" if num_slices else
            "create a slice (nvidia-smi mig -cgi), or switch MIG off",
            findings.MIG_GUIDE,
        )  # fmt: skip
    if gpu.fabric_state in ("not_started", "in_progress"):
        yield Finding(
            "gpu_fabric_down", severity, f"{place}: NVLink fabric {gpu.fabric_state}", "completed",
            "start nvidia-fabricmanager of the same version as the driver", findings.NVML_REFERENCE,
        )  # fmt: skip


def _check_health(gpu: GpuInfo) -> Iterator[Finding]:
    place = _place(gpu)
    if gpu.ecc_uncorrected_errors:
        yield Finding(
            "gpu_memory_errors", "warns", f"{place}: {gpu.ecc_uncorrected_errors} uncorrected memory errors",
            "none since the driver was loaded", "restart the machine; replace the GPU if they come back",
            findings.NVML_REFERENCE,
        )  # fmt: skip
    if gpu.row_remap_failed or gpu.row_remap_pending:
        yield Finding(
            "gpu_rows_broken", "warns",
            f"{place}: a broken memory row {'without spare' if gpu.row_remap_failed else 'not replaced yet'}",
            "no broken rows", "replace the GPU" if gpu.row_remap_failed else "restart the machine",
            findings.NVML_REFERENCE,
        )  # fmt: skip
    if gpu.processes:
        held = sum(process.used_bytes or 0 for process in gpu.processes)
        pids = ", ".join(str(process.pid) for process in gpu.processes[:8])
        yield Finding(
            "gpu_busy", "warns", f"{place}: {len(gpu.processes)} processes hold {gib(held)} (pid {pids})",
            "a GPU of our own: what others hold is missing from the KV cache",
            "end them, or choose another GPU with CUDA_VISIBLE_DEVICES",
        )  # fmt: skip


def _check_speed(gpu: GpuInfo) -> Iterator[Finding]:
    place = _place(gpu)
    reasons = [reason for reason in gpu.throttle_reasons or () if reason != "power_cap"]
    if reasons:
        yield Finding(
            "gpu_throttled", "warns", f"{place}: slowed down ({', '.join(reasons)})", "full clocks",
            "look after its cooling and power", findings.NVML_REFERENCE,
        )  # fmt: skip
    hot, limit = gpu.temperature_c, gpu.temperature_slowdown_c
    if hot is not None and limit is not None and hot >= limit - 5:
        yield Finding(
            "gpu_hot", "warns", f"{place}: {hot} degrees", f"well below {limit}, where it slows down",
            "look after its cooling", findings.NVML_REFERENCE,
        )  # fmt: skip
    cap, usual = gpu.power_limit_w, gpu.power_default_limit_w
    if cap is not None and usual and cap < POWER_CAP_SHARE * usual:
        yield Finding(
            "gpu_power_capped", "informs", f"{place}: power capped at {cap:g} W", f"{usual:g} W, its default",
            f"nvidia-smi -i {gpu.index} -pl {usual:g}, if the cap is not meant", findings.NVML_REFERENCE,
        )  # fmt: skip
    width, most = gpu.pcie.width, gpu.pcie.width_max
    if width is not None and most is not None and width < most:
        yield Finding(
            "gpu_link_narrow", "warns", f"{place}: PCIe x{width}", f"x{most}, what it can",
            "put it in a full slot, or seat it again; loading and host offload are slower so",
            findings.NVML_REFERENCE,
        )  # fmt: skip
    if gpu.persistence == "disabled":
        yield Finding(
            "gpu_persistence_off", "informs", f"{place}: persistence mode off", "on, for quick starts",
            "run nvidia-persistenced, or nvidia-smi -pm 1", findings.NVML_REFERENCE,
        )  # fmt: skip


def _check_pool(hardware: HardwareInfo) -> Iterator[Finding]:
    """Yield what the GPUs are to each other."""
    devices = devices_of(hardware)
    kinds: dict[tuple[str, int], list[str]] = {}
    for device in devices:
        kinds.setdefault((device.name, device.sm), []).append(device.label)
    if len(kinds) > 1:
        told = "; ".join(f"{', '.join(labels)}: {name}, sm_{sm}" for (name, sm), labels in kinds.items())
        yield Finding(
            "gpus_mixed", "warns", f"GPUs: {told}", "one kind",
            "an engine runs on the compute capability that it was built for; tensor parallelism needs equal "
            "GPUs: choose with CUDA_VISIBLE_DEVICES, and build an engine for each kind",
            findings.SUPPORT_MATRIX,
        )  # fmt: skip
    far = [peer for peer in hardware.peers if peer.can_peer is False]
    if far:
        pairs = ", ".join(f"{peer.first}-{peer.second}" for peer in far[:8])
        yield Finding(
            "gpu_peers_far", "informs", f"GPUs {pairs}: cannot reach each other's memory", "peer access",
            "tensor parallelism over them goes through the host and is slow", findings.NVML_REFERENCE,
        )  # fmt: skip
    if visible := hardware.host.cuda_visible_devices:
        yield Finding(
            "gpus_hidden", "informs", f"CUDA_VISIBLE_DEVICES is {visible}; the list here is the driver's", "",
            "unset it to use every GPU",
        )  # fmt: skip


def _place(gpu: GpuInfo) -> str:
    return f"GPU {gpu.index} ({gpu.name})" if gpu.name else f"GPU {gpu.index}"
