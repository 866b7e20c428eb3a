"""What the system says of a disk (full, read-only, not a folder), told as an error of ours.

Translated once, where the writing is asked for; `files` raises OSError as it comes.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator
from pathlib import Path

from trtb.build.errors import TrtbError

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_DISK_ALONE = _FULL | {errno.EROFS, errno.EIO}  # of any file, these are about the disk


@contextlib.contextmanager
def tell_disk_errors(
    kind: type[TrtbError],
    place: Path,
    hint: str,
    *,
    needed_bytes: int | None = None,
    is_disk_alone: bool = False,
) -> Iterator[None]:
    """Raise the block's OSError as an error of ours.

    Args:
        kind: Its class.
        place: The folder or file that is written.
        hint: What to do where the disk is not full.
        needed_bytes: What the block writes, where that is known.
        is_disk_alone: Leave errors alone that may be about something else than a disk.
    """
    try:
        yield
    except TimeoutError:  # a lock's, which its taker tells of
        raise
    except OSError as exc:
        if is_disk_alone and exc.errno not in _DISK_ALONE:
            raise
        if exc.errno in _FULL:  # a copy names its source, where nothing is amiss
            needed = "" if needed_bytes is None else f" for {needed_bytes / (1 << 20):.0f} MiB"
            raise kind(
                f"{place}: {exc.strerror}; expected room{needed} on its disk",
                "free some space there, or point TRTB_HOME at a larger disk",
            ) from exc
        where = exc.filename if isinstance(exc.filename, str | Path) else place
        raise kind(f"{where}: {exc.strerror}; expected to write below {place}", hint) from exc


def check_home(kind: type[TrtbError], home: Path) -> None:
    """Refuse a TRTB_HOME that is no folder and can never be one: it would look like an empty one.

    Raises:
        TrtbError: `kind`: it, or the nearest of its parents that exists, is a file.
    """
    existing = home.absolute()
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    if not existing.is_dir():
        raise kind(f"{existing}: not a folder; expected TRTB_HOME there", "set TRTB_HOME to a folder")
