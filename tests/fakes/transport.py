"""A server made of a script: answers after some ticks, fails, hangs or dies, as it is told for each request.

It passes the contract suite that the real transport passes. Its time is the event loop's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from trtb.runner.errors import ConnectionLostError, InvalidRequestError, RequestError
from trtb.runner.transport import Chunk, EngineRequest

TICK_S = 0.01
VOCAB_SIZE = 1000
PROBE_ID = "probe"


@dataclass(frozen=True, slots=True)
class Answers:
    """A complete answer, after so many ticks."""

    ticks: int = 1


@dataclass(frozen=True, slots=True)
class Fails:
    """An error, after so many ticks."""

    error: RequestError
    ticks: int = 1


@dataclass(frozen=True, slots=True)
class Hangs:
    """Nothing, until the request is cancelled."""


@dataclass(frozen=True, slots=True)
class Kills:
    """The server dies of it, and comes back after so many ticks; None: never."""

    ticks: int = 1
    back_after_ticks: int | None = 50


Reply = Answers | Fails | Hangs | Kills
Script = Callable[[EngineRequest], Reply]


def answer_ids(request: EngineRequest) -> list[int]:
    """Return the tokens that the fake answers with: they depend on the prompt alone."""
    return [(sum(request.input_ids) + 7 * index) % VOCAB_SIZE for index in range(request.max_tokens)]


@dataclass(slots=True)
class FakeServer:
    """The state that all streams share, and what has been seen."""

    script: Script = lambda _: Answers()
    is_down: bool = False
    sent: list[EngineRequest] = field(default_factory=list)  # without probes
    cancelled: list[str] = field(default_factory=list)  # request ids
    in_flight: set[str] = field(default_factory=set)
    max_in_flight: int = 0
    company: dict[str, int] = field(
        default_factory=dict
    )  # request id -> in flight when it was sent, itself too
    events: list[tuple[str, str]] = field(default_factory=list)  # ("sent" or "ended", request id)
    num_deaths: int = 0
    streams: set[FakeStream] = field(default_factory=set)

    def ended_before(self, one: str, other: str) -> bool:
        """Say whether a request had ended when another was sent."""
        return self.events.index(("ended", one)) < self.events.index(("sent", other))

    def die(self, back_after_ticks: int | None) -> None:
        """Break every stream; come back later, or never."""
        self.is_down = True
        self.num_deaths += 1
        for stream in tuple(self.streams):
            stream.break_off()
        if back_after_ticks is not None:
            asyncio.get_running_loop().call_later(back_after_ticks * TICK_S, self.come_back)

    def come_back(self) -> None:
        """Serve again."""
        self.is_down = False


class FakeTransport:
    """See `trtb.runner.transport.Transport`."""

    endpoint = "fake:0"

    def __init__(self, server: FakeServer) -> None:
        self.server = server

    def open_stream(self) -> FakeStream:
        """Return a stream."""
        stream = FakeStream(self.server)
        self.server.streams.add(stream)
        return stream

    async def close(self) -> None:
        """Break every stream."""
        for stream in tuple(self.server.streams):
            stream.break_off()


class FakeStream:
    """See `trtb.runner.transport.Stream`."""

    def __init__(self, server: FakeServer) -> None:
        self._server = server
        self._request: EngineRequest | None = None
        self._inbox: asyncio.Queue[Chunk | RequestError] = asyncio.Queue()
        self._timers: list[asyncio.TimerHandle] = []

    async def send(self, request: EngineRequest) -> None:
        """See `Stream.send`."""
        if self._request is not None:
            raise AssertionError(f"{request.request_id} sent while {self._request.request_id} is in flight")
        if self._server.is_down:
            raise ConnectionLostError("the fake server is down")
        self._inbox = asyncio.Queue()
        self._request = request
        if request.request_id != PROBE_ID:
            self._note(request)
        self._play(request)

    async def receive(self) -> Chunk:
        """See `Stream.receive`."""
        if self._request is None:
            raise ConnectionLostError("no request is in flight on this stream")
        item = await self._inbox.get()
        if isinstance(item, RequestError):
            self._end()
            raise item
        if item.is_final:
            self._end()
        return item

    def cancel(self) -> None:
        """See `Stream.cancel`."""
        if self._request is not None:
            self._server.cancelled.append(self._request.request_id)
            self.break_off()

    def break_off(self) -> None:
        """Lose the request in flight."""
        if self._request is not None:
            self._end()
            self._inbox.put_nowait(ConnectionLostError("the stream broke"))

    def _note(self, request: EngineRequest) -> None:
        server = self._server
        server.sent.append(request)
        server.events.append(("sent", request.request_id))
        server.in_flight.add(request.request_id)
        server.max_in_flight = max(server.max_in_flight, len(server.in_flight))
        server.company[request.request_id] = len(server.in_flight)

    def _play(self, request: EngineRequest) -> None:
        if not request.input_ids or not all(0 <= token < VOCAB_SIZE for token in request.input_ids):
            self._later(1, lambda: self._inbox.put_nowait(InvalidRequestError("an id out of the vocabulary")))
            return
        reply = Answers() if request.request_id == PROBE_ID else self._server.script(request)
        if isinstance(reply, Answers):
            self._answer(request, reply.ticks)
        elif isinstance(reply, Fails):
            self._later(reply.ticks, lambda: self._inbox.put_nowait(reply.error))
        elif isinstance(reply, Kills):
            self._later(reply.ticks, lambda: self._server.die(reply.back_after_ticks))

    def _answer(self, request: EngineRequest, ticks: int) -> None:
        ids = answer_ids(request)
        parts = [[token] for token in ids] if request.streaming else [ids]
        for index, part in enumerate(parts):
            is_final = index == len(parts) - 1
            chunk = Chunk(part, is_final, arrival_ns=1, first_token_ns=2)
            self._later(ticks + index, lambda chunk=chunk: self._inbox.put_nowait(chunk))

    def _later(self, ticks: int, action: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        self._timers.append(loop.call_later(ticks * TICK_S, action))

    def _end(self) -> None:
        if self._request is not None:
            self._server.in_flight.discard(self._request.request_id)
            self._server.events.append(("ended", self._request.request_id))
        self._request = None
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()
