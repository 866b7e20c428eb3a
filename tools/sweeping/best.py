"""The best point of a sweep, by a rule that a person chose. Pure.

A point that is unstable or failed is never the best: what it measured is not what the next run will see.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final, Literal, get_args

from trtb.build.errors import ConfigError
from trtb.tools.sweeping.point import Figures, SweepPoint

Rule = Literal["throughput", "goodput", "latency"]
RULES: Final[tuple[Rule, ...]] = get_args(Rule)
MEANING: Final[Mapping[Rule, str]] = {
    "throughput": "the most output tokens/s",
    "goodput": "the most requests/s within the latency limit",
    "latency": "the most output tokens/s of the points whose p99 latency is within the limit",
}


def check_rule(rule: str, latency_limit_ms: float | None) -> Rule:
    """Return the rule that a person typed.

    Raises:
        ConfigError: There is no such rule, or it lacks its limit.
    """
    for known in RULES:
        if rule == known:
            if known != "throughput" and latency_limit_ms is None:
                raise ConfigError(
                    f"--best {rule}: without a limit; expected --latency-limit, in milliseconds",
                    f"it takes {MEANING[known]}",
                )
            return known
    raise ConfigError(f"--best: {rule!r}; expected {', '.join(RULES[:-1])} or {RULES[-1]}")


def choose_best(
    points: Iterable[SweepPoint], rule: Rule, latency_limit_ms: float | None
) -> SweepPoint | None:
    """Return the best point; None where none may be chosen. Of equal ones, the one with the least load."""
    score = _score_of(rule, latency_limit_ms)
    best: tuple[float, float] | None = None
    chosen = None
    for point in points:
        if point.state != "ok" or point.median is None or (value := score(point.median)) is None:
            continue
        rank = (value, -point.value)
        if best is None or rank > best:
            best, chosen = rank, point
    return chosen


def _score_of(rule: Rule, latency_limit_ms: float | None) -> Callable[[Figures], float | None]:
    def within_limit(figures: Figures) -> float | None:
        p99_ms = figures.latency.p99_ms
        is_within = latency_limit_ms is not None and p99_ms is not None and p99_ms <= latency_limit_ms
        return figures.output_tokens_per_s if is_within else None

    scores: Mapping[Rule, Callable[[Figures], float | None]] = {
        "throughput": lambda figures: figures.output_tokens_per_s,
        "goodput": lambda figures: figures.goodput_per_s or None,
        "latency": within_limit,
    }
    return scores[rule]
