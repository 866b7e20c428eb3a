"""Every figure of a run that its ledger can tell, in two passes and in memory that does not grow with it.

The first pass counts, and finds the spans of time and the ranges of values; the second puts both into bins.
Both see one moment of a run that goes on. No text is read but the ids of the few requests that are named.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from trtb.runner.reporting.active_time import NS_PER_S, ActiveSpan, Ints, SpanFinder, TimeBin, Timeline
from trtb.runner.reporting.distribution import Binner, Buckets, Distribution
from trtb.runner.reporting.ledger_scan import LedgerView, RowChunk, view_ledger

NUM_EXAMPLES = 5  # of the failures of one code
NUM_SLOWEST = 10
TAIL_FRACTION = 0.25  # of the peak in flight: below that, most of the engine waits for the last answers
MIN_TAIL_SHARE = 0.05  # of the span; every run ends with a last request
MIN_TAIL_PEAK = 4  # with fewer in flight at the most there is no tail to speak of
KINDS = ("latency", "ttft", "prompt_length", "answer_length")


@dataclass(frozen=True, slots=True)
class RequestName:
    """What a request can be found by."""

    line: int
    custom_id: str | None  # None where the line has none


@dataclass(frozen=True, slots=True)
class FailureFigures:
    """The failures of one code."""

    code: str
    count: int
    examples: tuple[RequestName, ...]


@dataclass(frozen=True, slots=True)
class SlowRequest:
    """One of the requests that took longest."""

    name: RequestName
    latency_ns: int
    ttft_ns: int  # 0 where unknown
    prompt_tokens: int
    completion_tokens: int


@dataclass(frozen=True, slots=True)
class KvFigures:
    """What the engine's KV cache spared, over the requests of which the engine told."""

    num_requests: int
    num_blocks: int  # taken from the cache
    prompt_tokens: int  # of these requests


@dataclass(frozen=True, slots=True)
class TailFigures:
    """The end of the last span, with less than TAIL_FRACTION of the peak in flight."""

    duration_s: float
    num_finished: int
    peak_in_flight: float


@dataclass(frozen=True, slots=True)
class RunFigures:
    """What a ledger says of a run; an own answer is one that the engine computed for its own line."""

    num_completed: int
    num_failed: int
    num_own: int
    num_equal: int  # answered by an equal request's answer
    num_cached: int  # answered from the result cache
    num_superseded: int  # failures that a retry has replaced
    prompt_tokens: int  # of what completed
    completion_tokens: int
    own_prompt_tokens: int
    own_completion_tokens: int
    attempts: dict[int, int]  # times sent -> number of lines
    finish_reasons: dict[str, int]
    failures: tuple[FailureFigures, ...]  # the most frequent first
    latency: Distribution | None  # ns, of own answers; None where there are none
    ttft: Distribution | None  # ns, of own answers whose engine told
    prompt_length: Distribution | None  # tokens, of what completed
    answer_length: Distribution | None
    spans: tuple[ActiveSpan, ...]
    bins: tuple[TimeBin, ...]
    tail: TailFigures | None
    slowest: tuple[SlowRequest, ...]
    kv: KvFigures | None  # None where the engine told of no request
    sample: tuple[int, ...]  # lines, in order

    @property
    def num_rows(self) -> int:
        """Return how many lines have a result."""
        return self.num_completed + self.num_failed

    @property
    def num_attempts(self) -> int:
        """Return how many times requests were sent for the lines that have a result."""
        return sum(times * count for times, count in self.attempts.items())

    @property
    def active_s(self) -> float:
        """Return how long requests were in flight, over all spans."""
        return sum(span.duration_s for span in self.spans)

    @property
    def peak_in_flight(self) -> float:
        """Return the most requests in flight, as the mean of a bin."""
        return max((each.in_flight for each in self.bins), default=0.0)


def read_figures(path: Path, *, num_sampled: int = 0, seed: int = 0) -> RunFigures:
    """Return the figures of the ledger at `path`; the same seed samples the same lines.

    Raises:
        ConfigError: There is no ledger.
        LedgerError: It cannot be read.
    """
    with view_ledger(path) as view:
        return figures_of(view, num_sampled=num_sampled, seed=seed)


