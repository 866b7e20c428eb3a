"""What this machine has: for now, the memory that a process may still take."""

from __future__ import annotations

from pathlib import Path

MEMINFO = Path("/proc/meminfo")
CGROUP = Path("/sys/fs/cgroup")


def available_memory_bytes(meminfo: Path = MEMINFO, cgroup: Path = CGROUP) -> int:
    """Return the bytes that can be taken without swapping, within the control group's limit.

    Reads MemAvailable, and memory.max and memory.current of a cgroup v2 (or its v1 names). A container's
    limit does not show in MemAvailable.
    """
    fields = dict(line.split(":", 1) for line in meminfo.read_text().splitlines() if ":" in line)
    available = int(fields["MemAvailable"].split()[0]) * 1024
    pairs = (
        (cgroup / "memory.max", cgroup / "memory.current"),
        (cgroup / "memory" / "memory.limit_in_bytes", cgroup / "memory" / "memory.usage_in_bytes"),
    )
    for limit_file, used_file in pairs:
        try:
            limit = int(limit_file.read_text())
            used = int(used_file.read_text())
        except (OSError, ValueError):  # not there, or "max": no limit
            continue
        available = min(available, max(0, limit - used))
    return available
