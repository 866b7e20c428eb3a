"""Check the numbers and the fixed values of a JSON schema: few bounds are what they say in the engine.

It writes a range of numbers as an expression of its digits, and some of those let neighbours through.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

from trtb.runner.findings import shown
from trtb.runner.guiding.guide_faults import MAX_DEPTH, GuideError

MAX_BOUND: Final = 100  # of integers; beyond, others were seen to pass (192 for 67 to 191)
MAX_CONST: Final = 2**63 - 1
BOUNDS: Final = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"})


def check_integer(schema: dict[str, Any], path: str) -> None:
    """Raise GuideError where the engine would let an integer outside of its bounds through."""
    for key in BOUNDS & set(schema):
        if type(schema[key]) is not int or abs(schema[key]) > MAX_BOUND:
            raise GuideError(f"{path}/{key}: {shown(schema[key])}; expected an integer within ±{MAX_BOUND}")
    low = _tighter(max, schema, "minimum", "exclusiveMinimum", 1)
    high = _tighter(min, schema, "maximum", "exclusiveMaximum", -1)
    if low is not None and high is not None and low > high:
        raise GuideError(f"{path}: no integer lies within its bounds; expected one that does")
    if high is None and low is not None and low not in (0, 1):
        raise GuideError(f"{path}: a minimum of {low} alone lets others through; expected a maximum too")
    if low is None and high is not None and high < 0:
        raise GuideError(f"{path}: a maximum of {high} alone lets others through; expected a minimum too")


def check_number(schema: dict[str, Any], path: str) -> None:
    """Raise GuideError where the engine would let a number outside of its bounds through."""
    bounds = BOUNDS & set(schema)
    value = schema[min(bounds)] if bounds else 0
    fits = type(value) is int and (
        (bounds == {"minimum"} and value in (0, 1)) or (bounds == {"maximum"} and 0 <= value <= MAX_BOUND)
    )
    if bounds and not fits:
        raise GuideError(
            f"{path}/{min(bounds)}: others pass; expected type integer, or a minimum of 0 or 1 alone,"
            f" or a maximum from 0 to {MAX_BOUND} alone"
        )


def check_value(value: Any, path: str, depth: int = 0) -> None:
    """Raise GuideError where the engine would write a const or a value of an enum differently."""
    if depth > MAX_DEPTH:
        raise GuideError(f"{path}: too deep; expected at most {MAX_DEPTH} levels")
    is_number = isinstance(value, int | float)
    if is_number and (not math.isfinite(value) or abs(value) > MAX_CONST):
        raise GuideError(f"{path}: {shown(value)}; expected a number of at most 63 bits")
    if isinstance(value, list | dict):
        for item in value.values() if isinstance(value, dict) else value:
            check_value(item, path, depth + 1)


def _tighter(
    pick: Callable[[int, int], int], schema: dict[str, Any], closed: str, open_: str, step: int
) -> int | None:
    bounds = [schema[closed]] if closed in schema else []
    if open_ in schema:
        bounds.append(schema[open_] + step)
    return None if not bounds else pick(bounds[0], bounds[-1])
