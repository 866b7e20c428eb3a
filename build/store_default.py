"""Which version of an engine's name is meant where none is given."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from trtb.build.manifest import Record, read_record, write_record

DEFAULT_FILE = "default.json"


class DefaultRecord(Record):
    """Which version of a name is meant where none is given: `engines/<name>/default.json`."""

    schema_version: Literal[1] = 1
    default: int | None
    history: list[int]  # earlier defaults, oldest first
    last_version: int  # the highest ever given: a number never means two engines
    promoted_at: str  # UTC, ISO 8601


def read_default(folder: Path, versions: Sequence[int]) -> DefaultRecord:
    """Read a name's default; a kill between a commit's rename and its record leaves the first version."""
    path = folder / DEFAULT_FILE
    if not path.is_file():
        first, last = min(versions, default=None), max(versions, default=0)
        return DefaultRecord(default=first, history=[], last_version=last, promoted_at="")
    state = read_record(path, DefaultRecord)
    last = max([state.last_version, *versions])
    default = state.default if state.default in versions else max(versions, default=None)
    return state.model_copy(update={"last_version": last, "default": default})


def write_default(
    folder: Path,
    version: int | None,
    history: Sequence[int],
    last_version: int,
    promoted_at: str | None = None,
) -> None:
    """Write a name's default; None stamps it with the time."""
    now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="microseconds")
    record = DefaultRecord(
        default=version,
        history=[*history],
        last_version=last_version,
        promoted_at=now if promoted_at is None else promoted_at,
    )
    write_record(folder / DEFAULT_FILE, record)
