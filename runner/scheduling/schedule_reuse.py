"""How much of the prompts the engine did not have to compute, as far as that can be seen.

TensorRT-LLM counts the blocks that it reuses. The CPU engine counts nothing, so it is derived: leaders and
lines that share nothing compute every token of their prompts, and the time that these take, from arrival
to first token, gives the engine's pace. What the others take beside that, at the same pace, is what they
had to compute. Times that overlap are counted once. While both kinds are computed at once, the work is
either's: the share is told only where that leaves little doubt. No I/O.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, Literal

from trtb.runner.answer import Answer
from trtb.runner.wording import counted

MAX_SPANS: Final = 50_000
MIN_KNOWN: Final = 4  # prompts that were computed whole, for a pace
MAX_DOUBT: Final = 0.1  # of the prompt tokens: between all and none of the time in common being the others'
Method = Literal["engine counters", "derived from prefill times"]
Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class SeenReuse:
    """The reused share of the prompt tokens, and how it is known."""

    share: float
    method: Method


@dataclass(frozen=True, slots=True)
class UnseenReuse:
    """Nothing tells the share well enough."""

    reason: str


@dataclass(slots=True)
class _Seen:
    """One server's prompts, so far."""

    known: list[Span] = field(default_factory=list)  # of prompts that were computed whole
    others: list[Span] = field(default_factory=list)
    known_tokens: int = 0
    prompt_tokens: int = 0  # leaders apart: they are no line's

    @property
    def has_room(self) -> bool:
        """Return whether more is kept."""
        return len(self.others) + len(self.known) < MAX_SPANS

    def computed_tokens(self) -> tuple[float, float]:
        """Return the least and the most tokens that were computed; infinite where no bound is known.

        The least takes all of the time in common as that of the prompts that are known, the most as that of
        the others, so that the known ones were faster.
        """
        known_ns, both_ns = _length(self.known), _length([*self.known, *self.others])
        if not known_ns:
            return 0.0, math.inf
        alone_ns = both_ns - _length(self.others)
        least = self.known_tokens * both_ns / known_ns
        return least, self.known_tokens * both_ns / alone_ns if alone_ns else math.inf


class ReuseMeter:
    """Takes the answers of a run in the order of prefixes.

    Args:
        tokens_per_block: Of the engine's KV cache.
    """

    def __init__(self, num_servers: int, tokens_per_block: int) -> None:
        self._servers = [_Seen() for _ in range(num_servers)]
        self._tokens_per_block = tokens_per_block
        self._counted_blocks = 0
        self._led_tokens = 0  # that leaders computed, where that is counted
        self._has_counts = False
        self.num_leaders = 0

    def add_leader(self, server: int, num_tokens: int, answer: Answer, *, num_above: int = 0) -> None:
        """Take a leader, which was to compute `num_tokens` tokens, behind `num_above` that were there."""
        self.num_leaders += 1
        if not self._servers[server].has_room:
            return
        if answer.reused_blocks is not None:  # a prefix that is led again may be there still
            reused = answer.reused_blocks * self._tokens_per_block
            self._led_tokens += max(0, num_above + num_tokens - reused)
        self._take_known(self._servers[server], num_tokens, answer)

    def add(self, server: int, num_prompt_tokens: int, answer: Answer, *, is_lone: bool) -> None:
        """Take a line's answer; a lone one has no prefix that others have, too."""
        seen = self._servers[server]
        if not seen.has_room:
            return
        seen.prompt_tokens += num_prompt_tokens
        if answer.reused_blocks is not None:
            self._has_counts = True
            self._counted_blocks += answer.reused_blocks
        if is_lone:
            self._take_known(seen, num_prompt_tokens, answer)
        elif answer.first_token_ns:
            seen.others.append((answer.arrival_ns, answer.first_token_ns))

    def result(self) -> SeenReuse | UnseenReuse:
        """Return what was seen of the engine's reuse, or why nothing was."""
        prompt_tokens = sum(seen.prompt_tokens for seen in self._servers)
        if not prompt_tokens:
            return UnseenReuse("no request was answered")
        if self._has_counts:
            reused = self._counted_blocks * self._tokens_per_block - self._led_tokens
            # a block of which only a part is reused is counted whole
            return SeenReuse(min(1.0, max(0.0, reused / prompt_tokens)), "engine counters")
        used = [seen for seen in self._servers if seen.prompt_tokens]
        num_known = min(len(seen.known) for seen in used)
        if num_known < MIN_KNOWN:
            return UnseenReuse(
                f"{counted(num_known, 'prompt')} computed whole; at least {MIN_KNOWN} tell a server's pace"
            )
        bounds = [seen.computed_tokens() for seen in used]
        least, most = sum(low for low, _ in bounds), sum(high for _, high in bounds)
        if most - least > MAX_DOUBT * prompt_tokens:
            return UnseenReuse("prompts with a shared prefix were computed together with others")
        return SeenReuse(min(1.0, max(0.0, 1 - least / prompt_tokens)), "derived from prefill times")

    def _take_known(self, seen: _Seen, num_tokens: int, answer: Answer) -> None:
        if answer.first_token_ns:
            seen.known_tokens += num_tokens
            seen.known.append((answer.arrival_ns, answer.first_token_ns))


def _length(spans: Iterable[Span]) -> int:
    """Return the length of what spans cover.

    >>> _length([(0, 10), (5, 12), (20, 21)])
    13
    """
    covered = 0
    last = 0
    for start, end in sorted(spans):
        covered += max(0, end - max(start, last))
        last = max(last, end)
    return covered
