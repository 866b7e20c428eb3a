"""The processor's flags that decide how fast, and how exactly, the CPU engine computes."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from trtb.build.probe.cgroups import read_text

CPU_FLAGS: Final = (
    *("avx2", "fma", "f16c", "avx512f", "avx512_vnni", "avx512_bf16", "avx512_fp16"),
    *("avx_vnni", "amx_tile", "amx_bf16", "amx_int8", "amx_fp16"),
)
# with any of these, the CPU engine computes in bf16 or quantises activations by itself, unless told not to
_LOW_PRECISION_FLAGS: Final = frozenset({"avx512_bf16", "avx512_vnni", "avx_vnni", "amx_bf16", "amx_int8"})


def low_precision_flags(cpuinfo: Path = Path("/proc/cpuinfo")) -> list[str]:
    """Return the CPU's flags that make the engine's default arithmetic less exact than f32."""
    return sorted(_LOW_PRECISION_FLAGS & all_flags(read_text(cpuinfo)))


def all_flags(cpuinfo: str) -> frozenset[str]:
    """Return every flag of the first processor of a /proc/cpuinfo."""
    for line in cpuinfo.splitlines():
        name, _, flags = line.partition(":")
        if name.strip() == "flags":
            return frozenset(flags.split())
    return frozenset()
