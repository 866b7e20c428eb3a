"""Workers on a fake server, in virtual time, with everything they do written down."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from fakes.clock import run_virtual
from fakes.renderer import END_ID, FakeRenderer
from fakes.transport import FakeServer, FakeTransport, Reply

from trtb.runner.admission import Admission
from trtb.runner.answer import Answer
from trtb.runner.canary import Canary
from trtb.runner.endpoint import Endpoint, EndpointConfig
from trtb.runner.errors import RequestError
from trtb.runner.request import SamplingParams
from trtb.runner.retry import RetryPolicy
from trtb.runner.scheduling.prefix_tree import PrefixTree
from trtb.runner.scheduling.schedule_equal import EqualRequests, Reused
from trtb.runner.scheduling.schedule_feed import Feed
from trtb.runner.scheduling.schedule_index import Planned
from trtb.runner.source import Item, LinePlace, Prompt, Refused
from trtb.runner.transport import EngineRequest
from trtb.runner.workers import WorkConfig, Workers


def item(line: int, num_blocks: int = 1, max_tokens: int = 4, **sampling: object) -> Item:
    """Return a request to send."""
    return Item(
        line,
        f"c-{line}",
        [Prompt([line], max_tokens)],
        SamplingParams(**sampling),
        seed=line,
        num_prompt_tokens=1,
        num_blocks=num_blocks,
    )


def line_of(request: EngineRequest) -> int:
    """Return the line that an attempt is for."""
    return int(request.request_id.split("-")[1])


def attempt_of(request: EngineRequest) -> int:
    """Return the number of an attempt, from 1."""
    return int(request.request_id.rpartition("-")[2])


def scripted(replies: dict[int, list[Reply]]) -> Callable[[EngineRequest], Reply]:
    """Return a script: for each line its replies, one an attempt, the last one for all that follow."""

    def reply(request: EngineRequest) -> Reply:
        found = replies[line_of(request)]
        return found[min(attempt_of(request), len(found)) - 1]

    return reply


@dataclass
class Work:
    """One run of workers, and what came of it."""

    items: Iterable[Item | Refused | Planned]
    server: FakeServer
    concurrency: int = 4
    capacity: int = 1000
    max_attempts: int = 3
    request_timeout_s: float = 600.0
    server_wait_s: float = 60.0
    prepare: Callable[[LinePlace], Item | Refused] = lambda place: item(place.line)
    tree: PrefixTree | None = None
    equal: EqualRequests | None = None
    canary: Canary = field(default_factory=lambda: Canary(0))
    tokens_per_block: int = 1
    reused: list[Reused] = field(default_factory=list)
    answers: dict[int, list[Answer]] = field(default_factory=dict)
    errors: dict[int, list[RequestError]] = field(default_factory=dict)
    refused: list[int] = field(default_factory=list)
    ended: list[int] = field(default_factory=list)  # lines, in the order in which they ended
    attempts: dict[int, int] = field(default_factory=dict)
    num_in_flight_at_end: int = -1
    max_held: int = 0
    duration_s: float = 0.0  # virtual

    def run(self, *, during: Callable[[Work], None] = lambda _: None) -> Work:
        """Work to the end; `during` is called once everything has been started."""
        run_virtual(self._run(during))
        return self

    def make_feed(self, is_up: Callable[[int], bool]) -> Feed:
        """Return what the workers take from; a test may put another in its place."""
        return Feed(
            iter(self.items), Admission([self.capacity], self.concurrency), prepare=self.prepare,
            is_up=is_up, tree=self.tree, equal=self.equal, tokens_per_block=self.tokens_per_block,
            canary=self.canary,
        )  # fmt: skip

    async def _run(self, during: Callable[[Work], None]) -> None:
        self.feed = self.make_feed(lambda _: self.endpoint.is_up.is_set())
        self.admission = self.feed.admission
        config = EndpointConfig(server_wait_s=self.server_wait_s)
        self.endpoint = Endpoint(config, FakeTransport(self.server))  # type: ignore[arg-type]
        self.endpoint.is_up.set()
        self.workers = Workers(
            WorkConfig(
                "run", self.concurrency, self.request_timeout_s, RetryPolicy(self.max_attempts), END_ID, 0, ()
            ),
            feed=self.feed,
            endpoints=[self.endpoint],
            renderer=FakeRenderer(),  # type: ignore[arg-type]
            on_answer=self._on_answer,
            on_error=self._on_error,
            on_refused=lambda refused: self.refused.append(refused.line),
            on_reused=lambda reused: self.reused.append(reused),
        )  # fmt: skip
        watch = asyncio.ensure_future(self.endpoint.supervise())
        work = asyncio.ensure_future(self.workers.run())
        during(self)
        try:
            await asyncio.wait({watch, work}, return_when=asyncio.FIRST_COMPLETED)
            if watch.done():
                watch.result()
            await work
        finally:
            for task in (watch, work):
                task.cancel()
            await asyncio.gather(watch, work, return_exceptions=True)
            self.num_in_flight_at_end = self.workers.num_in_flight
            self.duration_s = asyncio.get_running_loop().time()

    def after(self, delay_s: float, action: Callable[[], None]) -> None:
        """Do something at a virtual time."""
        asyncio.get_running_loop().call_later(delay_s, action)

    def _on_answer(self, item: Item, answer: Answer) -> None:
        self.answers.setdefault(item.line, []).append(answer)
        self.canary.answered()
        self._end(item)

    def _on_error(self, item: Item, error: RequestError) -> None:
        self.errors.setdefault(item.line, []).append(error)
        if self.canary.failed(item.line, error):
            self.workers.stop()
        self._end(item)

    def _end(self, item: Item) -> None:
        self.ended.append(item.line)
        self.attempts[item.line] = item.attempts
        self.max_held = max(self.max_held, self.admission.num_held_blocks(0))
