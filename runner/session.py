"""One session of a run: the servers come up, the workers work, the signals are heard.

This module owns the event loop. It returns when every line has a row, when the run is interrupted, or
with the error that ended it; in each case everything recorded is on disk.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import shutil
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial

from trtb.runner import deploy
from trtb.runner.admission import Admission
from trtb.runner.answer import Answer
from trtb.runner.caching.cached_run import CachedRun
from trtb.runner.canary import Canary
from trtb.runner.endpoint import Endpoint
from trtb.runner.errors import RequestError
from trtb.runner.ledger import ResultRow
from trtb.runner.line_set import LineSet
from trtb.runner.options import Observer, Progress, RunOptions
from trtb.runner.outcomes import RowMaker
from trtb.runner.recording import recording
from trtb.runner.report import AdmissionReport, ScheduleReport
from trtb.runner.reporting.diagnosis import Diagnosis
from trtb.runner.reporting.observation import Observation
from trtb.runner.retry import RetryPolicy
from trtb.runner.run_folder import RunPaths, RunRecord
from trtb.runner.scheduling.schedule_inputs import make_plan_options, make_renderer, make_source
from trtb.runner.scheduling.schedule_planner import Planner
from trtb.runner.scheduling.schedule_report import admission_figures, schedule_figures
from trtb.runner.source import Item
from trtb.runner.workers import WorkConfig, Workers

log = logging.getLogger(__name__)

PROGRESS_PERIOD_S = 0.5
GC_THRESHOLD = 20_000


class Session:
    """What one process does of a run."""

    def __init__(
        self,
        options: RunOptions,
        record: RunRecord,
        paths: RunPaths,
        progress: Progress,
        observer: Observer,
        cached_run: CachedRun | None = None,
    ) -> None:
        self._options = options
        self._record = record
        self._paths = paths
        self._progress = progress
        self._observer = observer
        self._cached_run = cached_run
        self.num_restarts = 0
        self.max_in_flight = 0
        self.duration_s = 0.0
        self.is_interrupted = False
        self.is_exact: bool | None = None
        self.schedule: ScheduleReport | None = None
        self.admission: AdmissionReport | None = None
        self.observation = Observation(options, paths.folder, record.num_starts)
        self.diagnosis: Diagnosis | None = None
        self.canary = Canary(options.canary, options.max_failure_rate)
        self._workers: Workers | None = None
        self._on_signal: Callable[[], None] = self._interrupt  # what one means now

    async def work(self, done: LineSet, duplicates: LineSet) -> None:
        """Answer every line that is not done.

        Raises:
            ServerError: A server did not start, or is lost for good.
            LedgerError: The ledger could not be written.
        """
        with _signals(self._hear):
            try:
                await self._work(done, duplicates)
            except asyncio.CancelledError:
                if not self.is_interrupted:
                    raise

    async def _work(self, done: LineSet, duplicates: LineSet) -> None:
        async with self._servers() as (endpoints, agreed):
            self.observation.servers_up()
            self.is_exact = agreed.is_exact
            pool = agreed.num_kv_blocks
            renderer = make_renderer(self._options, pool)
            source = make_source(
                self._options, renderer, done, duplicates, pool, seed_base=self._record.input_sha256
            )
            with recording(self._paths.ledger, self._options.follow, self._progress) as record:
                rows = RowMaker(self._record, self._options.manifest)
                planner = Planner(
                    make_plan_options(
                        self._options,
                        self._paths.folder,
                        is_exact=agreed.is_exact is True,
                        is_reusing=agreed.is_reusing,
                    ),
                    source,
                    on_refused=lambda refused: record(rows.refused(refused)),
                )
                with contextlib.closing(planner):
                    if not await self._plan(planner):
                        return
                    feed = planner.feed(
                        self._admission(len(endpoints), pool),
                        is_up=lambda server: endpoints[server].is_up.is_set(),
                        canary=self.canary,
                    )
                    _settle_memory()
                    workers = self._workers = Workers(
                        self._work_config(agreed),
                        feed=feed,
                        endpoints=endpoints,
                        renderer=renderer,
                        on_answer=partial(self._answered, rows, record),
                        on_error=partial(self._failed, rows, record),
                        on_refused=lambda refused: record(rows.refused(refused)),
                        on_reused=lambda reused: record(rows.reused(reused)),
                    )
                    self.observation.begin(workers, feed, endpoints, source)
                    try:
                        await self._drive(workers, endpoints)
                    finally:
                        self.diagnosis = self.observation.diagnose(planner, feed, self.duration_s)
                        self.schedule = schedule_figures(planner, feed)
                        self.admission = admission_figures(feed.admission)
            self.num_restarts = sum(endpoint.num_restarts for endpoint in endpoints)

    def _answered(
        self, rows: RowMaker, record: Callable[[ResultRow], None], item: Item, answer: Answer
    ) -> None:
        record(rows.completed(item, answer))
        self.canary.answered()
        if self._cached_run is not None:
            self._cached_run.keep(item, answer, is_exact=self.is_exact)

    def _failed(
        self, rows: RowMaker, record: Callable[[ResultRow], None], item: Item, error: RequestError
    ) -> None:
        record(rows.failed(item, error))
        if self.canary.failed(item.line, error) is None:
            return
        assert self._workers
        self._enter("stopping: too many requests fail")
        self._workers.stop()
        if self.canary.is_open:
            asyncio.get_running_loop().call_later(self._options.grace_s, self._workers.cancel)
        else:
            self._workers.cancel()  # no line is in flight but those of the canary, which is over

    async def _plan(self, planner: Planner) -> bool:
        """Look at the file and choose the order; False where a signal came meanwhile."""
        self._enter("planning")
        for _ in planner.steps():
            await asyncio.sleep(0)
            if self.is_interrupted:
                return False
        self._enter(planner.describe())
        return True

    def _hear(self) -> None:
        self._on_signal()

    def _give_up(self, task: asyncio.Task[None] | None) -> None:
        """End the start of the servers, in which nothing is in flight."""
        self._on_signal = self._interrupt  # a second one must not end what cleans up
        self._interrupt()
        if task is not None:
            task.cancel()

    def _interrupt(self) -> None:
        self.is_interrupted = True
        self._enter("stopping")

    @contextlib.asynccontextmanager
    async def _servers(self) -> AsyncIterator[tuple[list[Endpoint], deploy.Agreement]]:
        """Bring the servers up and agree with them; end our own at the end."""
        options = self._options
        self._on_signal = partial(self._give_up, asyncio.current_task())
        self._enter("connecting" if options.endpoints else "starting the server")
        endpoints: list[Endpoint] = []
        try:
            endpoints = (
                deploy.attach(options) if options.endpoints else await deploy.launch(options, self._paths)
            )
            for endpoint in endpoints:
                await endpoint.wait_ready()
            agreed = await deploy.agree(endpoints, options.manifest)
            self._on_signal = self._interrupt
            yield endpoints, agreed
        finally:
            self._on_signal = self._interrupt  # the servers are to end, whatever comes
            await asyncio.gather(*(endpoint.close() for endpoint in endpoints))
            shutil.rmtree(self._paths.server_dir, ignore_errors=True)

    def _admission(self, num_servers: int, pool: int | None) -> Admission:
        return Admission(
            [None if pool is None else pool - 1] * num_servers,
            self._options.concurrency,
            # the CPU engine puts a request aside and computes it again; TensorRT-LLM never does
            can_preempt=self._options.manifest.backend == "openvino",
        )

    def _work_config(self, agreed: deploy.Agreement) -> WorkConfig:
        tokens = self._options.manifest.tokens
        return WorkConfig(
            run_id=self._record.run_id,
            concurrency=self._options.concurrency,
            request_timeout_s=self._options.request_timeout_s,
            retry=RetryPolicy(max_attempts=self._options.max_attempts),
            end_id=tokens.end,
            pad_id=tokens.pad,
            more_stop_ids=tuple(tokens.eos[1:]),
            tokens_per_block=self._options.manifest.limits.tokens_per_block,
            is_retaining=self._options.kv_retention and agreed.can_retain and agreed.is_reusing,
        )

    async def _drive(self, workers: Workers, endpoints: list[Endpoint]) -> None:
        """Run the workers beside the watch of the servers, the progress and the signals."""
        self._enter("running")
        started = time.monotonic()
        tasks = [asyncio.ensure_future(workers.run()), asyncio.ensure_future(self._show_progress(workers))]
        tasks += [asyncio.ensure_future(endpoint.supervise()) for endpoint in endpoints]
        tasks.append(asyncio.ensure_future(self.observation.run()))
        try:
            self._on_signal = partial(self._drain, workers)
            finished, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in finished:
                task.result()  # a server that is lost for good ends the run here
        finally:
            self._on_signal = self._interrupt
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self.duration_s = time.monotonic() - started
            self.max_in_flight = workers.max_in_flight
            await self.observation.finish()

    def _drain(self, workers: Workers) -> None:
        """Drain at the first signal, for the grace period; give up at the second."""
        if self.is_interrupted:
            workers.cancel()
            return
        self._interrupt()
        workers.stop()
        asyncio.get_running_loop().call_later(self._options.grace_s, workers.cancel)

    async def _show_progress(self, workers: Workers) -> None:
        while True:
            self._progress.num_in_flight = workers.num_in_flight
            self._observer(self._progress)
            await asyncio.sleep(PROGRESS_PERIOD_S)

    def _enter(self, phase: str) -> None:
        log.info("%s", phase)
        self._progress.enter(phase)
        self._observer(self._progress)


def _settle_memory() -> None:
    """Keep the collector away from what stays: imported modules are hundreds of thousands of objects.

    A request makes a few hundred objects and hardly a cycle, so it looks less often, too.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD)


@contextlib.contextmanager
def _signals(handler: Callable[[], None]) -> Iterator[None]:
    """Call `handler` on the loop at SIGINT and SIGTERM; afterwards they mean what they did."""
    loop = asyncio.get_running_loop()
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in before:
        loop.add_signal_handler(number, handler)
    try:
        yield
    finally:
        for number, old in before.items():
            loop.remove_signal_handler(number)
            signal.signal(number, old or signal.SIG_DFL)  # None: a handler that is not Python's
