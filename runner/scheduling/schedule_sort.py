"""Sort more than memory holds: sorted runs go to files without a name, and are merged as they are read."""

from __future__ import annotations

import heapq
import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Final

MAX_CHUNK_BYTES: Final = 16 << 20
MAX_RUNS: Final = 32  # open at once; more are first merged into one
OVERHEAD_BYTES: Final = 160  # of two bytes objects and the pair that they are in
_LENGTHS = struct.Struct("<II")


class SpillSorter:
    """Sorts pairs of bytes, by the first and then the second.

    Args:
        folder: Where the runs go; they vanish with the process.
        max_chunk_bytes: How much is held in memory before it is sorted and written.
    """

    def __init__(self, folder: Path, max_chunk_bytes: int = MAX_CHUNK_BYTES) -> None:
        self._folder = folder
        self._max_chunk_bytes = max_chunk_bytes
        self._chunk: list[tuple[bytes, bytes]] = []
        self._chunk_bytes = 0
        self._runs: list[IO[bytes]] = []

    def add(self, key: bytes, value: bytes) -> None:
        """Take a pair."""
        self._chunk.append((key, value))
        self._chunk_bytes += len(key) + len(value) + OVERHEAD_BYTES
        if self._chunk_bytes >= self._max_chunk_bytes:
            self._spill()

    def sorted(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield every pair in order, once; the files are gone after that."""
        self._chunk.sort()
        if not self._runs:
            yield from self._chunk
            return
        yield from heapq.merge(*map(_read_run, self._runs), self._chunk)
        self.close()

    def close(self) -> None:
        """Give the files up."""
        for run in self._runs:
            run.close()
        self._runs = []
        self._chunk = []

    def _spill(self) -> None:
        self._chunk.sort()
        self._write_run(iter(self._chunk))
        self._chunk = []
        self._chunk_bytes = 0
        if len(self._runs) >= MAX_RUNS:
            runs, self._runs = self._runs, []
            self._write_run(heapq.merge(*map(_read_run, runs)))
            for run in runs:
                run.close()

    def _write_run(self, pairs: Iterator[tuple[bytes, bytes]]) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        run = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115 (closed when it has been merged)
        for key, value in pairs:
            run.write(_LENGTHS.pack(len(key), len(value)) + key + value)
        self._runs.append(run)


def _read_run(run: IO[bytes]) -> Iterator[tuple[bytes, bytes]]:
    run.seek(0)
    while head := run.read(_LENGTHS.size):
        key_bytes, value_bytes = _LENGTHS.unpack(head)
        yield run.read(key_bytes), run.read(value_bytes)
