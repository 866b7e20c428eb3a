"""The feed: hands out the next request that may be sent, in the order of the schedule.

Between the schedule and the workers stands a short window of requests. What is at its front goes first; a
request whose prefix is being computed, or that does not fit, lets others by. Of those that fit and those
that do not, neither starves: one that does not fit is overtaken so many times, and then all wait for it.
The window is drawn only as full as there is room for, so that no more prefixes are begun than are needed.
No I/O but reading lines.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Final

from trtb.runner.admission import Admission, Demand
from trtb.runner.answer import Answer
from trtb.runner.canary import Canary
from trtb.runner.scheduling.prefix_tree import NO_NODE, PrefixTree
from trtb.runner.scheduling.schedule_equal import EqualRequests, Reused
from trtb.runner.scheduling.schedule_index import Planned
from trtb.runner.scheduling.schedule_prefixes import SharedPrefixes
from trtb.runner.scheduling.schedule_reuse import ReuseMeter
from trtb.runner.scheduling.schedule_task import Candidate, Task, leader_of
from trtb.runner.source import Item, LinePlace, Refused

OVERTAKES_PER_PLACE: Final = 2  # times concurrency: how often one that does not fit lets others by
MIN_LINES_TO_COPY: Final = 4  # a prefix with fewer lines left is not computed on a second server


class Feed:
    """What there is to do, for the workers; every method is synchronous, and only they call them.

    Args:
        entries: Lines in the order of the schedule: prepared, or by their places.
        admission: Places and blocks of the servers.
        prepare: Renders a line by its place.
        is_up: Whether requests may be sent to a server.
        queue_size: Most lines in the window.
        tree: The shared prefixes that planned lines name.
        equal: Lines that others' answers answer.
        tokens_per_block: Of the engine's KV cache.
        canary: Says which lines may go; leaders always may.
    """

    def __init__(
        self,
        entries: Iterator[Item | Refused | Planned],
        admission: Admission,
        *,
        prepare: Callable[[LinePlace], Item | Refused],
        is_up: Callable[[int], bool] = lambda _: True,
        queue_size: int = 256,
        tree: PrefixTree | None = None,
        equal: EqualRequests | None = None,
        tokens_per_block: int = 1,
        canary: Canary | None = None,
    ) -> None:
        self._entries = entries
        self.admission = admission
        self._prepare = prepare
        self._is_up = is_up
        self._queue_size = queue_size
        self._prefixes = SharedPrefixes(PrefixTree() if tree is None else tree, admission)
        self._equal = EqualRequests() if equal is None else equal
        self._tokens_per_block = tokens_per_block
        self._canary = Canary(0) if canary is None else canary
        self._window: list[Candidate] = []
        self._refused: deque[Refused] = deque()
        self._is_exhausted = False
        self._num_drawn = self._blocks_drawn = 0
        self._last_node = NO_NODE
        self._max_overtakes = OVERTAKES_PER_PLACE * admission.concurrency
        self.meter = ReuseMeter(admission.num_servers, tokens_per_block)

    @property
    def is_drained(self) -> bool:
        """Say whether there is nothing left but what is in flight, or waits for it."""
        return self._is_exhausted and not (self._window or self._refused or self._equal.has_ready)

    @property
    def num_waiting(self) -> int:
        """Return how many lines are ready to be sent, and are not: for want of room, or of their prefix."""
        return len(self._window)

    def take(self) -> Task | Refused | Reused | None:
        """Return the next thing to do, with its place and blocks held; None while nothing may be sent."""
        servers = self._servers()
        if not self._window and self._draw_one() and self._window and servers:
            found = self._scan(servers)  # nearly always there is a place for the one line that is drawn
            if found is not None:
                return found
        self._draw(servers)
        if self._refused:
            return self._refused.popleft()
        if self._equal.has_ready and (reused := self._equal.next_reused()) is not None:
            return reused
        if not servers or not self._window:
            return None
        if (found := self._scan(servers)) is not None:
            return found
        if not any(self._canary.may_send(each.line) for each in self._window):
            return None  # room is made for what may go, not for what has to wait
        return self._use_idle_server(servers) or self._make_room(servers)

    def take_alone(self, candidate: Candidate) -> Task | None:
        """Return a task for a line that runs with nothing else in flight; None while no server is up."""
        for server in self._servers():
            self._prefixes.drop_unused(server)
            if (grant := self.admission.try_admit(server, candidate.demand)) is not None:
                assert candidate.item
                return Task(candidate.item, candidate, server, grant)
        return None

    def note_token(self) -> bool:
        """Note that a canary's first token is there; says whether others have waited for it."""
        return self._canary.open()

    def suspect(self, task: Task) -> None:
        """Note that a task's line is to run alone, at the end."""
        self._canary.excuse(task.item.line)

    def put_back(self, task: Task) -> None:
        """Take a task again whose request is to be sent once more, before all others; a leader is not."""
        self.release(task)
        if not task.is_leader:
            self._window.insert(0, task.candidate)

    def release(self, task: Task) -> None:
        """Give back the place and blocks of a task, if that has not been done; a leader has ended by that."""
        if task.grant is None:
            return
        self.admission.release(task.grant)
        task.grant = None
        if not task.is_leader:
            self._prefixes.leave(task.copies)
            return
        self._prefixes.led(task.copies)
        waiting = [task.candidate, *(each for each in self._window if each.node == task.candidate.node)]
        first = next((each for each in waiting if each in self._window), None)
        if first is not None:  # it goes in the leader's place, before the prefix is forgotten
            self._window.remove(first)
            self._window.insert(0, first)

    def answered(self, task: Task, answer: Answer) -> None:
        """Take a task's answer."""
        self.release(task)
        self.admission.note_good(task.server)
        item, node = task.item, task.candidate.node
        if task.is_leader:
            self._canary.open()
            num_tokens = self._prefixes.segment(task.leads) * self._tokens_per_block
            num_above = item.num_prompt_tokens - num_tokens
            self.meter.add_leader(task.server, num_tokens, answer, num_above=num_above)
            return
        choices = answer.choices
        longest = choices[0].num_tokens if len(choices) == 1 else max(each.num_tokens for each in choices)
        self.admission.lengths.add(longest, max(longest, item.prompts[0].max_tokens))
        if task.candidate.place is not None:
            self.meter.add(task.server, item.num_prompt_tokens, answer, is_lone=node == NO_NODE)
        self._equal.answered(item, answer)

    def failed(self, task: Task) -> None:
        """Note that a task's line has failed for good."""
        self.release(task)
        if not task.is_leader:
            self._equal.failed(task.item.line)

    def note_full(self, task: Task) -> None:
        """Note that a server had no room for a task."""
        self.release(task)
        self.admission.note_full(task.server)

    def lose(self, server: int) -> None:
        """Note that a server has died: what it had computed is gone."""
        self._prefixes.lose(server)

    def _servers(self) -> list[int]:
        """Return the servers that are up, the least loaded first."""
        up = [server for server in range(self.admission.num_servers) if self._is_up(server)]
        return up if len(up) < 2 else sorted(up, key=self.admission.num_in_flight)

    def _draw(self, servers: list[int]) -> None:
        """Fill the window as far as there is room for what is in it."""
        while not self._refused and len(self._window) < self._num_wanted(servers) and self._draw_one():
            pass

    def _num_wanted(self, servers: list[int]) -> int:
        """Return how many lines there is room for, by the blocks that lines have needed on average.

        Those for which there is none do not count: others may fit beside them, or on another server.
        """
        if not self._window:
            return 1
        mean = max(1.0, self._blocks_drawn / max(1, self._num_drawn))
        room = 0
        for server in servers:
            num_fitting = int(self.admission.num_free_blocks(server) / mean)
            room += min(self.admission.num_free_places(server), num_fitting)
        num_stuck = sum(each.is_unfit and self._prefixes.is_there(each.node) for each in self._window)
        return min(self._queue_size, num_stuck + room)

    def _draw_one(self) -> bool:
        """Put the next line into the window, or among the refused; False where there is none."""
        entry: Item | Refused | Planned | None
        if self._equal.has_ready and (place := self._equal.next_alone()) is not None:
            entry = self._prepare(place)
        elif self._is_exhausted or (entry := next(self._entries, None)) is None:
            self._is_exhausted = True
            return False
        if isinstance(entry, Refused):
            self._refuse(entry)
            return True
        demand = Demand(entry.num_blocks, entry.num_answer_blocks)
        if isinstance(entry, Planned):
            candidate = Candidate(demand, entry.node, entry.place)
        else:
            candidate = Candidate(demand, item=entry)
        self._window.append(candidate)
        self._num_drawn += 1
        self._blocks_drawn += self._own_blocks(candidate)
        if candidate.node != self._last_node:  # the next group: with it comes its prefix
            self._last_node = candidate.node
            self._blocks_drawn += self._prefixes.depth(candidate.node)
        return True

    def _refuse(self, refused: Refused) -> None:
        self._refused.append(refused)
        self._equal.failed(refused.line)

    def _scan(self, servers: list[int]) -> Task | Refused | None:
        """Return the first of the window that may be sent."""
        promised = 0  # blocks of lines that only wait for their prefix: what is begun later leaves them room
        for index, candidate in enumerate(self._window):
            found = self._try(candidate, servers, promised)
            if found is not None:
                for earlier in self._window[:index]:
                    earlier.num_overtaken += earlier.is_unfit
                if isinstance(found, Refused) or not found.is_leader:
                    del self._window[index]
                return found
            if not candidate.is_unfit:
                promised += self._own_blocks(candidate)
            elif candidate.num_overtaken >= self._max_overtakes:
                return None
        return None

    def _try(self, candidate: Candidate, servers: list[int], promised: int) -> Task | Refused | None:
        """Return a task that a waiting line leads to: its own, or the leader of its prefix."""
        candidate.is_unfit = False
        node = candidate.node
        if node == NO_NODE:
            return self._admit(candidate, servers, candidate.demand)
        if ready := self._prefixes.ready(node, servers):
            own = self._own_blocks(candidate)
            return self._admit(candidate, ready, Demand(own, min(own, candidate.demand.num_answer_blocks)))
        for server in self._prefixes.homes(node, servers):
            if (found := self._lead(candidate, server, promised)) is not None or not candidate.is_unfit:
                return found
        return None

    def _own_blocks(self, candidate: Candidate) -> int:
        """Return the blocks that a line needs beyond its prefix."""
        return candidate.demand.num_blocks - self._prefixes.depth(candidate.node)

    def _admit(self, candidate: Candidate, servers: list[int], demand: Demand) -> Task | Refused | None:
        if not self._canary.may_send(candidate.line):
            return None
        for server in servers:
            if (grant := self.admission.try_admit(server, demand)) is not None:
                item = self._rendered(candidate)
                if isinstance(item, Refused):
                    self.admission.release(grant)
                    return item
                copies = self._prefixes.join(candidate.node, server)
                is_canary = self._canary.let_through(item.line)
                return Task(item, candidate, server, grant, copies=copies, is_canary=is_canary)
        candidate.is_unfit = True
        return None

    def _lead(self, candidate: Candidate, server: int, promised: int = 0) -> Task | Refused | None:
        """Return the leader that a line waits for; None while one is under way, or does not fit."""
        node = self._prefixes.next_to_lead(candidate.node, server)
        if node is None:
            return None
        own = self._own_blocks(candidate)
        needed = self._prefixes.segment(node) + own
        has_room = self.admission.num_free_blocks(server) >= needed + promised
        held = self._prefixes.try_lead(node, server, candidate.node, own) if has_room else None
        if held is None:
            candidate.is_unfit = True
            return None
        grant, copies = held
        item = self._rendered(candidate)
        if isinstance(item, Refused):
            self.admission.release(grant)
            self._prefixes.leave(copies)
            return item
        leader = leader_of(item, self._prefixes.depth(node) * self._tokens_per_block)
        return Task(leader, candidate, server, grant, leads=node, copies=copies)

    def _rendered(self, candidate: Candidate) -> Item | Refused:
        if candidate.item is None:
            assert candidate.place
            prepared = self._prepare(candidate.place)
            if isinstance(prepared, Refused):  # it was not when the index was made: the file has changed
                self._equal.failed(prepared.line)
                return prepared
            candidate.item = prepared
        return candidate.item

    def _use_idle_server(self, servers: list[int]) -> Task | Refused | None:
        """Begin another group, or compute a prefix a second time, rather than leave a server with nothing."""
        idle = [server for server in servers if not self.admission.num_in_flight(server)]
        if not idle or len(servers) < 2:
            return None
        while len(self._window) < self._queue_size and not self._refused and self._draw_one():
            last = self._window[-1]
            if not self._refused and (found := self._try(last, idle, 0)) is not None:
                if isinstance(found, Refused) or not found.is_leader:
                    self._window.pop()
                return found
        for index, candidate in enumerate(self._window):
            node = candidate.node
            if node == NO_NODE or self._prefixes.num_lines(node) < MIN_LINES_TO_COPY:
                continue
            for server in idle:
                if found := self._lead(candidate, server):
                    if isinstance(found, Refused):
                        del self._window[index]
                    return found
        return None

    def _make_room(self, servers: list[int]) -> Task | Refused | None:
        """Give up prefixes that nobody uses, where they keep a server from working."""
        has_dropped = False
        for server in servers:
            has_dropped |= not self.admission.num_in_flight(server) and self._prefixes.drop_unused(server)
        return self._scan(servers) if has_dropped else None
