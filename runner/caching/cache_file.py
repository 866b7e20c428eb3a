"""The file of the result cache: one SQLite database and its log, within a budget, for several processes.

WAL mode, so that many processes read while one writes; every write is one bounded transaction. The bound is
on the files: SQLite itself holds the database to its pages, and a transaction begins only where the log has
room for all that it can write. A file that is damaged is set aside, and an empty one takes its place.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from trtb.build import files
from trtb.runner.caching.cache_budget import (
    FRAME_BYTES,
    PAGE_BYTES,
    Budget,
    CacheDamagedError,
    CacheError,
)

SCHEMA_VERSION: Final = 1
FILE_NAME: Final = "results.db"
DAMAGED_NAME: Final = "results.db.damaged"
LOCK_NAME: Final = "results.lock"
BUSY_TIMEOUT_S: Final = 5.0
NUM_TRIES: Final = 3
SCHEMA: Final = (
    "CREATE TABLE engines(id INTEGER PRIMARY KEY, engine_id TEXT NOT NULL UNIQUE)",
    """
CREATE TABLE entries(
  id INTEGER PRIMARY KEY,
  key BLOB NOT NULL UNIQUE,
  engine INTEGER NOT NULL REFERENCES engines(id),
  stored_s INTEGER NOT NULL,   -- since the epoch
  used_s INTEGER NOT NULL,     -- the last use, coarsely
  checksum BLOB NOT NULL,      -- of key and value
  value BLOB NOT NULL
)""",
    "CREATE INDEX by_use ON entries(used_s)",
    f"PRAGMA user_version={SCHEMA_VERSION}",
)

Execute = Callable[..., sqlite3.Cursor]


class CacheFile:
    """One process's connection to the cache's file.

    Args:
        folder: Where the cache lies; it is made where it is not there.
        budget: What its files may take.

    Raises:
        CacheError: The cache cannot be used here.
    """

    def __init__(self, folder: Path, budget: Budget) -> None:
        self.path = folder / FILE_NAME
        self.budget = budget
        self.was_set_aside = False
        try:
            self._lock = files.SharedLock(folder / LOCK_NAME, BUSY_TIMEOUT_S)
        except OSError as exc:
            raise CacheError(
                f"{folder}: {exc}; expected a folder that can be written", "see who may write there"
            ) from exc
        try:
            self._connection = self._open()
        except BaseException:
            self._lock.close()
            raise

    def close(self) -> None:
        """Close the connection; the last one of all folds the log into the file."""
        with contextlib.suppress(sqlite3.Error):  # what was committed is there, closed well or not
            self._connection.close()
        self._lock.close()

    def renew(self) -> None:
        """Set the file aside, which turned out to be damaged, and go on with an empty one.

        Raises:
            CacheError: It cannot be moved now.
        """
        with contextlib.suppress(sqlite3.Error):
            self._connection.close()
        self._set_aside()
        self._connection = self._connect()

    @property
    def size_bytes(self) -> int:
        """Return what the cache's files take by now."""
        return sum(_size(path) for path in (self.path, self._log, self._log_index))

    def query(self, text: str, values: Sequence[object] = ()) -> list[Any]:
        """Return all rows of a query at once, so that no read goes on beside a write.

        Raises:
            CacheError: The file cannot be read.
            CacheDamagedError: It is damaged.
        """
        with self._translated():
            return self._connection.execute(text, values).fetchall()

    def pragma(self, name: str) -> int:
        """Return a setting or count of SQLite's."""
        return int(self.query(f"PRAGMA {name}")[0][0])

    @property
    def num_used_pages(self) -> int:
        """Return how many pages of the database hold something."""
        return self.pragma("page_count") - self.pragma("freelist_count")

    @contextlib.contextmanager
    def writing(self, num_pages: int, *, is_synced: bool = False) -> Iterator[Execute]:
        """Hold a transaction that writes at most so many pages, once the log has room for them.

        Raises:
            CacheError: The file cannot be written, or the log cannot be emptied.
            CacheDamagedError: It is damaged.
        """
        connection = self._connection
        with self._translated():
            connection.execute(f"PRAGMA synchronous={'FULL' if is_synced else 'NORMAL'}")
            self._begin(num_pages)
            try:
                yield connection.execute
                connection.execute("COMMIT")
            finally:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")

    def fold(self) -> None:
        """Fold the log into the file, and empty it, as far as others' reads allow."""
        self.query("PRAGMA wal_checkpoint(TRUNCATE)")

    def hold_to_budget(self) -> None:
        """Let SQLite refuse any page beyond the budget; a file that is larger stays as large as it is."""
        self.query(f"PRAGMA max_page_count={self.budget.num_pages}")

    @property
    def _log(self) -> Path:
        return self.path.with_name(f"{FILE_NAME}-wal")

    @property
    def _log_index(self) -> Path:
        return self.path.with_name(f"{FILE_NAME}-shm")

    def _open(self) -> sqlite3.Connection:
        try:
            return self._connect()
        except CacheDamagedError:
            self._set_aside()
            return self._connect()

    def _set_aside(self) -> None:
        """Move the file away; only where no other process has it open, since its log goes by the name."""
        if not self._lock.try_alone():
            raise CacheDamagedError(
                f"{self.path}: damaged, and another process uses it; expected a sound database",
                "it is replaced by the next run that has it alone",
            )
        try:
            self.path.replace(self.path.with_name(DAMAGED_NAME))
            for path in (self._log, self._log_index):
                path.unlink(missing_ok=True)
        except OSError as exc:
            raise CacheError(f"{self.path}: damaged, and cannot be moved: {exc}", "remove it") from exc
        finally:
            self._lock.share()
        self.was_set_aside = True

    def _connect(self) -> sqlite3.Connection:
        with self._translated():
            connection = sqlite3.connect(
                self.path, isolation_level=None, check_same_thread=False, timeout=BUSY_TIMEOUT_S
            )
            try:
                self._configure(connection.execute)
            except BaseException:
                connection.close()
                raise
            return connection

    def _configure(self, execute: Execute) -> None:
        if not _version(execute):  # of a file that has its tables, this would write
            execute(f"PRAGMA page_size={PAGE_BYTES}")
            execute("PRAGMA auto_vacuum=INCREMENTAL")
        (mode,) = execute("PRAGMA journal_mode=WAL").fetchone()
        if mode != "wal":
            raise CacheError(
                f"{self.path}: this file system cannot hold a write-ahead log (journal mode stays {mode!r})",
                "put TRTB_HOME on a local disk",
            )
        execute("PRAGMA wal_autocheckpoint=0")  # the log is folded when it is full, and then whole
        execute("PRAGMA cache_spill=OFF")  # a page goes into the log once, at the commit
        execute("PRAGMA secure_delete=OFF")
        if not _version(execute):
            self._make_schema(execute)
        if (version := _version(execute)) != SCHEMA_VERSION:
            raise CacheError(
                f"{self.path}: schema version {version}; expected {SCHEMA_VERSION}",
                "another version of trtb made it; use that version, or remove the file",
            )
        execute(f"PRAGMA max_page_count={self.budget.num_pages}").fetchone()

    def _make_schema(self, execute: Execute) -> None:
        """Make the tables of an empty file, unless another process just did."""
        execute("BEGIN IMMEDIATE")
        (num_tables,) = execute("SELECT count(*) FROM sqlite_master").fetchone()
        if not num_tables:
            for statement in SCHEMA:
                execute(statement)
        execute("COMMIT")
        if num_tables and not _version(execute):
            raise CacheDamagedError(f"{self.path}: a database of something else; expected cached results")

    def _begin(self, num_pages: int) -> None:
        for _ in range(NUM_TRIES):
            self._connection.execute("BEGIN IMMEDIATE")
            if _size(self._log) + num_pages * FRAME_BYTES <= self.budget.log_bytes:
                return
            self._connection.execute("ROLLBACK")
            self.fold()
        raise CacheError(
            f"{self._log}: full, and others that read keep it from being emptied",
            "it will be emptied once they are done",
        )

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        """Tell SQLite's errors as ours: of the system around the file, or of its content."""
        try:
            yield
        except sqlite3.OperationalError as exc:
            raise CacheError(
                f"{self.path}: {exc}; expected a database that can be written, and room for it",
                "free disk space, or see who may write there",
            ) from exc
        except sqlite3.DatabaseError as exc:
            raise CacheDamagedError(f"{self.path}: {exc}; expected cached results") from exc


def _version(execute: Execute) -> int:
    (version,) = execute("PRAGMA user_version").fetchone()
    return int(version)


def _size(path: Path) -> int:
    """Return a file's size; one that is not there takes nothing."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
