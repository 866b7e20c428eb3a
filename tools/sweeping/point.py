"""A point of a sweep as it is kept: what was set, what each run of it measured, and whether it counts."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Final, Literal

from pydantic import Field

from trtb.build.manifest import Record

SCHEMA_VERSION: Final = 1

Mode = Literal["concurrency", "request_rate"]
State = Literal["ok", "unstable", "failed"]
SettingValue = str | int | float | bool


class Percentiles(Record):
    """Percentiles of one kind of time, in milliseconds; None where nothing was measured."""

    p50_ms: float | None = None
    p90_ms: float | None = None
    p99_ms: float | None = None


class Figures(Record):
    """What a run measured, from its answers' own times; warm-up requests do not count."""

    duration_s: float  # from the first request sent to the last answer's end
    num_requests: int
    requests_per_s: float
    output_tokens_per_s: float
    ttft: Percentiles
    itl: Percentiles
    latency: Percentiles
    goodput_per_s: float | None = None  # requests within the latency limit; None: no limit was given
    input_tokens_mean: float
    output_tokens_mean: float  # that came
    asked_tokens_mean: float  # that were asked for
    metrics: dict[str, float] = Field(default_factory=dict)  # while it ran, as in metrics.py


class PointRun(Figures):
    """One run of perf_analyzer on a point."""

    command: list[str]
    perf_analyzer_version: str
    started_at: str  # UTC, ISO 8601
    export: str  # the file of its answers' times, relative to the sweep's folder


class SweepPoint(Record):
    """One point: `points/NAME.json`, written once, when all of its runs are over."""

    schema_version: Literal[1] = SCHEMA_VERSION
    name: str
    settings: dict[str, SettingValue]  # of the engine and of the load, as `--set` and the lengths name them
    mode: Mode
    value: float
    state: State
    why: str = ""  # of a point that is not ok
    runs: list[PointRun] = Field(default_factory=list)
    median: Figures | None = None  # of the runs, figure by figure; None where no run ended
    spread: float | None = None  # coefficient of variation of output_tokens_per_s; None of fewer than 2 runs
    failed_command: list[str] = Field(default_factory=list)  # of the run that ended the point, if one did
    engine: str = ""  # reference of the engine that answered
    engine_id: str = ""

    @property
    def is_ok(self) -> bool:
        """Say whether the point may be chosen and compared."""
        return self.state == "ok"


def spread_of(values: Sequence[float]) -> float | None:
    """Return the coefficient of variation of several measurements; None of fewer than two.

    >>> round(spread_of([9.0, 11.0]), 3)
    0.141
    """
    if len(values) < 2:
        return None
    mean = statistics.fmean(values)
    return statistics.stdev(values) / mean if mean else 0.0


def median_of(runs: Sequence[Figures]) -> Figures | None:
    """Return the median of each figure over the runs of a point."""
    if not runs:
        return None

    def over(figure: Callable[[Figures], float | None]) -> float | None:
        values = [value for run in runs if (value := figure(run)) is not None]
        return statistics.median(values) if values else None

    def number(name: str) -> float:
        return float(statistics.median(getattr(run, name) for run in runs))

    def percentiles(name: str) -> Percentiles:
        return Percentiles(
            p50_ms=over(lambda run: getattr(run, name).p50_ms),
            p90_ms=over(lambda run: getattr(run, name).p90_ms),
            p99_ms=over(lambda run: getattr(run, name).p99_ms),
        )

    names = sorted({name for run in runs for name in run.metrics})
    return Figures(
        duration_s=number("duration_s"),
        num_requests=round(number("num_requests")),
        requests_per_s=number("requests_per_s"),
        output_tokens_per_s=number("output_tokens_per_s"),
        ttft=percentiles("ttft"),
        itl=percentiles("itl"),
        latency=percentiles("latency"),
        goodput_per_s=over(lambda run: run.goodput_per_s),
        input_tokens_mean=number("input_tokens_mean"),
        output_tokens_mean=number("output_tokens_mean"),
        asked_tokens_mean=number("asked_tokens_mean"),
        metrics={
            name: statistics.median(run.metrics[name] for run in runs if name in run.metrics)
            for name in names
        },
    )
