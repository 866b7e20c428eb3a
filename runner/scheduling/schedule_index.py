"""The index of a file in the order of a schedule: where each line stands, what it needs, what it shares.

The first pass renders and tokenises every line and keeps 40 bytes of it, sorted on disk; the tree of the
shared prefixes is in memory, a few bytes for each. The run then reads the lines by their places. The same
lines give the same order.
"""

from __future__ import annotations

import struct
import tempfile
from array import array
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trtb.runner.reader import RawLine
from trtb.runner.scheduling import prefix_tree
from trtb.runner.scheduling.prefix_tree import NO_NODE, PrefixTree
from trtb.runner.scheduling.schedule import ChosenOrder, PlanFigures, blend
from trtb.runner.scheduling.schedule_sort import MAX_CHUNK_BYTES, SpillSorter
from trtb.runner.source import Item, LinePlace, Refused, Source

LINES_PER_TURN: Final = 100
RECORDS_PER_READ: Final = 4096
MAX_LONE_GROUPS: Final = 200_000  # of lines that share nothing: past it, neighbours are taken together
SPLIT_SHARE: Final = 8  # a prefix of more than 1/8 of the lines is no group: those below it are
# line, offset, bytes, KV blocks, those of the answer, prompt tokens, most answer tokens; then the node
_HEAD = struct.Struct(">QQIIIII")
_RECORD = np.dtype(
    [("line", ">u8"), ("offset", ">u8"), ("num_bytes", ">u4"), ("num_blocks", ">u4"),
     ("num_answer_blocks", ">u4"), ("prompt_tokens", ">u4"), ("answer_tokens", ">u4"), ("node", ">i4")]
)  # fmt: skip


class Planned(NamedTuple):
    """One line in its place of the schedule; `node` is the deepest prefix that it shares."""

    place: LinePlace
    num_blocks: int
    num_answer_blocks: int
    node: int = NO_NODE


