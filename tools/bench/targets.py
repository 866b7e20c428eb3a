"""What a benchmark measured against what the design asks for, and the machine that it was measured on."""

from __future__ import annotations

import platform
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

# the instructions that decide how fast an engine is here; machines differ several-fold by them
FLAGS = ("avx2", "avx512f", "avx512_bf16", "avx512_vnni", "avx_vnni", "amx_tile", "amx_bf16", "amx_int8")


@dataclass(frozen=True, slots=True)
class Target:
    """One measured figure and its two marks; `is_bound` where less is better."""

    what: str
    measured: float
    hold: float
    reach: float
    is_bound: bool = False
    unit: str = ""

    @property
    def verdict(self) -> str:
        """Return reached, held or missed.

        >>> Target("ratio", 1.7, hold=2.0, reach=1.4, is_bound=True).verdict
        'held'
        """
        sign = -1 if self.is_bound else 1
        if sign * self.measured >= sign * self.reach:
            return "reached"
        return "held" if sign * self.measured >= sign * self.hold else "missed"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one benchmark found; the first target is its ratio."""

    name: str
    targets: list[Target]
    figures: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return it in JSON's types."""
        targets = [
            {
                "what": target.what,
                "measured": target.measured,
                "hold": target.hold,
                "reach": target.reach,
                "less_is_better": target.is_bound,
                "unit": target.unit,
                "verdict": target.verdict,
            }
            for target in self.targets
        ]
        return {"name": self.name, "ratio": self.targets[0].measured, "targets": targets, **self.figures}


def interleave(sides: dict[str, Callable[[int], Any]], num_rounds: int) -> dict[str, list[Any]]:
    """Run all sides in every round, the order turned round in every other one; the argument is the round."""
    found: dict[str, list[Any]] = {name: [] for name in sides}
    for number in range(num_rounds):
        names = list(sides) if number % 2 == 0 else list(reversed(sides))
        for name in names:
            found[name].append(sides[name](number))
    return found


def median_ratio(over: list[float], under: list[float]) -> float:
    """Return the median of the rounds' ratios: what troubles the machine in a round troubles both sides.

    >>> median_ratio([2.0, 9.0, 4.0], [1.0, 3.0, 2.0])
    2.0
    """
    return statistics.median(a / b for a, b in zip(over, under, strict=True))


def describe_machine() -> dict[str, Any]:
    """Return the processor, its flags that matter, its cores, and how busy the machine is."""
    info = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    lines = dict(line.split(":", 1) for line in info.splitlines() if ":" in line)
    values = {key.strip(): value.strip() for key, value in lines.items()}
    found = set(values.get("flags", "").split())
    return {
        "cpu": values.get("model name", platform.processor()),
        "family_model": f"{values.get('cpu family', '?')}/{values.get('model', '?')}",
        "flags": [flag for flag in FLAGS if flag in found],
        "num_cores": psutil.cpu_count(),
        "load_1min": round(psutil.getloadavg()[0], 2),
        "memory_gb": round(psutil.virtual_memory().total / 1e9, 1),
        "python": platform.python_version(),
    }