def figures_of(view: LedgerView, *, num_sampled: int = 0, seed: int = 0) -> RunFigures:
    """Return the figures of what a view of a ledger shows."""
    counts = _Counts()
    finder = SpanFinder()
    buckets = {kind: Buckets() for kind in KINDS}
    sampler = LineSampler(num_sampled, seed)
    for chunk in view.chunks():
        counts.add(chunk)
        sampler.add(chunk.lines)
        own = chunk.is_own
        finder.add(chunk.finished_ns[own] - chunk.latency_ns[own], chunk.finished_ns[own])
        for kind, values in _values(chunk).items():
            buckets[kind].add(values)
    spans = finder.spans()
    binners = {kind: Binner(found) for kind, found in buckets.items() if found.count}
    bins = _second_pass(view, spans, binners)
    distributions = {kind: binners[kind].distribution() if kind in binners else None for kind in KINDS}
    named = [slow[1] for slow in counts.slowest]
    named += [line for lines in counts.example_lines.values() for line in lines]
    names = {line: RequestName(line, text) for line, text in view.custom_ids(named).items()}
    return RunFigures(
        num_completed=counts.num_completed,
        num_failed=counts.num_failed,
        num_own=counts.num_own,
        num_equal=counts.reused["equal"],
        num_cached=counts.reused["cache"],
        num_superseded=view.num_superseded(),
        prompt_tokens=counts.prompt_tokens,
        completion_tokens=counts.completion_tokens,
        own_prompt_tokens=counts.own_prompt_tokens,
        own_completion_tokens=counts.own_completion_tokens,
        attempts=dict(sorted(counts.attempts.items())),
        finish_reasons=dict(counts.finish_reasons.most_common()),
        failures=tuple(
            FailureFigures(code, count, tuple(names[line] for line in counts.example_lines[code]))
            for code, count in counts.codes.most_common()
        ),
        **distributions,
        spans=tuple(spans),
        bins=tuple(bins),
        tail=find_tail(bins),
        slowest=tuple(SlowRequest(names[line], latency, *rest) for latency, line, *rest in counts.slowest),
        kv=KvFigures(counts.num_kv_told, counts.num_kv_blocks, counts.kv_prompt_tokens)
        if counts.num_kv_told
        else None,
        sample=sampler.lines(),
    )


def find_tail(bins: Sequence[TimeBin]) -> TailFigures | None:
    """Return the long tail of the last span, or None where the run was busy until about its end."""
    if not bins:
        return None
    last = [each for each in bins if each.span == bins[-1].span]
    peak = max(each.in_flight for each in last)
    tail = 0
    while tail < len(last) and last[-1 - tail].in_flight < TAIL_FRACTION * peak:
        tail += 1
    if not tail or peak < MIN_TAIL_PEAK:
        return None
    seconds = (last[-1].end_ns - last[-tail].start_ns) / NS_PER_S
    if seconds < MIN_TAIL_SHARE * (last[-1].end_ns - last[0].start_ns) / NS_PER_S:
        return None
    return TailFigures(seconds, sum(each.num_finished for each in last[-tail:]), peak)


