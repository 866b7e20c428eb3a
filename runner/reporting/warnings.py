"""What a report warns of, each with the setting to change. No I/O."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from trtb.runner.reporting.diagnosis import Diagnosis
from trtb.runner.wording import counted

LOW_IN_FLIGHT: Final = 0.5  # of the bound: half of the places were never used
LONG_TAIL: Final = 0.2  # of the time of answering
LOW_CONCURRENCY: Final = 0.5  # of the session's time
BLOCKS_FULL: Final = 0.75  # of the pool


def cut_answers(num_cut: int, num_completed: int) -> Iterator[str]:
    """Warn of answers that max_tokens has cut."""
    if num_cut:
        yield (
            f"{counted(num_cut, 'answer')} cut by max_tokens (finish_reason length), "
            f"{num_cut / num_completed:.1%} of the completed (raise the request's max_tokens, or "
            "--default-max-tokens where it names none)"
        )


def company(is_exact: bool | None, num_inexact_hits: int) -> Iterator[str]:
    """Warn of answers that may depend on what else was in flight, now or when the cache took them."""
    if num_inexact_hits:
        yield (
            f"{counted(num_inexact_hits, 'answer')} of the result cache may depend on what else was in flight"
            " when computed (--no-cache: computed now; where answers are exact: trtb serve --deterministic)"
        )
    elif is_exact is False:
        yield (
            "greedy and seeded answers may depend on what else was in flight: this engine computes in low "
            "precision (--deterministic: in f32, more slowly)"
        )


def unused_places(
    max_in_flight: int, concurrency: int, num_sent: int, held_fraction: float | None
) -> Iterator[str]:
    """Warn of places that were never used, though there were requests for them.

    Args:
        max_in_flight: The most requests that were in flight.
        concurrency: How many might have been.
        num_sent: Requests that this session has sent and that have ended.
        held_fraction: The most of the KV pool that was held; None where the pool is not known.
    """
    if max_in_flight >= LOW_IN_FLIGHT * concurrency or num_sent < concurrency:
        return
    text = f"never more than {counted(max_in_flight, 'request')} in flight, of {concurrency} that might be"
    if held_fraction is not None and held_fraction >= BLOCKS_FULL:
        yield (
            f"{text}: the KV pool was full (a larger one: --num-kv-blocks; fewer blocks a request: a lower "
            "max_tokens)"
        )
    else:
        yield f"{text} (trtb report says what they waited for)"


def from_diagnosis(diagnosis: Diagnosis | None, duration_s: float) -> Iterator[str]:
    """Warn of time that another setting would have saved."""
    if diagnosis is None:
        return
    found = {each.kind: each for each in diagnosis.bottlenecks}
    low = found.get("concurrency")
    if low is not None and low.share >= LOW_CONCURRENCY:
        yield f"low concurrency: the engine had room for more requests in flight ({low.setting})"
    tail = found.get("long_tail")
    if tail is not None and diagnosis.tail_s >= LONG_TAIL * duration_s:
        yield (
            f"a long tail: for {diagnosis.tail_s:.0f} s of {duration_s:.0f} s few requests were left in "
            f"flight ({tail.setting})"
        )


def lost_samples(fault: str | None) -> Iterator[str]:
    """Warn of a course of the run that is not all on disk."""
    if fault is not None:
        yield f"{fault}; the report lacks the course of the run from there on (make room on the disk)"
