"""Hash the files of a checkpoint, several at a time, and say how far it is.

hashlib releases the interpreter's lock for each chunk, so threads hash in parallel. How often progress is
told depends on bytes alone: a small checkpoint never speaks, a large one some fifty times.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from trtb.build import files
from trtb.build.manifest import FileEntry

MAX_THREADS = 8  # past this the disk is the bound
MIN_REPORT_BYTES = 512 << 20
MAX_REPORTS = 50

Progress = Callable[[str, str], None]


class _StoppedError(Exception):
    """Another file failed, or the user interrupted."""


class _Meter:
    """Counts the bytes that all threads have read, and tells of them now and then."""

    def __init__(self, total_bytes: int, progress: Progress | None) -> None:
        self._total = total_bytes
        self._progress = progress
        self._step = max(MIN_REPORT_BYTES, total_bytes // MAX_REPORTS)
        self._done = 0
        self._next = self._step
        self._lock = threading.Lock()
        self._is_stopped = False

    def add(self, num_bytes: int) -> None:
        """Count what one thread has read."""
        with self._lock:
            if self._is_stopped:
                raise _StoppedError
            self._done += num_bytes
            if self._progress and self._done >= self._next:
                self._next += self._step
                self._progress("hash", f"{self._done / 1e9:.1f} of {self._total / 1e9:.1f} GB")

    def stop(self) -> None:
        """Make every thread give up at its next chunk."""
        with self._lock:
            self._is_stopped = True


def hash_tree(root: Path, progress: Progress | None = None) -> list[FileEntry]:
    """Return the entry of every file below `root`, sorted by path."""
    names = [path.relative_to(root).as_posix() for path in sorted(root.rglob("*")) if path.is_file()]
    digests = _hash(root, names, progress)
    return [
        FileEntry(path=name, size_bytes=(root / name).stat().st_size, sha256=digests[name]) for name in names
    ]


def find_changes(
    root: Path, entries: list[FileEntry], progress: Progress | None = None, *, exclude: frozenset[str]
) -> list[str]:
    """Return one line for each file below `root` that is missing, new, or differs from its entry.

    A new file counts: a library that is given the folder would read it. `exclude` names those that are no
    part of it.
    """
    found = []
    same_size = []
    for entry in entries:
        path = root / entry.path
        if not path.is_file():
            found.append(f"{entry.path}: missing")
        elif path.stat().st_size != entry.size_bytes:
            found.append(f"{entry.path}: {path.stat().st_size} bytes; expected {entry.size_bytes}")
        else:
            same_size.append(entry)
    digests = _hash(root, (entry.path for entry in same_size), progress)
    found += [
        f"{entry.path}: content differs from its sha256"
        for entry in same_size
        if digests[entry.path] != entry.sha256
    ]
    known = {entry.path for entry in entries} | exclude
    there = {path.relative_to(root).as_posix() for path in root.rglob("*") if not path.is_dir()}
    return sorted(found + [f"{name}: not in the pin" for name in there - known])


def _hash(root: Path, names: Iterable[str], progress: Progress | None) -> dict[str, str]:
    sizes = {name: (root / name).stat().st_size for name in names}
    meter = _Meter(sum(sizes.values()), progress)
    with ThreadPoolExecutor(min(MAX_THREADS, os.cpu_count() or 1), "trtb-hash") as pool:
        # the largest first: the last one to begin is then the shortest
        order = sorted(sizes, key=sizes.__getitem__, reverse=True)
        futures = {name: pool.submit(files.sha256_file, root / name, meter.add) for name in order}
        try:
            return {name: future.result() for name, future in futures.items()}
        except BaseException:
            meter.stop()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
