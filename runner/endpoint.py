"""A server that the run uses: its connection, its load, whether it lives, and what to do when it does not.

Two kinds: a server of our own, whose processes are watched and which is started again, and one that was
there before, for which the run can only wait. For both, alive means that tokens come out: a probe is one
generated token.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from dataclasses import dataclass, field

from trtb.runner.errors import ConnectionLostError, RequestError, ServerLostError, ServerStartError
from trtb.runner.server import TritonServer
from trtb.runner.transport import EngineRequest, Stream
from trtb.runner.triton_client import TritonTransport

log = logging.getLogger(__name__)

WATCH_PERIOD_S = 0.25
READY_POLL_S = 0.1
PROBE_TIMEOUT_S = 60.0  # a step of a slow CPU takes seconds, and a probe waits for its turn
QUIET_S = 30.0  # nothing heard for so long, with requests in flight: ask
PROBE_ID = "probe"
MAX_RESTARTS_WITHOUT_PROGRESS = 3


@dataclass(frozen=True, slots=True)
class EndpointConfig:
    """Bounds of waiting for a server."""

    start_timeout_s: float = 300.0  # loading a model
    server_wait_s: float = 60.0  # for a server of others to come back
    probe_token_id: int = 0


@dataclass(slots=True, eq=False)
class Endpoint:
    """One server; `is_up` is set while requests may be sent."""

    config: EndpointConfig
    transport: TritonTransport
    server: TritonServer | None = None
    is_up: asyncio.Event = field(default_factory=asyncio.Event)
    num_in_flight: int = 0
    num_restarts: int = 0
    _streams: set[Stream] = field(default_factory=set)
    _last_heard: float = 0.0
    _restarts_without_progress: int = 0
    _checking: asyncio.Lock = field(default_factory=asyncio.Lock)

    def open_stream(self) -> Stream:
        """Return a stream that is cancelled when the server is found dead."""
        stream = self.transport.open_stream()
        self._streams.add(stream)
        return stream

    def heard(self) -> None:
        """Note that tokens came out."""
        self._last_heard = time.monotonic()
        self._restarts_without_progress = 0

    async def wait_ready(self) -> None:
        """Return when the server has generated a token.

        Raises:
            ServerStartError: Our own server ended, or did not get there in time.
            ServerLostError: A server of others did not answer in time.
        """
        is_own = self.server is not None
        timeout_s = self.config.start_timeout_s if is_own else self.config.server_wait_s
        deadline = time.monotonic() + timeout_s
        reason = "no answer"
        while (left := deadline - time.monotonic()) > 0:
            try:
                await self._probe(min(left, PROBE_TIMEOUT_S))
                break
            except RequestError as exc:
                reason = exc.message
            if self.server and (fault := self.server.fault()):
                raise self.server.start_error(fault)
            await asyncio.sleep(READY_POLL_S)
        else:
            if self.server:
                raise self.server.start_error(f"not ready after {timeout_s:g} s: {reason}")
            raise ServerLostError(
                f"{self.transport.endpoint}: no token within {timeout_s:g} s: {reason}",
                "start the server (trtb serve), then run the same command again to resume",
            )
        if self.server:
            self.server.note_ready()
        self._last_heard = time.monotonic()
        self.is_up.set()

    async def is_alive(self, since: float) -> bool:
        """Say whether the server has generated tokens after `since` (monotonic); probes it where needed.

        Sets off recovery if it has not.
        """
        async with self._checking:
            if not self.is_up.is_set():
                return False
            if self.server and self.server.fault():
                self._take_down()
                return False
            if self._last_heard > since:
                return True
            with contextlib.suppress(RequestError):
                await self._probe(PROBE_TIMEOUT_S)
                self._last_heard = time.monotonic()
            if self._last_heard > since:  # the probe, or anyone's tokens meanwhile
                return True
            self._take_down()
            return False

    async def supervise(self) -> None:
        """Watch the server for as long as the run goes on; bring it back when it goes.

        Raises:
            ServerLostError: It does not come back.
        """
        while True:
            await asyncio.sleep(WATCH_PERIOD_S)
            if self.is_up.is_set():
                fault = self.server.fault() if self.server else None
                is_quiet = self.num_in_flight and time.monotonic() - self._last_heard > QUIET_S
                if fault:
                    log.warning("%s: %s", self.transport.endpoint, fault)
                    self._take_down()
                elif is_quiet:
                    await self.is_alive(time.monotonic())
            if not self.is_up.is_set():
                await self._recover()

    def cancel_all(self) -> None:
        """Cancel whatever is in flight here."""
        for stream in tuple(self._streams):
            stream.cancel()

    async def close(self, *, drain: bool = False) -> None:
        """Close the connection, and end a server of our own.

        Args:
            drain: Let the server finish what others have in flight; a run's own has nothing to finish, and
                its drain takes seconds, or the whole exit timeout where a refusal is not accounted for.
        """
        self.cancel_all()
        await self.transport.close()
        if self.server:
            await self.server.stop(graceful=drain)

    def _take_down(self) -> None:
        self.is_up.clear()
        self.cancel_all()

    async def _probe(self, timeout_s: float) -> None:
        """Make the server generate one token: readiness alone says nothing about a dead engine.

        Raises:
            RequestError: It did not, within `timeout_s`, or was found dead meanwhile; the error says why.
        """
        token = self.config.probe_token_id
        request = EngineRequest(PROBE_ID, [token], max_tokens=1, end_id=token, pad_id=token, top_k=1)
        stream = self.open_stream()

        async def one_token() -> None:
            await stream.send(request)
            while not (await stream.receive()).is_final:
                pass

        try:
            await asyncio.wait_for(one_token(), timeout_s)
        except asyncio.TimeoutError as exc:
            raise ConnectionLostError(f"no token within {timeout_s:g} s") from exc
        finally:
            stream.cancel()
            self._streams.discard(stream)

    async def _recover(self) -> None:
        if self.server is None:
            log.warning("%s: does not answer; waiting", self.transport.endpoint)
            await self.wait_ready()
            return
        self._restarts_without_progress += 1
        if self._restarts_without_progress > MAX_RESTARTS_WITHOUT_PROGRESS:
            raise ServerLostError(
                f"the inference server died {MAX_RESTARTS_WITHOUT_PROGRESS} times without an answer in "
                f"between\n{self.server.log_tail()}",
                "see the server's log; the same command resumes this run",
            )
        self.num_restarts += 1
        log.warning("%s: starting the server again", self.transport.endpoint)
        await self.transport.close()
        await self.server.stop(graceful=False)
        try:
            self.server.start()
            self.transport = TritonTransport(self.server.endpoint)
            self._streams.clear()
            await self.wait_ready()
        except ServerStartError as exc:
            raise ServerLostError(exc.message, f"{exc.hint}; the same command resumes this run") from exc
