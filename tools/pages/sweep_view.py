"""What a page or a terminal shows of sweeps: their curves, the Pareto front, the best point."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from trtb.tools.pages.axes import Number
from trtb.tools.pages.chart_data import Point, Series
from trtb.tools.sweeping.point import Figures, SettingValue, SweepPoint

Figure = Callable[[Figures], float | None]


@dataclass(frozen=True, slots=True)
class SweepView:
    """One sweep as it is shown."""

    name: str  # told apart by it where several are shown, such as an engine's reference
    points: Sequence[SweepPoint]
    identity: Sequence[tuple[str, str]]  # what was measured, on what, when, by what
    files: Sequence[str] = ()  # where the figures are, for programs
    best: str | None = None  # the name of the point chosen
    rule: str = ""  # by which it was chosen, in words
    latency_limit_ms: float | None = None


@dataclass(frozen=True, slots=True)
class Curve:
    """Points of one sweep with the same settings, by their load."""

    name: str
    view: SweepView
    points: Sequence[SweepPoint]

    @property
    def measured(self) -> list[tuple[SweepPoint, Figures]]:
        """Return the points that have figures, unstable ones too."""
        return [(point, point.median) for point in self.points if point.median is not None]


def output_tokens_per_s(figures: Figures) -> float:
    """Return a point's throughput."""
    return figures.output_tokens_per_s


def latency_p90_ms(figures: Figures) -> float | None:
    """Return a point's request latency."""
    return figures.latency.p90_ms


def ttft_p90_ms(figures: Figures) -> float | None:
    """Return a point's time to first token."""
    return figures.ttft.p90_ms


def itl_p90_ms(figures: Figures) -> float | None:
    """Return a point's time between tokens."""
    return figures.itl.p90_ms


def curves_of(views: Sequence[SweepView]) -> list[Curve]:
    """Return one curve for each sweep and each combination of settings in it, named by what differs."""
    names = unique_names(views)
    curves: list[Curve] = []
    for view, name in zip(views, names, strict=True):
        groups: dict[tuple[tuple[str, SettingValue], ...], list[SweepPoint]] = {}
        for point in view.points:
            groups.setdefault(tuple(sorted(point.settings.items())), []).append(point)
        held = [dict(settings) for settings in groups]
        varied = {key for one in held for key in one if any(other.get(key) != one[key] for other in held)}
        for settings, points in groups.items():
            told = ", ".join(f"{key} {value}" for key, value in settings if key in varied)
            shown = ", ".join(filter(None, [name if len(views) > 1 or not told else "", told]))
            curves.append(Curve(shown, view, sorted(points, key=lambda point: point.value)))
    return curves


def unique_names(views: Sequence[SweepView]) -> list[str]:
    """Return the names of sweeps; of equal ones, the second is `NAME (2)`."""
    names: list[str] = []
    for view in views:
        before = sum(earlier.name == view.name for earlier in views[: len(names)])
        names.append(f"{view.name} ({before + 1})" if before else view.name)
    return names


def series_of(curves: Sequence[Curve], x: Figure | None, y: Figure) -> list[Series]:
    """Return the curves as series: y against another figure, or against the load where x is None."""
    is_single = len(curves) == 1
    return [Series(curve.name, _points(curve, x, y, is_single=is_single)) for curve in curves]


def front_of(curves: Sequence[Curve], cost: Figure) -> list[tuple[Curve, SweepPoint]]:
    """Return the Pareto front: the stable points that none beats in throughput at the same cost or less."""
    stable = [
        (held, -figures.output_tokens_per_s, curve, point)
        for curve in curves
        for point, figures in curve.measured
        if point.is_ok and (held := cost(figures)) is not None
    ]
    front: list[tuple[Curve, SweepPoint]] = []
    most = float("-inf")
    for _, negative, curve, point in sorted(stable, key=lambda one: one[:2]):
        if -negative > most:
            most = -negative
            front.append((curve, point))
    return front


def front_points(curves: Sequence[Curve], cost: Figure) -> list[Point]:
    """Return the front as a line of a chart."""
    return [
        Point(x=held, y=point.median.output_tokens_per_s)
        for _, point in front_of(curves, cost)
        if point.median is not None and (held := cost(point.median)) is not None
    ]


def load_of(point: SweepPoint) -> str:
    """Return a point's load in words.

    >>> from trtb.tools.sweeping.point import SweepPoint
    >>> load_of(SweepPoint(name="c4", settings={}, mode="concurrency", value=4, state="ok"))
    'concurrency 4'
    """
    return f"{'concurrency' if point.mode == 'concurrency' else 'requests/s'} {point.value:g}"


def load_name(curves: Sequence[Curve], *, in_full: bool = False) -> str:
    """Return what the load is called: the head of a column, or in full the title of an axis."""
    names = {"concurrency": "concurrency", "request_rate": "requests/s sent"}
    if in_full:
        names["concurrency"] = "concurrency (requests in flight)"
    seen = {point.mode for curve in curves for point in curve.points}
    return " or ".join(name for mode, name in names.items() if mode in seen)


def _points(curve: Curve, x: Figure | None, y: Figure, *, is_single: bool) -> list[Point]:
    points: list[Point] = []
    for point, figures in curve.measured:
        across: Number | None = point.value if x is None else x(figures)
        value = y(figures)
        if across is None or value is None:
            continue
        low, high = _ends(point, y)
        is_best = point.name == curve.view.best and point.is_ok
        points.append(
            Point(
                x=across,
                y=value,
                y_low=low,
                y_high=high,
                label=f"{point.value:g}",
                text=("" if is_single else f"{curve.name}, ") + _told(point, figures, is_best=is_best),
                is_hollow=not point.is_ok,
                is_best=is_best,
            )
        )
    return points


def _ends(point: SweepPoint, y: Figure) -> tuple[float, float] | tuple[None, None]:
    """Return the least and the most that the runs of a point gave; nothing of a single run."""
    seen = [value for run in point.runs if (value := y(run)) is not None]
    return (min(seen), max(seen)) if len(seen) > 1 else (None, None)


def _told(point: SweepPoint, figures: Figures, *, is_best: bool) -> str:
    parts = [f"{load_of(point)}: {figures.output_tokens_per_s:.4g} output tokens/s"]
    if point.spread is not None:
        parts[0] += f" (spread {point.spread:.1%})"
    for name, value in (("latency", latency_p90_ms(figures)), ("TTFT", ttft_p90_ms(figures))):
        if value is not None:
            parts.append(f"{name} p90 {value:.4g} ms")
    if is_best:
        parts.append("the best point")
    if not point.is_ok:
        parts.append(point.state)
    return ", ".join(parts)
