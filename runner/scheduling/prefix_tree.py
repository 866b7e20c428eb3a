"""The tree of shared prompt prefixes, built from prompts in sorted order; what it holds is its nodes only.

A prompt is its chain of block keys: each key stands for a whole KV block and all before it, so equal keys
mean equal prefixes (a collision costs speed, never an answer). In sorted order the prompts below a node
stand together, and where two neighbours part is all that the tree is made of. No I/O.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import xxhash

KEY_BYTES: Final = 8
MAX_KEYS: Final = 2048  # of one prompt: what lies behind is not looked at
MIN_SEGMENT_BLOCKS: Final = 2  # sharing less is not worth waiting for
NO_NODE: Final = -1


def block_keys(ids: list[int], tokens_per_block: int) -> bytes:
    """Return the keys of the blocks that an engine can reuse, one after the other.

    The last token is always computed, so the block that it stands in is never reused whole.
    """
    digest = xxhash.xxh3_64()
    data = np.array(ids, dtype="<i4").tobytes()
    width = tokens_per_block * 4
    keys = []
    for index in range(min(MAX_KEYS, (len(ids) - 1) // tokens_per_block)):
        digest.update(data[index * width : (index + 1) * width])
        keys.append(digest.digest())
    return b"".join(keys)


def num_shared_keys(one: bytes, other: bytes) -> int:
    """Return how many keys two prompts have in common.

    >>> num_shared_keys(b"aaaaaaaabbbbbbbbcccc____", b"aaaaaaaabbbbbbbbdddd____")
    2
    """
    low, high = 0, min(len(one), len(other)) // KEY_BYTES
    while low < high:
        middle = (low + high + 1) // 2
        end = middle * KEY_BYTES
        if one[:end] == other[:end]:
            low = middle
        else:
            high = middle - 1
    return low


@dataclass(slots=True)
class PrefixTree:
    """Nodes: prefixes that at least two prompts have. A few bytes each, whatever the prompts are.

    `depth` is in blocks from the prompt's begin; `num_lines` counts all prompts below a node.
    """

    parent: array[int] = field(default_factory=lambda: array("l"))
    depth: array[int] = field(default_factory=lambda: array("l"))
    num_lines: array[int] = field(default_factory=lambda: array("l"))

    def __len__(self) -> int:
        return len(self.depth)

    def add(self, depth: int) -> int:
        """Add a node without a parent and return its number."""
        self.parent.append(NO_NODE)
        self.depth.append(depth)
        self.num_lines.append(0)
        return len(self.depth) - 1

    def depth_of(self, node: int) -> int:
        """Return a node's depth; that of no node is 0."""
        return self.depth[node] if node >= 0 else 0

    def segment(self, node: int) -> int:
        """Return the blocks that a node has beyond its parent."""
        return self.depth[node] - self.depth_of(self.parent[node])

    def path(self, node: int) -> list[int]:
        """Return a node and all above it, the root first."""
        nodes = []
        while node >= 0:
            nodes.append(node)
            node = self.parent[node]
        return nodes[::-1]


def build(keys: Iterable[bytes], tree: PrefixTree) -> Iterator[int]:
    """Yield the deepest node of each prompt, in order, while the tree grows.

    Args:
        keys: Prompts by their block keys, sorted.
        tree: An empty one. It is whole, except for `settle`, when the iterator is exhausted.
    """
    open_nodes: list[int] = []  # a path: each deeper than the one before
    previous: bytes | None = None
    for current in keys:
        if previous is not None:
            yield _part(tree, open_nodes, num_shared_keys(previous, current))
        previous = current
    if previous is not None:
        yield _part(tree, open_nodes, 0)


def _part(tree: PrefixTree, open_nodes: list[int], depth: int) -> int:
    """Return the node of a prompt whose successor has `depth` keys in common with it."""
    if depth > tree.depth_of(open_nodes[-1] if open_nodes else NO_NODE):
        open_nodes.append(tree.add(depth))
        node = open_nodes[-1]
    else:
        node = open_nodes[-1] if open_nodes else NO_NODE
        while open_nodes and tree.depth[open_nodes[-1]] > depth:
            closed = open_nodes.pop()
            if depth > tree.depth_of(open_nodes[-1] if open_nodes else NO_NODE):
                open_nodes.append(tree.add(depth))
            tree.parent[closed] = open_nodes[-1] if open_nodes else NO_NODE
    if node >= 0:
        tree.num_lines[node] += 1
    return node


def settle(tree: PrefixTree) -> array[int]:
    """Drop the nodes that add too little to what is above them, and count the lines below each.

    Returns:
        For each node the one that stands for it now: itself, or one above it, or no node.
    """
    stands_for = array("l", range(len(tree)))
    by_depth = np.argsort(np.array(tree.depth, dtype=np.int64), kind="stable").tolist()
    for node in by_depth:
        above = tree.parent[node]
        above = stands_for[above] if above >= 0 else NO_NODE
        tree.parent[node] = above
        if tree.depth[node] - tree.depth_of(above) < MIN_SEGMENT_BLOCKS:
            stands_for[node] = above
    for node in reversed(by_depth):
        above = tree.parent[node]
        if above >= 0:
            tree.num_lines[above] += tree.num_lines[node]
    return stands_for
