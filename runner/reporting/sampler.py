"""The sampler: takes a sample of the run every second, keeps all of them bounded, and writes them down.

Gauges are read ten times a second, which costs microseconds; servers and GPUs are looked at once a sample,
in a thread. When the samples have become many, neighbours are merged and the period doubles. A disk that
takes no more is no reason to end a run: the samples are then kept in memory alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Final

from trtb.build.errors import ConfigError
from trtb.runner.reporting.samples import (
    MAX_SAMPLES,
    MIN_SAMPLES,
    PERIOD_S,
    Sample,
    read_samples,
    samples_path,
    thin,
    to_line,
    write_samples,
)
from trtb.runner.reporting.server_watch import ServerUse, ServerWatch

log = logging.getLogger(__name__)

TICK_S: Final = 0.1
LOOK_PATIENCE_S: Final = 0.5  # of a sample, for servers and drivers; one that comes later is the next one's
MIN_SPAN_S: Final = 0.05  # a shorter rest at the end tells nothing


@dataclass(frozen=True, slots=True)
class Load:
    """What the client has to do at one moment."""

    in_flight: int
    bound: int  # requests that may be in flight, KV blocks apart
    waiting: int
    is_drained: bool  # nothing is left but what is in flight
    blocks_held: int | None = None
    num_blocks: int | None = None


@dataclass(slots=True)
class _Span:
    """The gauges of one sample, as far as it has come."""

    started: float
    lags_s: list[float] = field(default_factory=list)
    loads: list[Load] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Work:
    """Seconds of work until now."""

    client_cpu_s: float
    loop_busy_s: float
    prepare_s: float

    @classmethod
    def now(cls, prepare_ns: int) -> _Work:
        """Return those of the calling thread, the event loop's, and of its process."""
        return cls(time.process_time(), _busy_s(), prepare_ns / 1e9)


