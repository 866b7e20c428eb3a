"""The schedule: in which order requests are sent, decided from what the file holds. No I/O.

`prefix` sends what begins alike together, `length` the longest first, `input` as the file has them. The
output's order never depends on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

Order = Literal["auto", "prefix", "length", "input"]
ChosenOrder = Literal["prefix", "length", "input"]
ORDERS: Final = ("auto", "prefix", "length", "input")

MIN_ALIKE_SHARE: Final = 0.05  # of the requests; below it a file is not worth tokenising twice
MIN_REUSE_SHARE: Final = 0.05  # of the prompt tokens
MIN_TAIL_SHARE: Final = 0.25  # of the run: so long would the longest request run on by itself
CHARS_PER_TOKEN: Final = 4


@dataclass(frozen=True, slots=True)
class Look:
    """What a first look at a file says of it: counts, and work in rough tokens."""

    num_lines: int
    num_alike: int  # begin as an earlier one does
    work: int  # prompts and the most that the answers may have
    max_work: int  # of one request


@dataclass(frozen=True, slots=True)
class Choice:
    """An order, and why it was chosen."""

    order: ChosenOrder
    why: str


@dataclass(frozen=True, slots=True)
class PlanFigures:
    """What a plan comes to; tokens are of the prompts, each line's counted once."""

    num_lines: int = 0
    prompt_tokens: int = 0
    num_prefixes: int = 0
    num_grouped: int = 0  # lines that share one of the prefixes
    reused_tokens: int = 0  # of the prompts: what the engine need not compute, where each prefix is once

    @property
    def reuse_share(self) -> float:
        """Return the share of the prompt tokens that the engine need not compute."""
        return self.reused_tokens / max(1, self.prompt_tokens)


def choose_by_look(look: Look, concurrency: int, *, is_reusing: bool = True) -> Choice | None:
    """Return the order that a first look suffices for, or None where the prefixes must be counted.

    >>> choose_by_look(Look(num_lines=100, num_alike=60, work=50_000, max_work=600), concurrency=8)
    >>> choose_by_look(Look(num_lines=100, num_alike=0, work=50_000, max_work=600), concurrency=8).order
    'input'
    >>> choose_by_look(Look(num_lines=100, num_alike=0, work=50_000, max_work=9_000), concurrency=8).order
    'length'
    """
    if is_reusing and look.num_alike > MIN_ALIKE_SHARE * look.num_lines:
        return None
    why = "hardly any requests begin alike" if is_reusing else "the engine reuses no prefixes"
    if look.max_work * min(concurrency, look.num_lines) > MIN_TAIL_SHARE * look.work:
        mean = look.work / max(1, look.num_lines)
        # where all are about as long, the first is as good as any
        if look.max_work > 2 * mean:
            return Choice("length", f"{why}, and the longest would end last")
    return Choice("input", why)


def choose_by_plan(figures: PlanFigures) -> Choice:
    """Return the order of a file whose prefixes have been counted."""
    if figures.reuse_share < MIN_REUSE_SHARE:
        return Choice("input", f"only {figures.reuse_share:.1%} of the prompt tokens are in shared prefixes")
    return Choice("prefix", f"{figures.reuse_share:.0%} of the prompt tokens are in shared prefixes")


def blend(prefill: Sequence[int], decode: Sequence[int]) -> list[int]:
    """Return an order in which long prompts and long answers come side by side.

    Prompts are bound by arithmetic and answers by memory; a batch that has both uses both. The groups are
    taken from the two ends of their order by that ratio, so that what has been taken is always about as
    mixed as the whole (the dual scan of BlendServe, arXiv 2411.16102). Where all have one ratio, they keep
    their order.

    Args:
        prefill: Prompt tokens to compute, of each group.
        decode: Answer tokens, of each group.

    >>> blend([10, 10, 900, 900], [90, 90, 10, 10])
    [0, 3, 1, 2]
    """
    import numpy as np  # what only chooses options need not load it

    prompts = np.maximum(1, np.asarray(prefill, dtype=np.int64))
    answers = np.maximum(1, np.asarray(decode, dtype=np.int64))
    ranked = np.argsort(prompts / answers, kind="stable")
    if (
        not len(ranked)
        or prompts[ranked[0]] * answers[ranked[-1]] == prompts[ranked[-1]] * answers[ranked[0]]
    ):
        return [int(index) for index in range(len(ranked))]
    ratio = float(prompts.sum() / answers.sum())
    prompts_of, answers_of = prompts[ranked].tolist(), answers[ranked].tolist()
    low, high = 0, len(ranked) - 1
    taken_prompts = taken_answers = 0
    order: list[int] = []
    while low <= high:
        is_low = taken_prompts >= ratio * taken_answers
        index = low if is_low else high
        taken_prompts += prompts_of[index]
        taken_answers += answers_of[index]
        order.append(index)
        low, high = (low + 1, high) if is_low else (low, high - 1)
    return ranked[order].tolist()  # type: ignore[no-any-return]
