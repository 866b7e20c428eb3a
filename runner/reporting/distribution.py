"""How values are distributed: percentiles, and bins for a chart whose edges the values choose."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

BUCKETS_PER_DOUBLING = 256  # percentiles are exact to about 0.2 %
NUM_BUCKETS = 64 * BUCKETS_PER_DOUBLING
MIN_BINS, MAX_BINS = 8, 40
# values that spread over more than this are drawn on a logarithmic axis: the low half would be one bar
LOG_SPREAD = 20
LOG_OUTLIER = 5  # the largest over p99

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ValueBin:
    """How many values lie in [low, high)."""

    low: int
    high: int
    count: int


@dataclass(frozen=True, slots=True)
class Distribution:
    """Values of one kind, in their own unit; `total` is exact, percentiles to about 0.2 %."""

    count: int
    total: int
    min: int
    max: int
    p50: int
    p90: int
    p99: int
    is_log: bool  # the bins grow by a factor
    bins: tuple[ValueBin, ...]

    @property
    def mean(self) -> float:
        """Return the mean."""
        return self.total / self.count


class Buckets:
    """Values counted in logarithmic buckets; what it keeps does not grow with their number."""

    def __init__(self) -> None:
        self._counts = np.zeros(NUM_BUCKETS, np.int64)
        self.count = 0
        self.total = 0
        self.min = 0
        self.max = 0

    def add(self, values: Ints) -> None:
        """Count values >= 0."""
        if not len(values):
            return
        at = (np.log2(np.maximum(values, 1)) * BUCKETS_PER_DOUBLING).astype(np.int64)
        self._counts += np.bincount(at, minlength=NUM_BUCKETS)
        low, high = int(values.min()), int(values.max())
        self.min = min(self.min, low) if self.count else low
        self.max = max(self.max, high)
        self.count += len(values)
        self.total += int(values.sum())

    def percentile(self, fraction: float) -> int:
        """Return the value that `fraction` of the values do not exceed."""
        assert self.count
        wanted = math.ceil(fraction * self.count)
        at = int(np.searchsorted(np.cumsum(self._counts), wanted))
        middle = round(2 ** ((at + 0.5) / BUCKETS_PER_DOUBLING))
        return min(max(middle, self.min), self.max)

    def counts(self) -> dict[int, int]:
        """Return the buckets that are not empty."""
        return {int(at): int(self._counts[at]) for at in np.flatnonzero(self._counts)}


class Binner:
    """Counts the values that made the buckets once more, in bins for a chart."""

    def __init__(self, buckets: Buckets) -> None:
        self._buckets = buckets
        low, high = max(buckets.percentile(0.01), 1), buckets.percentile(0.99)
        self._is_log = high > LOG_SPREAD * low or buckets.max > LOG_OUTLIER * max(high, 1)
        make = _log_edges if self._is_log else _linear_edges
        num_bins = min(max(MIN_BINS, 2 * math.isqrt(buckets.count)), MAX_BINS)  # few values are no comb
        self._edges = make(buckets.min, buckets.max, num_bins)
        self._counts = np.zeros(len(self._edges) - 1, np.int64)

    def add(self, values: Ints) -> None:
        """Count values."""
        at = np.searchsorted(self._edges, values, side="right") - 1
        self._counts += np.bincount(at, minlength=len(self._counts))

    def distribution(self) -> Distribution:
        """Return what was found."""
        found = self._buckets
        edges = self._edges.tolist()
        return Distribution(
            count=found.count,
            total=found.total,
            min=found.min,
            max=found.max,
            p50=found.percentile(0.5),
            p90=found.percentile(0.9),
            p99=found.percentile(0.99),
            is_log=self._is_log,
            bins=tuple(map(ValueBin, edges[:-1], edges[1:], self._counts.tolist())),
        )


def _linear_edges(low: int, high: int, num_bins: int) -> Ints:
    """Return edges at multiples of 1, 2 or 5 times a power of ten, with `high` below the last."""
    step = max(1, 10 ** (len(str(high)) - 3))  # finer than a hundredth of the values is noise
    while (high + 1 - low) / step > num_bins - 1:
        step = _next_step(step)
    first = low // step * step
    return np.arange(first, high + step + 1, step, dtype=np.int64)


def _next_step(step: int) -> int:
    lead = int(str(step)[0])
    return step * 5 // 2 if lead == 2 else step * 2


def _log_edges(low: int, high: int, num_bins: int) -> Ints:
    """Return edges that grow by one factor, each at least 1 above the one before."""
    first = max(low, 1)
    edges = np.unique(np.geomspace(first, high + 1, num_bins).round().astype(np.int64))
    edges[-1] = high + 1
    return edges if low >= first else np.concatenate([[low], edges])
