"""What charts are drawn from: points, bins and bars, small and immutable."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trtb.tools.pages.axes import Number


@dataclass(frozen=True, slots=True)
class Point:
    """One point; `y` None is a gap in the line."""

    x: Number
    y: Number | None
    y_low: Number | None = None  # a spread's ends, drawn as a bar where both are there
    y_high: Number | None = None
    label: str = ""  # written beside the point, in a scatter chart
    text: str = ""  # shown under the mouse pointer, and read aloud; x and y where it is empty
    is_hollow: bool = False  # seen but not to be counted on
    is_best: bool = False  # drawn with a ring


@dataclass(frozen=True, slots=True)
class Series:
    """Points of one name and colour, in the order in which a line joins them."""

    name: str
    points: Sequence[Point]


@dataclass(frozen=True, slots=True)
class Bin:
    """How many values lie in [low, high)."""

    low: Number
    high: Number
    count: Number


@dataclass(frozen=True, slots=True)
class Histogram:
    """Bins of one name and colour."""

    name: str
    bins: Sequence[Bin]


@dataclass(frozen=True, slots=True)
class Bar:
    """A named amount."""

    name: str
    value: Number
    text: str = ""  # under the mouse pointer; name and value where it is empty


@dataclass(frozen=True, slots=True)
class Rule:
    """A line across the chart at one value of x or of y, with a word on it."""

    value: Number
    text: str
    of_x: bool = False
