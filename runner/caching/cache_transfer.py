"""The result cache in a file: a copy to keep, or to take to another machine, and such a copy merged in.

The file is JSON lines, compressed by gzip: a head, an entry a line in the order of their last use, and an end
that counts them. Both directions stream, and go on beside runs that use the cache. A file without its end, or
of another schema, is refused before anything of it is taken; an entry that is not as it was stored is left
out and counted.
"""

from __future__ import annotations

import binascii
import gzip
import re
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final, cast

import orjson

from trtb.build import files
from trtb.runner.caching.cache_database import CacheDatabase
from trtb.runner.caching.cache_entry import Entry, decode
from trtb.runner.caching.cache_key import KEY_BYTES
from trtb.runner.caching.cache_writer import WriteFigures, store
from trtb.runner.errors import InputFileError, InputNotFoundError

FORMAT: Final = "trtb result cache"
SCHEMA_VERSION: Final = 1
ENTRIES_PER_GROUP: Final = 200
MAX_LINE_BYTES: Final = 64 << 20
MAX_CLOCK_LEAD_S: Final = 24 * 3600  # of the machine that made a copy
BEFORE_ALL: Final = (-(1 << 63), -1)
ENTRY_KEYS: Final = frozenset({"key", "engine_id", "stored_s", "used_s", "checksum", "value"})
_ENGINE_ID = re.compile("[0-9a-f]{64}")


class CacheCopyError(InputFileError):
    """A file is not a copy of a result cache that can be taken."""

    code = "cache_copy_refused"


@dataclass(slots=True)
class ImportFigures:
    """What became of a file's entries."""

    num_taken: int = 0
    num_known: int = 0  # there already, and kept as they are
    num_refused: int = 0  # not as they were stored
    num_not_stored: int = 0  # too large for the capacity
    num_evicted: int = 0  # entries that went to make room, among them perhaps some of the file's


def export_cache(database: CacheDatabase, path: Path) -> int:
    """Write every sound entry to a file, which appears whole and durable; returns how many.

    Raises:
        CacheError: The cache cannot be read.
        OSError: The file cannot be written.
    """
    num_entries = 0
    with files.open_atomic(path) as raw, gzip.GzipFile("", "wb", 6, raw, mtime=0) as packed:
        packed.write(_line({"format": FORMAT, "schema_version": SCHEMA_VERSION}))
        after = BEFORE_ALL
        while group := database.entries(after, ENTRIES_PER_GROUP):
            for number, entry in group:
                after = (entry.used_s, number)
                if entry.is_sound:
                    packed.write(_line(_to_json(entry)))
                    num_entries += 1
        packed.write(_line({"num_entries": num_entries}))
    return num_entries


def import_cache(database: CacheDatabase, path: Path) -> ImportFigures:
    """Merge a file's entries into the cache; what is there already stays.

    Raises:
        CacheCopyError: The file is no such copy, or not a whole one; nothing was taken.
        InputNotFoundError: There is no such file.
        CacheError: The cache cannot be written.
    """
    for _ in _entries_of(path):  # to its end, before anything is taken
        pass
    figures = ImportFigures()
    written = WriteFigures(num_evicted=database.fit())
    group: list[Entry] = []
    now_s = int(time.time())
    for value in _entries_of(path):
        entry = _from_json(value, now_s)
        if entry is None:
            figures.num_refused += 1
            continue
        group.append(entry)
        if len(group) == ENTRIES_PER_GROUP:
            _merge(database, group, written, figures)
            group = []
    _merge(database, group, written, figures)
    figures.num_taken = written.num_stored
    figures.num_not_stored = written.num_not_stored
    figures.num_evicted = written.num_evicted
    return figures


