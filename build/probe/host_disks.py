"""The file systems that paths are on: how much is free, of what kind, how fast they write."""

from __future__ import annotations

import os
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from trtb.build import files
from trtb.build.errors import HardwareError
from trtb.build.probe.cgroups import read_text
from trtb.build.probe.hardware_info import DiskInfo, Problem

_NETWORK: Final = frozenset(
    {
        *(
            "nfs",
            "nfs4",
            "cifs",
            "smb3",
            "smbfs",
            "ceph",
            "lustre",
            "gpfs",
            "beegfs",
            "afs",
            "9p",
            "virtiofs",
        ),
        *("wekafs", "panfs", "orangefs", "gfs2", "ocfs2", "fuse.sshfs", "fuse.glusterfs", "fuse.ceph"),
        *("fuse.s3fs", "fuse.gcsfuse", "gcsfuse", "fuse.juicefs", "fuse.rclone", "fuse.blobfuse2"),
        *("fuse.mount-s3", "fuse.goofys", "fuse.dfs", "fuse.quobyte"),
    }
)
_MEMORY: Final = frozenset({"tmpfs", "ramfs"})
_CHUNK_BYTES: Final = 4 << 20


@dataclass(frozen=True, slots=True)
class Mount:
    """One line of /proc/self/mountinfo."""

    point: str
    number: str  # of the device, "259:1"; "0:…" where the file system has no disk of its own
    file_system: str
    device: str


def probe_disk(path: Path, *, root: Path, problems: list[Problem]) -> DiskInfo | None:
    """Return the file system that `path` is on, or would be made on; None where it cannot be read."""
    existing = path.absolute()
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    try:
        existing = existing.resolve()
        free = os.statvfs(existing)
    except OSError as exc:
        problems.append(Problem(what=f"disk of {path}", why=str(exc.strerror), kind="failed"))
        return None
    mounts = read_mounts(read_text(root / "proc/self/mountinfo"))
    mount = mount_of(str(existing), mounts)
    if mount is None:
        problems.append(Problem(what=f"disk of {path}", why="no mount holds it", kind="missing"))
        return None
    return DiskInfo(
        path=str(path),
        mount_point=mount.point,
        file_system=mount.file_system,
        device=mount.device,
        is_network=mount.file_system in _NETWORK,
        is_memory=mount.file_system in _MEMORY,
        is_rotational=_is_rotational(mount, root),
        is_writable=existing.is_dir() and os.access(existing, os.W_OK),  # a file can be written, too
        total_bytes=free.f_blocks * free.f_frsize,
        free_bytes=free.f_bavail * free.f_frsize,
        free_inodes=free.f_favail if free.f_files else None,
    )


def read_mounts(mountinfo: str) -> list[Mount]:
    """Return the mounts that this process sees, in the order in which they were made."""
    mounts = []
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")  # between them stand any number of optional fields
        fields = before.split()
        file_system, device = after.split()[:2]
        mounts.append(Mount(_unescape(fields[4]), fields[2], file_system, _unescape(device)))
    return mounts


def mount_of(path: str, mounts: list[Mount]) -> Mount | None:
    """Return the mount that `path` is on: the deepest that holds it, the latest of those."""
    best = None
    for mount in mounts:
        is_above = path == mount.point or path.startswith(mount.point.rstrip("/") + "/")
        if is_above and (best is None or len(mount.point) >= len(best.point)):
            best = mount
    return best


def measure_write_speed(folder: Path, num_bytes: int = 256 << 20) -> float:
    """Return the bytes per second at which a new file of `num_bytes` becomes durable in `folder`.

    The bytes cannot be compressed. The file is removed.

    Raises:
        HardwareError: The folder cannot be written, or has less than twice as much free.
    """
    target = folder / f".trtb-write-speed-{os.getpid()}"
    chunk = os.urandom(min(_CHUNK_BYTES, num_bytes))
    try:
        stat = os.statvfs(folder)
        free_bytes = stat.f_bavail * stat.f_frsize
        if free_bytes < 2 * num_bytes:
            raise HardwareError(f"{folder}: {free_bytes} bytes free; expected {2 * num_bytes} to measure")
        started_ns = time.monotonic_ns()
        try:
            with files.open_atomic(target) as file:
                for offset in range(0, num_bytes, len(chunk)):
                    file.write(chunk[: num_bytes - offset])
            elapsed_ns = time.monotonic_ns() - started_ns
        finally:
            target.unlink(missing_ok=True)
    except OSError as exc:
        raise HardwareError(f"{folder}: cannot be written: {exc.strerror}") from exc
    return num_bytes / (elapsed_ns / 1e9)


def _is_rotational(mount: Mount, root: Path) -> bool | None:
    folder = root / "sys/dev/block" / mount.number
    if mount.number.startswith("0:"):  # btrfs and others number themselves; their device may be a disk's
        if not mount.device.startswith("/dev/"):
            return None
        folder = root / "sys/class/block" / Path(mount.device).name
    if "/virtio" in str(folder.resolve()):  # says 1 whatever the disk behind it is
        return None
    # a partition's folder lies in its disk's, which has the queue
    for queue in (folder / "queue", folder.resolve().parent / "queue"):
        text = read_text(queue / "rotational")
        if text:
            return text == "1"
    return None


def _unescape(text: str) -> str:
    r"""Return a field of mountinfo as it is: blanks and backslashes stand there in octal.

    >>> _unescape(r"/mnt/two\040words")
    '/mnt/two words'
    """
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), text)
