"""New entries on their way into the cache: a thread that commits them in groups, and never holds a run up.

A group is durable when it is committed, and it is committed when its first entry has waited for the sync
interval: a crash loses what waited, and leaves nothing half written. Where the disk does not keep up, or the
cache fails, entries are not stored, which is counted; answers never wait for it.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from trtb.runner.caching.cache_budget import Budget, CacheDamagedError, CacheError, CacheFullError, pages_of
from trtb.runner.caching.cache_database import CacheDatabase
from trtb.runner.caching.cache_entry import Entry

MAX_GROUP_BYTES: Final = 1 << 20
MAX_WAITING_BYTES: Final = 16 << 20
MAX_TRIES: Final = 5  # where others fill the room that was made


@dataclass(slots=True)
class WriteFigures:
    """What became of the entries that were to be stored."""

    num_stored: int = 0
    num_evicted: int = 0
    num_not_stored: int = 0  # too large, too many at once, or after an error
    error: CacheError | None = None
    was_set_aside: bool = False


def store(
    database: CacheDatabase, entries: Sequence[Entry], figures: WriteFigures, *, keeps_known: bool = False
) -> None:
    """Store entries in as many transactions as they need, making room for them.

    Raises:
        CacheError: The cache cannot be written; what was not stored is counted.
    """
    parts = list(split(entries, database.budget, figures))
    while parts:
        try:
            num_stored = _store_part(database, parts[0], figures, keeps_known=keeps_known)
        except Exception:
            figures.num_not_stored += sum(map(len, parts))
            raise
        figures.num_stored += num_stored
        parts.pop(0)


def _store_part(
    database: CacheDatabase, part: list[Entry], figures: WriteFigures, *, keeps_known: bool
) -> int:
    for _ in range(MAX_TRIES):
        figures.num_evicted += database.make_room(pages_of(part))
        with contextlib.suppress(CacheFullError):  # another process was faster
            return database.put(part, keeps_known=keeps_known)
    figures.num_not_stored += len(part)
    return 0


def split(entries: Sequence[Entry], budget: Budget, figures: WriteFigures) -> Iterator[list[Entry]]:
    """Yield entries in parts that one transaction can hold, without those that none can."""
    most = min(budget.pages_per_write, budget.num_pages // 4)
    part: list[Entry] = []
    for entry in entries:
        if pages_of([entry]) > most:
            figures.num_not_stored += 1
        elif pages_of([*part, entry]) > most:
            yield part
            part = [entry]
        else:
            part.append(entry)
    if part:
        yield part


class CacheWriter:
    """Stores entries on a thread of its own; the database is opened there, by the first group.

    Args:
        open_database: Opens the cache for this thread.
        sync_interval_s: How long an entry may stay without being durable.
    """

    def __init__(self, open_database: Callable[[], CacheDatabase], sync_interval_s: float) -> None:
        self._open_database = open_database
        self._sync_interval_s = sync_interval_s
        self.figures = WriteFigures()
        self._lock = threading.Lock()  # guards the next three
        self._entries: list[Entry] = []
        self._num_bytes = 0
        self._is_closing = False
        self._has_work = threading.Event()
        self._is_urgent = threading.Event()  # the group is not to grow any more
        self._thread = threading.Thread(target=self._loop, name="result-cache", daemon=True)
        self._thread.start()

    def add(self, entry: Entry) -> None:
        """Take an entry; returns at once, also where it cannot be stored."""
        num_bytes = len(entry.value)
        with self._lock:
            if self.figures.error is not None or self._num_bytes + num_bytes > MAX_WAITING_BYTES:
                self.figures.num_not_stored += 1
                return
            self._entries.append(entry)
            self._num_bytes += num_bytes
            is_first, is_full = len(self._entries) == 1, self._num_bytes >= MAX_GROUP_BYTES
        if is_first:
            self._has_work.set()
        if is_full:
            self._is_urgent.set()

    def close(self) -> None:
        """Store what waits, and end the thread."""
        with self._lock:
            self._is_closing = True
        self._is_urgent.set()
        self._has_work.set()
        self._thread.join()

    def _loop(self) -> None:
        with contextlib.ExitStack() as stack:
            try:
                self._store_groups(stack)
            except Exception as exc:  # noqa: BLE001 (a thread that just ends says nothing of it)
                self._give_up(CacheError(f"writing failed: {type(exc).__name__}: {exc}"))

    def _store_groups(self, stack: contextlib.ExitStack) -> None:
        """Store what comes until it is closed; the database is closed by `stack`."""
        database: CacheDatabase | None = None
        is_closing = False
        while not is_closing:
            entries, is_closing = self._next_group()
            if not entries:
                continue
            try:
                if database is None:
                    database = self._open(len(entries))
                    stack.callback(database.close)
                self._store(database, entries)
            except CacheError as exc:
                self._give_up(exc)

    def _open(self, num_entries: int) -> CacheDatabase:
        with contextlib.ExitStack() as stack:
            stack.callback(self._count_not_stored, num_entries)
            database = self._open_database()
            stack.callback(database.close)
            self.figures.num_evicted += database.fit()
            stack.pop_all()  # it is open, and nothing was lost
        self.figures.was_set_aside = database.file.was_set_aside
        return database

    def _count_not_stored(self, num_entries: int) -> None:
        self.figures.num_not_stored += num_entries

    def _store(self, database: CacheDatabase, entries: list[Entry]) -> None:
        num_not_stored = self.figures.num_not_stored
        try:
            store(database, entries, self.figures)
        except CacheDamagedError:
            database.file.renew()
            self.figures.was_set_aside = True
            self.figures.num_not_stored = num_not_stored
            store(database, entries, self.figures)

    def _give_up(self, error: CacheError) -> None:
        """Store nothing any more: the run goes on without."""
        with self._lock:
            self.figures.error = error
            self.figures.num_not_stored += len(self._entries)
            self._entries, self._num_bytes = [], 0

    def _next_group(self) -> tuple[list[Entry], bool]:
        """Wait for a first entry, then for the sync interval, and take what is there."""
        self._has_work.wait()
        self._is_urgent.wait(self._sync_interval_s)
        with self._lock:
            self._has_work.clear()
            self._is_urgent.clear()
            entries, self._entries, self._num_bytes = self._entries, [], 0
            return entries, self._is_closing
