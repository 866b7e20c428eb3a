"""Values of two runs in the same bins, in memory that does not grow with the pairs.

Lengths are whole numbers with few different values, so they are counted exactly; times are not, and go into
logarithmic buckets.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from trtb.runner.reporting.comparison_model import PairBin, ValueBin
from trtb.runner.reporting.distribution import BUCKETS_PER_DOUBLING, Buckets

MAX_BINS = 40
MIN_VALUES_CUT = 200
CUT_FRACTION = 0.005  # so much of the values at each end goes into the outermost bins
_FLUSH_VALUES = 4_096


class TimePairs:
    """Durations of both runs, in ns."""

    def __init__(self) -> None:
        self.a, self.b = Buckets(), Buckets()
        self._waiting: tuple[list[int], list[int]] = ([], [])
        self._sum_of_logs = 0.0

    def add(self, a: int, b: int) -> None:
        """Count a pair, of positive values."""
        self._waiting[0].append(a)
        self._waiting[1].append(b)
        self._sum_of_logs += math.log(b / a)
        if len(self._waiting[0]) == _FLUSH_VALUES:
            self.flush()

    def flush(self) -> None:
        """Take in what waits; nothing is read before."""
        for buckets, values in zip((self.a, self.b), self._waiting, strict=True):
            buckets.add(np.array(values, dtype=np.int64))
            values.clear()

    @property
    def mean_ratio(self) -> float | None:
        """Return the geometric mean of b / a."""
        return math.exp(self._sum_of_logs / self.a.count) if self.a.count else None

    def percentiles_ms(self, fraction: float) -> tuple[float | None, float | None]:
        """Return a percentile of A's and of B's, in milliseconds."""
        return _percentile_ms(self.a, fraction), _percentile_ms(self.b, fraction)

    def bins_ms(self) -> list[PairBin]:
        """Return bins that grow by one factor, in milliseconds."""
        counts_a, counts_b = self.a.counts(), self.b.counts()
        if not counts_a and not counts_b:
            return []
        low, high = min({*counts_a, *counts_b}), max({*counts_a, *counts_b})
        step = max(2, math.ceil((high + 1 - low) / MAX_BINS))
        grouped = [Counter[int](), Counter[int]()]
        for group, counts in zip(grouped, (counts_a, counts_b), strict=True):
            for at, count in counts.items():
                group[(at - low) // step] += count
        starts = range(low, high + 1, step)
        return [
            PairBin(low=_ms_at(at), high=_ms_at(at + step), a=grouped[0][n], b=grouped[1][n])
            for n, at in enumerate(starts)
        ]


def percentile(counts: Counter[int], fraction: float) -> int | None:
    """Return the value that `fraction` of the values do not exceed, or None without values."""
    wanted = math.ceil(fraction * counts.total())
    seen = 0
    for value in sorted(counts):
        seen += counts[value]
        if seen >= wanted:
            return value
    return None


def pair_bins(a: Counter[int], b: Counter[int]) -> list[PairBin]:
    """Return whole numbers of both runs in bins of one width."""
    edges = _edges(a + b)
    binned = zip(_binned(a, edges), _binned(b, edges), strict=True)
    return [
        PairBin(low=low, high=high, a=num_a, b=num_b)
        for (low, high), (num_a, num_b) in zip(_spans(edges), binned, strict=True)
    ]


def value_bins(counts: Counter[int], scale: float = 1.0) -> list[ValueBin]:
    """Return whole numbers in bins of one width; `scale` is what one of them stands for."""
    edges = _edges(counts)
    spans = zip(_spans(edges), _binned(counts, edges), strict=True)
    return [
        ValueBin(low=round(low * scale, 6), high=round(high * scale, 6), count=count)
        for (low, high), count in spans
    ]


def _edges(counts: Counter[int]) -> range:
    """Return edges at multiples of 1, 2 or 5 times a power of ten."""
    if not counts:
        return range(0)
    low, high = min(counts), max(counts)
    if counts.total() >= MIN_VALUES_CUT:  # one very long answer would squeeze all others into one bin
        low = percentile(counts, CUT_FRACTION) or 0
        high = percentile(counts, 1 - CUT_FRACTION) or 0
    steps = (lead * 10**power for power in range(20) for lead in (1, 2, 5))
    step = next(step for step in steps if high // step - low // step < MAX_BINS)
    return range(low // step * step, high // step * step + step + 1, step)


def _spans(edges: Sequence[int]) -> Iterator[tuple[int, int]]:
    return itertools.pairwise(edges)


def _binned(counts: Counter[int], edges: range) -> list[int]:
    made = [0] * max(0, len(edges) - 1)
    for value, count in counts.items():
        made[min(max((value - edges.start) // edges.step, 0), len(made) - 1)] += count
    return made


def _percentile_ms(buckets: Buckets, fraction: float) -> float | None:
    return round(buckets.percentile(fraction) / 1e6, 3) if buckets.count else None


def _ms_at(bucket: int) -> float:
    return float(f"{2 ** (bucket / BUCKETS_PER_DOUBLING) / 1e6:.6g}")
