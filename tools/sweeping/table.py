"""A sweep as rows: for the terminal, and for programs that read CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from trtb.build import files
from trtb.tools.sweeping.point import Figures, Percentiles, SweepPoint

COLUMNS: Final = [
    *("point", "state", "req/s", "tok/s", "spread", "ttft p50", "ttft p99", "itl p50", "lat. p50"),
    *("lat. p99", "good/s"),
]
_KINDS: Final = ("ttft", "itl", "latency")
_SHARES: Final = ("p50_ms", "p90_ms", "p99_ms")
_FIGURES: Final = ("duration_s", "num_requests", "requests_per_s", "output_tokens_per_s", "goodput_per_s")
_LENGTHS: Final = ("input_tokens_mean", "output_tokens_mean", "asked_tokens_mean")


def rows_of(points: Sequence[SweepPoint], best: SweepPoint | None) -> list[list[str]]:
    """Return the rows under COLUMNS; times in milliseconds, the best point with a star."""
    rows = []
    for point in points:
        star = " *" if best is not None and point.name == best.name else ""
        figures = point.median
        told = _told(figures) if figures else ["-"] * 8
        spread = "-" if point.spread is None else f"{point.spread:.1%}"
        rows.append([f"{_short(point.name)}{star}", point.state, *told[:2], spread, *told[2:]])
    return rows


def _short(name: str) -> str:
    """Return a point's name as a narrow column takes it.

    >>> _short("num_kv_blocks-200_concurrency-16")
    'num_kv_blocks-200_c16'
    """
    return name.replace("concurrency-", "c").replace("request-rate-", "r")


def _told(figures: Figures) -> list[str]:
    return [
        f"{figures.requests_per_s:.2f}",
        f"{figures.output_tokens_per_s:.1f}",
        _number(figures.ttft.p50_ms),
        _number(figures.ttft.p99_ms),
        _number(figures.itl.p50_ms),
        _number(figures.latency.p50_ms),
        _number(figures.latency.p99_ms),
        "-" if figures.goodput_per_s is None else f"{figures.goodput_per_s:.2f}",
    ]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}" if value >= 100 else f"{value:.1f}"


def write_csv(path: Path, points: Sequence[SweepPoint]) -> None:
    """Write a row for each point, medians over its runs; it is durable when this returns."""
    settings = sorted({name for point in points for name in point.settings})
    metrics = sorted({name for point in points if point.median for name in point.median.metrics})
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    times = [f"{kind}_{share}" for kind in _KINDS for share in _SHARES]
    head = ["name", *settings, "mode", "value", "state", "num_runs", "spread"]
    writer.writerow([*head, *_FIGURES, *times, *_LENGTHS, *metrics, "why"])
    for point in points:
        row: list[object] = [point.name, *(point.settings.get(name, "") for name in settings)]
        row += [point.mode, f"{point.value:g}", point.state, len(point.runs), _cell(point.spread)]
        figures = point.median
        row += [_cell(figures and getattr(figures, name)) for name in _FIGURES]
        for kind in _KINDS:
            found = Percentiles() if figures is None else getattr(figures, kind)
            row += [_cell(getattr(found, share)) for share in _SHARES]
        row += [_cell(figures and getattr(figures, name)) for name in _LENGTHS]
        row += [_cell(figures.metrics.get(name) if figures else None) for name in metrics]
        writer.writerow([*row, point.why])
    files.write_atomic(path, text.getvalue().encode())


def _cell(value: object) -> object:
    return "" if value is None else value
