"""Shared prefixes in the engines' caches: which are there, which are being computed, which must still be.

A prefix is computed by its leader: the prefix by itself, sent for one token. Its blocks can be reused when
that token is there (on the CPU engine) or when the request has ended (on TensorRT-LLM), and the end of the
leader is both. Requests that come into one step compute the prefix each, so nobody goes before it.

A prefix that nobody in flight has is the first thing that an engine gives up when it needs a block, whatever
is left over from others: it evicts by age. So a prefix is trusted, and its blocks are counted, only while
one of its lines or its leader is in flight; the first line goes in the leader's place. After that it is
led again. No I/O.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trtb.runner.admission import Admission, Demand, Grant
from trtb.runner.scheduling.prefix_tree import NO_NODE, PrefixTree


@dataclass(slots=True, eq=False)
class Copy:
    """A prefix on one server."""

    node: int
    server: int
    num_blocks: int
    num_users: int = 0  # in flight
    is_ready: bool = False
    is_there: bool = True


class SharedPrefixes:
    """The prefixes of a tree on the servers of a run.

    Args:
        tree: The prefixes.
        admission: Of the servers.
    """

    def __init__(self, tree: PrefixTree, admission: Admission) -> None:
        self._tree = tree
        self._admission = admission
        self._copies: list[dict[int, Copy]] = [{} for _ in range(admission.num_servers)]
        self._homes: dict[int, int] = {}  # where the leaders for a node's lines went

    def depth(self, node: int) -> int:
        """Return how many blocks a prefix has."""
        return self._tree.depth_of(node)

    def segment(self, node: int) -> int:
        """Return how many blocks a prefix has beyond the one above it."""
        return self._tree.segment(node)

    def num_lines(self, node: int) -> int:
        """Return how many lines have a prefix."""
        return self._tree.num_lines[node]

    def ready(self, node: int, servers: Sequence[int]) -> list[int]:
        """Return the servers, of those named, that have a prefix."""
        return [server for server in servers if (copy := self._copies[server].get(node)) and copy.is_ready]

    def is_there(self, node: int) -> bool:
        """Say whether a server has a prefix, or computes it; no prefix is everywhere."""
        return node == NO_NODE or any(node in copies for copies in self._copies)

    def homes(self, node: int, servers: Sequence[int]) -> Sequence[int]:
        """Return where a prefix may be led: where one for its lines was, if that is among the servers."""
        home = self._homes.get(node)
        return (home,) if home is not None and home in servers else servers

    def next_to_lead(self, node: int, server: int) -> int | None:
        """Return the prefix that must be computed next for a node's lines; None while one is under way."""
        for above in self._tree.path(node):
            copy = self._copies[server].get(above)
            if copy is None:
                return above
            if not copy.is_ready:
                return None
        return None

    def try_lead(
        self, node: int, server: int, for_node: int, own_blocks: int
    ) -> tuple[Grant, Sequence[Copy]] | None:
        """Hold what a leader needs, or return None and change nothing.

        Args:
            node: The prefix that it computes.
            server: Where.
            for_node: The prefix of the line that waits for it.
            own_blocks: Of that line, beyond its prefix: it is to go in the leader's place.

        Returns:
            The leader's grant, and the prefixes that it uses.
        """
        num_blocks = self._tree.segment(node)
        if not self._admission.try_keep(server, num_blocks):
            return None
        grant = self._admission.try_admit(server, Demand(own_blocks))
        if grant is None:
            self._admission.release_kept(server, num_blocks)
            return None
        self._copies[server][node] = Copy(node, server, num_blocks)
        self._homes[for_node] = self._homes[node] = server
        return grant, self.join(node, server)

    def led(self, copies: Sequence[Copy]) -> None:
        """Let the lines of a prefix go: its leader has ended, well or not. The prefix stays for the first."""
        for copy in copies:
            copy.num_users -= 1
        copies[-1].is_ready = True

    def join(self, node: int, server: int) -> Sequence[Copy]:
        """Use a prefix and all above it, until `leave`."""
        if node == NO_NODE:
            return ()
        copies = [copy for above in self._tree.path(node) if (copy := self._copies[server].get(above))]
        for copy in copies:
            copy.num_users += 1
        return copies

    def leave(self, copies: Sequence[Copy]) -> None:
        """Use prefixes no more; one that nobody uses is given up."""
        for copy in copies:
            copy.num_users -= 1
            if not copy.num_users:
                self._drop(copy)

    def lose(self, server: int) -> None:
        """Forget what a server had: it is started anew."""
        for copy in list(self._copies[server].values()):
            self._drop(copy)

    def drop_unused(self, server: int) -> bool:
        """Give up what nobody uses; returns whether there was anything."""
        unused = [copy for copy in self._copies[server].values() if not copy.num_users]
        for copy in unused:
            self._drop(copy)
        return bool(unused)

    def _drop(self, copy: Copy) -> None:
        if copy.is_there:
            copy.is_there = False
            del self._copies[copy.server][copy.node]
            self._homes.pop(copy.node, None)
            self._admission.release_kept(copy.server, copy.num_blocks)
