"""What the result cache may take of the disk, shared out between its files; and its errors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from trtb.build.errors import StoreError
from trtb.runner.caching.cache_entry import Entry

PAGE_BYTES: Final = 4096
VALUE_BYTES_PER_PAGE: Final = 4000  # of what does not fit a row's own page
FRAME_BYTES: Final = PAGE_BYTES + 24
SHM_BYTES: Final = 32 << 10  # the index of some 4,000 frames of the log
MIN_CAPACITY_BYTES: Final = 1_000_000
MAX_LOG_BYTES: Final = 16 << 20
# of a row that is written or removed: its leaf, those of two indexes, and what splits or joins near them
PAGES_PER_ROW: Final = 6
PAGES_PER_WRITE: Final = 6  # the header, roots, page map, list of free pages


class CacheError(StoreError):
    """The result cache cannot be used."""

    code = "cache_unusable"


class CacheFullError(CacheError):
    """The result cache has no room before older entries go."""

    code = "cache_full"


class CacheDamagedError(CacheError):
    """The result cache's database is not one, or not whole."""

    code = "cache_damaged"


@dataclass(frozen=True, slots=True)
class Budget:
    """How a capacity is shared out between the database and its log."""

    capacity_bytes: int

    @property
    def log_bytes(self) -> int:
        """Return the most that the log takes."""
        return min(MAX_LOG_BYTES, self.capacity_bytes // 4)

    @property
    def num_pages(self) -> int:
        """Return the most pages of the database."""
        num_indexes = 1 + self.log_bytes // (FRAME_BYTES * 4000)
        return (self.capacity_bytes - self.log_bytes - num_indexes * SHM_BYTES) // PAGE_BYTES

    @property
    def pages_per_write(self) -> int:
        """Return the most pages that one transaction may write."""
        return self.log_bytes // FRAME_BYTES // 2

    @property
    def rows_per_write(self) -> int:
        """Return the most rows that one transaction may change without adding to them."""
        return (self.pages_per_write - PAGES_PER_WRITE) // PAGES_PER_ROW


def pages_of(entries: Sequence[Entry]) -> int:
    """Return the most pages that these entries take, and that storing them writes."""
    return PAGES_PER_WRITE + sum(
        PAGES_PER_ROW + len(entry.value) // VALUE_BYTES_PER_PAGE for entry in entries
    )
