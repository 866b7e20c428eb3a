"""The ledger: what has been answered, durably, while the run goes on.

One SQLite file of a run, in WAL mode with synchronous=FULL: a committed row survives kill -9 and power
loss. There are no pending rows; what is to do is every line without a row. One thread owns the writing
connection and commits in groups, since a commit costs a disk sync: a killed process loses at most the
rows of the last group, whose requests are then sent again.
"""

from __future__ import annotations

import contextlib
import functools
import json
import operator
import sqlite3
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Literal

from trtb.runner.errors import LedgerCorruptError, LedgerError

SCHEMA_VERSION = 2
COMMIT_PERIOD_S = 0.05
MAX_GROUP_ROWS = 2_000
MAX_WAITING_ROWS = 20_000
READ_CHUNK_ROWS = 1_000
# rows of about 1 to 4 KB fill the default 4 KB pages badly; 16 KB pages write three times as fast
SCHEMA = """
CREATE TABLE meta(key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE results(
  line INTEGER PRIMARY KEY,        -- 1-based line of the input file
  custom_id TEXT,                  -- null where the line has none
  status TEXT NOT NULL CHECK(status IN ('completed', 'failed')),
  code TEXT,                       -- the request code of a failure
  attempts INTEGER NOT NULL,       -- times the request was sent
  prompt_tokens INTEGER NOT NULL,
  completion_tokens INTEGER NOT NULL,
  finish_reason TEXT,
  latency_ns INTEGER NOT NULL,     -- from sending to the last chunk, of the last attempt
  ttft_ns INTEGER NOT NULL,        -- from the engine's arrival to its first token; 0 where unknown
  finished_ns INTEGER NOT NULL,    -- since the epoch
  record BLOB NOT NULL,            -- the output line, without its newline
  reused_from TEXT,                -- 'equal': an equal request's answer; 'cache': the cache's; else null
  reused_blocks INTEGER            -- KV blocks of the prompt that the engine had; null where it does not tell
);
CREATE TABLE superseded AS SELECT * FROM results WHERE 0;  -- failures that a retry has replaced
"""
_FROM_1 = (
    *(
        f"ALTER TABLE {table} ADD COLUMN {column}"
        for table in ("results", "superseded")
        for column in ("reused_from TEXT", "reused_blocks INTEGER")
    ),
    "UPDATE results SET reused_from = 'equal' WHERE status = 'completed' AND attempts = 0",
    "PRAGMA user_version=2",
)
COLUMN_NAMES = (
    *("line", "custom_id", "status", "code", "attempts", "prompt_tokens", "completion_tokens"),
    *("finish_reason", "latency_ns", "ttft_ns", "finished_ns", "record", "reused_from", "reused_blocks"),
)
COLUMNS = ", ".join(COLUMN_NAMES)
# Every statement lets go of Python's interpreter lock and must win it back from the client's own work, so
# rows go in many to a statement; sqlite3 keeps the statements of all sizes prepared (128 by default).
MAX_ROWS_PER_INSERT = 64
_ROW = f"({', '.join('?' * len(COLUMN_NAMES))})"
_values = operator.attrgetter(*COLUMN_NAMES)


@dataclass(frozen=True, slots=True)
class ResultRow:
    """One answered line; the fields are the columns of the table `results`."""

    line: int
    custom_id: str | None
    status: Literal["completed", "failed"]
    code: str | None
    attempts: int
    prompt_tokens: int
    completion_tokens: int
    finish_reason: str | None
    latency_ns: int
    ttft_ns: int
    finished_ns: int
    record: bytes
    reused_from: Literal["equal", "cache"] | None = None
    reused_blocks: int | None = None


