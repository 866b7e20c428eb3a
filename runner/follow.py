"""`--follow FILE`: results appended as they become durable, in the order in which they are finished.

The file repeats what the ledger holds; it is the ledger that counts. After a kill its last line may be
torn: resuming moves the torn part aside, and appends what the ledger has and the file lacks. A line that was
sent again has a record of each time in the file; the last one is the ledger's.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from pathlib import Path

import orjson

from trtb.build import files
from trtb.runner import ledger
from trtb.runner.errors import LedgerCorruptError
from trtb.runner.ledger import ResultRow
from trtb.runner.line_set import LineSet
from trtb.runner.records import OUTPUT_ID_PREFIX


class FollowFile:
    """A file that a person or a program follows while the run goes on."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("ab")

    def append(self, rows: list[ResultRow]) -> None:
        """Append committed rows; called on the ledger's thread."""
        self._file.write(b"".join(row.record + b"\n" for row in rows))
        self._file.flush()

    def close(self) -> None:
        """Make the file durable and close it."""
        os.fsync(self._file.fileno())
        self._file.close()


def check_free(path: Path) -> None:
    """Refuse a file that has lines which the run did not write; a torn one is none.

    What is in a line does not tell: the results of the same input, engine and settings have the same ids.

    Raises:
        LedgerCorruptError: It has.
    """
    if not path.exists():
        return
    with path.open("rb") as file:
        if file.readline().endswith(b"\n"):
            raise LedgerCorruptError(
                f"{path}: has lines that this run did not write; expected an empty file, or none",
                "move the file away, or choose another --follow",
            )


def repair(path: Path, ledger_path: Path, answers_id: str) -> None:
    """Make a followed file whole before a run goes on: every row of the ledger is the last one of its line.

    Raises:
        LedgerCorruptError: A line in the middle is not a record of this run; nothing is changed then.
    """
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    with contextlib.closing(ledger.connect(ledger_path)) as connection:
        present, sound_bytes = _read_present(path, answers_id, connection)
    size = path.stat().st_size
    with path.open("r+b") as file:
        if sound_bytes < size:
            file.seek(sound_bytes)
            files.write_atomic(path.with_name(path.name + ".torn"), file.read())
            file.truncate(sound_bytes)
        file.seek(0, os.SEEK_END)
        for row in ledger.read_rows(ledger_path):
            if row.line not in present:
                file.write(row.record + b"\n")
        file.flush()
        os.fsync(file.fileno())


def _read_present(path: Path, answers_id: str, connection: sqlite3.Connection) -> tuple[LineSet, int]:
    """Return the lines whose last record in the file is the ledger's, and how many bytes of it are sound.

    Another record is a failure that was set aside since, or one whose repetition a kill kept from the file.
    """
    present = LineSet()
    prefix = f"{OUTPUT_ID_PREFIX}{answers_id}-"
    sound = 0
    with path.open("rb") as file:
        for number, data in enumerate(file, start=1):
            if not data.endswith(b"\n"):
                break  # torn by a kill
            try:
                line = int(orjson.loads(data)["id"].removeprefix(prefix))
                held = connection.execute("SELECT record FROM results WHERE line = ?", (line,)).fetchone()
            except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as exc:
                raise LedgerCorruptError(
                    f"{path}: line {number} is not a result of this run; expected one record a line",
                    "move the file away, or choose another --follow",
                ) from exc
            if held is not None and held[0] == data[:-1]:
                present.add(line)
            else:
                present.discard(line)
            sound += len(data)
    return present, sound
