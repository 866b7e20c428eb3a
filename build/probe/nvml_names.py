"""What NVML's numbers mean, in the words of our records; no driver is needed to read this."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

ENABLED: Final = {0: "disabled", 1: "enabled"}
COMPUTE_MODES: Final = {0: "default", 2: "prohibited", 3: "exclusive_process"}
FABRIC_STATES: Final = {0: "not_supported", 1: "not_started", 2: "in_progress", 3: "completed"}
PEER_STATES: Final = {
    0: "ok",
    1: "chipset_not_supported",
    2: "gpu_not_supported",
    3: "topology_not_supported",
    4: "disabled_by_registry",
    5: "not_supported",
}
PATHS: Final = {
    0: "same_board",
    10: "pcie_switch",
    20: "pcie_switches",
    30: "host_bridge",
    40: "numa_node",
    50: "system",
}
# bit 0, an idle GPU, is no reason to worry
THROTTLE_REASONS: Final = {
    1 << 1: "application_clocks",
    1 << 2: "power_cap",
    1 << 3: "hardware_slowdown",
    1 << 4: "sync_boost",
    1 << 5: "software_thermal",
    1 << 6: "hardware_thermal",
    1 << 7: "power_brake",
    1 << 8: "display_clocks",
    1 << 9: "board_limit",
    1 << 10: "reliability",
}
# nvmlReturn_t -> (kind of problem, what it means; "" for NVML's own words)
NVML_ERRORS: Final = {
    3: ("not_supported", ""),
    4: ("no_permission", ""),
    9: ("missing", "the NVIDIA kernel module is not loaded"),
    10: ("timeout", ""),
    12: (
        "missing",
        "libnvidia-ml.so.1: not found; no NVIDIA driver is here, or this container was not given it",
    ),
    13: ("not_supported", "the driver is too old to tell"),
    15: ("lost", "the GPU has fallen off the bus; a restart of the machine may bring it back"),
    16: ("lost", "the GPU must be reset before it can be used"),
    18: (
        "version_mismatch",
        "the driver's library and its kernel module differ; a restart of the machine loads the new module",
    ),
}
FUNCTION_NOT_FOUND: Final = 13
ABSENT: Final = frozenset({2, 3, 6})  # invalid argument, not supported, not found: no such link or slice
P2P_READ: Final = 0  # pynvml's own constant is a tuple, by mistake
P2P_NVLINK: Final = 2


def current(pair: Sequence[Any] | None) -> Any:
    """Return what holds now of an answer (now, after the next reset)."""
    return None if pair is None else pair[0]


def to_cuda_version(number: int | None) -> str | None:
    """Return a CUDA version as people write it.

    >>> to_cuda_version(12080)
    '12.8'
    """
    return None if number is None else f"{number // 1000}.{number % 1000 // 10}"


def to_watts(milliwatts: int | None) -> float | None:
    """Return NVML's milliwatts as watts."""
    return None if milliwatts is None else milliwatts / 1000


def to_bus_id(pci: Any) -> str | None:
    """Return the address as /sys writes it: NVML gives the domain eight digits, /sys four."""
    if pci is None:
        return None
    text = pci.busId.decode() if isinstance(pci.busId, bytes) else str(pci.busId)
    return text.lower()[-12:]
