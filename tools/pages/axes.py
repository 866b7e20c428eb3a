"""Axes: which values they span, where their ticks stand, and how a value is written.

Decided here and not by the drawing library, so that labels can be placed, two charts can share an axis, and
a time reads as 1:30 and not as 90.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Number = int | float
Kind = Literal["linear", "log", "elapsed", "percent"]

MAX_TICKS = 8
LOG_FROM = 12
# steps of a clock, in seconds: to a minute, to an hour, to days
_ELAPSED_STEPS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400)


@dataclass(frozen=True, slots=True)
class Axis:
    """How values along one side are shown; the title carries the unit, as in "TTFT p90 (ms)"."""

    title: str
    kind: Kind = "linear"  # elapsed: seconds, shown as m:ss or h:mm:ss; percent: a fraction, shown as %
    has_zero: bool = True  # starts at zero, unless it is logarithmic
    low: float | None = None  # where the axis ends, instead of at the values
    high: float | None = None
    marked: tuple[float, ...] = ()  # where it is marked, instead of at round values

    def share(self, value: Number, domain: tuple[float, float]) -> float:
        """Return how far along the axis a value stands, from 0 to 1."""
        low, high = (math.log(end) if self.kind == "log" else end for end in domain)
        at = math.log(value) if self.kind == "log" else value
        return (at - low) / (high - low)

    def value_at(self, share: float, domain: tuple[float, float]) -> float:
        """Return the value that stands so far along the axis."""
        low, high = (math.log(end) if self.kind == "log" else end for end in domain)
        at = low + share * (high - low)
        return math.exp(at) if self.kind == "log" else at


def domain_of(values: Iterable[Number | None], axis: Axis) -> tuple[float, float]:
    """Return the ends of an axis: round values that hold every value, with low below high.

    >>> domain_of([3, 97], Axis("tokens"))
    (0.0, 100.0)
    """
    known = [float(value) for value in values if value is not None and math.isfinite(value)]
    if axis.kind == "log":
        known = [value for value in known if value > 0] or [1.0]
        low, high = min(known) / 1.25, max(known) * 1.25
        return axis.low or low, axis.high or high
    known = known or [0.0]
    low = min(known) if not axis.has_zero or min(known) < 0 else 0.0
    high = max(known)
    if low == high:
        low, high = (low, low + 1.0) if low == 0 else (low - abs(low) * 0.1, high + abs(high) * 0.1)
    step = _step(high - low, axis.kind)
    if axis.kind != "elapsed":  # a run ends where it ends
        low, high = math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step
    return (low if axis.low is None else axis.low), (high if axis.high is None else axis.high)


def ticks(axis: Axis, domain: tuple[float, float]) -> list[float]:
    """Return where an axis is marked: at most MAX_TICKS round values within its ends."""
    low, high = domain
    if axis.marked:
        return [value for value in axis.marked if low <= value <= high]
    if axis.kind == "log":
        decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        for digits in ((1, 2, 5), (1, 3), (1,)):
            marked = [digit * 10.0**decade for decade in decades for digit in digits]
            marked = [value for value in marked if low <= value <= high]
            if len(marked) <= MAX_TICKS:
                break
        return marked[:: math.ceil(len(marked) / MAX_TICKS) or 1]
    step = _step(high - low, axis.kind)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [n * step for n in range(first, last + 1)]


def is_wide(values: Sequence[Number]) -> bool:
    """Say whether values are so far apart that only a logarithmic axis shows the small ones."""
    return min(values) > 0 and max(values) / min(values) > LOG_FROM


def axis_spec(axis: Axis, domain: tuple[float, float]) -> dict[str, Any]:
    """Return the encoding of a side: its scale and its marks."""
    scale: dict[str, Any] = {"domain": list(domain), "nice": False, "zero": False}
    if axis.kind == "log":
        scale["type"] = "log"
    marked = ticks(axis, domain)
    named = zip(marked, names_of(marked, axis), strict=True)
    names = ", ".join(f"{_key_of(value)}: {name!r}" for value, name in named)
    return {
        "type": "quantitative",
        "scale": scale,
        "title": axis.title,
        "axis": {"values": marked, "labelExpr": f"({{{names}}})[datum.value]"},
    }


def _key_of(value: float) -> str:
    """Return a value as a key of an object in an expression, where a negative number is no key."""
    if value >= 0:
        return repr(value)
    return f"'{int(value) if value.is_integer() else value}'"


def names_of(marked: Sequence[float], axis: Axis) -> list[str]:
    """Return how marks are written: with as many digits as tell them apart."""
    names = [as_text(value, axis) for value in marked]
    if len(set(names)) == len(names):
        return names
    longer = ([f"{value:.{digits}g}" for value in marked] for digits in range(4, 17))
    return next((names for names in longer if len(set(names)) == len(names)), names)


def as_text(value: Number | None, axis: Axis) -> str:
    """Return a value as the axis writes it.

    >>> as_text(3725, Axis("time", "elapsed")), as_text(0.25, Axis("use", "percent"))
    ('1:02:05', '25%')
    >>> as_text(12345.6, Axis("tokens"))
    '12,346'
    """
    if value is None:
        return "none"
    if axis.kind == "elapsed":
        minutes, seconds = divmod(round(value), 60)
        hours, minutes = divmod(minutes, 60)
        return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
    if axis.kind == "percent":
        return f"{round(value * 100, 1):g}%"
    if abs(value) >= 999.5:
        return f"{value:,.0f}" if abs(value) < 1e6 else f"{value / 1e6:,.4g} M"
    return f"{value:.3g}"


def _step(span: float, kind: Kind) -> float:
    """Return the smallest round step that needs at most MAX_TICKS marks for a span."""
    if kind == "elapsed":
        least = span / (MAX_TICKS - 1)
        return float(
            next((step for step in _ELAPSED_STEPS if step >= least), 86400 * math.ceil(least / 86400))
        )
    least = span / (MAX_TICKS - 2)
    decade = 10.0 ** math.floor(math.log10(least))
    return next(
        float(f"{decade * digit:.12g}")
        for digit in (1, 2, 2.5, 5, 10)
        if decade * digit >= least * (1 - 1e-9)
    )
