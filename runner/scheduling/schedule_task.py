"""What is handed to a worker: a line that waits to be sent, and one request to send now."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trtb.runner.admission import Demand, Grant
from trtb.runner.request import SamplingParams
from trtb.runner.scheduling.prefix_tree import NO_NODE
from trtb.runner.scheduling.schedule_prefixes import Copy
from trtb.runner.source import Item, LinePlace, Prompt

_LEADER_SAMPLING = SamplingParams(max_tokens=1, temperature=0.0)


@dataclass(slots=True, eq=False)
class Candidate:
    """A line that waits to be sent; its item is there once it has been rendered."""

    demand: Demand
    node: int = NO_NODE
    place: LinePlace | None = None
    item: Item | None = None
    is_unfit: bool = False  # there was no room for it
    num_overtaken: int = 0

    @property
    def line(self) -> int:
        """Return its line of the input."""
        if self.place is not None:
            return self.place.line
        assert self.item
        return self.item.line


@dataclass(slots=True, eq=False)
class Task:
    """One request to send now; a leader computes the prefix `leads` and is no line of the file."""

    item: Item
    candidate: Candidate
    server: int
    grant: Grant | None  # None once it has been given back
    leads: int = NO_NODE
    copies: Sequence[Copy] = ()  # prefixes that it uses
    is_canary: bool = False  # others wait for its first token

    @property
    def is_leader(self) -> bool:
        """Say whether this computes a prefix for others."""
        return self.leads != NO_NODE

    @property
    def num_shared_blocks(self) -> int:
        """Return how many blocks of the prompt's beginning others have, too."""
        return sum(copy.num_blocks for copy in self.copies)


def leader_of(item: Item, num_tokens: int) -> Item:
    """Return the request that computes the first tokens of an item's prompt: those alone, for one token."""
    return Item(
        line=item.line,
        custom_id=item.custom_id,
        prompts=[Prompt(item.prompts[0].input_ids[:num_tokens], 1)],
        sampling=_LEADER_SAMPLING,
        seed=0,
        num_prompt_tokens=num_tokens,
        num_blocks=1,
    )