class Sampler:
    """Samples one session of a run; its methods belong to the event loop's thread.

    Args:
        folder: The run's.
        session: Which start of the run this is, from 1.
        load: Tells what the client has to do.
        prepare_ns: Tells how long rendering and tokenising have taken.
        watch: Looks at the run's own servers; closed at the end.
    """

    def __init__(
        self,
        folder: Path,
        session: int,
        *,
        load: Callable[[], Load],
        prepare_ns: Callable[[], int],
        watch: ServerWatch | None = None,
    ) -> None:
        self._folder = folder
        self._session = session
        self._load = load
        self._prepare_ns = prepare_ns
        self._watch = watch
        try:
            self._samples = read_samples(folder)
        except ConfigError:  # something else has the name, which is told when it cannot be written
            self._samples = []
        self._file: IO[bytes] | None = None
        self._look: asyncio.Future[ServerUse] | None = None
        self._period_s = PERIOD_S
        self.fault: str | None = None  # why the file is not whole

    @property
    def samples(self) -> list[Sample]:
        """Return the session's samples so far."""
        return [sample for sample in self._samples if sample.session == self._session]

    async def run(self) -> None:
        """Sample until cancelled; then take the last one with `finish`."""
        self._rewrite()
        self._begin()
        if self._watch is not None:
            await self._server_use()  # what servers have used before is not this session's
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + TICK_S
            await asyncio.sleep(TICK_S)
            now = loop.time()
            self._tick(now - due)
            if now - self._span.started >= self._period_s - TICK_S / 2:  # the nearest tick
                self._end_span(now, await self._server_use())

    async def finish(self) -> None:
        """Take the last sample and close what is open; `run` has ended."""
        try:
            if self._file is not None or self.fault is not None:  # it had begun
                self._tick(None)
                now = asyncio.get_running_loop().time()
                if now - self._span.started >= MIN_SPAN_S:
                    self._end_span(now, await self._server_use())
        finally:
            if self._file is not None:
                self._file.close()
            await self._close_watch()

    def _begin(self) -> None:
        self._span = _Span(asyncio.get_running_loop().time())
        self._work = _Work.now(self._prepare_ns())

    def _tick(self, lag_s: float | None) -> None:
        self._span.loads.append(self._load())
        if lag_s is not None:
            self._span.lags_s.append(max(0.0, lag_s))  # a timer may be a clock tick early

    def _end_span(self, now: float, use: ServerUse) -> None:
        """Make a sample of the span, and begin the next."""
        span, before = self._span, self._work
        work = _Work.now(self._prepare_ns())
        loads, lags_s = span.loads, span.lags_s or [0.0]
        held = [load.blocks_held for load in loads if load.blocks_held is not None]
        self._append(
            Sample(
                session=self._session,
                time_s=time.time(),
                span_s=now - span.started,
                in_flight=_mean([load.in_flight for load in loads]),
                max_in_flight=max(load.in_flight for load in loads),
                bound=_mean([load.bound for load in loads]),
                waiting=_mean([load.waiting for load in loads]),
                drained_fraction=_mean([load.is_drained for load in loads]),
                client_cpu_s=work.client_cpu_s - before.client_cpu_s,
                loop_busy_s=work.loop_busy_s - before.loop_busy_s,
                prepare_s=work.prepare_s - before.prepare_s,
                loop_lag_s=_mean(lags_s),
                max_loop_lag_s=max(lags_s),
                blocks_held=_mean(held) if held else None,
                max_blocks_held=max(held, default=None),
                num_blocks=loads[-1].num_blocks,
                server_cpu_s=use.cpu_s,
                server_rss_bytes=use.rss_bytes,
                engine_active=use.active,
                engine_waiting=use.waiting,
                engine_blocks_used=use.blocks_used,
                engine_blocks=use.blocks,
                gpus=use.gpus,
            )
        )
        self._begin()

    async def _server_use(self) -> ServerUse:
        """Return what the servers use, or nothing where that is not told soon."""
        if self._watch is None:
            return ServerUse()
        if self._look is None:
            self._look = _in_daemon_thread(self._watch.look)
        await asyncio.wait({self._look}, timeout=LOOK_PATIENCE_S)
        if not self._look.done():
            return ServerUse()
        look, self._look = self._look, None
        return look.result()

    async def _close_watch(self) -> None:
        if self._watch is None:
            return
        if self._look is not None:
            self._watch.interrupt()
            await asyncio.wait({self._look}, timeout=LOOK_PATIENCE_S)
            if not self._look.done():
                return  # its thread waits for a driver that hangs, and is a daemon
        self._watch.close()

    def _append(self, sample: Sample) -> None:
        self._samples.append(sample)
        if len(self._samples) >= MAX_SAMPLES:
            self._samples, self._period_s = thin(self._samples, MIN_SAMPLES, self._period_s)
            self._rewrite()
            return
        if self._file is not None:
            with self._disk_may_fail():
                self._file.write(to_line(sample))  # one write: whole after a kill, but for the last

    def _rewrite(self) -> None:
        """Write all samples anew, which also mends a torn line, and go on behind them."""
        if self.fault is not None:
            return
        with self._disk_may_fail():
            if self._file is not None:
                self._file.close()
                self._file = None
            write_samples(self._folder, self._samples)
            self._file = samples_path(self._folder).open("ab", buffering=0)

    @contextlib.contextmanager
    def _disk_may_fail(self) -> Iterator[None]:
        try:
            yield
        except OSError as exc:
            self.fault = f"{samples_path(self._folder)}: {exc.strerror}"
            log.warning("%s; samples are kept in memory alone", self.fault)
            if self._file is not None:
                self._file.close()
                self._file = None


def _mean(values: list[int] | list[float] | list[bool]) -> float:
    return sum(values) / len(values)


def _busy_s() -> float:
    """Return the seconds that the calling thread has run, or has waited for a processor to run on."""
    try:
        told = Path(f"/proc/self/task/{threading.get_native_id()}/schedstat").read_bytes()
        running_ns, queued_ns, *_ = told.split()
    except (OSError, ValueError):  # a kernel that does not tell; then other processes' share is not seen
        return time.thread_time()
    return (int(running_ns) + int(queued_ns)) / 1e9


def _in_daemon_thread(work: Callable[[], ServerUse]) -> asyncio.Future[ServerUse]:
    """Run blocking work; a thread that never comes back keeps nobody from ending."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[ServerUse] = loop.create_future()

    def settle(use: ServerUse) -> None:
        if not future.done():
            future.set_result(use)

    def run() -> None:
        use = ServerUse()
        try:
            use = work()
        finally:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(settle, use)

    threading.Thread(target=run, name="trtb-sampler", daemon=True).start()
    return future