def connect(path: Path) -> sqlite3.Connection:
    """Open a ledger, making it where there is none.

    Raises:
        LedgerError: The file system cannot hold it.
        LedgerCorruptError: The file is not a ledger of this schema.
    """
    is_new = not path.exists()
    try:
        connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    except sqlite3.OperationalError as exc:
        raise _unusable(path, exc) from exc
    try:
        connection.execute("PRAGMA page_size=16384")
        (mode,) = connection.execute("PRAGMA journal_mode=WAL").fetchone()
        if mode != "wal":
            raise LedgerError(
                f"{path}: this file system cannot hold a write-ahead log (journal mode stays {mode!r})",
                "put the output on a local disk",
            )
        connection.execute("PRAGMA synchronous=FULL")
        if is_new or not _has_tables(connection):
            connection.executescript(f"BEGIN; {SCHEMA} PRAGMA user_version={SCHEMA_VERSION}; COMMIT;")
        if (version := _version(connection)) == 1:
            version = _upgrade(connection)
        if version != SCHEMA_VERSION:
            raise LedgerCorruptError(
                f"{path}: schema version {version}; expected {SCHEMA_VERSION}",
                "finish this run with the version of trtb that began it",
            )
    except sqlite3.OperationalError as exc:  # of the system around the file; its content is another kind
        connection.close()
        raise _unusable(path, exc) from exc
    except sqlite3.DatabaseError as exc:
        connection.close()
        raise LedgerCorruptError(
            f"{path}: {exc}; expected a ledger", "restore it, or use --overwrite"
        ) from exc
    except LedgerError:
        connection.close()
        raise
    return connection


def _version(connection: sqlite3.Connection) -> int:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    return int(version)


def _upgrade(connection: sqlite3.Connection) -> int:
    """Give a ledger of the first schema its new columns, unless another process just did."""
    connection.execute("BEGIN IMMEDIATE")
    if _version(connection) == 1:
        for statement in _FROM_1:
            connection.execute(statement)
    connection.execute("COMMIT")
    return _version(connection)


def _unusable(path: Path, cause: sqlite3.OperationalError) -> LedgerError:
    return LedgerError(
        f"{path}: {cause}; expected a file that can be written, and room for it",
        "free disk space, or see who may write there, then run again to resume",
    )


def check_integrity(path: Path) -> None:
    """Read every page of a ledger.

    Raises:
        LedgerCorruptError: A page is damaged.
    """
    with contextlib.closing(connect(path)) as connection:
        try:
            found = [row[0] for row in connection.execute("PRAGMA quick_check(3)")]
        except sqlite3.DatabaseError as exc:
            found = [str(exc)]
    if found != ["ok"]:
        raise LedgerCorruptError(
            f"{path}: {'; '.join(found)}", "restore the ledger from a backup, or use --overwrite"
        )


def _has_tables(connection: sqlite3.Connection) -> bool:
    query = "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = 'results'"
    return bool(connection.execute(query).fetchone()[0])


def read_rows(path: Path) -> Iterator[ResultRow]:
    """Yield the rows in line order, in chunks, so that no long read keeps the log from shrinking."""
    query = f"SELECT {COLUMNS} FROM results WHERE line > ? ORDER BY line LIMIT {READ_CHUNK_ROWS}"
    with contextlib.closing(connect(path)) as connection:
        last = 0
        while chunk := connection.execute(query, (last,)).fetchall():
            for values in chunk:
                yield ResultRow(*values)
            last = chunk[-1][0]


