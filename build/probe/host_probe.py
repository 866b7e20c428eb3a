"""The host around the GPUs: processor, memory, limits, clock, ports; everything without root.

All of it is read below one root folder, so that a test can lay out any machine.
"""

from __future__ import annotations

import ctypes
import os
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from trtb.build.probe import cgroups
from trtb.build.probe.cgroups import meminfo_bytes, read_text
from trtb.build.probe.cpu_flags import CPU_FLAGS, all_flags
from trtb.build.probe.hardware_info import CpuInfo, HostInfo, MemoryInfo, NumaNode, PortInfo, Problem, Ulimit
from trtb.build.probe.host_containers import find_container, probe_docker
from trtb.build.probe.host_disks import probe_disk

_NVIDIA_VENDOR: Final = "0x10de"
_DISPLAY_CLASS: Final = "0x03"  # VGA and 3D controllers; an NVIDIA card also has sound and USB
_STA_UNSYNC: Final = 0x40
# as /proc/self/limits writes them -> as `ulimit` and container options do
_ULIMITS: Final = {
    "Max open files": "nofile",
    "Max locked memory": "memlock",
    "Max stack size": "stack",
    "Max core file size": "core",
    "Max processes": "nproc",
}


def probe_host(paths: Sequence[Path], ports: Sequence[int], *, root: Path = Path("/")) -> HostInfo:
    """Return what this machine is, its GPUs apart."""
    problems: list[Problem] = []
    system = os.uname()
    shm = root / "dev/shm"
    return HostInfo(
        architecture=system.machine,
        kernel=system.release,
        distribution=_distribution(read_text(root / "etc/os-release")),
        libc=os.confstr("CS_GNU_LIBC_VERSION") if "CS_GNU_LIBC_VERSION" in os.confstr_names else None,
        container=find_container(root, os.environ),
        cpu=probe_cpu(root),
        numa_nodes=tuple(numa_nodes(root)),
        memory=probe_memory(root),
        shared_memory=probe_disk(shm, root=root, problems=problems) if shm.is_dir() else None,
        disks=tuple(disk for path in paths if (disk := probe_disk(path, root=root, problems=problems))),
        ulimits=tuple(read_ulimits(read_text(root / "proc/self/limits"))),
        docker=probe_docker(problems),
        is_clock_synchronised=is_clock_synchronised(problems),
        ports=tuple(PortInfo(port=port, is_free=is_port_free(port)) for port in ports),
        nvidia_pci_devices=tuple(nvidia_pci_devices(root)),
        cuda_visible_devices=os.environ.get("CUDA_VISIBLE_DEVICES"),
        problems=tuple(problems),
    )


def probe_cpu(root: Path) -> CpuInfo:
    """Return the processor and how much of it this process may use."""
    cpuinfo = read_text(root / "proc/cpuinfo")
    model = None
    threads: list[dict[str, str]] = []
    for block in cpuinfo.split("\n\n"):
        fields = {}
        for line in block.splitlines():
            name, _, value = line.partition(":")
            fields[name.strip()] = value.strip()
        if "processor" in fields:
            threads.append(fields)
            model = model or fields.get("model name")
    # a machine that does not tell its sockets and cores, as many virtual ones, has no such fields
    has_topology = bool(threads) and all("core id" in fields for fields in threads)
    cores = {(fields.get("physical id"), fields.get("core id")) for fields in threads}
    flags = all_flags(cpuinfo)
    num_threads = len(threads) or os.cpu_count() or 1
    return CpuInfo(
        model=model,
        num_sockets=len({socket for socket, _ in cores}) if has_topology else None,
        num_cores=len(cores) if has_topology else None,
        num_threads=num_threads,
        num_usable_threads=_usable_threads(read_text(root / "proc/self/status")) or num_threads,
        quota_cpus=cgroups.cpu_quota(root),
        flags=tuple(flag for flag in CPU_FLAGS if flag in flags),
    )


def numa_nodes(root: Path) -> list[NumaNode]:
    """Return the machine's memory nodes, by index."""
    nodes = [
        NumaNode(
            index=int(folder.name.removeprefix("node")),
            cpus=read_text(folder / "cpulist"),
            memory_total_bytes=meminfo_bytes(read_text(folder / "meminfo"), "MemTotal"),
        )
        for folder in (root / "sys/devices/system/node").glob("node[0-9]*")
    ]
    return sorted(nodes, key=lambda node: node.index)


def probe_memory(root: Path) -> MemoryInfo:
    """Return the host's memory and what limits hold for this process."""
    meminfo = read_text(root / "proc/meminfo")
    return MemoryInfo(
        total_bytes=meminfo_bytes(meminfo, "MemTotal") or 0,
        available_bytes=cgroups.available_host_bytes(root),
        limit_bytes=cgroups.memory_limit_bytes(root),
        swap_total_bytes=meminfo_bytes(meminfo, "SwapTotal") or 0,
        swap_free_bytes=meminfo_bytes(meminfo, "SwapFree") or 0,
    )


def read_ulimits(text: str) -> list[Ulimit]:
    """Return the limits that serving needs, from the text of /proc/self/limits."""
    found = []
    for line in text.splitlines():
        for title, name in _ULIMITS.items():
            if line.startswith(title):
                soft, hard = line[len(title) :].split()[:2]
                found.append(Ulimit(name=name, soft=_limit(soft), hard=_limit(hard)))
    return found


def is_port_free(port: int) -> bool:
    """Return whether a server could listen on this TCP port of the loopback address now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # a port whose last connections are still closing is free to a server
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def nvidia_pci_devices(root: Path) -> list[str]:
    """Return the addresses of the NVIDIA GPUs on the bus; a GPU without its driver is among them."""
    return sorted(
        folder.name
        for folder in (root / "sys/bus/pci/devices").glob("*")
        if read_text(folder / "vendor") == _NVIDIA_VENDOR
        and read_text(folder / "class").startswith(_DISPLAY_CLASS)
    )


def _distribution(os_release: str) -> str | None:
    for line in os_release.splitlines():
        if line.startswith("PRETTY_NAME="):
            return line.partition("=")[2].strip("\"'")
    return None


def _usable_threads(status: str) -> int:
    """Return how many processors affinity and cpuset leave, from the text of /proc/self/status."""
    for line in status.splitlines():
        name, _, ranges = line.partition(":")
        if name == "Cpus_allowed_list":
            ends = [part.split("-") for part in ranges.strip().split(",")]
            return sum(int(end[-1]) - int(end[0]) + 1 for end in ends)
    return 0


def _limit(text: str) -> int | None:
    return None if text == "unlimited" else int(text)


class _Timex(ctypes.Structure):
    """The beginning of the kernel's `struct timex`, and room for its rest."""

    _fields_ = [
        ("modes", ctypes.c_uint),
        *((name, ctypes.c_long) for name in ("offset", "freq", "maxerror", "esterror")),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_byte * 256),
    ]


def is_clock_synchronised(
    problems: list[Problem], adjtimex: Callable[[ctypes.Structure], int] | None = None
) -> bool | None:
    """Return what the kernel knows of its clock; None, and a problem, where it does not say.

    `adjtimex` takes a `struct timex` and returns the clock's state, or -1; the C library's unless given.
    """
    clock = _Timex()  # modes = 0: nothing is set, so nobody has to be root
    ask = adjtimex or (lambda timex: int(_libc().adjtimex(ctypes.byref(timex))))
    if ask(clock) < 0:
        why = os.strerror(ctypes.get_errno())
        problems.append(Problem(what="clock", why=f"adjtimex: {why}", kind="no_permission"))
        return None
    return not clock.status & _STA_UNSYNC


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