def _merge(
    database: CacheDatabase, group: list[Entry], written: WriteFigures, figures: ImportFigures
) -> None:
    by_key = {entry.key: entry for entry in group}
    there = database.find(list(by_key))
    known = {key for key, entry in there.items() if entry.is_sound}
    figures.num_known += len(known) + len(group) - len(by_key)
    database.remove_keys([key for key in there if key not in known])
    fresh = [entry for key, entry in by_key.items() if key not in known]
    before = written.num_stored + written.num_not_stored
    store(database, fresh, written, keeps_known=True)
    # a run beside may have stored it between the two
    figures.num_known += len(fresh) - (written.num_stored + written.num_not_stored - before)


def _entries_of(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the entries of a copy as they stand in it; its head and its end must be there."""
    try:
        with gzip.open(path, "rb") as packed:
            yield from _checked(path, _lines_of(path, cast("IO[bytes]", packed)))
    except FileNotFoundError as exc:
        raise InputNotFoundError(f"{path}: not found; expected a copy made by: trtb cache export") from exc
    except (OSError, EOFError, zlib.error) as exc:
        reason = getattr(exc, "strerror", None) or exc
        raise CacheCopyError(
            f"{path}: {reason}; expected a whole copy made by: trtb cache export", "make it again"
        ) from exc


def _lines_of(path: Path, file: IO[bytes]) -> Iterator[dict[str, Any]]:
    number = 0
    while line := file.readline(MAX_LINE_BYTES):
        number += 1
        try:
            value = orjson.loads(line)
        except ValueError as exc:
            raise CacheCopyError(f"{path}: line {number} is not JSON; expected a copy of a cache") from exc
        if not isinstance(value, dict):
            raise CacheCopyError(f"{path}: line {number} is no object; expected a copy of a cache")
        yield value


def _checked(path: Path, lines: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    head = next(lines, {})
    if head.get("format") != FORMAT:
        raise CacheCopyError(f"{path}: no copy of a result cache; expected one made by: trtb cache export")
    if head.get("schema_version") != SCHEMA_VERSION:
        raise CacheCopyError(
            f"{path}: schema version {head.get('schema_version')!r}; expected {SCHEMA_VERSION}",
            "import it with the version of trtb that made it",
        )
    num_entries = 0
    for value in lines:
        if value.keys() == {"num_entries"}:
            # read to the very end, where gzip's own checksum stands
            if value["num_entries"] == num_entries and next(lines, None) is None:
                return
            raise CacheCopyError(
                f"{path}: {num_entries} entries; expected {value['num_entries']} and nothing after",
                "make the copy again",
            )
        num_entries += 1
        yield value
    raise CacheCopyError(f"{path}: ends after {num_entries} entries; expected its end", "make the copy again")


def _to_json(entry: Entry) -> dict[str, Any]:
    return {
        "key": entry.key.hex(),
        "engine_id": entry.engine_id,
        "stored_s": entry.stored_s,
        "used_s": entry.used_s,
        "checksum": entry.checksum.hex(),
        "value": binascii.b2a_base64(entry.value, newline=False).decode(),
    }


def _from_json(value: dict[str, Any], now_s: int) -> Entry | None:
    """Return an entry; None where it is not one, not as it was stored, or of the future."""
    if value.keys() != ENTRY_KEYS:
        return None
    times = (value["stored_s"], value["used_s"])
    if not all(type(time_s) is int and 0 <= time_s <= now_s + MAX_CLOCK_LEAD_S for time_s in times):
        return None
    try:
        entry = Entry(
            key=bytes.fromhex(value["key"]),
            engine_id=value["engine_id"],
            value=binascii.a2b_base64(value["value"]),
            checksum=bytes.fromhex(value["checksum"]),
            stored_s=value["stored_s"],
            used_s=min(value["used_s"], now_s),
        )
        is_named = _ENGINE_ID.fullmatch(entry.engine_id) is not None
    except (TypeError, ValueError):
        return None
    is_whole = len(entry.key) == KEY_BYTES and entry.is_sound and decode(entry.value) is not None
    return entry if is_named and is_whole else None


def _line(value: dict[str, Any]) -> bytes:
    return orjson.dumps(value) + b"\n"
