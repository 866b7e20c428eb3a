"""A result cache with answers in it, by numbers."""

from __future__ import annotations

import hashlib
from pathlib import Path

from trtb.runner.answer import Choice
from trtb.runner.caching.cache_entry import CachedAnswer, Entry, checksum_of, encode
from trtb.runner.caching.result_cache import CacheConfig, ResultCache

NOW = 1_767_225_600
ENGINE_ID = "e" * 64
CAPACITY_BYTES = 2_000_000


def key(number: int) -> bytes:
    """Return the key of a number."""
    return hashlib.sha256(b"%d" % number).digest()


def answer(number: int, *, text_bytes: int = 20) -> CachedAnswer:
    """Return the answer of a number, with a text that hardly shrinks."""
    stream = hashlib.shake_256(b"%d" % number).hexdigest((text_bytes + 1) // 2)
    return CachedAnswer([Choice(stream[:text_bytes], "stop", 3)], 5, 3, "stop", NOW)


def entry(number: int, *, text_bytes: int = 20, stored_s: int = NOW, engine_id: str = ENGINE_ID) -> Entry:
    """Return the entry of a number."""
    value = encode(answer(number, text_bytes=text_bytes))
    return Entry(key(number), engine_id, value, checksum_of(key(number), stored_s, value), stored_s, stored_s)


def cache_in(
    folder: Path, *, now: float = NOW, ttl_s: float | None = None, capacity_bytes: int = CAPACITY_BYTES
) -> ResultCache:
    """Return the cache of a folder, at a time."""
    return ResultCache(CacheConfig(folder, capacity_bytes, ttl_s, 0.0), ENGINE_ID, lambda: now)


def keep_all(folder: Path, count: int, *, text_bytes: int = 20) -> None:
    """Keep the answers of the first so many numbers."""
    cache = cache_in(folder)
    for number in range(count):
        cache.keep(key(number), answer(number, text_bytes=text_bytes))
    cache.close()
    assert cache.figures.num_stored == count, cache.figures
