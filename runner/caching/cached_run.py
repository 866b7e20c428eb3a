"""A run with the result cache: first the answers that are there, then those that the engine gives are kept.

The look-up comes before any server: a file that is answered from the cache starts none, and loads neither
the tokenizer nor the client. Lines that the cache does not answer go on as ever.
"""

from __future__ import annotations

import contextlib
import logging
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import FrameType

from trtb.runner.answer import Answer
from trtb.runner.caching.cache_key import KeyMaker
from trtb.runner.caching.line_keys import LineKeys
from trtb.runner.caching.result_cache import GB, CacheConfig, ResultCache, cache_folder
from trtb.runner.ledger import ResultRow
from trtb.runner.line_set import LineSet
from trtb.runner.options import RunOptions
from trtb.runner.outcomes import RowMaker
from trtb.runner.report import CacheReport
from trtb.runner.request import ChatRequest, Request
from trtb.runner.run_folder import RunPaths, RunRecord
from trtb.runner.schema import LineParser
from trtb.runner.source import Item, Refused, parse_line, request_or_refusal, requests_of

log = logging.getLogger(__name__)

LINES_PER_LOOK_UP = 500


class CachedRun:
    """What one session of a run has of the cache.

    Args:
        options: The run's, with the cache on.
        record: The run's.
        paths: The run's.
        cache: Another cache than the one in TRTB_HOME.
    """

    def __init__(
        self, options: RunOptions, record: RunRecord, paths: RunPaths, cache: ResultCache | None = None
    ) -> None:
        self._options = options
        self._keys = KeyMaker(options)
        self._rows = RowMaker(record, options.manifest)
        self._line_keys = LineKeys(paths.folder)
        self._cache = cache or ResultCache(config_of(options), options.manifest.engine_id)
        self._look_up_s = 0.0
        self._num_inexact = 0
        self.is_interrupted = False
        self.exactness: set[bool | None] = set()  # what is known of the answers that were there

    def look_up(self, done: LineSet, invalid: LineSet, record: Callable[[ResultRow], None]) -> None:
        """End what the cache answers or what is no request, and add it to `done`; a signal ends it early.

        Raises:
            LedgerError: The ledger could not be written.
        """
        started = time.monotonic()
        options = self._options
        parser = LineParser(options.model_names, options.strict_params, options.capabilities())
        waiting: list[tuple[bytes, Request]] = []
        with _signals(self._interrupt):
            for raw in requests_of(options.input_path, options.max_line_bytes, options.limit):
                if raw.number in done:
                    continue
                request = request_or_refusal(parse_line(raw, parser, options.max_line_bytes), invalid)
                if isinstance(request, Refused):  # a server is not needed for that, either
                    record(self._rows.refused(request))
                    done.add(raw.number)
                    continue
                if (key := self._keys.key(request)) is None:
                    continue
                self._note(raw.number, key)
                waiting.append((key, request))
                if len(waiting) == LINES_PER_LOOK_UP:
                    self._answer(waiting, done, record)
                    waiting.clear()
                if self.is_interrupted:
                    break
            self._answer(waiting, done, record)
        self._cache.end_look_up()
        self._look_up_s = time.monotonic() - started
        figures = self._cache.figures
        log.info("the result cache answers %d of %d", figures.num_hits, figures.num_hits + figures.num_misses)

    def keep(self, item: Item, answer: Answer, *, is_exact: bool | None) -> None:
        """Let later runs have an answer of the engine, and know whether it depends on company."""
        key = self._line_keys.get(item.line)
        if key is not None and self._keys.is_lasting(item, answer):
            self._cache.keep(key, replace(self._rows.to_keep(item, answer), is_exact=is_exact))

    def close(self) -> None:
        """Store what waits."""
        self._cache.close()
        self._line_keys.close()

    @property
    def num_hits(self) -> int:
        """Return how many lines the cache has answered."""
        return self._cache.figures.num_hits

    @property
    def warnings(self) -> list[str]:
        """Return what went wrong with the cache."""
        return self._cache.figures.warnings

    def report(self) -> CacheReport:
        """Return the figures; they are complete once this is closed."""
        figures = self._cache.figures
        return CacheReport(
            hits=figures.num_hits,
            inexact_hits=self._num_inexact,
            misses=figures.num_misses,
            expired=figures.num_expired,
            corrupted=figures.num_corrupted,
            stored=figures.num_stored,
            not_stored=figures.num_not_stored,
            evicted=figures.num_evicted,
            size_bytes=figures.size_bytes,
            capacity_bytes=config_of(self._options).capacity_bytes,
            look_up_s=round(self._look_up_s, 3),
        )

    def _answer(
        self, waiting: list[tuple[bytes, Request]], done: LineSet, record: Callable[[ResultRow], None]
    ) -> None:
        found = self._cache.look_up([key for key, _ in waiting])
        for key, request in waiting:
            if (answer := found.get(key)) is not None:
                is_chat = isinstance(request, ChatRequest)
                record(self._rows.cached(request.line, request.custom_id, answer, is_chat=is_chat))
                done.add(request.line)
                self.exactness.add(answer.is_exact)
                self._num_inexact += answer.is_exact is False

    def _note(self, line: int, key: bytes) -> None:
        try:
            self._line_keys.set(line, key)
        except OSError as exc:  # its answer is not kept then
            self._cache.turn_off(f"the keys of the file's lines cannot be noted: {exc}")

    def _interrupt(self) -> None:
        self.is_interrupted = True


def config_of(options: RunOptions) -> CacheConfig:
    """Return how a run uses the cache."""
    ttl_hours = options.cache_ttl_hours
    return CacheConfig(
        cache_folder(),
        int(options.cache_capacity_gb * GB),
        None if ttl_hours is None else ttl_hours * 3600,
        options.cache_sync_interval_s,
    )


@contextlib.contextmanager
def _signals(handler: Callable[[], None]) -> Iterator[None]:
    """Call `handler` at SIGINT and SIGTERM; there is no event loop yet."""

    def hear(_number: int, _frame: FrameType | None) -> None:
        handler()

    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, hear) for number in numbers]
    try:
        yield
    finally:
        for number, old in zip(numbers, before, strict=True):
            signal.signal(number, old or signal.SIG_DFL)  # None: a handler that is not Python's
