"""`--follow FILE`: results appended as they become durable, in the order in which they are finished.

The file repeats what the ledger holds; it is the ledger that counts. After a kill its last line may be
torn: resuming moves the torn part aside, and appends what the ledger has and the file lacks.
"""

from __future__ import annotations

import os
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
    """Refuse a file that has results of an earlier run in it; a torn line is none.

    Raises:
        LedgerCorruptError: It has.
    """
    if not path.exists():
        return
    with path.open("rb") as file:
        if file.readline().endswith(b"\n"):
            raise LedgerCorruptError(
                f"{path}: line 1 is not a result of this run, which begins; expected no line",
                "move the file away, or choose another --follow",
            )


def repair(path: Path, ledger_path: Path, answers_id: str) -> None:
    """Make a followed file whole before a run goes on: every row of the ledger in it exactly once.

    Raises:
        LedgerCorruptError: A line in the middle is not a record of this run; nothing is changed then.
    """
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    present, sound_bytes = _read_present(path, answers_id)
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


def _read_present(path: Path, answers_id: str) -> tuple[LineSet, int]:
    """Return the lines that have a record in the file, and the length of its sound part in bytes."""
    present = LineSet()
    prefix = f"{OUTPUT_ID_PREFIX}{answers_id}-"
    sound = 0
    with path.open("rb") as file:
        for number, data in enumerate(file, start=1):
            if not data.endswith(b"\n"):
                break  # torn by a kill
            try:
                line = int(orjson.loads(data)["id"].removeprefix(prefix))
            except (ValueError, KeyError, TypeError, AttributeError) as exc:
                raise LedgerCorruptError(
                    f"{path}: line {number} is not a result of this run; expected one record a line",
                    "move the file away, or choose another --follow",
                ) from exc
            present.add(line)
            sound += len(data)
    return present, sound
