"""Match the rows of two ledgers by custom_id, in flat memory.

The inputs may differ in order and extent, so neither can simply be read beside the other. A temporary
database on disk holds which line of A belongs to which of B; the rows themselves are read in A's order, one
after the other. An id occurs again only in lines that failed for that; the n-th of A belongs to the n-th of
B, completed ones first.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from trtb.runner.errors import LedgerCorruptError, LedgerError
from trtb.runner.ledger import COLUMN_NAMES, ResultRow
from trtb.runner.reporting.ledger_scan import read_only_uri, view_ledger

NUM_SAMPLES = 5
_CACHE_KIB = 4_096
_LINES = """
CREATE TABLE lines_{side} AS
SELECT custom_id, row_number() OVER (PARTITION BY custom_id ORDER BY status = 'failed', line) AS nth, line
FROM {side}.results WHERE custom_id IS NOT NULL
"""
_PAIRS = """
CREATE UNIQUE INDEX ids_a ON lines_a(custom_id, nth);
CREATE UNIQUE INDEX ids_b ON lines_b(custom_id, nth);
CREATE TABLE pairs(line_a INTEGER PRIMARY KEY, line_b INTEGER NOT NULL);
INSERT INTO pairs
SELECT lines_a.line, lines_b.line FROM lines_a JOIN lines_b USING (custom_id, nth) ORDER BY lines_a.line;
"""
_COLUMNS = ", ".join(f"{side}.{name}" for side in ("row_a", "row_b") for name in COLUMN_NAMES)
_ROWS = f"""
SELECT {_COLUMNS} FROM pairs AS pair
CROSS JOIN a.results AS row_a ON row_a.line = pair.line_a
CROSS JOIN b.results AS row_b ON row_b.line = pair.line_b
ORDER BY pair.line_a
"""


@dataclass(frozen=True, slots=True)
class Unmatched:
    """Rows of one ledger without one in the other."""

    num_with_id: int
    num_without_id: int  # lines that have no custom_id, and so failed
    samples: list[str]  # custom_ids


class LedgerPairs:
    """Two ledgers, side by side; use it as a context.

    Raises:
        ConfigError: There is none at one of the paths.
        LedgerError: One of them cannot be read, or the temporary disk space cannot be written.
        LedgerCorruptError: One of them is damaged.
    """

    def __init__(self, path_a: Path, path_b: Path) -> None:
        for path in (path_a, path_b):
            with view_ledger(path):  # refuses what is no ledger, and brings an old one up to date
                pass
        self._paths = path_a, path_b
        # a file without a name, gone when closed
        self._connection = sqlite3.connect("", uri=True, isolation_level=None)

    def __enter__(self) -> LedgerPairs:
        with self._translated():
            execute = self._connection.execute
            for side, path in zip("ab", self._paths, strict=True):
                execute(f"ATTACH DATABASE ? AS {side}", (read_only_uri(path),))
            for database in ("main", "a", "b"):
                execute(f"PRAGMA {database}.cache_size = -{_CACHE_KIB}")
            execute("PRAGMA temp_store = FILE")
            execute("PRAGMA main.journal_mode = OFF")
            execute("BEGIN")  # both as they are now, also where a run goes on
            for side in "ab":
                execute(_LINES.format(side=side))
            for statement in _PAIRS.split(";"):
                execute(statement)
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def __iter__(self) -> Iterator[tuple[ResultRow, ResultRow]]:
        """Yield the rows of A that have one in B, each with it, in the order of A's lines."""
        num = len(COLUMN_NAMES)
        with self._translated():
            for values in self._connection.execute(_ROWS):
                yield ResultRow(*values[:num]), ResultRow(*values[num:])

    def unmatched(self, side: Literal["a", "b"]) -> Unmatched:
        """Return what only one side has."""
        other = "b" if side == "a" else "a"
        where = (
            f"FROM lines_{side} AS own WHERE NOT EXISTS (SELECT 1 FROM lines_{other} AS other "
            "WHERE other.custom_id = own.custom_id AND other.nth = own.nth)"
        )
        with self._translated():
            execute = self._connection.execute
            (num_with_id,) = execute(f"SELECT count(*) {where}").fetchone()
            samples = execute(f"SELECT custom_id {where} ORDER BY line LIMIT {NUM_SAMPLES}").fetchall()
            (num_without_id,) = execute(
                f"SELECT count(*) FROM {side}.results WHERE custom_id IS NULL"
            ).fetchone()
        return Unmatched(num_with_id, num_without_id, [custom_id for (custom_id,) in samples])

    def totals(self, side: Literal["a", "b"]) -> tuple[int, int]:
        """Return how many rows of one side are completed, and how many failed."""
        query = f"SELECT count(*), ifnull(sum(status = 'completed'), 0) FROM {side}.results"
        with self._translated():
            num_rows, num_completed = self._connection.execute(query).fetchone()
        return num_completed, num_rows - num_completed

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        names = " and ".join(map(str, self._paths))
        try:
            yield
        except sqlite3.OperationalError as exc:
            raise LedgerError(
                f"{names}: {exc}; expected two ledgers, and room for a list of their ids in TMPDIR",
                "free disk space, or set TMPDIR to a folder that has some",
            ) from exc
        except sqlite3.DatabaseError as exc:
            raise LedgerCorruptError(f"{names}: {exc}; expected ledgers", "restore the damaged one") from exc
