"""The workers: a bounded number of requests in flight, each on its own, until nothing is left to do.

A worker takes one item, sends it, waits for its answer or its end, records the outcome, and takes the
next. A slot, its KV blocks and its stream are given back before any wait for another attempt. Of a
failure it is asked whether it can heal; whether the server itself is the trouble is asked of the server.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from trtb.runner.admission import BlockBudget
from trtb.runner.answer import Answer, AnswerReader, Choice
from trtb.runner.endpoint import Endpoint
from trtb.runner.errors import (
    ConnectionLostError,
    DeadlineExceededError,
    EngineError,
    RequestError,
)
from trtb.runner.prompt import PromptRenderer
from trtb.runner.retry import RetryPolicy, delay_s
from trtb.runner.source import MAX_SEED, Item, Refused
from trtb.runner.transport import EngineRequest, Stream

MAX_CRASHES = 2  # in flight at so many deaths of the server: run alone, so as to take nobody along
REFUSED_PER_TURN = 100  # lines refused in a row before the event loop gets its turn


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


class Workers:
    """Sends what the source yields; `on_answer`, `on_error` and `on_refused` each end one line."""

    def __init__(
        self,
        config: WorkConfig,
        *,
        source: Iterator[Item | Refused],
        endpoints: list[Endpoint],
        budget: BlockBudget,
        renderer: PromptRenderer,
        on_answer: Callable[[Item, Answer], None],
        on_error: Callable[[Item, RequestError], None],
        on_refused: Callable[[Refused], None],
    ) -> None:
        self._config = config
        self._source = source
        self._endpoints = endpoints
        self._budget = budget
        self._renderer = renderer
        self._on_answer = on_answer
        self._on_error = on_error
        self._on_refused = on_refused
        self._retries: deque[Item] = deque()
        self._suspects: deque[Item] = deque()
        self._num_delayed = 0  # waiting for another attempt
        self._num_active = 0  # held by a worker
        self._is_exhausted = False
        self._is_alone = False  # a suspect is running
        self._is_stopping = False
        self._is_cancelled = False
        self._changed: list[asyncio.Future[None]] = []
        self._turn = asyncio.Lock()
        self._stop_words: tuple[tuple[int, ...], ...] = tuple((token,) for token in config.more_stop_ids)
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
        while (item := await self._take()) is not None:
            try:
                await self._serve(item, streams)
            finally:
                self._budget.release(item.num_blocks)
                self._num_active -= 1
                self._is_alone = False
                self._notify()

    async def _take(self) -> Item | None:
        """Return the next item with its KV blocks held, or None when this worker has nothing more to do.

        One worker at a time waits for blocks, so that small requests do not overtake a large one for good.
        """
        async with self._turn:
            item = await self._next_item()
            while (
                item is not None and not self._is_stopping and not self._budget.try_acquire(item.num_blocks)
            ):
                await self._wait_for_change()
            if item is not None and self._is_stopping:
                self._num_active -= 1
                self._notify()
                return None
            return item

    async def _next_item(self) -> Item | None:
        while not self._is_stopping:
            item = self._retries.popleft() if self._retries else await self._next_from_source()
            if item is None and not self._num_active and not self._num_delayed:
                if not self._suspects:
                    self._notify()
                    return None
                item = self._suspects.popleft()
                self._is_alone = True
            if item is not None:
                self._num_active += 1
                return item
            await self._wait_for_change()
        return None

    async def _next_from_source(self) -> Item | None:
        num_refused = 0
        while not self._is_exhausted and not self._is_alone and not self._is_stopping:
            item = next(self._source, None)
            if item is None:
                self._is_exhausted = True
                self._notify()
            elif isinstance(item, Item):
                return item
            else:
                self._on_refused(item)
                num_refused += 1
                if num_refused % REFUSED_PER_TURN == 0:
                    await asyncio.sleep(0)
        return None

    async def _serve(self, item: Item, streams: dict[Endpoint, tuple[object, Stream]]) -> None:
        """Make one attempt, and end the line or arrange for another."""
        endpoint = await self._choose_endpoint()
        if endpoint is None:
            return
        transport, stream = streams.get(endpoint, (None, None))
        if transport is not endpoint.transport or stream is None:  # first use, or a server started again
            stream = endpoint.open_stream()
            streams[endpoint] = endpoint.transport, stream
        item.attempts += 1
        endpoint.num_in_flight += 1
        self.max_in_flight = max(self.max_in_flight, self.num_in_flight)
        try:
            answer = await self._attempt(item, stream, endpoint)
        except RequestError as exc:
            if self._is_cancelled:
                return
            error = await self._judge(exc, endpoint)
        else:
            self._on_answer(item, answer)
            return
        finally:
            endpoint.num_in_flight -= 1
        self._after_failure(item, error, is_server_down=not endpoint.is_up.is_set())

    async def _choose_endpoint(self) -> Endpoint | None:
        """Return the least loaded server that is up, waiting for one; None when the run stops meanwhile."""
        while not self._is_stopping:
            up = [endpoint for endpoint in self._endpoints if endpoint.is_up.is_set()]
            if up:
                return min(up, key=lambda endpoint: endpoint.num_in_flight)
            waits = [asyncio.ensure_future(endpoint.is_up.wait()) for endpoint in self._endpoints]
            await asyncio.wait(waits, timeout=1.0, return_when=asyncio.FIRST_COMPLETED)
            for wait in waits:
                wait.cancel()
        return None

    async def _attempt(self, item: Item, stream: Stream, endpoint: Endpoint) -> Answer:
        """Send one request and read its answer.

        Raises:
            RequestError: What went wrong with it.
        """
        is_late = False

        def expire() -> None:
            nonlocal is_late
            is_late = True
            stream.cancel()

        started_ns = time.monotonic_ns()
        timer = asyncio.get_running_loop().call_later(self._config.request_timeout_s, expire)
        try:
            choices: list[Choice] = []
            ttft_ns = 0
            for index, prompt in enumerate(item.prompts):
                reader = AnswerReader(
                    self._renderer,
                    item.sampling,
                    prompt.max_tokens,
                    item.num_sequences,
                    item.num_copies,
                    item.tool_names,
                )
                await stream.send(self._request_of(item, index))
                while not reader.is_done:
                    reader.take(await stream.receive())
                    endpoint.heard()
                if not reader.is_drained:  # a stop string is there: what the engine would add is not wanted
                    stream.cancel()
                choices += reader.choices()
                ttft_ns = ttft_ns or reader.ttft_ns
        except RequestError as exc:
            if is_late:
                raise DeadlineExceededError(
                    f"no complete answer within {self._config.request_timeout_s:g} s of sending",
                    "raise --request-timeout, or lower max_tokens",
                ) from exc
            raise
        finally:
            timer.cancel()
        return Answer(choices, time.monotonic_ns() - started_ns, ttft_ns)

    def _request_of(self, item: Item, index: int) -> EngineRequest:
        sampling = item.sampling
        prompt = item.prompts[index]
        greedy = item.is_greedy
        guide = sampling.guide
        stop_words = self._stop_words
        if sampling.stop:
            stop_words += self._renderer.stop_word_ids(sampling.stop)
        # a streamed token costs more than all of them at once; and a cancel of a stream with
        # log probabilities has crashed TensorRT-LLM (its issue 10810)
        streaming = bool(sampling.stop) and item.num_sequences == 1 and not sampling.log_probs
        return EngineRequest(
            request_id=f"{self._config.run_id}-{item.line}-{index}-{item.attempts}",
            input_ids=prompt.input_ids,
            max_tokens=prompt.max_tokens,
            end_id=self._config.end_id,
            pad_id=self._config.pad_id,
            stop_words=stop_words,
            temperature=1.0 if greedy else sampling.temperature,
            top_k=1 if greedy else sampling.top_k or 0,
            top_p=1.0 if greedy else sampling.top_p,
            repetition_penalty=sampling.repetition_penalty,
            presence_penalty=sampling.presence_penalty,
            frequency_penalty=sampling.frequency_penalty,
            min_tokens=sampling.min_tokens,
            seed=None if greedy else (item.seed + index) & MAX_SEED,
            streaming=streaming,
            num_sequences=item.num_sequences,
            log_probs=sampling.log_probs,
            guide=None if guide is None else (guide.kind, guide.text),
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

    def _after_failure(self, item: Item, error: RequestError, *, is_server_down: bool) -> None:
        if isinstance(error, ConnectionLostError) and is_server_down:
            item.crashes += 1
            if self._is_alone:
                self._on_error(item, error)
            elif item.crashes >= MAX_CRASHES:
                self._suspects.append(item)
            else:
                self._retries.append(item)
            return
        wait_s = delay_s(self._config.retry, error, item.attempts, random.random())
        if wait_s is None:
            self._on_error(item, error)
            return
        self._num_delayed += 1
        asyncio.get_running_loop().call_later(wait_s, self._requeue, item)

    def _requeue(self, item: Item) -> None:
        self._num_delayed -= 1
        self._retries.append(item)
        self._notify()

    async def _wait_for_change(self) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._changed.append(future)
        await future

    def _notify(self) -> None:
        """Wake every waiting worker; each looks again at what there is to do."""
        waiting, self._changed = self._changed, []
        for future in waiting:
            if not future.done():
                future.set_result(None)