class LineIndex:
    """The lines of a source in the order of a schedule.

    Args:
        source: The lines that are to do.
        order: `prefix` or `length`.
        tokens_per_block: Of the engine's KV cache: what is shared is whole blocks.
        folder: Where the index goes; it has no name, and vanishes with the process.
    """

    def __init__(
        self,
        source: Source,
        order: ChosenOrder,
        tokens_per_block: int,
        folder: Path,
        max_chunk_bytes: int = MAX_CHUNK_BYTES,
    ) -> None:
        self._source = source
        self._is_by_prefix = order == "prefix"
        self._tokens_per_block = tokens_per_block
        folder.mkdir(parents=True, exist_ok=True)
        self._sorter = SpillSorter(folder, max_chunk_bytes)
        self._records = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 (closed by close)
        self._ranges: list[
            tuple[int, int]
        ] = []  # first record and their number, in the order of the schedule
        self.tree = PrefixTree()
        self.figures = PlanFigures()

    def steps(self, on_refused: Callable[[Refused], None]) -> Iterator[None]:
        """Make the index; yields now and then, so that others have their turn.

        Args:
            on_refused: Hears of the lines that cannot be sent; they are not in the index.
        """
        for number, raw in enumerate(self._source.lines(), start=1):
            prepared = self._source.prepare(raw)
            if isinstance(prepared, Item):
                self._sorter.add(self._key(prepared), _head(raw, prepared))
            else:
                on_refused(prepared)
            if not number % LINES_PER_TURN:
                yield
        yield from self._write_sorted()
        stands_for = np.append(np.array(prefix_tree.settle(self.tree), dtype=np.int64), NO_NODE)
        yield from self._group(stands_for)

    def __iter__(self) -> Iterator[Planned]:
        """Yield the lines in the order of the schedule."""
        for start, count in zip(self._starts.tolist(), self._counts.tolist(), strict=True):
            for first in range(start, start + count, RECORDS_PER_READ):
                for record in self._read(first, min(RECORDS_PER_READ, start + count - first)).tolist():
                    line, offset, num_bytes, num_blocks, num_answer_blocks, _, _, node = record
                    yield Planned(LinePlace(line, offset, num_bytes), num_blocks, num_answer_blocks, node)

    def close(self) -> None:
        """Give the files up."""
        self._sorter.close()
        self._records.close()

    def _key(self, item: Item) -> bytes:
        if self._is_by_prefix:
            # several prompts of a line are sent one after the other, and share with each other at best
            if len(item.prompts) > 1:
                return b""
            return prefix_tree.block_keys(item.prompts[0].input_ids, self._tokens_per_block)
        work = item.num_prompt_tokens + _answer_tokens(item)
        return ((1 << 63) - work).to_bytes(8, "big")

    def _write_sorted(self) -> Iterator[None]:
        heads: deque[bytes] = deque()

        def keys() -> Iterator[bytes]:
            for key, head in self._sorter.sorted():
                heads.append(head)
                yield key if self._is_by_prefix else b""

        for number, node in enumerate(prefix_tree.build(keys(), self.tree), start=1):
            self._records.write(heads.popleft() + node.to_bytes(4, "big", signed=True))
            if not number % LINES_PER_TURN:
                yield
        self._records.flush()

    def _group(self, stands_for: NDArray[np.int64]) -> Iterator[None]:
        """Find the groups that stay together, put them in order, and count what the plan comes to."""
        num_records = self._records.tell() // _RECORD.itemsize
        width = self._tokens_per_block
        depth = np.append(np.array(self.tree.depth, dtype=np.int64), 0)
        group_of = _groups(self.tree, stands_for, num_records)
        runs = _Runs(-(-num_records // MAX_LONE_GROUPS))
        prompt_tokens = reused = num_grouped = 0
        for first in range(0, num_records, RECORDS_PER_READ):
            chunk = self._read(first, min(RECORDS_PER_READ, num_records - first)).copy()
            chunk["node"] = stands_for[chunk["node"]]
            self._records.seek(first * _RECORD.itemsize)
            self._records.write(chunk.tobytes())
            nodes = chunk["node"].astype(np.int64)
            prompts = chunk["prompt_tokens"].astype(np.int64)
            shared = depth[nodes] * width
            prompt_tokens += int(prompts.sum())
            reused += int(shared.sum())
            num_grouped += int((nodes >= 0).sum())
            groups = group_of[nodes]
            runs.add(first, groups, depth[groups] * width, prompts - shared, chunk["answer_tokens"])
            yield
        order = blend(runs.prefill, runs.decode) if self._is_by_prefix else list(range(len(runs.starts)))
        starts = np.array(runs.starts, dtype=np.int64)
        self._starts, self._counts = starts[order], np.diff(starts, append=num_records)[order]
        kept = [node for node in range(len(self.tree)) if stands_for[node] == node]
        computed_once = sum(map(self.tree.segment, kept)) * width
        self.figures = PlanFigures(num_records, prompt_tokens, len(kept), num_grouped, reused - computed_once)

    def _read(self, first: int, count: int) -> NDArray[np.void]:
        self._records.seek(first * _RECORD.itemsize)
        return np.frombuffer(self._records.read(count * _RECORD.itemsize), dtype=_RECORD)


class _Runs:
    """Neighbours of one group, taken together; of lines that share nothing, at most so many."""

    def __init__(self, max_lone: int) -> None:
        self._max_lone = max_lone
        self._last_group = NO_NODE
        self.starts = array("q")
        self.prefill = array("q")  # prompt tokens to compute, the prefix itself once
        self.decode = array("q")

    def add(self, first: int, *columns: NDArray[Any]) -> None:
        """Take the next records: their groups, the groups' own tokens, prompt tokens, answer tokens."""
        rows = zip(*(column.tolist() for column in columns), strict=True)
        for index, (group, group_tokens, prompt_tokens, answer_tokens) in enumerate(rows, start=first):
            is_new = group != self._last_group or not self.starts
            if is_new or (group == NO_NODE and index - self.starts[-1] >= self._max_lone):
                self.starts.append(index)
                self.prefill.append(group_tokens)
                self.decode.append(0)
            self._last_group = group
            self.prefill[-1] += prompt_tokens
            self.decode[-1] += answer_tokens


def _head(raw: RawLine, item: Item) -> bytes:
    return _HEAD.pack(
        raw.number, raw.offset, raw.num_bytes, item.num_blocks, item.num_answer_blocks,
        item.num_prompt_tokens, _answer_tokens(item),
    )  # fmt: skip


def _answer_tokens(item: Item) -> int:
    return sum(prompt.max_tokens for prompt in item.prompts) * item.num_sequences


def _groups(tree: PrefixTree, stands_for: NDArray[np.int64], num_lines: int) -> NDArray[np.int64]:
    """Return the group of each node's lines, named by a node; no node where each line is by itself.

    A group is all that is below one prefix, except where that is much of the file: then it is what is
    below the prefixes next to it.
    """
    groups = np.full(len(tree) + 1, NO_NODE, dtype=np.int64)  # the last one stands for no node
    has_below = np.zeros(len(tree) + 1, dtype=bool)
    kept = [node for node in range(len(tree)) if stands_for[node] == node]
    for node in kept:
        has_below[tree.parent[node]] = True
    for node in sorted(kept, key=tree.depth.__getitem__):
        above = groups[tree.parent[node]]
        if above != NO_NODE:
            groups[node] = above
        elif not has_below[node] or tree.num_lines[node] * SPLIT_SHARE <= num_lines:
            groups[node] = node
    return groups
