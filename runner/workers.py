"""The workers: a bounded number of requests in flight, each on its own, until nothing is left to do.

A worker takes one task from the feed, sends it, waits for its answer or its end, records the outcome, and
takes the next. A place, its KV blocks and its stream are given back before any wait for another attempt.
Of a failure it is asked whether it can heal; whether the server itself is the trouble is asked of the
server.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from trtb.runner.answer import Answer, AnswerReader, Choice
from trtb.runner.endpoint import Endpoint
from trtb.runner.engine_request import RequestTerms, engine_request
from trtb.runner.errors import (
    ConnectionLostError,
    DeadlineExceededError,
    EngineError,
    QueueFullError,
    RequestError,
)
from trtb.runner.prompt import PromptRenderer
from trtb.runner.retry import RetryPolicy, delay_s
from trtb.runner.scheduling.schedule_equal import Reused
from trtb.runner.scheduling.schedule_feed import Feed
from trtb.runner.scheduling.schedule_task import Task
from trtb.runner.source import Item, Refused
from trtb.runner.transport import Stream

MAX_CRASHES = 2  # in flight at so many deaths of the server: run alone, so as to take nobody along
UNSENT_PER_TURN = 100  # lines ended in a row without being sent, before the event loop gets its turn
DOWN_POLL_S = 1.0


@dataclass(frozen=True, slots=True)
class WorkConfig:
    """How requests are sent."""

    run_id: str
    concurrency: int
    request_timeout_s: float
    retry: RetryPolicy
    end_id: int
    pad_id: int
    more_stop_ids: tuple[int, ...]  # end-of-answer ids besides `end_id`
    tokens_per_block: int = 1
    is_retaining: bool = False  # requests say which of their KV blocks the engine should keep


class Workers:
    """Sends what the feed yields; `on_answer`, `on_error`, `on_refused` and `on_reused` each end one line.

    The feed's servers are the endpoints, in their order.
    """

    def __init__(
        self,
        config: WorkConfig,
        *,
        feed: Feed,
        endpoints: list[Endpoint],
        renderer: PromptRenderer,
        on_answer: Callable[[Item, Answer], None],
        on_error: Callable[[Item, RequestError], None],
        on_refused: Callable[[Refused], None],
        on_reused: Callable[[Reused], None],
    ) -> None:
        self._config = config
        self._feed = feed
        self._endpoints = endpoints
        self._renderer = renderer
        self._on_answer = on_answer
        self._on_error = on_error
        self._on_refused = on_refused
        self._on_reused = on_reused
        self._suspects: deque[Task] = deque()
        self._num_delayed = 0  # waiting for another attempt
        self._num_active = 0  # held by a worker
        self._is_alone = False  # a suspect is running
        self._is_stopping = False
        self._is_cancelled = False
        self._changed: list[asyncio.Future[None]] = []
        self._turn = asyncio.Lock()
        self._terms = RequestTerms(
            config.run_id,
            config.end_id,
            config.pad_id,
            tuple((token,) for token in config.more_stop_ids),
            config.tokens_per_block,
            config.is_retaining,
        )
        self.max_in_flight = 0

    @property
    def num_in_flight(self) -> int:
        """Return how many requests are sent and not answered."""
        return sum(endpoint.num_in_flight for endpoint in self._endpoints)

    async def run(self) -> None:
        """Work until nothing is left, or until stopped and drained."""
        tasks = [asyncio.ensure_future(self._work()) for _ in range(self._config.concurrency)]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def stop(self) -> None:
        """Take nothing new; what is in flight may end."""
        self._is_stopping = True
        self._notify()

    def cancel(self) -> None:
        """Give up what is in flight, too; its lines stay to do."""
        self._is_cancelled = True
        self.stop()
        for endpoint in self._endpoints:
            endpoint.cancel_all()

    async def _work(self) -> None:
        streams: dict[Endpoint, tuple[object, Stream]] = {}
        while (task := await self._take()) is not None:
            try:
                await self._serve(task, streams)
            finally:
                self._feed.release(task)
                self._num_active -= 1
                self._is_alone = False
                self._notify()

    async def _take(self) -> Task | None:
        """Return the next task, its place and blocks held, or None when there is nothing more to do."""
        async with self._turn:  # one worker at a time looks, so that the order is the feed's
            num_unsent = 0
            while not self._is_stopping:
                found = None if self._is_alone else self._feed.take() or self._next_suspect()
                if isinstance(found, Task):
                    self._num_active += 1
                    return found
                if found is None:
                    if self._is_done():
                        self._notify()
                        return None
                    await self._wait_for_change()
                    continue
                if isinstance(found, Refused):
                    self._on_refused(found)
                else:
                    self._on_reused(found)
                num_unsent += 1
                if num_unsent % UNSENT_PER_TURN == 0:
                    await asyncio.sleep(0)
            return None

    def _is_done(self) -> bool:
        is_idle = not (self._num_active or self._num_delayed or self._suspects)
        return is_idle and self._feed.is_drained

    def _next_suspect(self) -> Task | None:
        """Return a task that runs alone, once there is nothing else."""
        if self._num_active or self._num_delayed or not self._suspects or not self._feed.is_drained:
            return None
        task = self._feed.take_alone(self._suspects[0].candidate)
        if task is not None:
            self._suspects.popleft()
            self._is_alone = True
        return task

    async def _serve(self, task: Task, streams: dict[Endpoint, tuple[object, Stream]]) -> None:
        """Make one attempt, and end the line or arrange for another."""
        endpoint = self._endpoints[task.server]
        transport, stream = streams.get(endpoint, (None, None))
        if transport is not endpoint.transport or stream is None:  # first use, or a server started again
            stream = endpoint.open_stream()
            streams[endpoint] = endpoint.transport, stream
        task.item.attempts += 1
        endpoint.num_in_flight += 1
        self.max_in_flight = max(self.max_in_flight, self.num_in_flight)
        try:
            answer = await self._attempt(task, stream, endpoint)
        except RequestError as exc:
            if self._is_cancelled:
                return
            error = await self._judge(exc, endpoint)
        else:
            self._feed.answered(task, answer)
            if not task.is_leader:
                self._on_answer(task.item, answer)
            return
        finally:
            endpoint.num_in_flight -= 1
        self._after_failure(task, error, is_server_down=not endpoint.is_up.is_set())

    async def _attempt(self, task: Task, stream: Stream, endpoint: Endpoint) -> Answer:
        """Send one request and read its answer.

        Raises:
            RequestError: What went wrong with it.
        """
        is_late = False
        item = task.item

        def expire() -> None:
            nonlocal is_late
            is_late = True
            stream.cancel()

        started_ns = time.monotonic_ns()
        timer = asyncio.get_running_loop().call_later(self._config.request_timeout_s, expire)
        try:
            choices: list[Choice] = []
            first: AnswerReader | None = None
            reused_blocks: int | None = None
            for index, prompt in enumerate(item.prompts):
                reader = AnswerReader(
                    self._renderer,
                    item.sampling,
                    prompt.max_tokens,
                    item.num_sequences,
                    item.num_copies,
                    item.tool_names,
                )
                await stream.send(engine_request(self._terms, task, index, self._renderer.stop_word_ids))
                while not reader.is_done:
                    reader.take(await stream.receive())
                    endpoint.heard()
                    if task.is_canary and self._feed.note_token():
                        self._notify()
                if not reader.is_drained:  # a stop string is there: what the engine would add is not wanted
                    stream.cancel()
                choices += reader.choices()
                first = first or reader
                if reader.reused_blocks is not None:
                    reused_blocks = (reused_blocks or 0) + reader.reused_blocks
        except RequestError as exc:
            if is_late:
                raise DeadlineExceededError(
                    f"no complete answer within {self._config.request_timeout_s:g} s of sending",
                    "raise --request-timeout, or lower max_tokens",
                ) from exc
            raise
        finally:
            timer.cancel()
        assert first
        return Answer(
            choices,
            time.monotonic_ns() - started_ns,
            first.ttft_ns,
            first.arrival_ns,
            first.first_token_ns,
            reused_blocks,
        )

    async def _judge(self, error: RequestError, endpoint: Endpoint) -> RequestError:
        """Ask whether an engine's error is the request's, or a sick server's."""
        if not isinstance(error, (EngineError, ConnectionLostError)):
            return error
        if not await endpoint.is_alive(since=time.monotonic()):
            if isinstance(error, ConnectionLostError):
                return error
            return ConnectionLostError(f"the server is down: {error.message}")
        return error

    def _after_failure(self, task: Task, error: RequestError, *, is_server_down: bool) -> None:
        item = task.item
        is_crash = isinstance(error, ConnectionLostError) and is_server_down
        if is_crash:
            self._feed.lose(task.server)
        if isinstance(error, QueueFullError):
            self._feed.note_full(task)
        if task.is_leader:
            return  # its lines go on without it
        if is_crash and not self._is_alone:
            item.crashes += 1
            if item.crashes >= MAX_CRASHES:
                self._suspects.append(task)
                self._feed.suspect(task)
            else:
                self._feed.put_back(task)
            return
        wait_s = None if is_crash else delay_s(self._config.retry, error, item.attempts, random.random())
        if wait_s is None:
            self._feed.failed(task)
            self._on_error(item, error)
            return
        self._num_delayed += 1
        asyncio.get_running_loop().call_later(wait_s, self._requeue, task)

    def _requeue(self, task: Task) -> None:
        self._num_delayed -= 1
        self._feed.put_back(task)
        self._notify()

    async def _wait_for_change(self) -> None:
        """Wait until a worker has ended something, or a server may be back."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._changed.append(future)
        down = [endpoint for endpoint in self._endpoints if not endpoint.is_up.is_set()]
        if not down:
            await future
            return
        waits: list[asyncio.Future[Any]] = [asyncio.ensure_future(each.is_up.wait()) for each in down]
        await asyncio.wait([future, *waits], timeout=DOWN_POLL_S, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()

    def _notify(self) -> None:
        """Wake every waiting worker; each looks again at what there is to do."""
        waiting, self._changed = self._changed, []
        for future in waiting:
            if not future.done():
                future.set_result(None)