def done_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (line, status) of every row, in line order."""
    with contextlib.closing(connect(path)) as connection:
        yield from connection.execute("SELECT line, status FROM results ORDER BY line")


def count_failures(path: Path, codes: frozenset[str] | None = None) -> int:
    """Return how many lines failed; `codes` counts only failures of these."""
    where, values = _failed(codes)
    with contextlib.closing(connect(path)) as connection:
        (count,) = connection.execute(f"SELECT count(*) FROM results WHERE {where}", values).fetchone()
    return int(count)


def reopen_failures(path: Path, codes: frozenset[str] | None = None, lines: list[int] | None = None) -> int:
    """Set failures aside, so that their lines are to do again; returns how many.

    The old rows stay in the table `superseded`; `codes` and `lines` choose, None is all.
    """
    where, values = _failed(codes, lines)
    with contextlib.closing(connect(path)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute(f"INSERT INTO superseded SELECT {COLUMNS} FROM results WHERE {where}", values)
        removed = connection.execute(f"DELETE FROM results WHERE {where}", values).rowcount
        connection.execute("COMMIT")
    return removed


def _failed(codes: frozenset[str] | None, lines: list[int] | None = None) -> tuple[str, tuple[str, ...]]:
    """Return the condition of failures, and its values."""
    where, values = "status = 'failed'", tuple(codes or ())
    if codes is not None:
        where += f" AND code IN ({', '.join('?' * len(codes))})"
    if lines is not None:
        where += " AND line IN (SELECT value FROM json_each(?))"
        values += (json.dumps(lines),)
    return where, values


@functools.cache
def _insert(num_rows: int) -> str:
    return f"INSERT INTO results({COLUMNS}) VALUES {', '.join([_ROW] * num_rows)}"


class LedgerWriter:
    """The one writer of a ledger, on a thread of its own.

    `add` returns at once; a row is durable after at most the commit period and one disk sync, and `flush`
    waits for that. The first error of the thread is raised by the next call.

    The thread is woken by the first row of a group, not by each: a wake-up costs more than a row.
    """

    def __init__(self, path: Path, *, on_commit: Callable[[list[ResultRow]], None] | None = None) -> None:
        self._connection = connect(path)
        self._on_commit = on_commit
        self._error: BaseException | None = None
        self._lock = threading.Lock()  # guards the next three
        self._rows: list[ResultRow] = []
        self._flushed: list[threading.Event] = []
        self._is_closing = False
        self._has_room = threading.Condition(self._lock)
        self._has_work = threading.Event()
        self._is_urgent = threading.Event()  # the group is not to grow any more
        self._thread = threading.Thread(target=self._loop, name="ledger", daemon=True)
        self._thread.start()

    def add(self, row: ResultRow) -> None:
        """Queue a row; blocks while very many wait for the disk.

        Raises:
            LedgerError: The ledger could not be written.
        """
        self._raise_error()
        with self._lock:
            while len(self._rows) >= MAX_WAITING_ROWS:
                self._has_room.wait()
            self._rows.append(row)
            num_rows = len(self._rows)
        if num_rows == 1:
            self._has_work.set()
        elif num_rows == MAX_GROUP_ROWS:
            self._is_urgent.set()

    def flush(self) -> None:
        """Return when every row added so far is on disk.

        Raises:
            LedgerError: The ledger could not be written.
        """
        done = threading.Event()
        with self._lock:
            self._flushed.append(done)
        self._hurry()
        while not done.wait(0.1):
            self._raise_error()
        self._raise_error()

    def close(self) -> None:
        """Write what waits, fold the log into the file, and end the thread."""
        with self._lock:
            self._is_closing = True
        self._hurry()
        self._thread.join()
        self._connection.close()
        self._raise_error()

    def _hurry(self) -> None:
        self._is_urgent.set()
        self._has_work.set()

    def _raise_error(self) -> None:
        if self._error is not None:
            raise LedgerError(
                f"the ledger could not be written: {self._error}", "free disk space, then run again to resume"
            ) from self._error

    def _loop(self) -> None:
        is_closing = False
        while not is_closing:
            rows, flushed, is_closing = self._next_group()
            if self._error is None:  # after an error nobody waits for a thread that writes no more
                try:
                    self._write(rows)
                    if is_closing:
                        self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
                except (sqlite3.Error, OSError) as exc:  # OSError: of the followed file
                    self._error = exc
            for event in flushed:
                event.set()

    def _next_group(self) -> tuple[list[ResultRow], list[threading.Event], bool]:
        """Wait for a first row, then for one commit period, and take what is there."""
        self._has_work.wait()
        self._is_urgent.wait(COMMIT_PERIOD_S)
        with self._lock:
            self._has_work.clear()
            self._is_urgent.clear()
            rows, self._rows = self._rows, []
            flushed, self._flushed = self._flushed, []
            self._has_room.notify_all()
            return rows, flushed, self._is_closing

    def _write(self, rows: list[ResultRow]) -> None:
        for start in range(0, len(rows), MAX_GROUP_ROWS):
            self._commit(rows[start : start + MAX_GROUP_ROWS])

    def _commit(self, rows: list[ResultRow]) -> None:
        execute = self._connection.execute
        execute("BEGIN IMMEDIATE")
        for start in range(0, len(rows), MAX_ROWS_PER_INSERT):
            part = rows[start : start + MAX_ROWS_PER_INSERT]
            execute(_insert(len(part)), tuple(chain.from_iterable(map(_values, part))))
        execute("COMMIT")
        if self._on_commit:
            self._on_commit(rows)
