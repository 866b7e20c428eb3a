"""The machine that a sweep measured on, in words: points of two machines are no one curve."""

from __future__ import annotations

import collections

from trtb.build.probe.hardware_info import HardwareInfo


def describe_machine(found: HardwareInfo) -> str:
    """Return what decides the speed of a machine: its GPUs, its processor, and how much of that is ours."""
    cpu = found.host.cpu
    flags = [flag for flag in cpu.flags if flag.startswith(("avx512_", "amx"))]
    processor = f"{cpu.num_usable_threads} threads of {cpu.model or 'a processor that is not told'}"
    names = collections.Counter(gpu.name or "GPU" for gpu in found.gpus)
    gpus = [f"{count} x {name}" for name, count in names.items()]
    return ", ".join([*gpus, processor + (f" ({', '.join(flags)})" if flags else "")])
