"""The result cache as a run uses it: answers looked up, answers kept, and trouble told but never raised.

It is an accelerator and nothing more. A cache that is damaged, locked, full or not to be written costs the
run its hits, and a warning; it never costs an answer, and never gives a wrong one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from trtb.build import files
from trtb.runner.caching.cache_budget import CacheDamagedError, CacheError
from trtb.runner.caching.cache_database import CacheDatabase
from trtb.runner.caching.cache_entry import CachedAnswer, Entry, checksum_of, decode, encode
from trtb.runner.caching.cache_file import DAMAGED_NAME
from trtb.runner.caching.cache_writer import CacheWriter

FOLDER_NAME: Final = "cache"
USE_PERIOD_S: Final = 60  # a use is noted at most so often, so that most hits write nothing
GB: Final = 10**9


def cache_folder() -> Path:
    """Return where the result cache lies."""
    return files.trtb_home() / FOLDER_NAME


@dataclass(frozen=True, slots=True)
class CacheConfig:
    """How a run uses the cache."""

    folder: Path
    capacity_bytes: int
    ttl_s: float | None = None  # older answers are computed again
    sync_interval_s: float = 1.0


@dataclass(slots=True)
class CacheFigures:
    """What a session had of the cache."""

    num_hits: int = 0
    num_misses: int = 0  # of requests whose answer is the same each time
    num_expired: int = 0  # of the misses: there, but too old
    num_corrupted: int = 0  # of the misses: there, but not as stored
    num_stored: int = 0
    num_evicted: int = 0
    num_not_stored: int = 0
    size_bytes: int | None = None  # of its files; None where they cannot be read
    warnings: list[str] = field(default_factory=list)


class ResultCache:
    """One session's use of the cache.

    Args:
        config: Where it lies, and how it is used.
        engine_id: Of the engine whose answers are kept.
        now: Tells the time, in seconds since the epoch.
    """

    def __init__(self, config: CacheConfig, engine_id: str, now: Callable[[], float] = time.time) -> None:
        self._config = config
        self._engine_id = engine_id
        self._now = now
        self._database: CacheDatabase | None = None
        self._writer: CacheWriter | None = None
        self._is_off = False
        self.figures = CacheFigures()

    def look_up(self, keys: Sequence[bytes]) -> dict[bytes, CachedAnswer]:
        """Return the answers that are there, sound and young enough; a key may occur several times."""
        found: dict[bytes, CachedAnswer] = {}
        if not self._is_off:
            try:
                found = self._find(list(dict.fromkeys(keys)))
            except CacheDamagedError as exc:
                self._renew(exc)
            except CacheError as exc:
                self._give_up(exc)
        num_hits = sum(key in found for key in keys)
        self.figures.num_hits += num_hits
        self.figures.num_misses += len(keys) - num_hits
        return found

    def end_look_up(self) -> None:
        """Let go of the database; what follows is kept by the writer."""
        if self._database is not None:
            self.figures.size_bytes = self._database.file.size_bytes
            self._database.close()
            self._database = None

    def keep(self, key: bytes, answer: CachedAnswer) -> None:
        """Store an answer, soon."""
        if self._is_off:
            self.figures.num_not_stored += 1
            return
        if self._writer is None:
            self._writer = CacheWriter(self._open, self._config.sync_interval_s)
        value = encode(answer)
        now_s = int(self._now())
        self._writer.add(Entry(key, self._engine_id, value, checksum_of(key, now_s, value), now_s, now_s))

    def turn_off(self, reason: str) -> None:
        """Use it no more; the reason is among the warnings."""
        self._is_off = True
        self.end_look_up()
        self._warn(f"the result cache is not used: {reason}")

    def close(self) -> None:
        """Store what waits, and add up what was done."""
        self.end_look_up()
        if self._writer is None:
            return
        self._writer.close()
        done, figures = self._writer.figures, self.figures
        figures.num_stored += done.num_stored
        figures.num_evicted += done.num_evicted
        figures.num_not_stored += done.num_not_stored
        if done.was_set_aside:
            self._tell_set_aside()
        if done.error is not None:
            self._give_up(done.error)
        self._writer = None
        try:
            database = self._open()
        except CacheError:
            figures.size_bytes = None  # what keeps it from being opened has been told, or is the next run's
            return
        figures.size_bytes = database.file.size_bytes
        database.close()

    def _open(self) -> CacheDatabase:
        return CacheDatabase(self._config.folder, self._config.capacity_bytes)

    def _find(self, keys: list[bytes]) -> dict[bytes, CachedAnswer]:
        if self._database is None:
            self._database = self._open()
            if self._database.file.was_set_aside:
                self._tell_set_aside()
        now_s = self._now()
        entries = self._database.find(keys)
        found: dict[bytes, CachedAnswer] = {}
        corrupted: list[bytes] = []
        for key, entry in entries.items():
            answer = decode(entry.value) if entry.is_sound else None
            if answer is None:
                corrupted.append(key)
            elif self._config.ttl_s is not None and entry.stored_s + self._config.ttl_s <= now_s:
                self.figures.num_expired += 1
            else:
                found[key] = answer
        used = [key for key in found if entries[key].used_s + USE_PERIOD_S <= now_s]
        self.figures.num_corrupted += len(corrupted)
        self._tidy(self._database, corrupted, used, int(now_s))
        return found

    def _tidy(self, database: CacheDatabase, corrupted: list[bytes], used: list[bytes], now_s: int) -> None:
        """Drop what is damaged, and note what was used; not being able to costs the answers nothing."""
        try:
            database.remove_keys(corrupted)
            database.touch(used, now_s)
        except CacheDamagedError:
            raise
        except CacheError as exc:
            self._warn(f"the result cache is read, but not written: {exc.message}")

    def _renew(self, error: CacheDamagedError) -> None:
        """Begin with an empty database; without one, go on without the cache."""
        if self._database is None:
            self._give_up(error)
            return
        try:
            self._database.file.renew()
        except CacheError as exc:
            self._give_up(exc)
        else:
            self._tell_set_aside()

    def _give_up(self, error: CacheError) -> None:
        self.turn_off(f"{error.message} ({error.hint})" if error.hint else error.message)

    def _tell_set_aside(self) -> None:
        path = self._config.folder / DAMAGED_NAME
        self._warn(f"the result cache was damaged; it was moved to {path}, and begun anew")

    def _warn(self, text: str) -> None:
        if text not in self.figures.warnings:
            self.figures.warnings.append(text)


def remove_damaged() -> None:
    """Remove the damaged database that was set aside, if there is one.

    Raises:
        CacheError: It cannot be removed, or what should be the cache's folder is none.
    """
    folder = cache_folder()
    try:
        (folder / DAMAGED_NAME).unlink(missing_ok=True)
    except OSError as exc:
        raise CacheError(
            f"{folder}: {exc.strerror or exc}; expected a folder that can be written", "see what lies there"
        ) from exc