@dataclass(slots=True)
class _Counts:
    """Sums over the rows."""

    num_completed: int = 0
    num_failed: int = 0
    num_own: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    own_prompt_tokens: int = 0
    own_completion_tokens: int = 0
    num_kv_told: int = 0
    num_kv_blocks: int = 0
    kv_prompt_tokens: int = 0
    attempts: Counter[int] = field(default_factory=Counter)
    reused: Counter[str | None] = field(default_factory=Counter)
    finish_reasons: Counter[str] = field(default_factory=Counter)
    codes: Counter[str] = field(default_factory=Counter)
    example_lines: dict[str, list[int]] = field(default_factory=dict)
    slowest: list[tuple[int, ...]] = field(default_factory=list)  # latency, line, and what SlowRequest has

    def add(self, chunk: RowChunk) -> None:
        """Count a chunk."""
        completed, own = chunk.is_completed, chunk.is_own
        self.num_completed += int(completed.sum())
        self.num_failed += int((~completed).sum())
        self.num_own += int(own.sum())
        self.prompt_tokens += int(chunk.prompt_tokens[completed].sum())
        self.completion_tokens += int(chunk.completion_tokens[completed].sum())
        self.own_prompt_tokens += int(chunk.prompt_tokens[own].sum())
        self.own_completion_tokens += int(chunk.completion_tokens[own].sum())
        is_told = own & (chunk.reused_blocks >= 0)
        self.num_kv_told += int(is_told.sum())
        self.num_kv_blocks += int(chunk.reused_blocks[is_told].sum())
        self.kv_prompt_tokens += int(chunk.prompt_tokens[is_told].sum())
        self.attempts.update(chunk.attempts.tolist())
        self.reused.update(chunk.reused_from)
        done = completed.tolist()
        reasons = zip(done, chunk.finish_reasons, strict=True)
        self.finish_reasons.update(reason or "unknown" for is_done, reason in reasons if is_done)
        self._add_failures(chunk)
        self._add_slowest(chunk)

    def _add_failures(self, chunk: RowChunk) -> None:
        for at in np.flatnonzero(~chunk.is_completed).tolist():
            code = chunk.codes[at] or "unknown"
            self.codes[code] += 1
            lines = self.example_lines.setdefault(code, [])
            if len(lines) < NUM_EXAMPLES:
                lines.append(int(chunk.lines[at]))

    def _add_slowest(self, chunk: RowChunk) -> None:
        own = np.flatnonzero(chunk.is_own)
        order = own[np.argsort(-chunk.latency_ns[own], kind="stable")[:NUM_SLOWEST]]
        columns = (chunk.latency_ns, chunk.lines, chunk.ttft_ns, chunk.prompt_tokens, chunk.completion_tokens)
        rows = zip(*(column[order].tolist() for column in columns), strict=True)
        self.slowest = heapq.nlargest(NUM_SLOWEST, [*self.slowest, *rows], key=lambda row: (row[0], -row[1]))


class LineSampler:
    """Chooses lines by a hash of their number: at random, the same with each seed, in one pass."""

    def __init__(self, size: int, seed: int) -> None:
        self._size = size
        self._seed = np.uint64(seed % (1 << 64))
        self._lines: Ints = np.empty(0, np.int64)

    def add(self, lines: Ints) -> None:
        """Take lines; those with the least hashes stay."""
        if self._size:
            lines = np.concatenate([self._lines, lines])
            self._lines = lines[np.argsort(self._hash(lines), kind="stable")[: self._size]]

    def lines(self) -> tuple[int, ...]:
        """Return the chosen lines, in order."""
        return tuple(sorted(self._lines.tolist()))

    def _hash(self, lines: Ints) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
        """Return splitmix64 of the line numbers, as the seed's stream gives it."""
        with np.errstate(over="ignore"):
            mixed = (lines.astype(np.uint64) + self._seed * np.uint64(0xD1342543DE82EF95)) * np.uint64(
                0x9E3779B97F4A7C15
            )
            mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return mixed ^ (mixed >> np.uint64(31))


def _values(chunk: RowChunk) -> dict[str, Ints]:
    """Return what each of KINDS is, of the rows that have it."""
    own, completed = chunk.is_own, chunk.is_completed
    return {
        "latency": chunk.latency_ns[own],
        "ttft": chunk.ttft_ns[own & (chunk.ttft_ns > 0)],
        "prompt_length": chunk.prompt_tokens[completed],
        "answer_length": chunk.completion_tokens[completed],
    }


def _second_pass(view: LedgerView, spans: list[ActiveSpan], binners: dict[str, Binner]) -> list[TimeBin]:
    timeline = Timeline(spans) if spans else None
    for chunk in view.chunks():
        for kind, values in _values(chunk).items():
            if len(values):
                binners[kind].add(values)
        own = chunk.is_own
        if timeline is not None and own.any():
            ends = chunk.finished_ns[own]
            starts = ends - chunk.latency_ns[own]
            first_tokens = np.minimum(starts + chunk.ttft_ns[own], ends)
            timeline.add(starts, ends, first_tokens, chunk.completion_tokens[own])
    return timeline.bins() if timeline else []
