"""Figures of a run: totals and percentiles, in memory that does not grow with the run."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field

from trtb.runner.ledger import ResultRow

BUCKETS_PER_DOUBLING = 32


class Histogram:
    """Positive integers (durations in ns, lengths) in logarithmic buckets; exact to about 1 %."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()
        self.count = 0
        self.total = 0
        self.max_value = 0

    def add(self, value: int) -> None:
        """Count a value."""
        self._counts[int(math.log2(max(value, 1)) * BUCKETS_PER_DOUBLING)] += 1
        self.count += 1
        self.total += value
        self.max_value = max(self.max_value, value)

    def percentile(self, fraction: float) -> int | None:
        """Return the value that `fraction` of the values do not exceed, or None without values."""
        if not self.count:
            return None
        wanted = math.ceil(fraction * self.count)
        seen = 0
        for bucket in sorted(self._counts):
            seen += self._counts[bucket]
            if seen >= wanted:
                return min(self.max_value, round(2 ** ((bucket + 0.5) / BUCKETS_PER_DOUBLING)))
        return self.max_value


@dataclass(slots=True)
class RunTotals:
    """What the rows of a ledger add up to."""

    completed: int = 0
    failed: int = 0
    reused: int = 0  # of the completed: answered by an equal request's answer, and never sent
    cached: int = 0  # of the completed: answered by the result cache, and never sent
    prompt_tokens: int = 0
    completion_tokens: int = 0
    attempts: int = 0
    told: int = 0  # of the completed: the engine told how many KV blocks of the prompt it had
    reused_blocks: int = 0  # of those
    told_prompt_tokens: int = 0
    codes: Counter[str] = field(default_factory=Counter)
    finish_reasons: Counter[str] = field(default_factory=Counter)
    samples: dict[str, list[str]] = field(default_factory=dict)  # code -> a few custom_ids or lines
    latency: Histogram = field(default_factory=Histogram)
    ttft: Histogram = field(default_factory=Histogram)

    @property
    def total(self) -> int:
        """Return completed + failed."""
        return self.completed + self.failed

    def add(self, row: ResultRow) -> None:
        """Count a row."""
        self.attempts += row.attempts
        if row.status == "failed":
            self.failed += 1
            code = row.code or "unknown"
            self.codes[code] += 1
            samples = self.samples.setdefault(code, [])
            if len(samples) < 3:
                samples.append(f"line {row.line}" if row.custom_id is None else row.custom_id)
            return
        self.completed += 1
        self.prompt_tokens += row.prompt_tokens
        self.completion_tokens += row.completion_tokens
        self.finish_reasons[row.finish_reason or "unknown"] += 1
        if row.reused_from is not None:
            self.reused += row.reused_from == "equal"
            self.cached += row.reused_from == "cache"
            return
        if row.reused_blocks is not None:
            self.told += 1
            self.reused_blocks += row.reused_blocks
            self.told_prompt_tokens += row.prompt_tokens
        self.latency.add(row.latency_ns)
        if row.ttft_ns:
            self.ttft.add(row.ttft_ns)
