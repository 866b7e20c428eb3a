"""Layers that charts are put together from, and the frame around them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from trtb.tools.pages.axes import Axis, as_text
from trtb.tools.pages.chart_data import Histogram, Rule, Series

Spec = dict[str, Any]
Row = dict[str, Any]
Domain = tuple[float, float]

WIDTH = 560  # px of a figure, axes and all: two in a row fit into 1280
HEIGHT = 300
MAX_POINTS = 400
# Okabe and Ito's colours, without the yellow, which does not show on paper
PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000")
# fewer dashes and shapes than colours, so that no two series look the same before the lists' multiple
DASHES = ((1, 0), (6, 3), (2, 2), (8, 3, 2, 3), (10, 3))
SHAPES = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down")
HALO: Spec = {"stroke": "white", "strokeWidth": 3, "strokeJoin": "round"}  # around a word that lies on marks
INK, GREY, GRID = "#1f2933", "#52606d", "#e4e7eb"
# legends: a stroke with the line's dash, or the point's shape
LINES: Spec = {"symbolType": "stroke", "symbolSize": 500}
POINTS: Spec = {"symbolOpacity": 1}
FONT = "Helvetica, Arial, 'Liberation Sans', sans-serif"

_CONFIG: Spec = {
    "background": None,
    "font": FONT,
    "view": {"stroke": None},
    # marks without a text of ours say nothing
    **{mark: {"aria": False} for mark in ("line", "area", "rule", "text", "tick")},
    "axis": {
        "labelColor": GREY,
        "titleColor": INK,
        "titleFontWeight": 500,
        "titleFontSize": 12,
        "labelFontSize": 11,
        "gridColor": GRID,
        "domainColor": "#9aa5b1",
        "tickColor": "#9aa5b1",
        "labelOverlap": True,
        "titlePadding": 8,
        "aria": False,
    },
    "legend": {
        "orient": "top",
        "direction": "horizontal",
        "title": None,
        "labelFontSize": 12,
        "labelColor": INK,
        "labelLimit": 260,
        "symbolSize": 90,
        "symbolStrokeWidth": 2,
        "offset": 6,
        "aria": False,
    },
    "title": {"anchor": "start", "fontSize": 13, "fontWeight": 600, "color": INK, "offset": 10},
}


def rows_of(series: Sequence[Series], x: Axis, y: Axis) -> Iterator[Row]:
    """Yield one row a point, with the text that is read aloud."""
    for one in series:
        for n, point in enumerate(one.points):
            seen = f"{prefix_of(one.name, series)}{as_text(point.x, x)}: {as_text(point.y, y)}"
            yield {
                "x": point.x,
                "y": point.y,
                "low": point.y_low,
                "high": point.y_high,
                "n": n,
                "series": one.name,
                "label": point.label,
                "text": point.text or seen,
                "hollow": point.is_hollow,
                "best": point.is_best,
            }


def prefix_of(name: str, all_of_them: Sequence[object]) -> str:
    """Return how a text begins that names its series: not at all where there is one."""
    return f"{name}, " if name and len(all_of_them) > 1 else ""


def colour(series: Sequence[Series | Histogram], legend: Spec | None = None) -> Spec:
    """Return the encoding of colours, one a series, with a legend where one is given."""
    return _told_apart(series, PALETTE, legend)


def dash(series: Sequence[Series | Histogram], legend: Spec | None = None) -> Spec:
    """Return the encoding of dashes, one a series."""
    return _told_apart(series, DASHES, legend)


def shape(series: Sequence[Series | Histogram], legend: Spec | None = None) -> Spec:
    """Return the encoding of the points' shapes, one a series."""
    return _told_apart(series, SHAPES, legend)


def spreads(series: Sequence[Series], rows: Sequence[Row]) -> list[Spec]:
    """Return the bars of points that have a spread."""
    known = [row for row in rows if row["low"] is not None and row["high"] is not None]
    if not known:
        return []
    across = {"y": {"field": "low", "type": "quantitative"}, "y2": {"field": "high"}, "color": colour(series)}
    ends = [
        {
            "data": {"values": [{"x": row["x"], "y": row[end], "series": row["series"]} for row in known]},
            "mark": {"type": "tick", "thickness": 1.5, "size": 9, "orient": "horizontal"},
            "encoding": {"color": colour(series)},
        }
        for end in ("low", "high")
    ]
    return [
        {"data": {"values": known}, "mark": {"type": "rule", "strokeWidth": 1.5}, "encoding": across},
        *ends,
    ]


