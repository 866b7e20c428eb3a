"""Find custom_ids that occur twice, in flat memory for any number of lines.

The first pass keeps eight bytes a line: a seeded hash, in memory up to a bound, past it in bucket files
that are sorted one at a time. Equal hashes are not yet equal ids: a second pass over the file compares the
ids themselves, of the few candidates only. The seed is drawn anew, so no file can be made to collide.
"""

from __future__ import annotations

import secrets
import tempfile
from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

import xxhash

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

MAX_IN_MEMORY = 8 << 20
NUM_BUCKETS = 64
_BUCKET_SHIFT = 58  # the top six bits choose the bucket
_CANDIDATES_PER_PASS = 1 << 18


@dataclass(frozen=True, slots=True)
class Duplicate:
    """A later line with the custom_id of an earlier one."""

    line: int
    first_line: int
    custom_id: str


class DuplicateFinder:
    """Collects custom_ids in file order, then finds those that occur more than once.

    Args:
        spill_folder: Where bucket files go; they have no name, and vanish with the process.
        max_in_memory: How many hashes are held before they are spilled.
        digest: Hashes an id's bytes to 64 bits; a test may choose one that collides.
    """

    def __init__(
        self,
        spill_folder: Path,
        max_in_memory: int = MAX_IN_MEMORY,
        digest: Callable[[bytes, int], int] = xxhash.xxh3_64_intdigest,
    ) -> None:
        self._spill_folder = spill_folder
        self._max_in_memory = max_in_memory
        self._digest = digest
        self._seed = secrets.randbits(64)
        self._hashes = array("Q")
        self._buckets: list[IO[bytes]] = []

    def add(self, custom_id: str) -> None:
        """Take the custom_id of the next line."""
        self._hashes.append(self._digest(custom_id.encode(), self._seed))
        if len(self._hashes) >= self._max_in_memory:
            self._spill()

    def find(self, read_ids: Callable[[], Iterable[tuple[int, str]]]) -> Iterator[Duplicate]:
        """Yield every later occurrence of an id.

        Args:
            read_ids: Yields line number and custom_id of every line again, in file order; it is called
                only where there are candidates, and once for each quarter of a million of them.
        """
        candidates = self._candidates()
        self._close()
        for start in range(0, len(candidates), _CANDIDATES_PER_PASS):
            wanted = frozenset(candidates[start : start + _CANDIDATES_PER_PASS].tolist())
            first_lines: dict[str, int] = {}
            for line, custom_id in read_ids():
                if self._digest(custom_id.encode(), self._seed) in wanted:
                    first_line = first_lines.setdefault(custom_id, line)
                    if first_line != line:
                        yield Duplicate(line, first_line, custom_id)

    def _candidates(self) -> NDArray[np.uint64]:
        import numpy as np

        if not self._buckets:
            return _repeated(np.array(self._hashes, dtype=np.uint64))
        self._spill()
        found = []
        for bucket in self._buckets:
            bucket.seek(0)
            found.append(_repeated(np.frombuffer(bucket.read(), dtype=np.uint64)))
        return np.concatenate(found)

    def _spill(self) -> None:
        import numpy as np

        if not self._buckets:
            self._spill_folder.mkdir(parents=True, exist_ok=True)
            for _ in range(NUM_BUCKETS):
                self._buckets.append(tempfile.TemporaryFile(dir=self._spill_folder))  # noqa: SIM115
        hashes = np.sort(np.frombuffer(self._hashes, dtype=np.uint64))
        ends = np.searchsorted(hashes >> np.uint64(_BUCKET_SHIFT), np.arange(NUM_BUCKETS), side="right")
        for bucket, part in zip(self._buckets, np.split(hashes, ends[:-1]), strict=True):
            bucket.write(part.tobytes())
        self._hashes = array("Q")

    def _close(self) -> None:
        for bucket in self._buckets:
            bucket.close()
        self._buckets = []
        self._hashes = array("Q")


def _repeated(hashes: NDArray[np.uint64]) -> NDArray[np.uint64]:
    import numpy as np

    hashes = np.sort(hashes)
    repeated: NDArray[np.uint64] = np.unique(hashes[1:][hashes[1:] == hashes[:-1]])
    return repeated
