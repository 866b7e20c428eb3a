"""Read the figures of a ledger without its texts: one consistent view, in chunks, of a run that may go on."""

from __future__ import annotations

import contextlib
import operator
import os
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from trtb.build.errors import ConfigError
from trtb.runner import ledger
from trtb.runner.errors import LedgerCorruptError, LedgerError
from trtb.runner.ledger import ResultRow

CHUNK_ROWS = 20_000
LINES_PER_QUERY = 500
_COLUMNS = (
    "line, attempts, prompt_tokens, completion_tokens, latency_ns, ttft_ns, finished_ns, "
    "status = 'completed', status = 'completed' AND reused_from IS NULL, ifnull(reused_blocks, -1), "
    "code, finish_reason, reused_from"
)


@dataclass(frozen=True, slots=True)
class RowChunk:
    """The figures of some rows, in columns of one length."""

    lines: NDArray[np.int64]
    attempts: NDArray[np.int64]
    prompt_tokens: NDArray[np.int64]
    completion_tokens: NDArray[np.int64]
    latency_ns: NDArray[np.int64]
    ttft_ns: NDArray[np.int64]
    finished_ns: NDArray[np.int64]
    is_completed: NDArray[np.bool_]
    is_own: NDArray[np.bool_]  # completed by the engine, and not by an answer that was there
    reused_blocks: NDArray[np.int64]  # -1 where the engine does not tell
    codes: Sequence[str | None]  # of failures
    finish_reasons: Sequence[str | None]
    reused_from: Sequence[str | None]


_line = operator.attrgetter("line")


class LedgerView:
    """A ledger as it was at one moment, read only; what is written meanwhile is not seen."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def chunks(self) -> Iterator[RowChunk]:
        """Yield every row, in line order."""
        query = f"SELECT {_COLUMNS} FROM results ORDER BY line"
        cursor = self._connection.execute(query)
        while rows := cursor.fetchmany(CHUNK_ROWS):
            yield _chunk(list(zip(*rows, strict=True)))

    def num_rows(self) -> int:
        """Return how many lines have a result."""
        return self._count("results")

    def num_superseded(self) -> int:
        """Return how many failures a retry has replaced."""
        return self._count("superseded")

    def custom_ids(self, lines: Sequence[int]) -> dict[int, str | None]:
        """Return the custom_id of each of these lines; None where the line has none."""
        return dict(self._of("line, custom_id", lines))

    def rows(self, lines: Sequence[int]) -> list[ResultRow]:
        """Return these lines' rows, texts and all, in line order."""
        return sorted((ResultRow(*values) for values in self._of(ledger.COLUMNS, lines)), key=_line)

    def num_finished_before(self, time_ns: int) -> int:
        """Return how many lines had a result at that time."""
        query = "SELECT count(*) FROM results WHERE finished_ns < ?"
        (count,) = self._connection.execute(query, (time_ns,)).fetchone()
        return int(count)

    def _of(self, columns: str, lines: Sequence[int]) -> Iterator[tuple[Any, ...]]:
        for start in range(0, len(lines), LINES_PER_QUERY):
            part = lines[start : start + LINES_PER_QUERY]
            marks = ", ".join("?" * len(part))
            query = f"SELECT {columns} FROM results WHERE line IN ({marks})"
            yield from self._connection.execute(query, part)

    def _count(self, table: str) -> int:
        (count,) = self._connection.execute(f"SELECT count(*) FROM {table}").fetchone()
        return int(count)


def _chunk(columns: Sequence[Sequence[Any]]) -> RowChunk:
    """Return rows by their columns, which are those of _COLUMNS."""
    figures = [np.array(column, dtype=np.int64) for column in columns[:-3]]
    return RowChunk(
        lines=figures[0],
        attempts=figures[1],
        prompt_tokens=figures[2],
        completion_tokens=figures[3],
        latency_ns=figures[4],
        ttft_ns=figures[5],
        finished_ns=figures[6],
        is_completed=figures[7].astype(np.bool_),
        is_own=figures[8].astype(np.bool_),
        reused_blocks=figures[9],
        codes=columns[-3],
        finish_reasons=columns[-2],
        reused_from=columns[-1],
    )


@contextlib.contextmanager
def view_ledger(path: Path) -> Iterator[LedgerView]:
    """Open a ledger for reading, whether or not a run is writing it.

    Raises:
        ConfigError: There is none.
        LedgerCorruptError: The file is not a ledger of this schema.
        LedgerError: It cannot be read.
    """
    if not path.is_file():
        raise ConfigError(
            f"{path}: not found; expected the ledger of a run", "give the run's folder (OUTPUT.run)"
        )
    try:
        with contextlib.closing(_connect(path)) as connection:
            connection.execute("BEGIN")
            yield LedgerView(connection)
    except sqlite3.OperationalError as exc:
        raise LedgerError(
            f"{path}: {exc}; expected a ledger that can be read", "see who may read and write its folder"
        ) from exc
    except sqlite3.DatabaseError as exc:
        raise LedgerCorruptError(f"{path}: {exc}; expected a ledger", "restore it from a backup") from exc


def _connect(path: Path) -> sqlite3.Connection:
    connection = _connect_read_only(path)
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version == ledger.SCHEMA_VERSION:
        return connection
    connection.close()
    ledger.connect(path).close()  # gives an older one its new columns, and refuses a newer one
    return _connect_read_only(path)


def read_only_uri(path: Path) -> str:
    """Return how SQLite opens a ledger that is only read.

    Where its folder can be written, SQLite may, too: so it removes the lock files that reading makes. Where
    not, a ledger that nobody has open needs none.
    """
    mode = "mode=rw"
    if not os.access(path.parent, os.W_OK):
        is_open = path.with_name(path.name + "-wal").exists()
        mode = "mode=ro" if is_open else "immutable=1"
    return f"file:{quote(str(path.absolute()))}?{mode}"


def _connect_read_only(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(read_only_uri(path), uri=True, isolation_level=None)
    connection.execute("PRAGMA query_only=1")
    return connection
