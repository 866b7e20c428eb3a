"""Charts as Vega-Lite specifications: plain dicts, drawn to static SVG by `svg.to_svg`.

Drawn here and not in the browser: a page without a script opens under any content policy, prints, and is
small. A series is told apart by colour, dash and shape, so that a print in grey can still be read. What
charts are drawn from is in `chart_data`; callers bin or thin out what they have first, to about 120 and at
most MAX_POINTS a series.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from trtb.tools.pages.axes import Axis, as_text, axis_spec, domain_of
from trtb.tools.pages.chart_data import Bar, Histogram, Point, Rule, Series
from trtb.tools.pages.labels import Place, place_labels
from trtb.tools.pages.layers import (
    GREY,
    HALO,
    HEIGHT,
    INK,
    LINES,
    MAX_POINTS,
    PALETTE,
    WIDTH,
    Domain,
    Row,
    Spec,
    colour,
    dash,
    framed,
    legend_height,
    outline,
    point_layers,
    prefix_of,
    rows_of,
    rule_layers,
    spreads,
)


def line_chart(
    series: Sequence[Series],
    *,
    x: Axis,
    y: Axis,
    rules: Sequence[Rule] = (),
    is_stepped: bool = False,
    height: int = HEIGHT,
    title: str = "",
) -> Spec:
    """Draw values along x, one line a series, with spreads where there are any.

    Few points are marked; many are there for the mouse pointer only.
    """
    rows = list(rows_of(series, x, y))
    is_dense = any(len(one.points) > 30 for one in series)
    legend = LINES if is_dense else None
    line: Spec = {
        "mark": {"type": "line", "strokeWidth": 2, "invalid": "break-paths-filter-domains"}
        | ({"interpolate": "step-after"} if is_stepped else {}),
        "encoding": {
            "color": colour(series, legend),
            "strokeDash": dash(series, legend),
            "order": {"field": "n"},
        },
    }
    # where points are many they are only there for the mouse pointer
    marked = point_layers(series, size=55, is_seen=not is_dense)
    layers = [*spreads(series, rows), line, *marked]
    return _plotted(rows, layers, x, y, rules=rules, height=height, title=title)


def scatter_chart(
    series: Sequence[Series],
    *,
    x: Axis,
    y: Axis,
    front: Sequence[Point] = (),
    rules: Sequence[Rule] = (),
    is_joined: bool = True,
    height: int = HEIGHT,
    title: str = "",
) -> Spec:
    """Draw points with labels and spreads, thinly joined in their order; `front` is a broad line behind."""
    rows = list(rows_of(series, x, y))
    _place_labels(rows, x, y, rules, height)
    layers: list[Spec] = [_front(front)] if front else []
    layers += spreads(series, rows)
    if is_joined:
        layers.append(
            {
                "mark": {"type": "line", "strokeWidth": 1.5},
                "encoding": {"color": colour(series), "strokeDash": dash(series), "order": {"field": "n"}},
            }
        )
    layers += [
        {
            "transform": [{"filter": "datum.best"}],
            "mark": {"type": "point", "shape": "circle", "size": 330, "strokeWidth": 2, "color": INK}
            | {"aria": False},
        },
        *point_layers(series, size=80),
        {
            "transform": [{"filter": "datum.label"}],
            "mark": {
                "type": "text",
                "fontSize": 11,
                "fontWeight": 600,
                "baseline": "middle",
                "align": "center",
                **HALO,
            },
            "encoding": {
                "x": {"field": "label_x", "type": "quantitative"},
                "y": {"field": "label_y", "type": "quantitative"},
                "text": {"field": "label"},
                "color": colour(series),
            },
        },
    ]
    return _plotted(rows, layers, x, y, rules=rules, height=height, title=title)


def bar_chart(
    histograms: Sequence[Histogram],
    *,
    x: Axis,
    y: Axis,
    rules: Sequence[Rule] = (),
    height: int = HEIGHT,
    title: str = "",
) -> Spec:
    """Draw ready bins: one histogram as bars, several as outlines over one another."""
    rows: list[Row] = [
        {
            "x": held.low,
            "x2": held.high,
            "y": held.count,
            "y0": 0,
            "series": one.name,
            "text": f"{prefix_of(one.name, histograms)}{as_text(held.low, x)} to {as_text(held.high, x)}: "
            f"{as_text(held.count, y)}",
        }
        for one in histograms
        for held in one.bins
    ]
    is_single = len(histograms) <= 1
    bars: Spec = {
        "mark": {"type": "rect", "opacity": 1 if is_single else 0.2, "stroke": "white"}
        | {"strokeWidth": 0.6 if is_single else 0},
        "encoding": {
            "x2": {"field": "x2"},
            "y2": {"field": "y0"},
            "color": colour(histograms),
            "description": {"field": "text"},
        },
    }
    layers = [bars] if is_single else [bars, outline(histograms)]
    return _plotted(rows, layers, x, y, rules=rules, height=height, title=title)


def category_chart(bars: Sequence[Bar], *, x: Axis, title: str = "") -> Spec:
    """Draw named amounts as lying bars, in the order given."""
    rows = [
        {
            "name": one.name,
            "x": one.value,
            "shown": as_text(one.value, x),
            "text": one.text or f"{one.name}: {as_text(one.value, x)}",
        }
        for one in bars
    ]
    domain = domain_of([one.value * 1.12 for one in bars], x)  # room for the number at the bar's end
    return framed(
        {
            "data": {"values": rows},
            "encoding": {
                "x": {"field": "x", **axis_spec(x, domain)},
                "y": {"field": "name", "type": "nominal", "sort": None, "title": None}
                | {"axis": {"labelLimit": 200, "ticks": False, "grid": False}},
            },
            "layer": [
                {
                    "mark": {"type": "bar", "color": PALETTE[0], "height": {"band": 0.7}},
                    "encoding": {"description": {"field": "text"}},
                },
                {
                    "mark": {"type": "text", "align": "left", "dx": 5, "color": INK},
                    "encoding": {"text": {"field": "shown"}},
                },
            ],
        },
        height=26 * len(bars) + 60,
        title=title,
        # names are measured in another font than the reader's may be
        left=4 + max((len(one.name) for one in bars), default=0),
    )


def _plotted(
    rows: list[Row],
    layers: list[Spec],
    x: Axis,
    y: Axis,
    *,
    rules: Sequence[Rule],
    height: int,
    title: str,
) -> Spec:
    most = max(
        (sum(row.get("series") == name for row in rows) for name in {row.get("series") for row in rows}),
        default=0,
    )
    assert most <= MAX_POINTS, f"{most} points in a series; bin them first"
    domain_x, domain_y = _domain(rows, "x", x, rules), _domain(rows, "y", y, rules)
    names = list(dict.fromkeys(str(row.get("series", "")) for row in rows))
    return framed(
        {
            "data": {"values": rows},
            "encoding": {
                "x": {"field": "x", **axis_spec(x, domain_x)},
                "y": {"field": "y", **axis_spec(y, domain_y)},
            },
            "layer": [*layers, *rule_layers(rules, x, domain_x)],
            # each layer says whether it has a legend
            "resolve": {
                "legend": {"color": "independent", "shape": "independent", "strokeDash": "independent"}
            },
        },
        height=height + legend_height(names),
        title=title,
    )


def _domain(rows: Sequence[Row], side: str, axis: Axis, rules: Sequence[Rule]) -> Domain:
    """Return the ends of a side, wide enough for every value, spread and line across."""
    fields = ("x", "x2") if side == "x" else ("y", "low", "high")
    values = [row.get(field) for row in rows for field in fields]
    return domain_of([*values, *(rule.value for rule in rules if rule.of_x == (side == "x"))], axis)


def _place_labels(rows: list[Row], x: Axis, y: Axis, rules: Sequence[Rule], height: int) -> None:
    """Write into each row where its label stands, in the axes' values."""
    width, height = WIDTH - 70, height - 60  # about what axes and legend leave
    domain_x, domain_y = _domain(rows, "x", x, rules), _domain(rows, "y", y, rules)
    known = [row for row in rows if row["y"] is not None]
    places = [
        Place(
            x=x.share(row["x"], domain_x) * width,
            y=(1 - y.share(row["y"], domain_y)) * height,
            label=row["label"],
        )
        for row in known
    ]
    joined = [
        [place for _, place in line]
        for _, line in itertools.groupby(zip(known, places, strict=True), lambda pair: pair[0]["series"])
    ]
    bars = [
        [Place(x=place.x, y=(1 - y.share(row[end], domain_y)) * height, label="") for end in ("low", "high")]
        for row, place in zip(known, places, strict=True)
        if row["low"] is not None and row["high"] is not None
    ]
    centres = place_labels(places, [*joined, *bars], width, height)
    for row, (centre_x, centre_y) in zip(known, centres, strict=True):
        row["label_x"] = x.value_at(centre_x / width, domain_x)
        row["label_y"] = y.value_at(1 - centre_y / height, domain_y)


def _front(front: Sequence[Point]) -> Spec:
    return {
        "data": {"values": [{"x": one.x, "y": one.y, "n": n} for n, one in enumerate(front)]},
        "mark": {"type": "line", "strokeWidth": 10, "opacity": 0.2, "color": GREY}
        | {"strokeCap": "round", "strokeJoin": "round"},
        "encoding": {"order": {"field": "n"}},
    }
