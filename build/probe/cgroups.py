"""The memory and CPU time that control groups leave this process, in either version of their interface.

A limit binds from any group on the way up, so all of them are read. A container often sees its own group
as the root while /proc names it by its path on the host: where the path is not there, the root is.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

# version 1 writes "no limit" as the largest multiple of a page below 2**63
_NO_LIMIT_BYTES = 1 << 62


def available_host_bytes(root: Path = Path("/")) -> int:
    """Return the bytes that can be allocated without swapping, and within every limit above this process."""
    available = meminfo_bytes(read_text(root / "proc/meminfo"), "MemAvailable") or 0
    left = [
        left for mount, group in own_groups("memory", root) for left in cgroup_available_bytes(mount, group)
    ]
    return min([available, *left])


def memory_limit_bytes(root: Path = Path("/")) -> int | None:
    """Return the least memory limit of the groups above this process; None where there is none."""
    return min(
        (
            limit
            for mount, group in own_groups("memory", root)
            for folder in _upwards(mount, group)
            if (limit := _limit_bytes(folder)) is not None
        ),
        default=None,
    )


def cpu_quota(root: Path = Path("/")) -> float | None:
    """Return the CPUs' worth of time that the groups above this process allow; None where all do."""
    return min(
        (
            quota
            for mount, group in own_groups("cpu", root)
            for folder in _upwards(mount, group)
            if (quota := _quota(folder)) is not None
        ),
        default=None,
    )


def cgroup_available_bytes(root: Path, group: str) -> list[int]:
    """Return what each limited control group on the way from `group` up to `root` has left."""
    left = []
    for folder in _upwards(root, group):
        limit = _limit_bytes(folder)
        if limit is not None:
            used = read_text(folder / "memory.current") or read_text(folder / "memory.usage_in_bytes")
            cached = _inactive_file_bytes(read_text(folder / "memory.stat"))
            left.append(limit - int(used or 0) + cached)
    return left


def own_groups(controller: str, root: Path = Path("/")) -> list[tuple[Path, str]]:
    """Return where each hierarchy that may hold `controller` is mounted, and this process's group there."""
    mounts = root / "sys/fs/cgroup"
    found = []
    for line in read_text(root / "proc/self/cgroup").splitlines():
        number, controllers, group = line.split(":", 2)
        if number == "0" and not controllers:  # version 2; beside version 1 it has a folder of its own
            unified = mounts / "unified"
            found.append((unified if unified.is_dir() else mounts, group))
        elif controller in controllers.split(","):
            together = mounts / controllers
            found.append((together if together.is_dir() else mounts / controller, group))
    return found


def meminfo_bytes(text: str, key: str) -> int | None:
    """Return one line of a `meminfo` file, of the machine's or of a NUMA node's.

    >>> meminfo_bytes("Node 0 MemTotal:       16 kB", "MemTotal")
    16384
    """
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name.split()[-1:] == [key]:
            return int(value.split()[0]) * 1024
    return None


def read_text(path: Path) -> str:
    """Return a small file of the kernel's, stripped; empty where it cannot be read."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def _upwards(root: Path, group: str) -> Iterator[Path]:
    folder = root / group.strip("/")
    while folder == root or root in folder.parents:
        yield folder
        folder = folder.parent


def _limit_bytes(folder: Path) -> int | None:
    text = read_text(folder / "memory.max") or read_text(folder / "memory.limit_in_bytes")
    return int(text) if text.isdecimal() and int(text) < _NO_LIMIT_BYTES else None


def _quota(folder: Path) -> float | None:
    quota, _, period = read_text(folder / "cpu.max").partition(" ")
    if not quota:
        quota = read_text(folder / "cpu.cfs_quota_us")
        period = read_text(folder / "cpu.cfs_period_us")
    # "max" in version 2 and -1 in version 1 are no limit
    return int(quota) / int(period) if quota.isdecimal() and period.isdecimal() else None


def _inactive_file_bytes(stat: str) -> int:
    # the page cache counts as used, and the kernel gives it back before it refuses memory
    values = dict(line.split(" ", 1) for line in stat.splitlines() if " " in line)
    # in version 1 the plain line is the group's own and leaves out the groups below it
    return int(values.get("total_inactive_file", values.get("inactive_file", 0)))
