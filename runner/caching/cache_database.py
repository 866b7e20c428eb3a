"""The entries of the result cache: found by key, stored within the budget; the least recently used go first.

Every change is made in transactions of bounded size. A value counts only with its checksum; this module hands
out what it finds, and its caller looks.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from trtb.runner.caching.cache_budget import (
    PAGES_PER_ROW,
    PAGES_PER_WRITE,
    Budget,
    CacheError,
    CacheFullError,
    pages_of,
)
from trtb.runner.caching.cache_entry import Entry
from trtb.runner.caching.cache_file import CacheFile

MAX_KEYS_PER_QUERY: Final = 500
# a damaged row may hold any type, or a text that is none
_COLUMNS = ", ".join(
    f"ifnull(CAST({name} AS {kind}), {other})"
    for kind, other, names in (
        ("BLOB", "x''", ("key", "engine_id", "value", "checksum")),
        ("INTEGER", "0", ("stored_s", "used_s")),
    )
    for name in names
)
_JOINED = "entries JOIN engines ON engines.id = entries.engine"
_REPLACES = """DO UPDATE SET engine = excluded.engine, stored_s = excluded.stored_s, used_s = excluded.used_s,
checksum = excluded.checksum, value = excluded.value WHERE excluded.stored_s >= stored_s"""


class CacheDatabase:
    """The entries in the cache of a folder; any method may raise CacheError.

    Args:
        folder: Where the cache lies.
        capacity_bytes: The most that its files may take.

    Raises:
        CacheError: The cache cannot be used here.
    """

    def __init__(self, folder: Path, capacity_bytes: int) -> None:
        self.budget = Budget(capacity_bytes)
        self.file = CacheFile(folder, self.budget)

    def close(self) -> None:
        """Close the file."""
        self.file.close()

    def find(self, keys: Sequence[bytes]) -> dict[bytes, Entry]:
        """Return the entries under these keys, sound or not."""
        found: dict[bytes, Entry] = {}
        for start in range(0, len(keys), MAX_KEYS_PER_QUERY):
            part = keys[start : start + MAX_KEYS_PER_QUERY]
            rows = self.file.query(f"SELECT {_COLUMNS} FROM {_JOINED} WHERE key IN ({_marks(part)})", part)
            found |= {row[0]: _entry(*row) for row in rows}
        return found

    def entries(self, after: tuple[int, int], limit: int) -> list[tuple[int, Entry]]:
        """Return the next entries by last use, each with its number: after that use and that number."""
        query = (
            f"SELECT entries.id, {_COLUMNS} FROM {_JOINED} WHERE (used_s, entries.id) > (?, ?) "
            f"ORDER BY used_s, entries.id LIMIT {limit}"
        )
        return [(number, _entry(*values)) for number, *values in self.file.query(query, after)]

    def put(self, entries: Sequence[Entry], *, keeps_known: bool = False) -> int:
        """Store entries, durably, and return how many it took; no more than one transaction can hold.

        An entry that is there is replaced by one that is not older, unless `keeps_known`.

        Raises:
            CacheFullError: Others must go first.
        """
        num_pages = pages_of(entries)
        then = "DO NOTHING" if keeps_known else _REPLACES
        num_stored = 0
        with self.file.writing(num_pages, is_synced=True) as execute:
            if self.file.num_used_pages + num_pages > self.budget.num_pages:
                raise CacheFullError(f"{self.file.path}: no room for {num_pages} pages more")
            for entry in entries:
                execute("INSERT OR IGNORE INTO engines(engine_id) VALUES (?)", (entry.engine_id,))
                num_stored += execute(
                    "INSERT INTO entries(key, engine, stored_s, used_s, checksum, value) "
                    "SELECT ?, id, ?, ?, ?, ? FROM engines WHERE engine_id = ? "
                    f"ON CONFLICT(key) {then}",
                    (entry.key, entry.stored_s, entry.used_s, entry.checksum, entry.value, entry.engine_id),
                ).rowcount
        return num_stored

    def make_room(self, num_pages: int) -> int:
        """Remove the least recently used entries until so many pages are free; returns how many went."""
        num_removed = 0
        while True:
            missing = self.file.num_used_pages + num_pages - self.budget.num_pages
            if missing <= 0:
                return num_removed
            limit = min(self.budget.rows_per_write, 2 * missing)
            oldest = f"SELECT id FROM entries ORDER BY used_s, id LIMIT {limit}"
            if not (removed := self._remove(f"id IN ({oldest})", (), limit)):
                raise CacheError(f"{self.file.path}: {num_pages} pages are more than it may hold in all")
            num_removed += removed

    def remove_keys(self, keys: Sequence[bytes]) -> int:
        """Remove the entries under these keys; returns how many there were."""
        step = self.budget.rows_per_write
        parts = [keys[start : start + step] for start in range(0, len(keys), step)]
        return sum(self._remove(f"key IN ({_marks(part)})", part, len(part)) for part in parts)

    def remove_where(self, *, engine_id: str | None, used_before_s: int | None) -> int:
        """Remove the entries of an engine that were last used before a time (None: any); returns how many."""
        conditions: list[str] = ["1"]
        values: list[str | int] = []
        if engine_id is not None:
            conditions.append("engine = (SELECT id FROM engines WHERE engine_id = ?)")
            values.append(engine_id)
        if used_before_s is not None:
            conditions.append("used_s < ?")
            values.append(used_before_s)
        step = self.budget.rows_per_write
        chosen = f"id IN (SELECT id FROM entries WHERE {' AND '.join(conditions)} LIMIT {step})"
        num_removed = 0
        while removed := self._remove(chosen, values, step):
            num_removed += removed
        self.shrink()
        return num_removed

    def touch(self, keys: Sequence[bytes], used_s: int) -> None:
        """Note that the entries under these keys were used."""
        step = self.budget.rows_per_write
        for start in range(0, len(keys), step):
            part = keys[start : start + step]
            with self.file.writing(PAGES_PER_WRITE + PAGES_PER_ROW * len(part)) as execute:
                execute(f"UPDATE entries SET used_s = ? WHERE key IN ({_marks(part)})", (used_s, *part))

    def shrink(self) -> None:
        """Give free pages back to the disk."""
        step = self.budget.rows_per_write  # a page that moves is written, and those that point to it
        before = -1
        while self.file.pragma("freelist_count") and before != (before := self.file.pragma("page_count")):
            with self.file.writing(PAGES_PER_WRITE + step * PAGES_PER_ROW) as execute:
                execute(f"PRAGMA incremental_vacuum({step})").fetchall()
        self.file.fold()

    def fit(self) -> int:
        """Hold the file to its budget, where it had more before; returns how many entries had to go."""
        if self.file.pragma("page_count") <= self.budget.num_pages:
            return 0
        num_removed = self.make_room(0)
        self.shrink()
        self.file.hold_to_budget()
        return num_removed

    def count(self) -> list[tuple[str, int, int]]:
        """Return each engine's id, number of entries, and bytes of their values."""
        figures = "engine_id, count(*), sum(length(value))"
        return self.file.query(f"SELECT {figures} FROM {_JOINED} GROUP BY engine ORDER BY 2 DESC, 1")

    def oldest(self) -> tuple[int | None, int | None]:
        """Return when the oldest entry was stored, and when the least recently used one was used."""
        stored_s, used_s = self.file.query("SELECT min(stored_s), min(used_s) FROM entries")[0]
        return stored_s, used_s

    def _remove(self, where: str, values: Sequence[object], max_rows: int) -> int:
        with self.file.writing(PAGES_PER_WRITE + PAGES_PER_ROW * max_rows) as execute:
            return execute(f"DELETE FROM entries WHERE {where}", values).rowcount


def _entry(key: bytes, engine_id: bytes, value: bytes, checksum: bytes, stored_s: int, used_s: int) -> Entry:
    return Entry(key, engine_id.decode(errors="replace"), value, checksum, stored_s, used_s)


def _marks(values: Sequence[object]) -> str:
    return ", ".join("?" * len(values))
