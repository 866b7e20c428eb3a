"""The page of one sweep, or of several over one another: plots, the best point, every point, its command."""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Iterator, Sequence

from markupsafe import Markup

from trtb.tools.pages.axes import Axis, as_text, is_wide
from trtb.tools.pages.chart_data import Point, Rule, Series
from trtb.tools.pages.charts import line_chart, scatter_chart
from trtb.tools.pages.page import render
from trtb.tools.pages.svg import to_svg
from trtb.tools.pages.sweep_view import (
    Curve,
    Figure,
    SweepView,
    curves_of,
    front_of,
    front_points,
    itl_p90_ms,
    latency_p90_ms,
    load_name,
    load_of,
    output_tokens_per_s,
    series_of,
    ttft_p90_ms,
)
from trtb.tools.sweeping.point import SweepPoint

_THROUGHPUT = Axis("output tokens/s")
_FIGURES: tuple[tuple[str, Figure], ...] = (
    ("output tokens/s", output_tokens_per_s),
    ("requests/s", lambda figures: figures.requests_per_s),
    ("goodput/s", lambda figures: figures.goodput_per_s),
    ("TTFT p50", lambda figures: figures.ttft.p50_ms),
    ("TTFT p90", ttft_p90_ms),
    ("ITL p90", itl_p90_ms),
    ("latency p50", lambda figures: figures.latency.p50_ms),
    ("latency p90", latency_p90_ms),
    ("latency p99", lambda figures: figures.latency.p99_ms),
    ("tokens in", lambda figures: figures.input_tokens_mean),
    ("tokens out", lambda figures: figures.output_tokens_mean),
)
Drawing = tuple[str, Markup, str]  # its title, itself, and what it shows


def render_sweeps(views: Sequence[SweepView]) -> str:
    """Return the page of sweeps."""
    curves = curves_of(views)
    rows = [(curve, point) for curve in curves for point in curve.points]
    front = {id(point) for _, point in front_of(curves, latency_p90_ms)}
    named = ["sweep"] if len(curves) > 1 else []
    return render(
        "sweep.html",
        {
            "heading": _listed(list(dict.fromkeys(view.name for view in views))),
            "headlines": list(_headlines(views, rows)),
            "notices": list(_notices(rows)),
            "drawings": _drawings(curves) if any(curve.measured for curve in curves) else [],
            "columns": [
                *named,
                load_name(curves),
                *(name for name, _ in _FIGURES),
                "spread",
                "runs",
                "state",
            ],
            "numbers": range(len(named), len(named) + len(_FIGURES) + 3),
            "rows": [
                _row(curve, point, is_named=bool(named), is_front=id(point) in front) for curve, point in rows
            ],
            "best": [
                n for n, (curve, point) in enumerate(rows) if point.is_ok and point.name == curve.view.best
            ],
            "left_out": [n for n, (_, point) in enumerate(rows) if not point.is_ok],
            "views": views,
            "command_columns": [*named, "load", "command"],
            "commands": [
                (*([curve.name] if named else []), load_of(point), shlex.join(point.runs[0].command))
                for curve, point in rows
                if point.runs
            ],
        },
    )


