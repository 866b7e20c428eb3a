"""The only code that syncs, renames, hashes or locks files.

A file that matters is written beside its place, synced, renamed in, and its folder synced: after a crash
it is the old one or the new one, never a part of one.
"""

from __future__ import annotations

import contextlib
import fcntl
import glob
import hashlib
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import filelock
import platformdirs

from trtb.build.errors import ConfigError

CHUNK_BYTES = 1 << 20
LOCK_POLL_S = 0.02
KEPT_FOLDERS = ("engines", "models", "toolchains")  # of TRTB_HOME: what only their own commands write
CACHE_FOLDER = "cache"  # the files of the result cache lie in it; folders in it are of commands at work


def trtb_home() -> Path:
    """Return the folder of models, engines and caches: TRTB_HOME, else the platform's user data folder.

    Raises:
        ConfigError: TRTB_HOME leads nowhere.
    """
    home = os.environ.get("TRTB_HOME")
    if not home:
        return Path(platformdirs.user_data_dir("trtb"))
    try:
        return Path(home).expanduser().resolve()
    except (OSError, RuntimeError) as exc:  # a loop of links, no such user's home
        raise ConfigError(f"TRTB_HOME: {home!r}: {exc}; expected a folder", "set it to a folder") from exc


def fsync_dir(path: Path) -> None:
    """Make the entries of a folder durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def fsync_tree(root: Path) -> None:
    """Make every file and folder below `root` durable, before a rename publishes it."""
    for folder, _, names in os.walk(root):
        for name in names:
            path = Path(folder, name)
            if path.is_symlink():
                continue
            fd = os.open(path, os.O_RDONLY)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)
        fsync_dir(Path(folder))


@contextlib.contextmanager
def open_atomic(path: Path) -> Iterator[IO[bytes]]:
    """Open a file that appears at `path`, whole and durable, when the block ends without an error."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fd, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
    temporary = Path(name)
    try:
        with os.fdopen(fd, "wb", buffering=CHUNK_BYTES) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(0o666 & ~current_umask())  # mkstemp makes 0600
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    fsync_dir(path.parent)


def write_atomic(path: Path, data: bytes) -> None:
    """Write a small file; it is durable when this returns."""
    with open_atomic(path) as file:
        file.write(data)


def check_replaceable(path: Path) -> None:
    """Refuse a place that a file of the user's must not take: a file is renamed over whatever is there.

    A link is none either, though it may lead to a file: /dev/stdout would be a file from then on.

    Raises:
        ConfigError: There is something that is no regular file, or a file that TRTB_HOME keeps.
    """
    hint = "name another file"
    with contextlib.suppress(OSError):  # not there, or cannot be: whoever writes tells of it
        if not stat.S_ISREG(path.lstat().st_mode):
            what = "a link" if path.is_symlink() else "a folder" if path.is_dir() else "no regular file"
            raise ConfigError(f"{path}: is {what}; expected a file that can be written", hint)
    home, target = trtb_home(), path.resolve()
    is_kept = any(target.is_relative_to(home / name) for name in KEPT_FOLDERS)
    if is_kept or target.parent == home / CACHE_FOLDER:
        raise ConfigError(
            f"{path}: in a folder of TRTB_HOME that only trtb writes; expected a file elsewhere", hint
        )


def sync_rename(staged: Path, target: Path) -> None:
    """Rename a staged file or folder to its place and make that durable; both on one file system."""
    if staged.is_dir():
        fsync_tree(staged)
    staged.rename(target)
    fsync_dir(target.parent)


def remove_parts(folder: Path, name: str) -> None:
    """Remove the leftovers of an `open_atomic(folder / name)` that was killed."""
    for part in folder.glob(f".{glob.escape(name)}.*.part"):
        part.unlink(missing_ok=True)


def sha256_file(path: Path, on_bytes: Callable[[int], None] | None = None) -> str:
    """Return the hexadecimal sha256 of a file; `on_bytes` hears of each chunk's size as it is read."""
    digest = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
            if on_bytes:
                on_bytes(len(chunk))
    return digest.hexdigest()


def sha256_bytes(data: bytes) -> str:
    """Return the hexadecimal sha256 of some bytes."""
    return hashlib.sha256(data).hexdigest()


def link_or_copy(source: Path, target: Path) -> None:
    """Hard-link a file to a new place, or copy it where the file system cannot link."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def lock(path: Path, timeout_s: float) -> filelock.BaseFileLock:
    """Return a lock between processes, released by the system when its holder dies.

    Entering it raises `filelock.Timeout` when another process holds it for longer than `timeout_s`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    return filelock.FileLock(path, timeout=timeout_s)


def current_umask() -> int:
    """Return the process's umask (reading it means setting it twice)."""
    mask = os.umask(0o022)
    os.umask(mask)
    return mask


class SharedLock:
    """A lock that many processes hold together, or one alone; released by the system when they die.

    Raises:
        TimeoutError: One process has it alone for longer than `timeout_s`.
    """

    def __init__(self, path: Path, timeout_s: float) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        deadline = time.monotonic() + timeout_s
        while not self._try(fcntl.LOCK_SH):
            if time.monotonic() >= deadline:
                os.close(self._fd)
                raise TimeoutError(f"{path}: held alone by another process")
            time.sleep(LOCK_POLL_S)

    def try_alone(self) -> bool:
        """Hold it alone, unless others hold it, too; then it is shared still."""
        if self._try(fcntl.LOCK_EX):
            return True
        self.share()  # a conversion that fails may have lost what was held
        return False

    def share(self) -> None:
        """Let others hold it, too."""
        fcntl.flock(self._fd, fcntl.LOCK_SH)

    def close(self) -> None:
        """Give it back."""
        os.close(self._fd)

    def _try(self, kind: int) -> bool:
        try:
            fcntl.flock(self._fd, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True