def point_layers(series: Sequence[Series], *, size: int, is_seen: bool = True) -> list[Spec]:
    """Return the points: hollow ones, not to be counted on, and the others, which have the legend."""
    told = {"description": {"field": "text"}}
    opacity = 1 if is_seen else 0
    legend = POINTS if is_seen else None
    return [
        {
            "transform": [{"filter": "isValid(datum.y) && datum.hollow"}],
            "mark": {"type": "point", "filled": False, "fill": "white", "size": size - 10, "strokeWidth": 2}
            | {"opacity": opacity},
            "encoding": {"color": colour(series), "shape": shape(series), **told},
        },
        {
            "transform": [{"filter": "isValid(datum.y) && !datum.hollow"}],
            "mark": {"type": "point", "filled": True, "size": size, "opacity": opacity},
            "encoding": {"color": colour(series, legend), "shape": shape(series, legend), **told},
        },
    ]


def rule_layers(rules: Sequence[Rule], x: Axis, domain_x: Domain) -> list[Spec]:
    """Return the lines across a chart, each with its word beside its end, within the plot."""
    layers: list[Spec] = []
    for rule in rules:
        side, across = ("x", "y") if rule.of_x else ("y", "x")
        at: Spec = {
            side: {"field": side, "type": "quantitative"},
            across: None,
        }  # and not the chart's own field
        word: Spec = {"type": "text", "text": rule.text, "color": INK, "fontSize": 11, **HALO}
        if rule.of_x:
            is_left = x.share(rule.value, domain_x) > 0.8  # where there may be no room to the right
            word |= {
                "align": "right" if is_left else "left",
                "dx": -5 if is_left else 5,
                "baseline": "top",
                "dy": 2,
            }
            spot: Spec = {"y": {"value": 0}}
        else:
            word |= {"align": "right", "baseline": "bottom", "dx": -4, "dy": -3}
            spot = {"x": {"value": "width"}}
        line = {"type": "rule", "strokeDash": [4, 3], "color": INK, "strokeWidth": 1}
        layers += [
            {"data": {"values": [{side: rule.value}]}, "mark": line, "encoding": at},
            {"data": {"values": [{side: rule.value}]}, "mark": word, "encoding": at | spot},
        ]
    return layers


def outline(histograms: Sequence[Histogram]) -> Spec:
    """Return the outlines of several histograms, down to zero at both ends."""
    values: list[Row] = []
    for one in histograms:
        if not one.bins:
            continue
        corners = [(one.bins[0].low, 0.0)]
        for held in one.bins:
            corners += [(held.low, held.count), (held.high, held.count)]
        corners.append((one.bins[-1].high, 0.0))
        values += [{"x": x, "y": y, "n": n, "series": one.name} for n, (x, y) in enumerate(corners)]
    return {
        "data": {"values": values},
        "mark": {"type": "line", "strokeWidth": 1.8},
        "encoding": {"color": colour(histograms, LINES), "strokeDash": dash(histograms, LINES)}
        | {"order": {"field": "n"}},
    }


def legend_height(names: Sequence[str]) -> int:
    """Return the px that a legend needs beyond its first row."""
    return 18 * (math.ceil(len(names) / _legend_columns(names)) - 1) if len(names) > 1 else 0


def framed(spec: Spec, *, height: int, title: str, left: int = 4) -> Spec:
    """Return a whole specification: a figure of fixed size, axes and title within it."""
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v6.json",
        "width": WIDTH,
        "height": height,
        "autosize": {"type": "fit", "contains": "padding"},
        "padding": {"left": left, "top": 4, "right": 8, "bottom": 4},
        "config": _CONFIG,
        **({"title": title} if title else {}),
        **spec,
    }


def _told_apart(series: Sequence[Series | Histogram], marks: Sequence[Any], legend: Spec | None) -> Spec:
    names = [one.name for one in series]
    if len(names) <= 1:
        return {"value": marks[0]}
    used = [marks[n % len(marks)] for n in range(len(names))]
    seen = [list(mark) if isinstance(mark, tuple) else mark for mark in used]
    return {
        "field": "series",
        "type": "nominal",
        "scale": {"domain": names, "range": seen},
        "legend": legend and {**legend, "columns": _legend_columns(names)},
    }


def _legend_columns(names: Sequence[str]) -> int:
    """Return how many names of a legend stand in one row, also in a font wider than the one measured with."""
    widest = 40 + 7.2 * max(len(name) for name in names)
    return max(1, min(len(names), int((WIDTH - 60) / widest)))