def _listed(names: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def _headlines(
    views: Sequence[SweepView], rows: Sequence[tuple[Curve, SweepPoint]]
) -> Iterator[tuple[str, str, str]]:
    for curve, point in rows:
        figures = point.median
        if point.name != curve.view.best or figures is None or not point.is_ok:
            continue
        latency = as_text(latency_p90_ms(figures), Axis(""))
        yield (
            f"best of {curve.name}" if len(views) > 1 else "best point",
            load_of(point),
            f"{figures.output_tokens_per_s:.4g} output tokens/s, latency p90 {latency} ms; {curve.view.rule}",
        )
    counts = {state: sum(point.state == state for _, point in rows) for state in ("ok", "unstable", "failed")}
    others = ", ".join(f"{counts[state]} {state}" for state in ("unstable", "failed") if counts[state])
    told = f"measured and stable; {others}" if others else "measured and stable"
    yield "points", f"{counts['ok']} of {len(rows)}", told


def _notices(rows: Sequence[tuple[Curve, SweepPoint]]) -> Iterator[tuple[str, str, str]]:
    for curve, point in rows:
        if not point.is_ok:
            kind = "bad" if point.state == "failed" else "warning"
            yield kind, f"{curve.name}, {load_of(point)}: {point.state}, and out of the choice", point.why


def _drawings(curves: Sequence[Curve]) -> list[Drawing]:
    limits = {curve.view.latency_limit_ms for curve in curves} - {None}
    limit = [Rule(held, "latency limit", of_x=True) for held in limits if held is not None]
    told = (
        "Labels are the load; hollow points are unstable; "
        "bars go from the slowest run of a point to the fastest."
    )
    drawings = [
        _trade(
            "Throughput against request latency",
            curves,
            latency_p90_ms,
            "request latency p90 (ms)",
            told,
            limit,
        ),
        _trade(
            "Throughput against time to first token",
            curves,
            ttft_p90_ms,
            "TTFT p90 (ms)",
            "The broad grey line is the Pareto front: no point gives more tokens for the same wait or less.",
        ),
    ]
    load = _load_axis(curves)
    failed = sorted({point.value for curve in curves for point in curve.points if point.state == "failed"})
    marks = [Rule(value, "failed", of_x=True) for value in failed]
    drawings.append(
        _against_load(
            "Throughput by load",
            series_of(curves, None, output_tokens_per_s),
            load,
            _THROUGHPUT,
            "Where the curve is flat, more requests in flight only wait longer.",
            marks,
        )
    )
    drawings.append(_latency_by_load(curves, load))
    if any(itl_p90_ms(figures) is not None for curve in curves for _, figures in curve.measured):
        drawings.append(
            _against_load(
                "Time between tokens by load",
                series_of(curves, None, itl_p90_ms),
                load,
                Axis("ITL p90 (ms)"),
                "What a reader of a stream waits from token to token.",
            )
        )
    if any("kv_use_max" in figures.metrics for curve in curves for _, figures in curve.measured):
        drawings.append(
            _against_load(
                "KV cache use by load",
                series_of(curves, None, lambda figures: figures.metrics.get("kv_use_max")),
                load,
                Axis("most of the KV pool in use", "percent", high=1.0),
                "At 100% the engine pauses requests, or evicts what it could have used again.",
            )
        )
    return [drawing for drawing in drawings if drawing is not None]


def _trade(
    title: str, curves: Sequence[Curve], cost: Figure, name: str, told: str, rules: Sequence[Rule] = ()
) -> Drawing | None:
    series = series_of(curves, cost, output_tokens_per_s)
    values = [point.x for one in series for point in one.points]
    if not values:
        return None
    chart = scatter_chart(
        series,
        x=Axis(name, "log" if is_wide(values) else "linear"),
        y=_THROUGHPUT,
        front=front_points(curves, cost),
        rules=rules,
        height=340,
    )
    return title, to_svg(chart), told


def _latency_by_load(curves: Sequence[Curve], load: Axis) -> Drawing | None:
    """Draw the percentiles of one curve, or the p90 of several."""
    if len(curves) > 1:
        return _against_load(
            "Request latency by load",
            series_of(curves, None, latency_p90_ms),
            load,
            Axis("request latency p90 (ms)"),
            "The p90 of each point.",
        )
    percentiles: list[tuple[str, Figure]] = [
        ("p50", lambda figures: figures.latency.p50_ms),
        ("p90", latency_p90_ms),
        ("p99", lambda figures: figures.latency.p99_ms),
    ]
    series = [
        Series(name, [Point(x=point.x, y=point.y) for point in series_of(curves, None, figure)[0].points])
        for name, figure in percentiles
    ]
    told = "A p99 far above the p50 is a long tail: some requests wait much longer than most."
    return _against_load("Request latency by load", series, load, Axis("request latency (ms)"), told)


def _against_load(
    title: str, series: Sequence[Series], load: Axis, y: Axis, told: str, rules: Sequence[Rule] = ()
) -> Drawing | None:
    if not any(one.points for one in series):
        return None
    return title, to_svg(line_chart(series, x=load, y=y, rules=rules)), told


def _load_axis(curves: Sequence[Curve]) -> Axis:
    """Return the axis of the load, marked at the loads themselves where they are few."""
    values = sorted({point.value for curve in curves for point in curve.points})
    return Axis(
        load_name(curves, in_full=True),
        "log" if is_wide(values) else "linear",
        marked=tuple(values)
        if len(values) <= 8 and (is_wide(values) or len(values) < 2 or _are_even(values))
        else (),
    )


def _are_even(values: Sequence[float]) -> bool:
    """Say whether no two values stand so close that their names would touch."""
    span = values[-1] - values[0]
    return min(after - before for before, after in itertools.pairwise(values)) > span / 12


def _row(curve: Curve, point: SweepPoint, *, is_named: bool, is_front: bool) -> list[str]:
    figures = point.median
    values = [None if figures is None else figure(figures) for _, figure in _FIGURES]
    is_best = point.is_ok and point.name == curve.view.best
    return [
        *([curve.name] if is_named else []),
        f"{point.value:g}",
        *("" if value is None else as_text(value, Axis("")) for value in values),
        "" if point.spread is None else f"{point.spread:.1%}",
        str(len(point.runs)),
        ", ".join(filter(None, [point.state, "best" if is_best else "", "front" if is_front else ""])),
    ]
