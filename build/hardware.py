"""The machine as it is: what the NVIDIA driver tells of its GPUs, and the host around them.

`python -c "…tell_gpus()"` is a process of its own, which `gpu_child` starts and watches: a wedged driver
blocks its caller in the kernel for ever, and its library can crash. The child names each question before
it asks, so that the one without an answer is known and the answers before it are kept. It imports nothing
heavier than NVML's bindings: the records of `hardware_info` are made by the parent.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from trtb.build.probe import nvml_names as names
from trtb.build.probe.cgroups import available_host_bytes, cgroup_available_bytes
from trtb.build.probe.cpu_flags import low_precision_flags

if TYPE_CHECKING:
    from trtb.build.probe.hardware_info import GpuReport, HardwareInfo

__all__ = [
    "ANSWER_TIMEOUT_S",
    "available_host_bytes",
    "cgroup_available_bytes",
    "low_precision_flags",
    "probe",
    "probe_gpus",
    "tell_gpu_use",
    "tell_gpus",
]

# without persistence mode the first call wakes every GPU, and a machine of many takes its time
ANSWER_TIMEOUT_S: Final = 60.0


def probe(
    paths: Sequence[Path] = (),
    ports: Sequence[int] = (),
    *,
    root: Path = Path("/"),
    answer_timeout_s: float = ANSWER_TIMEOUT_S,
) -> HardwareInfo:
    """Return what this machine is; what could not be read is None, and said in `problems`.

    Args:
        paths: Folders whose file systems are of interest; they need not exist yet.
        ports: TCP ports of the loopback address that are to be free.
        root: Where /proc, /sys, /etc and /run are looked for.
        answer_timeout_s: How long the driver may take for one answer.
    """
    from trtb.build.probe.hardware_info import HardwareInfo
    from trtb.build.probe.host_probe import probe_host

    told = probe_gpus(root=root, answer_timeout_s=answer_timeout_s)
    host = probe_host(paths, ports, root=root)
    return HardwareInfo(
        driver=told.driver,
        num_gpus=told.num_gpus,
        gpus=told.gpus,
        peers=told.peers,
        host=host,
        problems=(*told.problems, *host.problems),
    )


def probe_gpus(*, root: Path = Path("/"), answer_timeout_s: float = ANSWER_TIMEOUT_S) -> GpuReport:
    """Return what the NVIDIA driver tells, asked in a process of its own."""
    from trtb.build.probe.gpu_child import ask_child

    return ask_child(root=root, answer_timeout_s=answer_timeout_s)


def tell_gpus() -> None:
    """Ask NVML everything and write each answer to stdout, a JSON object a line; the child's whole work."""
    import pynvml

    _tell("ask", "NVML")
    _Interview(pynvml).run()
    _tell("end", True)


def tell_gpu_use() -> None:
    """Tell how busy the GPUs are each time that stdin asks; the whole work of the child of `gpu_use`."""
    import pynvml

    from trtb.build.probe.gpu_use import answer_lines

    answer_lines(pynvml)


def _tell(kind: str, value: object) -> None:
    sys.stdout.write(json.dumps({kind: value}) + "\n")
    sys.stdout.flush()  # the parent learns of a question before its answer


