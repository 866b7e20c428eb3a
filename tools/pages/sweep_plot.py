"""A sweep drawn with characters, for the terminal that it was run in."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Sequence
from typing import Any

from trtb.tools.pages.axes import Axis, Number, domain_of, is_wide, names_of, ticks
from trtb.tools.pages.chart_data import Series
from trtb.tools.pages.sweep_view import (
    SweepView,
    curves_of,
    latency_p90_ms,
    output_tokens_per_s,
    series_of,
)

HOW_TO_GET = "no plot here: plotext is not installed; pip install 'trtb[plots]', or open the page"
MIN_WIDTH = 40
_MARKERS = "●■▲◆▼★"
_COLOURS = ("blue", "orange", "green", "magenta", "cyan", "red")
_ESCAPES = re.compile(r"\x1b\[[0-9;]*m")


def terminal_plot(
    views: Sequence[SweepView], *, width: int, height: int = 20, has_colour: bool = True
) -> str:
    """Return throughput against request latency (p90) as lines of text, each point with its load beside it.

    One line that says how to get plotext, where it is not installed; nothing where no point was measured.
    """
    curves = curves_of(views)
    series = [one for one in series_of(curves, latency_p90_ms, output_tokens_per_s) if one.points]
    if not series:
        return ""
    if importlib.util.find_spec("plotext") is None:
        return HOW_TO_GET
    drawn = _draw(series, max(width, MIN_WIDTH), height)
    names = [f"{_coloured(_marker(n), n)} {one.name}" for n, one in enumerate(series)]
    text = "\n".join([*(["   ".join(names)] if len(series) > 1 else []), drawn])
    return text if has_colour else _ESCAPES.sub("", text)


def _draw(series: Sequence[Series], width: int, height: int) -> str:
    import plotext

    points = [point for one in series for point in one.points]
    is_far = is_wide([point.x for point in points])
    x = _Side(Axis("request latency p90 (ms)", "log" if is_far else "linear"), [one.x for one in points])
    y = _Side(Axis("output tokens/s"), [one.y for one in points])
    figure = plotext.figure  # there is one for the process
    plotext.terminal.limit(False, False)  # the size is the caller's: it may write to a pipe
    figure.clear()
    figure.theme("colorless")
    figure.plot_size(width, height)
    for name, side in (("x", x), ("y", y)):
        figure.ruler(name).lim(0, 1).ticks([side.share(tick) for tick in side.ticks], side.tick_names)
        figure.label(side.axis.title, name)

    def signal(one: Series, marker: Any) -> Any:
        across = [x.share(point.x) for point in one.points]
        return figure.signal(across, [y.share(point.y or 0) for point in one.points], marker=marker)

    # what is drawn later lies above
    lines = [signal(one, _coloured("·", n)).lines() for n, one in enumerate(series)]
    marks = [signal(one, _coloured(_marker(n), n)) for n, one in enumerate(series)]
    # a word that begins in a point's own cell would take its place: it stands two cells off, inwards
    words = [
        figure.text(
            x.share(point.x) + (2 if is_left else -2) / width,
            y.share(point.y or 0),
            _coloured(point.label, n),
            alignment="left" if is_left else "right",
        )
        for n, one in enumerate(series)
        for point in one.points
        for is_left in [x.share(point.x) < 0.9]
    ]
    for drawing in [*lines, *marks, *words]:
        figure.draw(drawing)
    return str(figure.build().string()).rstrip("\n")


class _Side:
    """An axis with its ends; places on it go from 0 to 1, since plotext's own logarithm takes no ends."""

    __slots__ = ("_domain", "axis", "tick_names", "ticks")

    def __init__(self, axis: Axis, values: Sequence[Number | None]) -> None:
        self.axis = axis
        self._domain = domain_of(values, axis)
        self.ticks = ticks(axis, self._domain)
        self.tick_names = names_of(self.ticks, axis)

    def share(self, value: Number) -> float:
        """Return how far along the side a value stands."""
        return self.axis.share(value, self._domain)


def _marker(n: int) -> str:
    return _MARKERS[n % len(_MARKERS)]


def _coloured(text: str, n: int) -> Any:
    import plotext

    return plotext.colorize(text, _COLOURS[n % len(_COLOURS)])
