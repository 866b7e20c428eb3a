"""The staging folder of the models folder, and the local files that are brought into it.

All writing happens under one lock, so a staging folder found by the lock's next holder belongs to a dead
process.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

import filelock

from trtb.build import files
from trtb.build.checkpoints.json_file import check_regular
from trtb.build.disk_errors import check_home, tell_disk_errors
from trtb.build.errors import CheckpointError, CheckpointNotFoundError

LOCK_TIMEOUT_S = 1800.0  # another process may be downloading


def find_local(path: Path) -> Path:
    """Return where a file or folder really is.

    Raises:
        CheckpointNotFoundError: There is none, or the way to it leads nowhere.
        CheckpointError: It is neither a file nor a folder.
    """
    try:
        found = path.expanduser().resolve(strict=True)
    except FileNotFoundError as exc:
        raise CheckpointNotFoundError(
            f"{path}: not found; expected a .gguf file or a Hugging Face folder", "trtb models list"
        ) from exc
    except (OSError, RuntimeError) as exc:  # a loop of links, a folder that is a file, no such user's home
        why = (exc.strerror if isinstance(exc, OSError) else None) or exc
        raise CheckpointNotFoundError(
            f"{path}: {why}; expected a .gguf file or a Hugging Face folder", "check the path and its links"
        ) from exc
    if not found.is_dir():
        check_regular(found)
    return found


def size_bytes(path: Path) -> int:
    """Return the bytes of a file, or of the files at a folder's top."""
    found = path.iterdir() if path.is_dir() else [path]
    return sum(each.stat().st_size for each in found if each.is_file())


@contextlib.contextmanager
def staging(home: Path, needed_bytes: int | None = None) -> Iterator[Path]:
    """Hold the models folder's lock and give an empty staging folder in it.

    Args:
        home: TRTB_HOME.
        needed_bytes: What will be written, where that is known.

    Raises:
        CheckpointError: It cannot be written, its disk is full, or another process holds it for too long.
    """
    models = home / "models"
    check_home(CheckpointError, home)
    hint = "change its owner or mode, or set TRTB_HOME to another folder"
    with (
        tell_disk_errors(CheckpointError, models, hint, needed_bytes=needed_bytes),
        _lock_staging(models) as it,
    ):
        yield it


@contextlib.contextmanager
def _lock_staging(models: Path) -> Iterator[Path]:
    try:
        held = files.lock(models / ".lock", LOCK_TIMEOUT_S)
        held.acquire()
    except filelock.Timeout as exc:
        raise CheckpointError(
            f"{models}: another process has been fetching or pinning for {LOCK_TIMEOUT_S:.0f} s",
            "wait for it, or stop it; its unfinished download is removed by the next call",
        ) from exc
    root = models / ".staging"
    try:
        shutil.rmtree(root, ignore_errors=True)  # we hold the lock: what is there belongs to the dead
        root.mkdir()
        staged = root / "checkpoint"
        staged.mkdir()
        yield staged
    finally:
        shutil.rmtree(root, ignore_errors=True)
        held.release()
