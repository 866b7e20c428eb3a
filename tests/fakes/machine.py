"""Machines that are not here: a healthy host, and GPUs of the catalogue; tests change single facts."""

from __future__ import annotations

from typing import Any

from trtb.build.planning.gpu_catalogue import get_gpu
from trtb.build.probe.hardware_info import (
    Clocks,
    CpuInfo,
    DiskInfo,
    DockerInfo,
    DriverInfo,
    GpuInfo,
    HardwareInfo,
    HostInfo,
    MemoryInfo,
    PcieLink,
    Problem,
    Ulimit,
)

GIB = 1 << 30
NO_DRIVER = Problem(what="NVML: start", why="libnvidia-ml.so.1: not found", kind="missing")


def fake_disk(path: str = "/home/trtb", **fields: Any) -> DiskInfo:
    """Return a large local disk."""
    values: dict[str, Any] = {
        "path": path, "mount_point": "/", "file_system": "ext4", "device": "/dev/vda", "is_network": False,
        "is_memory": False, "is_rotational": False, "is_writable": True, "total_bytes": 4000 * GIB,
        "free_bytes": 2000 * GIB, "free_inodes": 1_000_000,
    }  # fmt: skip
    return DiskInfo(**{**values, **fields})


def fake_memory(total_gib: float = 512, available_gib: float | None = None, **fields: Any) -> MemoryInfo:
    """Return a host's memory, nearly all of it free."""
    available = total_gib * 0.95 if available_gib is None else available_gib
    values: dict[str, Any] = {
        "total_bytes": int(total_gib * GIB), "available_bytes": int(available * GIB), "limit_bytes": None,
        "swap_total_bytes": 0, "swap_free_bytes": 0,
    }  # fmt: skip
    return MemoryInfo(**{**values, **fields})


def fake_host(**fields: Any) -> HostInfo:
    """Return a large, healthy host."""
    values: dict[str, Any] = {
        "architecture": "x86_64", "kernel": "6.1", "distribution": "Linux", "libc": "glibc 2.36",
        "container": None,
        "cpu": CpuInfo(
            model="a CPU", num_sockets=1, num_cores=32, num_threads=64, num_usable_threads=64,
            quota_cpus=None, flags=("avx2", "fma"),
        ),
        "numa_nodes": (), "memory": fake_memory(),
        "shared_memory": fake_disk("/dev/shm", file_system="tmpfs", is_memory=True, free_bytes=64 * GIB),
        "disks": (fake_disk(),),
        "ulimits": (
            Ulimit(name="nofile", soft=65536, hard=65536), Ulimit(name="memlock", soft=None, hard=None),
        ),
        "docker": DockerInfo(client_version="28", server_version="28", runtimes=("runc", "nvidia")),
        "is_clock_synchronised": True, "ports": (), "nvidia_pci_devices": (), "cuda_visible_devices": None,
        "problems": (),
    }  # fmt: skip
    return HostInfo(**{**values, **fields})


def fake_gpu(name: str = "H100", index: int = 0, **fields: Any) -> GpuInfo:
    """Return a healthy, idle GPU of the catalogue."""
    model = get_gpu(name)
    values: dict[str, Any] = {
        "index": index, "name": model.nvml_names[0], "uuid": f"GPU-{index}", "serial": None,
        "pci_bus_id": None, "compute_capability": f"{model.sm // 10}.{model.sm % 10}",
        "memory_total_bytes": model.memory_bytes, "memory_free_bytes": model.memory_bytes,
        "mig_mode": "disabled", "mig_devices": (),
        "ecc_mode": "enabled", "ecc_uncorrected_errors": 0, "ecc_uncorrected_lifetime": 0,
        "row_remap_pending": False, "row_remap_failed": False, "compute_mode": "default",
        "persistence": "enabled", "power_limit_w": 700.0, "power_default_limit_w": 700.0,
        "power_draw_w": 70.0,
        "clocks": Clocks(sm_mhz=1980, sm_max_mhz=1980, memory_mhz=2619, memory_max_mhz=2619),
        "throttle_reasons": (), "temperature_c": 35, "temperature_slowdown_c": 87,
        "pcie": PcieLink(generation=5, generation_max=5, width=16, width_max=16), "nvlink_active_links": 18,
        "fabric_state": "completed", "processes": (), "vbios": None,
    }  # fmt: skip
    return GpuInfo(**{**values, **fields})


def fake_hardware(*gpus: GpuInfo, driver: str | None = "590.44.01", **fields: Any) -> HardwareInfo:
    """Return a machine with these GPUs under a driver, or without any."""
    has_gpus = bool(gpus)
    values: dict[str, Any] = {
        "driver": DriverInfo(
            driver_version=driver if has_gpus else None, cuda_version="13.1" if has_gpus else None,
            nvml_version=None, kernel_module_version=None,
        ),
        "num_gpus": len(gpus) if has_gpus else None, "gpus": gpus, "peers": (), "host": fake_host(),
        "problems": () if has_gpus else (NO_DRIVER,),
    }  # fmt: skip
    return HardwareInfo(**{**values, **fields})
