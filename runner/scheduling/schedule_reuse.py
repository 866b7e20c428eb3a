"""How much of the prompts the engine did not have to compute, as far as that can be seen.

TensorRT-LLM counts the blocks that it reuses. The CPU engine counts nothing, so it is derived: leaders and
lines that share nothing compute every token of their prompts, and the time that these take, from arrival
to first token, gives the engine's pace. What the others take beside that, at the same pace, is what they
had to compute. Times that overlap are counted once. No I/O.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, Literal

from trtb.runner.answer import Answer

MAX_SPANS: Final = 50_000
Method = Literal["engine counters", "derived from prefill times"]
Span = tuple[int, int]


@dataclass(slots=True)
class _Seen:
    """One server's prompts, so far."""

    known: list[Span] = field(default_factory=list)  # of prompts that were computed whole
    others: list[Span] = field(default_factory=list)
    known_tokens: int = 0
    prompt_tokens: int = 0  # leaders apart: they are no line's
    lone_tokens: int = 0


class ReuseMeter:
    """Takes the answers of a run in the order of prefixes.

    Args:
        tokens_per_block: Of the engine's KV cache.
    """

    def __init__(self, num_servers: int, tokens_per_block: int) -> None:
        self._servers = [_Seen() for _ in range(num_servers)]
        self._tokens_per_block = tokens_per_block
        self._counted_blocks = 0
        self._has_counts = False
        self.num_leaders = 0

    def add_leader(self, server: int, num_tokens: int, answer: Answer) -> None:
        """Take a leader, which computed `num_tokens` tokens of its prefix."""
        self.num_leaders += 1
        self._take_known(self._servers[server], num_tokens, answer)

    def add(self, server: int, num_prompt_tokens: int, answer: Answer, *, is_lone: bool) -> None:
        """Take a line's answer; a lone one has no prefix that others have, too."""
        seen = self._servers[server]
        if len(seen.others) + len(seen.known) >= MAX_SPANS:
            return
        seen.prompt_tokens += num_prompt_tokens
        if answer.reused_blocks is not None:
            self._has_counts = True
            self._counted_blocks += answer.reused_blocks
        if is_lone:
            seen.lone_tokens += num_prompt_tokens
            self._take_known(seen, num_prompt_tokens, answer)
        elif answer.first_token_ns:
            seen.others.append((answer.arrival_ns, answer.first_token_ns))

    def result(self) -> tuple[float, Method] | None:
        """Return the reused share of the prompt tokens and how it is known; None where nothing tells."""
        prompt_tokens = sum(seen.prompt_tokens for seen in self._servers)
        if not prompt_tokens:
            return None
        if self._has_counts:
            leaders = sum(seen.known_tokens - seen.lone_tokens for seen in self._servers)
            reused = self._counted_blocks * self._tokens_per_block - leaders
            return max(0.0, reused / prompt_tokens), "engine counters"
        computed = 0.0
        for seen in self._servers:
            known_ns = _length(seen.known)
            if not seen.prompt_tokens:
                continue
            if not known_ns or not seen.known_tokens:
                return None
            both_ns = _length([*seen.known, *seen.others])
            computed += seen.known_tokens * (1 + (both_ns - known_ns) / known_ns)
        return min(1.0, max(0.0, 1 - computed / prompt_tokens)), "derived from prefill times"

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
