"""The versioned store of engines: engines/<name>/<version>/, each whole, never changed, found by name or id.

An engine is staged on the same file system and appears by one rename. The default of a name is a small
file of its own beside the versions, so that promoting and rolling back touch no engine.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import filelock

from trtb.build import files
from trtb.build.disk_errors import check_home, tell_disk_errors
from trtb.build.errors import (
    ConfigError,
    EngineCorruptError,
    EngineNotFoundError,
    StoreError,
    StoreLockedError,
)
from trtb.build.manifest import (
    EngineManifest,
    changed_files,
    file_entries,
    read_record,
    write_record,
)
from trtb.build.store_default import DefaultRecord, read_default, write_default

MANIFEST_FILE = "manifest.json"
LOCK_TIMEOUT_S = 60.0
MIN_ID_PREFIX = 12

_NO_ENGINE = "no engine yet"
_FIRST_BUILD = "trtb build --model smollm2-135m-instruct"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,149}")
_WRITE_HINT = "change its owner or mode, or set TRTB_HOME to another folder"
_NOT_HASHED = frozenset({MANIFEST_FILE})  # it holds the hashes of all else, the Triton repository included


@dataclass(frozen=True, slots=True)
class StoredEngine:
    """One version of one engine in the store."""

    path: Path
    manifest: EngineManifest


class EngineStore:
    """The engines below one TRTB_HOME; changes are made under a lock between processes."""

    def __init__(self, home: Path, lock_timeout_s: float = LOCK_TIMEOUT_S) -> None:
        self.root = home / "engines"
        self._lock_timeout_s = lock_timeout_s

    def list(self, name: str | None = None) -> Sequence[StoredEngine]:
        """Return every engine, or every version of one name, by name and version.

        Raises:
            StoreError: A manifest cannot be read, or TRTB_HOME is no folder.
        """
        check_home(StoreError, self.root.parent)
        names = sorted(path.name for path in self.root.glob("[!.]*") if path.is_dir())
        return [
            self._read(each, version)
            for each in names
            if name is None or each == name
            for version in self._versions(each)
        ]

    def find(self, engine_id: str) -> StoredEngine | None:
        """Return the newest engine of exactly that id, if there is one."""
        found = [engine for engine in self.list() if engine.manifest.engine_id == engine_id]
        return max(found, key=lambda engine: engine.manifest.built_at, default=None)

    def default_version(self, name: str) -> int | None:
        """Return the version that the bare name means."""
        return self._default(name).default

    def resolve(self, reference: str | None = None) -> StoredEngine:
        """Return the engine that `name`, `name@3`, an engine_id or its unique prefix means.

        None means the only engine, or the name whose default was set last.

        Raises:
            EngineNotFoundError: Nothing, or more than one engine, is meant.
        """
        if reference is None:
            names = [name for name in self._names() if self._default(name).default is not None]
            if not names:
                raise EngineNotFoundError(f"{self.root}: {_NO_ENGINE}; expected at least one", _FIRST_BUILD)
            reference = max(names, key=lambda name: self._default(name).promoted_at)
        name, _, version = reference.partition("@")
        if name in self._names():
            return self._resolve_version(name, version)
        if not version and re.fullmatch(rf"[0-9a-f]{{{MIN_ID_PREFIX},64}}", reference):
            found = [engine for engine in self.list() if engine.manifest.engine_id.startswith(reference)]
            if len({engine.manifest.engine_id for engine in found}) > 1:
                listed = ", ".join(engine.manifest.reference for engine in found)
                raise EngineNotFoundError(f"engine {reference}: ambiguous ({listed}); give more digits")
            if found:
                return found[-1]
        if not (known := self._names()):
            raise EngineNotFoundError(f"engine {reference!r}: not found; {_NO_ENGINE}", _FIRST_BUILD)
        raise EngineNotFoundError(
            f"engine {reference!r}: not found; expected one of {', '.join(known)}", "trtb engines list"
        )

    @contextlib.contextmanager
    def stage(self) -> Iterator[Path]:
        """Give an empty folder on the store's file system; what is left of it is removed at the end.

        The folder of a process that died is removed by the next call.

        Raises:
            StoreError: It cannot be written, or its disk is full before the block ends.
        """
        root = self.root / ".staging"
        with self._locked():
            root.mkdir(parents=True, exist_ok=True)
            self._sweep(root)
            token = uuid.uuid4().hex
            # held for as long as this process lives: that is how a sweeper tells the living from the dead
            alive = files.lock(root / f"{token}.lock", timeout_s=0)
            alive.acquire()
            staged = root / token
            staged.mkdir()
        try:
            with tell_disk_errors(StoreError, self.root, _WRITE_HINT, is_disk_alone=True):
                yield staged
        finally:
            _remove_tree(staged)
            alive.release()
            (root / f"{token}.lock").unlink(missing_ok=True)

    def commit(self, staged: Path, manifest: EngineManifest) -> StoredEngine:
        """Hash the staged files, make them durable and read-only, and rename them in as the next version.

        `manifest.version` and `manifest.files` are set here. The first version of a name becomes its default.
        An engine of that id that another process committed meanwhile is returned instead.
        """
        name = check_engine_name(manifest.name)
        entries = file_entries(staged, exclude=_NOT_HASHED)
        with self._locked():
            if (stored := self.find(manifest.engine_id)) is not None:
                return stored
            state = self._default(name)
            version = state.last_version + 1
            manifest = manifest.model_copy(update={"version": version, "files": entries})
            write_record(staged / MANIFEST_FILE, manifest)
            for path in staged.rglob("*"):
                if path.is_file():
                    path.chmod(0o444)
            target = self.root / name / str(version)
            target.parent.mkdir(parents=True, exist_ok=True)
            files.sync_rename(staged, target)
            # folders last: moving a read-only one needs rights that only root has
            for folder in [target, *(path for path in target.rglob("*") if path.is_dir())]:
                folder.chmod(0o555)
            if state.default is None:
                write_default(self.root / name, version, state.history, version)
            else:
                write_default(self.root / name, state.default, state.history, version, state.promoted_at)
        return StoredEngine(target, manifest)

    def verify(self, engine: StoredEngine) -> None:
        """Hash every file of an engine again.

        Raises:
            EngineCorruptError: Some differ from the manifest; the message names each.
        """
        manifest = engine.manifest
        if changed := changed_files(engine.path, manifest.files):
            raise EngineCorruptError(
                f"{manifest.reference}: {len(changed)} of {len(manifest.files)} files differ "
                f"from the manifest: {'; '.join(changed)}",
                f"trtb engines remove {manifest.reference} --force, then build it again",
            )

    def promote(self, reference: str) -> StoredEngine:
        """Make a version the default of its name."""
        with self._locked():
            engine = self.resolve(reference)
            name, version = engine.manifest.name, engine.manifest.version
            state = self._default(name)
            if state.default == version:
                write_default(self.root / name, version, state.history, state.last_version)
            else:
                history = state.history + ([state.default] if state.default is not None else [])
                write_default(self.root / name, version, history, state.last_version)
        return engine

    def rollback(self, name: str) -> StoredEngine:
        """Make the default of before the last promotion the default again.

        Raises:
            EngineNotFoundError: There is no such name.
            StoreError: There is no earlier default.
        """
        with self._locked():
            if name not in self._names():
                self.resolve(name)  # raises, and lists what there is
            state = self._default(name)
            earlier = [version for version in state.history if version in self._versions(name)]
            if not earlier:
                raise StoreError(
                    f"{name}: no earlier default to go back to; the default is {state.default}",
                    f"trtb engines promote {name}@VERSION",
                )
            write_default(self.root / name, earlier[-1], earlier[:-1], state.last_version)
            return self._read(name, earlier[-1])

    def remove(self, reference: str, *, force: bool = False) -> None:
        """Remove one version; `reference` is `name@version`, or a bare name that has only one.

        The default goes only if it is the only version, or with `force`; then the latest earlier default
        that is left, else the newest version, takes its place.

        Raises:
            StoreError: It is the default of several versions.
        """
        with self._locked():
            name, version = self._to_remove(reference)
            state, versions = self._default(name), self._versions(name)
            if version == state.default and len(versions) > 1 and not force:
                raise StoreError(
                    f"{name}@{version}: the default of {len(versions)} versions; expected another one",
                    f"promote another version first, or: trtb engines remove {name}@{version} --force",
                )
            left = [other for other in versions if other != version]
            history = [other for other in state.history if other in left]
            default = state.default
            if version == default:
                default = history.pop() if history else max(left, default=None)
            # first out of sight, then gone: a kill in between leaves rubbish to sweep, not half an engine
            root = self.root / ".staging"
            root.mkdir(exist_ok=True)
            doomed = root / uuid.uuid4().hex
            target = self.root / name / str(version)
            target.chmod(0o755)
            target.rename(doomed)
            files.fsync_dir(target.parent)
            write_default(self.root / name, default, history, state.last_version, state.promoted_at)
            _remove_tree(doomed)

    def _to_remove(self, reference: str) -> tuple[str, int]:
        """Resolve without reading the manifest: a damaged engine must be removable."""
        name, _, version = reference.partition("@")
        versions = self._versions(name) if name in self._names() else []
        if version.isdecimal() and int(version) in versions:
            return name, int(version)
        if not version and len(versions) == 1:
            return name, versions[0]
        if not version and len(versions) > 1:
            raise StoreError(f"{name}: {len(versions)} versions ({versions}); expected {name}@VERSION")
        manifest = self.resolve(reference).manifest
        return manifest.name, manifest.version

    def _names(self) -> Sequence[str]:
        check_home(StoreError, self.root.parent)
        return sorted(
            path.name for path in self.root.glob("[!.]*") if path.is_dir() and self._versions(path.name)
        )

    def _versions(self, name: str) -> Sequence[int]:
        folders = (self.root / name).glob("*")
        return sorted(int(path.name) for path in folders if path.name.isdecimal() and path.is_dir())

    def _read(self, name: str, version: int) -> StoredEngine:
        path = self.root / name / str(version)
        return StoredEngine(path, read_record(path / MANIFEST_FILE, EngineManifest))

    def _resolve_version(self, name: str, version: str) -> StoredEngine:
        versions = self._versions(name)
        wanted = self._default(name).default if not version else None
        if version.isdecimal():
            wanted = int(version)
        if wanted is None or wanted not in versions:
            raise EngineNotFoundError(
                f"engine {name}@{version}: not found; {name} has versions {', '.join(map(str, versions))}",
                f"trtb engines list {name}",
            )
        return self._read(name, wanted)

    def _default(self, name: str) -> DefaultRecord:
        return read_default(self.root / name, self._versions(name))

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        try:
            with tell_disk_errors(StoreError, self.root, _WRITE_HINT):
                lock = files.lock(self.root / ".lock", self._lock_timeout_s)
                lock.acquire()
        except filelock.Timeout as exc:
            raise StoreLockedError(
                f"{self.root}: another process has been changing the store for {self._lock_timeout_s:g} s",
                "wait for the build or command that does, then try again",
            ) from exc
        try:
            with tell_disk_errors(StoreError, self.root, _WRITE_HINT):
                yield
        finally:
            lock.release()

    def _sweep(self, root: Path) -> None:
        """Remove what dead processes left; their lock files can be taken, those of the living cannot."""
        for token in {path.stem for path in root.iterdir()}:
            alive = files.lock(root / f"{token}.lock", timeout_s=0)
            with contextlib.suppress(filelock.Timeout), alive:
                _remove_tree(root / token)
                (root / f"{token}.lock").unlink(missing_ok=True)


def check_engine_name(name: str) -> str:
    """Return a name that is safe as one path component.

    Raises:
        ConfigError: It is not.
    """
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"engine name {name!r}; expected letters, digits, '.', '_' and '-', not first a sign"
        )
    return name


def _remove_tree(path: Path) -> None:
    if not path.exists():
        return
    for folder, _, _ in os.walk(path):
        Path(folder).chmod(0o755)  # the folders of a committed engine are read-only
    shutil.rmtree(path)
