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

from trtb.runner import deploy
from trtb.runner.admission import BlockBudget
from trtb.runner.endpoint import Endpoint
from trtb.runner.follow import FollowFile
from trtb.runner.ledger import LedgerWriter, ResultRow
from trtb.runner.line_set import LineSet
from trtb.runner.options import Observer, Progress, RunOptions
from trtb.runner.outcomes import RowMaker
from trtb.runner.prompt import LengthLimits, PromptRenderer
from trtb.runner.retry import RetryPolicy
from trtb.runner.run_folder import RunPaths, RunRecord
from trtb.runner.schema import LineParser
from trtb.runner.source import Source
from trtb.runner.workers import WorkConfig, Workers

log = logging.getLogger(__name__)

PROGRESS_PERIOD_S = 0.5
UNLIMITED_BLOCKS = 1 << 40
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
    ) -> None:
        self._options = options
        self._record = record
        self._paths = paths
        self._progress = progress
        self._observer = observer
        self.num_restarts = 0
        self.max_in_flight = 0
        self.duration_s = 0.0
        self.is_interrupted = False
        self.is_exact: bool | None = None

    async def work(self, done: LineSet, duplicates: LineSet) -> None:
        """Answer every line that is not done.

        Raises:
            ServerError: A server did not start, or is lost for good.
            LedgerError: The ledger could not be written.
        """
        async with self._servers() as (endpoints, agreed):
            pool = agreed.num_kv_blocks
            self.is_exact = agreed.is_exact
            renderer = self._renderer(pool)
            budget = BlockBudget(UNLIMITED_BLOCKS if pool is None else pool * len(endpoints))
            source = self._source(renderer, done, duplicates, pool)
            _settle_memory()
            with self._writer() as record:
                rows = RowMaker(self._record, self._options.manifest)
                workers = Workers(
                    self._work_config(),
                    source=iter(source),
                    endpoints=endpoints,
                    budget=budget,
                    renderer=renderer,
                    on_answer=lambda item, answer: record(rows.completed(item, answer)),
                    on_error=lambda item, error: record(rows.failed(item, error)),
                    on_refused=lambda refused: record(rows.refused(refused)),
                )
                await self._drive(workers, endpoints)
            self.num_restarts = sum(endpoint.num_restarts for endpoint in endpoints)

    @contextlib.asynccontextmanager
    async def _servers(self) -> AsyncIterator[tuple[list[Endpoint], deploy.Agreement]]:
        """Bring the servers up and agree with them; end our own at the end."""
        options = self._options
        self._enter("connecting" if options.endpoints else "starting the server")
        endpoints = deploy.attach(options) if options.endpoints else [deploy.launch(options, self._paths)]
        try:
            for endpoint in endpoints:
                await endpoint.wait_ready()
            yield endpoints, await deploy.agree(endpoints, options.manifest)
        finally:
            await asyncio.gather(*(endpoint.close() for endpoint in endpoints))
            shutil.rmtree(self._paths.server_dir, ignore_errors=True)

    def _renderer(self, pool: int | None) -> PromptRenderer:
        manifest = self._options.manifest
        max_seq_len = manifest.limits.max_seq_len
        if pool is not None:
            # one block stays free in the engine for the token that a step is about to make
            max_seq_len = min(max_seq_len, (pool - 1) * manifest.limits.tokens_per_block)
        return PromptRenderer(
            self._options.engine_dir / "tokenizer",
            LengthLimits(max_seq_len, self._options.default_max_tokens),
            manifest.model.vocab_size,
            frozenset(manifest.tokens.eos),
        )

    def _source(
        self, renderer: PromptRenderer, done: LineSet, duplicates: LineSet, pool: int | None
    ) -> Source:
        options = self._options
        return Source(
            options.input_path,
            parser=LineParser(options.model_names, options.strict_params, self._options.capabilities()),
            renderer=renderer,
            done=done,
            duplicates=duplicates,
            limit=options.limit,
            max_line_bytes=options.max_line_bytes,
            tokens_per_block=options.manifest.limits.tokens_per_block,
            max_blocks=None if pool is None else pool - 1,
            seed_base=self._record.input_sha256,
        )

    def _work_config(self) -> WorkConfig:
        tokens = self._options.manifest.tokens
        return WorkConfig(
            run_id=self._record.run_id,
            concurrency=self._options.concurrency,
            request_timeout_s=self._options.request_timeout_s,
            retry=RetryPolicy(max_attempts=self._options.max_attempts),
            end_id=tokens.end,
            pad_id=tokens.pad,
            more_stop_ids=tuple(tokens.eos[1:]),
        )

    @contextlib.contextmanager
    def _writer(self) -> Iterator[Callable[[ResultRow], None]]:
        """Open the ledger and, where it is wanted, the followed file; yields what records a row."""
        with contextlib.ExitStack() as stack:
            on_commit = None
            if self._options.follow is not None:
                followed = FollowFile(self._options.follow)
                stack.callback(followed.close)
                on_commit = followed.append
            writer = LedgerWriter(self._paths.ledger, on_commit=on_commit)
            stack.callback(writer.close)

            def record(row: ResultRow) -> None:
                writer.add(row)
                if row.status == "completed":
                    self._progress.num_completed += 1
                    self._progress.num_tokens += row.completion_tokens
                else:
                    self._progress.num_failed += 1

            yield record

    async def _drive(self, workers: Workers, endpoints: list[Endpoint]) -> None:
        """Run the workers beside the watch of the servers, the progress and the signals."""
        self._enter("running")
        started = time.monotonic()
        tasks = [asyncio.ensure_future(workers.run()), asyncio.ensure_future(self._show_progress(workers))]
        tasks += [asyncio.ensure_future(endpoint.supervise()) for endpoint in endpoints]
        try:
            with _signals(lambda: self._on_signal(workers)):
                finished, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in finished:
                    task.result()  # a server that is lost for good ends the run here
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self.duration_s = time.monotonic() - started
            self.max_in_flight = workers.max_in_flight

    def _on_signal(self, workers: Workers) -> None:
        """Drain at the first signal, for the grace period; give up at the second."""
        if self.is_interrupted:
            workers.cancel()
            return
        self.is_interrupted = True
        self._enter("stopping")
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
    """Call `handler` on the loop at SIGINT and SIGTERM."""
    loop = asyncio.get_running_loop()
    numbers = (signal.SIGINT, signal.SIGTERM)
    for number in numbers:
        loop.add_signal_handler(number, handler)
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)
