"""How much memory this process may still take: the machine's, or its control group's where that is less."""

from __future__ import annotations

from pathlib import Path

import psutil

_CGROUP_ROOT = Path("/sys/fs/cgroup")


def available_host_bytes() -> int:
    """Return the bytes that can be allocated without swapping, and within every limit above this process."""
    available = int(psutil.virtual_memory().available)
    return min([available, *cgroup_available_bytes(_CGROUP_ROOT, _own_group())])


def cgroup_available_bytes(root: Path, group: str) -> list[int]:
    """Return what each limited control group on the way from `group` up to `root` has left (version 2)."""
    left = []
    folder = root / group.strip("/")
    while folder == root or root in folder.parents:
        limit = _read_text(folder / "memory.max")
        if limit.isdecimal():
            used = int(_read_text(folder / "memory.current") or 0)
            cached = _inactive_file_bytes(_read_text(folder / "memory.stat"))
            left.append(int(limit) - used + cached)
        folder = folder.parent
    return left


def _own_group() -> str:
    for line in _read_text(Path("/proc/self/cgroup")).splitlines():
        if line.startswith("0::"):
            return line[3:]
    return "/"


def _inactive_file_bytes(stat: str) -> int:
    # the page cache counts as used, and the kernel gives it back before it refuses memory
    for line in stat.splitlines():
        key, _, value = line.partition(" ")
        if key == "inactive_file":
            return int(value)
    return 0


def _read_text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


# with any of these, the CPU engine computes in bf16 or quantises activations by itself, unless told not to
_LOW_PRECISION_FLAGS = frozenset({"avx512_bf16", "avx512_vnni", "avx_vnni", "amx_bf16", "amx_int8"})


def low_precision_flags(cpuinfo: Path = Path("/proc/cpuinfo")) -> list[str]:
    """Return the CPU's flags that make the engine's default arithmetic less exact than f32."""
    for line in _read_text(cpuinfo).splitlines():
        name, _, flags = line.partition(":")
        if name.strip() == "flags":
            return sorted(_LOW_PRECISION_FLAGS.intersection(flags.split()))
    return []
