"""The keys of a run's lines, in a nameless file: memory does not grow with the input."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from trtb.runner.caching.cache_key import KEY_BYTES

_NONE = bytes(KEY_BYTES)


class LineKeys:
    """Maps line numbers to keys.

    Args:
        folder: Where the file is made; it vanishes with the process.
    """

    def __init__(self, folder: Path) -> None:
        self._file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115

    def set(self, line: int, key: bytes) -> None:
        """Note a line's key."""
        os.pwrite(self._file.fileno(), key, line * KEY_BYTES)

    def get(self, line: int) -> bytes | None:
        """Return a line's key, or None where none was noted."""
        key = os.pread(self._file.fileno(), KEY_BYTES, line * KEY_BYTES)
        return key if len(key) == KEY_BYTES and key != _NONE else None

    def close(self) -> None:
        """Remove the file."""
        self._file.close()
