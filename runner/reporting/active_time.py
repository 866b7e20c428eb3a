"""When a run was at work: its spans of time, and what went on in them, in a bounded number of bins.

A resumed run has hours between its sessions in which nothing happened. They are kept apart from the
spans, so that what did happen can be drawn without being squeezed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

NS_PER_S = 1_000_000_000
MIN_GAP_NS = NS_PER_S
MAX_INTERVALS = 512
MAX_SPANS = 12  # as many as a chart can tell apart
MIN_SHOWN_GAP_NS = 5 * NS_PER_S
MIN_SHOWN_GAP_FRACTION = 0.03  # of the active time; a shorter gap would not show
MAX_BINS = 120
# what a bin may last, so that its rates are of round times
WIDTHS_S = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200)

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ActiveSpan:
    """A stretch of time with requests in flight, from the first that was sent to the last that ended."""

    start_ns: int  # since the epoch
    end_ns: int

    @property
    def duration_s(self) -> float:
        """Return how long it was."""
        return (self.end_ns - self.start_ns) / NS_PER_S


@dataclass(frozen=True, slots=True)
class TimeBin:
    """What went on in a part of a span."""

    span: int  # its index
    start_ns: int
    end_ns: int
    num_finished: int  # answers that ended in it
    output_tokens: float  # of every answer, spread evenly from its first token to its last
    busy_ns: int  # over all requests, the time that each was in flight

    @property
    def duration_s(self) -> float:
        """Return how long it is."""
        return (self.end_ns - self.start_ns) / NS_PER_S

    @property
    def in_flight(self) -> float:
        """Return the mean number of requests in flight."""
        return self.busy_ns / (self.end_ns - self.start_ns)


class SpanFinder:
    """Joins the times of requests to spans; what it keeps does not grow with their number."""

    def __init__(self) -> None:
        self._starts: Ints = np.empty(0, np.int64)
        self._ends: Ints = np.empty(0, np.int64)
        self._gap_ns = MIN_GAP_NS

    def add(self, starts: Ints, ends: Ints) -> None:
        """Take requests, each from its sending to its end."""
        self._starts = np.concatenate([self._starts, starts])
        self._ends = np.concatenate([self._ends, np.maximum(ends, starts + 1)])
        self._join()
        while len(self._starts) > MAX_INTERVALS:
            self._gap_ns *= 2
            self._join()

    def spans(self) -> list[ActiveSpan]:
        """Return the spans in order: MAX_SPANS at most, with the largest gaps between them."""
        if not len(self._starts):
            return []
        active_ns = int((self._ends - self._starts).sum())
        least = max(MIN_SHOWN_GAP_NS, int(MIN_SHOWN_GAP_FRACTION * active_ns))
        gaps = self._starts[1:] - self._ends[:-1]
        shown = np.flatnonzero(gaps >= least)
        shown = np.sort(shown[np.argsort(-gaps[shown], kind="stable")[: MAX_SPANS - 1]])
        firsts = np.concatenate([[0], shown + 1])
        lasts = np.concatenate([shown, [len(self._ends) - 1]])
        return [
            ActiveSpan(int(self._starts[a]), int(self._ends[b])) for a, b in zip(firsts, lasts, strict=True)
        ]

    def _join(self) -> None:
        """Join the intervals that overlap, or are nearer than the gap."""
        if not len(self._starts):
            return
        order = np.argsort(self._starts, kind="stable")
        starts = self._starts[order]
        ends = np.maximum.accumulate(self._ends[order])
        is_first = np.concatenate([[True], starts[1:] - ends[:-1] >= self._gap_ns])
        firsts = np.flatnonzero(is_first)
        lasts = np.concatenate([firsts[1:] - 1, [len(ends) - 1]])
        self._starts, self._ends = starts[firsts], ends[lasts]


class Timeline:
    """Bins of one width over the spans; a request lies within one span, by the way they were found."""

    def __init__(self, spans: list[ActiveSpan]) -> None:
        self.width_ns = _width_ns(sum(span.end_ns - span.start_ns for span in spans))
        sizes = [-(-(span.end_ns - span.start_ns) // self.width_ns) for span in spans]
        offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        self._span_starts = np.array([span.start_ns for span in spans], np.int64)
        self._offsets = offsets
        self._spans = np.repeat(np.arange(len(spans)), sizes)
        within = np.arange(offsets[-1]) - offsets[self._spans]
        self._starts: Ints = self._span_starts[self._spans] + within * self.width_ns
        self._span_ends = np.array([span.end_ns for span in spans], np.int64)
        self._ends: Ints = np.minimum(self._starts + self.width_ns, self._span_ends[self._spans])
        self._num_finished = np.zeros(len(self._starts), np.int64)
        self._busy_ns = np.zeros(len(self._starts), np.int64)
        self._tokens = np.zeros(len(self._starts), np.float64)

    def add(self, starts: Ints, ends: Ints, first_tokens: Ints, tokens: Ints) -> None:
        """Take answers: when each was sent, ended and had its first token, and its number of tokens."""
        self._num_finished += np.bincount(self._index(ends), minlength=len(self._starts))
        _spread(self._busy_ns, self._starts, self._ends, *self._reach(starts, ends), np.ones_like(tokens))
        ends = np.maximum(ends, starts + 1)  # as the spans were found
        first_tokens = np.minimum(first_tokens, ends - 1)  # an answer of one token has it all at its end
        density = tokens / (ends - first_tokens)
        _spread(self._tokens, self._starts, self._ends, *self._reach(first_tokens, ends), density)

    def bins(self) -> list[TimeBin]:
        """Return the bins in order."""
        columns = (self._spans, self._starts, self._ends, self._num_finished, self._tokens, self._busy_ns)
        return [
            TimeBin(int(span), int(start), int(end), int(finished), max(0.0, float(tokens)), int(busy))
            for span, start, end, finished, tokens, busy in zip(*columns, strict=True)
        ]

    def _reach(self, starts: Ints, ends: Ints) -> tuple[Ints, Ints, Ints, Ints]:
        return starts, ends, self._index(starts), self._index(ends)

    def _index(self, times: Ints) -> Ints:
        """Return the bin of each time; the end of a span belongs to its last bin."""
        spans = np.searchsorted(self._span_starts, times, side="right") - 1
        at: Ints = self._offsets[spans] + (times - self._span_starts[spans]) // self.width_ns
        return np.minimum(at, self._offsets[spans + 1] - 1)


def _spread(
    target: NDArray[np.int64] | NDArray[np.float64],
    bin_starts: Ints,
    bin_ends: Ints,
    starts: Ints,
    ends: Ints,
    first: Ints,
    last: Ints,
    density: NDArray[np.int64] | NDArray[np.float64],
) -> None:
    """Add to each bin what of the intervals lies in it, times their density."""
    is_within = first == last
    head = np.where(is_within, ends, bin_ends[first]) - starts
    tail = np.where(is_within, 0, ends - bin_starts[last])
    np.add.at(target, first, head * density)
    np.add.at(target, last, tail * density)
    # the bins between the first and the last are full: their densities, by differences at both ends; without
    # the short ones, whose great densities would only cancel out, and not to the last digit
    is_long = last > first + 1
    steps = np.zeros(len(target) + 1, target.dtype)
    np.add.at(steps, first[is_long] + 1, density[is_long])
    np.subtract.at(steps, last[is_long], density[is_long])
    target += np.cumsum(steps[:-1]) * (bin_ends - bin_starts)


def _width_ns(active_ns: int) -> int:
    """Return the least round width with which the spans, whose last bins may be short, fit into MAX_BINS."""
    least = active_ns / (MAX_BINS - MAX_SPANS)
    for seconds in WIDTHS_S:
        if seconds * NS_PER_S >= least:
            return round(seconds * NS_PER_S)
    hour_ns = 3600 * NS_PER_S
    return -(-round(least) // hour_ns) * hour_ns