class _Interview:
    """Asks NVML one question after the other and tells of each; no answer stops the next question."""

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        self._subject = "NVML"
        self._is_lost = False  # the GPU asked about; it has no more answers

    def run(self) -> None:
        """Tell of the driver, every GPU and every pair of them."""
        nvml = self._nvml
        if self._ask("start", lambda: nvml.nvmlInit() or True) is None:
            return
        self._subject = "driver"
        _tell(
            "driver",
            {
                "driver_version": self._ask("version", nvml.nvmlSystemGetDriverVersion),
                "cuda_version": names.to_cuda_version(
                    self._ask("CUDA version", nvml.nvmlSystemGetCudaDriverVersion_v2)
                ),
                "nvml_version": self._ask("NVML version", nvml.nvmlSystemGetNVMLVersion),
            },
        )
        count = self._ask("number of GPUs", nvml.nvmlDeviceGetCount)
        _tell("num_gpus", count)
        handles = {}
        for index in range(count or 0):
            self._subject, self._is_lost = f"GPU {index}", False
            handle = self._ask("device", nvml.nvmlDeviceGetHandleByIndex, index)
            if handle is not None:
                _tell("gpu", {"index": index, **self._gpu(handle)})
                if not self._is_lost:
                    handles[index] = handle
        self._is_lost = False
        self._pairs(handles)

    def _ask(
        self,
        what: str,
        question: Callable[..., Any],
        *args: Any,
        older: Callable[..., Any] | None = None,
        absent: frozenset[int] = frozenset(),
    ) -> Any:
        """Return the answer, or None and tell of the problem; error codes in `absent` are none.

        `older` is asked where the driver does not have `question` yet.
        """
        if self._is_lost:
            return None
        _tell("ask", f"{self._subject}: {what}")
        try:
            return question(*args)
        except self._nvml.NVMLError as exc:
            if exc.value == names.FUNCTION_NOT_FOUND and older:
                return self._ask(what, older, *args, absent=absent)
            if exc.value not in absent:
                kind, why = names.NVML_ERRORS.get(exc.value, ("failed", ""))
                self._is_lost = kind == "lost"
                why = why or f"{exc} (NVML error {exc.value})"
                _tell("problem", {"what": f"{self._subject}: {what}", "why": why, "kind": kind})
            return None

    def _gpu(self, handle: Any) -> dict[str, Any]:
        nvml, ask = self._nvml, self._ask
        memory = ask("memory", nvml.nvmlDeviceGetMemoryInfo, handle)
        pci = ask("PCI address", nvml.nvmlDeviceGetPciInfo, handle)
        capability = ask("compute capability", nvml.nvmlDeviceGetCudaComputeCapability, handle)
        mig_mode = names.ENABLED.get(names.current(ask("MIG mode", nvml.nvmlDeviceGetMigMode, handle)))
        return {
            "name": ask("name", nvml.nvmlDeviceGetName, handle),
            "uuid": ask("UUID", nvml.nvmlDeviceGetUUID, handle),
            "serial": ask("serial", nvml.nvmlDeviceGetSerial, handle),
            "pci_bus_id": names.to_bus_id(pci),
            "compute_capability": capability and f"{capability[0]}.{capability[1]}",
            "memory_total_bytes": memory and memory.total,
            "memory_free_bytes": memory and memory.free,
            "mig_mode": mig_mode,
            "mig_devices": self._mig_devices(handle) if mig_mode == "enabled" else [],
            **self._health(handle),
            **self._power(handle),
            **self._links(handle),
            "processes": self._processes(handle),
            "vbios": ask("VBIOS version", nvml.nvmlDeviceGetVbiosVersion, handle),
        }

    def _mig_devices(self, handle: Any) -> list[dict[str, Any]]:
        nvml, ask, subject = self._nvml, self._ask, self._subject
        found = []
        for index in range(ask("number of MIG slices", nvml.nvmlDeviceGetMaxMigDeviceCount, handle) or 0):
            self._subject = f"{subject}, MIG {index}"
            part = ask("device", nvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, index, absent=names.ABSENT)
            if part is None:
                continue
            memory = ask("memory", nvml.nvmlDeviceGetMemoryInfo, part)
            attributes = ask("attributes", nvml.nvmlDeviceGetAttributes_v2, part)
            found.append(
                {
                    "index": index,
                    "name": ask("name", nvml.nvmlDeviceGetName, part),
                    "uuid": ask("UUID", nvml.nvmlDeviceGetUUID, part),
                    "gpu_instance_id": ask("GPU instance", nvml.nvmlDeviceGetGpuInstanceId, part),
                    "compute_instance_id": ask("compute instance", nvml.nvmlDeviceGetComputeInstanceId, part),
                    "num_multiprocessors": attributes and attributes.multiprocessorCount,
                    "memory_total_bytes": memory and memory.total,
                    "memory_free_bytes": memory and memory.free,
                }
            )
        self._subject = subject
        return found

    def _health(self, handle: Any) -> dict[str, Any]:
        nvml, ask = self._nvml, self._ask
        ecc = ask("ECC mode", nvml.nvmlDeviceGetEccMode, handle)
        errors, lifetime = (
            ask(what, nvml.nvmlDeviceGetTotalEccErrors, handle, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, span)
            for what, span in (
                ("ECC errors", nvml.NVML_VOLATILE_ECC),
                ("ECC errors of its lifetime", nvml.NVML_AGGREGATE_ECC),
            )
        )
        # corrected, uncorrected, is one pending, has one failed
        rows = ask("remapped rows", nvml.nvmlDeviceGetRemappedRows, handle)
        return {
            "ecc_mode": names.ENABLED.get(names.current(ecc)),
            "ecc_uncorrected_errors": errors,
            "ecc_uncorrected_lifetime": lifetime,
            "row_remap_pending": rows and bool(rows[2]),
            "row_remap_failed": rows and bool(rows[3]),
            "compute_mode": names.COMPUTE_MODES.get(
                ask("compute mode", nvml.nvmlDeviceGetComputeMode, handle)
            ),
            "persistence": names.ENABLED.get(
                ask("persistence mode", nvml.nvmlDeviceGetPersistenceMode, handle)
            ),
        }

    def _power(self, handle: Any) -> dict[str, Any]:
        nvml, ask = self._nvml, self._ask
        clocks = {
            key: ask(what, question, handle, clock)
            for key, what, question, clock in (
                ("sm_mhz", "SM clock", nvml.nvmlDeviceGetClockInfo, nvml.NVML_CLOCK_SM),
                ("sm_max_mhz", "highest SM clock", nvml.nvmlDeviceGetMaxClockInfo, nvml.NVML_CLOCK_SM),
                ("memory_mhz", "memory clock", nvml.nvmlDeviceGetClockInfo, nvml.NVML_CLOCK_MEM),
                (
                    *("memory_max_mhz", "highest memory clock"),
                    *(nvml.nvmlDeviceGetMaxClockInfo, nvml.NVML_CLOCK_MEM),
                ),
            )
        }
        reasons = ask(
            "clock event reasons",
            nvml.nvmlDeviceGetCurrentClocksEventReasons,
            handle,
            older=nvml.nvmlDeviceGetCurrentClocksThrottleReasons,
        )
        temperature = ask(
            *("temperature", nvml.nvmlDeviceGetTemperatureV, handle, nvml.NVML_TEMPERATURE_GPU),
            older=nvml.nvmlDeviceGetTemperature,
        )
        return {
            "power_limit_w": names.to_watts(ask("power limit", nvml.nvmlDeviceGetEnforcedPowerLimit, handle)),
            "power_default_limit_w": names.to_watts(
                ask("default power limit", nvml.nvmlDeviceGetPowerManagementDefaultLimit, handle)
            ),
            "power_draw_w": names.to_watts(ask("power draw", nvml.nvmlDeviceGetPowerUsage, handle)),
            "clocks": clocks,
            "throttle_reasons": None
            if reasons is None
            else [name for bit, name in names.THROTTLE_REASONS.items() if reasons & bit],
            "temperature_c": temperature,
            "temperature_slowdown_c": ask(
                "slowdown temperature",
                nvml.nvmlDeviceGetTemperatureThreshold,
                handle,
                nvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN,
            ),
        }

    def _links(self, handle: Any) -> dict[str, Any]:
        nvml, ask = self._nvml, self._ask
        fabric = nvml.c_nvmlGpuFabricInfo_t()
        has_fabric = ask(
            "NVSwitch fabric", lambda: nvml.nvmlDeviceGetGpuFabricInfo(handle, nvml.byref(fabric)) == 0
        )
        return {
            "pcie": {
                "generation": ask("PCIe generation", nvml.nvmlDeviceGetCurrPcieLinkGeneration, handle),
                "generation_max": ask(
                    "highest PCIe generation", nvml.nvmlDeviceGetMaxPcieLinkGeneration, handle
                ),
                "width": ask("PCIe width", nvml.nvmlDeviceGetCurrPcieLinkWidth, handle),
                "width_max": ask("full PCIe width", nvml.nvmlDeviceGetMaxPcieLinkWidth, handle),
            },
            "nvlink_active_links": self._active_nvlinks(handle),
            "fabric_state": names.FABRIC_STATES.get(fabric.state) if has_fabric else None,
        }

    def _active_nvlinks(self, handle: Any) -> int | None:
        nvml = self._nvml
        states = [self._ask("NVLink", nvml.nvmlDeviceGetNvLinkState, handle, 0)]
        others = range(1, nvml.NVML_NVLINK_MAX_LINKS if states[0] is not None else 0)
        states += [
            self._ask("NVLink", nvml.nvmlDeviceGetNvLinkState, handle, link, absent=names.ABSENT)
            for link in others
        ]
        return None if states[0] is None else sum(bool(state) for state in states)

    def _processes(self, handle: Any) -> list[dict[str, Any]] | None:
        nvml, ask = self._nvml, self._ask
        computing = ask(
            *("processes", nvml.nvmlDeviceGetComputeRunningProcesses_v3, handle),
            older=nvml.nvmlDeviceGetComputeRunningProcesses_v2,
        )
        drawing = ask(
            *("graphics processes", nvml.nvmlDeviceGetGraphicsRunningProcesses_v3, handle),
            older=nvml.nvmlDeviceGetGraphicsRunningProcesses_v2,
        )
        if computing is None and drawing is None:
            return None
        used = {process.pid: process.usedGpuMemory for process in (*(drawing or ()), *(computing or ()))}
        return [{"pid": pid, "used_bytes": used[pid]} for pid in sorted(used)]

    def _pairs(self, handles: dict[int, Any]) -> None:
        nvml, ask = self._nvml, self._ask
        pairs = [(first, second) for first in handles for second in handles if first < second]
        for first, second in pairs:
            self._subject = f"GPUs {first} and {second}"
            both = (handles[first], handles[second])
            peer = ask("peer access", nvml.nvmlDeviceGetP2PStatus, *both, names.P2P_READ)
            nvlink = ask("NVLink", nvml.nvmlDeviceGetP2PStatus, *both, names.P2P_NVLINK)
            path = ask("topology", nvml.nvmlDeviceGetTopologyCommonAncestor, *both)
            _tell(
                "peer",
                {
                    "first": first,
                    "second": second,
                    "can_peer": None if peer is None else peer == 0,
                    "peer_status": None if peer is None else names.PEER_STATES.get(peer, "unknown"),
                    "has_nvlink": None if nvlink is None else nvlink == 0,
                    "path": names.PATHS.get(path),
                },
            )
