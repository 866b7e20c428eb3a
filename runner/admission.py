"""Admission: decide whether one more request may be in flight, and on which server.

A running request holds KV blocks until it ends. Sending more than the engine can hold only moves the
queue into the server, where it can be neither seen nor reordered. What a request will hold is not known
before it ends: an engine that cannot put a running request aside gets the worst case; one that can is
held to what answers have come to so far. A server that says that it is full is believed. No I/O.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

LENGTH_QUANTILE = 0.9
MIN_OUTCOMES = 64  # short answers end first: the first few say too little of the rest
MAX_OUTCOMES = 1024  # how far back answers are remembered
NUM_BINS = 64
MAX_OVERCOMMIT = 2  # worst cases in flight, over the pool: what being wrong can cost is bounded
MAX_PATIENCE = 16
UNLIMITED_BLOCKS = 1 << 40


@dataclass(slots=True)
class BlockBudget:
    """KV blocks one runner may have in flight; 0 <= held <= capacity."""

    capacity: int
    held: int = 0
    max_held: int = 0

    def try_acquire(self, num_blocks: int) -> bool:
        """Hold `num_blocks` and return True, or return False and change nothing."""
        if self.held + num_blocks > self.capacity:
            return False
        self.held += num_blocks
        self.max_held = max(self.max_held, self.held)
        return True

    def release(self, num_blocks: int) -> None:
        """Give back what was held."""
        if not 0 <= num_blocks <= self.held:
            raise ValueError(f"release of {num_blocks} blocks; {self.held} are held")
        self.held -= num_blocks


class Demand(NamedTuple):
    """The KV blocks of a request: all that it can come to, and how many of them its answer may fill."""

    num_blocks: int
    num_answer_blocks: int = 0


class Grant(NamedTuple):
    """What is held for a request in flight."""

    server: int
    num_blocks: int  # expected
    num_blocks_worst: int


class OutputLengths:
    """What share of its max_tokens an answer uses: a high quantile of the last answers."""

    def __init__(self) -> None:
        self._bins: deque[int] = deque()
        self._counts: Counter[int] = Counter()
        self._share = 1.0
        self._num_added = 0

    def add(self, num_tokens: int, max_tokens: int) -> None:
        """Take the length of an answer and the bound it was given."""
        used = min(NUM_BINS, -(-num_tokens * NUM_BINS // max_tokens))
        self._bins.append(used)
        self._counts[used] += 1
        if len(self._bins) > MAX_OUTCOMES:
            self._counts[self._bins.popleft()] -= 1
        self._num_added += 1
        if self._num_added >= MIN_OUTCOMES and not self._num_added % 16:
            self._share = self._quantile() / NUM_BINS

    @property
    def share(self) -> float:
        """Return the share, 1 until enough answers have ended."""
        return self._share

    def _quantile(self) -> int:
        wanted = LENGTH_QUANTILE * len(self._bins)
        seen = 0
        for used in sorted(self._counts):
            seen += self._counts[used]
            if seen >= wanted:
                return max(1, used)
        return NUM_BINS


@dataclass(slots=True)
class _Server:
    """What one server holds, and how much it has been seen to take."""

    blocks: BlockBudget
    worst: BlockBudget
    bound: int
    num_in_flight: int = 0
    num_good: int = 0  # requests that ended well since the bound was last moved
    patience: int = 1  # doubles each time the server was full: a bound that is right is probed less often


@dataclass(slots=True)
class Admission:
    """Blocks and places of every server of a run; its one owner is the feed.

    Args:
        capacities: KV blocks of each server that requests may fill; None where it is not known.
        concurrency: Most requests in flight on one server.
        can_preempt: The engines put a running request aside and take it up again without harm.
    """

    capacities: Sequence[int | None]
    concurrency: int
    can_preempt: bool = False
    lengths: OutputLengths = field(default_factory=OutputLengths)
    num_full: int = 0
    min_bound: int = 0
    _servers: list[_Server] = field(default_factory=list)

    def __post_init__(self) -> None:
        overcommit = MAX_OVERCOMMIT if self.can_preempt else 1
        self.min_bound = self.concurrency
        for known in self.capacities:
            capacity = UNLIMITED_BLOCKS if known is None else known
            self._servers.append(
                _Server(BlockBudget(capacity), BlockBudget(capacity * overcommit), self.concurrency)
            )

    @property
    def num_servers(self) -> int:
        """Return how many servers there are; they are called 0, 1 and so on."""
        return len(self._servers)

    def num_in_flight(self, server: int) -> int:
        """Return how many requests a server has."""
        return self._servers[server].num_in_flight

    def num_free_blocks(self, server: int) -> int:
        """Return how many blocks of a server are not held."""
        blocks = self._servers[server].blocks
        return blocks.capacity - blocks.held

    def num_held_blocks(self, server: int) -> int:
        """Return how many blocks of a server are held, expected answers counted."""
        return self._servers[server].blocks.held

    def num_free_places(self, server: int) -> int:
        """Return how many more requests a server may have, blocks apart."""
        return max(0, self._servers[server].bound - self._servers[server].num_in_flight)

    def expected(self, demand: Demand) -> int:
        """Return how many blocks a request is counted with."""
        if not self.can_preempt:
            return demand.num_blocks
        spared = int(demand.num_answer_blocks * (1 - self.lengths.share))
        return max(1, demand.num_blocks - spared)

    def try_admit(self, server: int, demand: Demand) -> Grant | None:
        """Hold a place and blocks for a request, or return None and change nothing."""
        state = self._servers[server]
        if state.num_in_flight >= state.bound:
            return None
        num_blocks = self.expected(demand)
        if not self._try_hold(state, num_blocks, demand.num_blocks):
            return None
        state.num_in_flight += 1
        return Grant(server, num_blocks, demand.num_blocks)

    def release(self, grant: Grant) -> None:
        """Give back what a request held."""
        state = self._servers[grant.server]
        state.blocks.release(grant.num_blocks)
        state.worst.release(grant.num_blocks_worst)
        state.num_in_flight -= 1

    def try_keep(self, server: int, num_blocks: int) -> bool:
        """Hold blocks that stay in the pool from one request to the next: those of a shared prefix."""
        return self._try_hold(self._servers[server], num_blocks, num_blocks)

    def release_kept(self, server: int, num_blocks: int) -> None:
        """Give kept blocks back."""
        self._servers[server].blocks.release(num_blocks)
        self._servers[server].worst.release(num_blocks)

    def note_full(self, server: int) -> None:
        """Take less: the server refused a request (already released) for want of room."""
        state = self._servers[server]
        self.num_full += 1
        state.bound = max(1, min(state.bound - 1, state.num_in_flight))
        state.num_good = 0
        state.patience = min(MAX_PATIENCE, state.patience * 2)
        self.min_bound = min(self.min_bound, state.bound)

    def note_good(self, server: int) -> None:
        """Take more again, step by step, while requests end well."""
        state = self._servers[server]
        if state.bound >= self.concurrency:
            return
        state.num_good += 1
        if state.num_good >= state.bound * state.patience:
            state.num_good = 0
            state.bound = min(self.concurrency, state.bound + max(1, state.bound // 4))

    @property
    def max_blocks_held(self) -> int:
        """Return the most blocks that one server was counted with at a time."""
        return max(state.blocks.max_held for state in self._servers)

    @property
    def last_bound(self) -> int:
        """Return the requests in flight that the most careful of the bounds allows by now."""
        return min(state.bound for state in self._servers)

    def _try_hold(self, state: _Server, num_blocks: int, num_blocks_worst: int) -> bool:
        if not state.worst.try_acquire(num_blocks_worst):
            return False
        if not state.blocks.try_acquire(num_blocks):
            state.worst.release(num_blocks_worst)
            return False
        return True
