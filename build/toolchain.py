"""The toolchains below TRTB_HOME: install, find, verify, list and remove environments of their own.

An environment cannot be moved, so it is made at its place, `toolchains/<name>/<digest of its pins>/`, and
counts from the moment that its marker is written, which is the last thing an install does.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import platform
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import filelock

from trtb.build import files
from trtb.build.compatibility import TOOLCHAINS, ToolchainSpec
from trtb.build.errors import ConfigError, StoreError, ToolchainError, ToolchainMissingError
from trtb.build.manifest import Record, read_record, write_record
from trtb.build.toolchain_install import check, fill, python_of
from trtb.build.toolchain_pins import pins_digest, read_pins
from trtb.build.worker import WorkerReply

MARKER_FILE = "toolchain.json"
LOG_FILE = "install.log"
LOCK_TIMEOUT_S = 2 * 3600.0  # another process may be downloading it

Progress = Callable[[str, str], None]


@dataclass(frozen=True, slots=True)
class Toolchain:
    """An installed environment."""

    name: str
    path: Path
    python: Path
    versions: dict[str, str]  # of every distribution in it

    @property
    def decisive_versions(self) -> dict[str, str]:
        """Return the versions that shape what the toolchain makes."""
        return decisive_versions(self.name, self.versions)


@dataclass(frozen=True, slots=True)
class ToolchainStatus:
    """One row of the list: an environment that is there, or one that could be."""

    name: str
    purpose: str
    state: Literal["installed", "missing", "outdated"]  # outdated: of other pins, or of another Python
    path: Path | None = None
    python: str = ""
    size_bytes: int = 0
    installed_at: str = ""
    versions: dict[str, str] | None = None


class _Marker(Record):
    schema_version: Literal[1] = 1
    name: str
    python: str
    versions: dict[str, str]
    cuda: str | None  # that torch was built for
    size_bytes: int
    duration_s: float
    installed_at: str  # UTC, ISO 8601


def get_spec(name: str) -> ToolchainSpec:
    """Return what a toolchain consists of.

    Raises:
        ConfigError: There is no such toolchain.
    """
    if name not in TOOLCHAINS:
        raise ConfigError(
            f"toolchain {name!r}; expected one of {', '.join(TOOLCHAINS)}", "trtb toolchain list"
        )
    return TOOLCHAINS[name]


def decisive_versions(name: str, versions: Mapping[str, str]) -> dict[str, str]:
    """Return the versions that shape what a toolchain makes, by distribution."""
    return {each: versions[each] for each in get_spec(name).decisive if each in versions}


def get_toolchain(name: str, home: Path) -> Toolchain:
    """Return the installed toolchain of that name.

    Raises:
        ConfigError: There is no such toolchain.
        ToolchainMissingError: It is not installed, or was installed for other pins or another Python.
    """
    path = toolchain_path(name, home)
    if (marker := _read_marker(path)) is not None and python_of(path).exists():
        return Toolchain(name, path, python_of(path), marker.versions)
    others = [other for other in _environments(path.parent) if other != path]
    reason = "is of other pins or another Python" if others else "is not installed"
    raise ToolchainMissingError(f"toolchain {name}: {reason}", f"trtb toolchain install {name}")


def toolchain_path(name: str, home: Path) -> Path:
    """Return where the environment of the current pins, for this Python, is or would be."""
    return home / "toolchains" / name / pins_digest(read_pins(get_spec(name).pins))


def install(name: str, home: Path, progress: Progress) -> Toolchain:
    """Install a toolchain, or return the one that is there; what an interrupted install left is removed.

    Raises:
        ConfigError: There is no such toolchain.
        ToolchainError: Too little disk, or a step failed; its log is kept beside.
    """
    spec = get_spec(name)
    path = toolchain_path(name, home)
    with _locked(path.parent, progress):
        with contextlib.suppress(ToolchainMissingError):
            found = get_toolchain(name, home)
            progress("done", f"{name} is installed already")
            return found
        for left in path.parent.iterdir():
            if left.is_dir() and (left == path or _read_marker(left) is None):
                _remove(left)
        _check_disk(spec, path.parent)
        started_ns = time.monotonic_ns()
        try:
            reply = _fill_logged(spec, path, progress)
            _publish(spec, path, reply, started_ns)
        except BaseException:
            _remove(path)
            raise
    progress("done", f"{name} in {(time.monotonic_ns() - started_ns) / 1e9:.0f} s")
    return get_toolchain(name, home)


def verify(name: str, home: Path, progress: Progress) -> Toolchain:
    """Check again that a toolchain is what its pins say, and that its libraries load.

    Raises:
        ToolchainMissingError: It is not installed.
        ToolchainError: It is not, or they do not.
    """
    found = get_toolchain(name, home)
    with (
        tempfile.TemporaryDirectory(prefix="trtb-") as work,
        Path(os.devnull).open("w", encoding="utf-8") as log,  # an error has the last lines
    ):
        reply = check(get_spec(name), found.path, Path(work), log, progress)
    return Toolchain(name, found.path, found.python, reply["versions"])


def remove(name: str, home: Path, *, only_outdated: bool = False) -> Sequence[Path]:
    """Remove every environment of a toolchain, or only those of other pins; returns what was removed.

    Raises:
        ConfigError: There is no such toolchain.
        ToolchainMissingError: Nothing of it is there.
        ToolchainError: Another process is installing it.
    """
    current = toolchain_path(name, home)
    doomed = [path for path in _folders(current.parent) if not (only_outdated and path == current)]
    if not doomed:
        kind = "outdated environment" if only_outdated else "environment"
        raise ToolchainMissingError(f"toolchain {name}: no {kind} in {current.parent}", "trtb toolchain list")
    with _locked(current.parent, None):
        for path in doomed:
            (path / MARKER_FILE).unlink(missing_ok=True)  # first no toolchain any more, then gone
            _remove(path)
    return doomed


def list_toolchains(home: Path) -> Sequence[ToolchainStatus]:
    """Return every toolchain that trtb knows and every environment that is there."""
    rows = []
    for spec in TOOLCHAINS.values():
        current = toolchain_path(spec.name, home)
        environments = _environments(current.parent)
        if current not in environments:
            rows.append(ToolchainStatus(spec.name, spec.purpose, "missing"))
        for path in environments:
            marker = _read_marker(path)
            assert marker is not None
            rows.append(
                ToolchainStatus(
                    spec.name,
                    spec.purpose,
                    "installed" if path == current else "outdated",
                    path,
                    marker.python,
                    marker.size_bytes,
                    marker.installed_at,
                    marker.versions,
                )
            )
    return rows


def _fill_logged(spec: ToolchainSpec, path: Path, progress: Progress) -> WorkerReply:
    kept_log = path.parent / LOG_FILE
    with kept_log.open("w", encoding="utf-8") as log:
        try:
            reply = fill(spec, path, log, progress)
        except ToolchainError as exc:
            raise ToolchainError(exc.message, f"{exc.hint}; the whole log: {kept_log}") from exc
        except OSError as exc:
            raise ToolchainError(
                f"{spec.name}: {path}: {exc.strerror}", f"the log so far: {kept_log}"
            ) from exc
    result = reply["result"]
    built_for = (
        f"built for CUDA {result['cuda']}, {result['num_gpus']} GPUs" if result["cuda"] else "for CPUs"
    )
    if "torch" in spec.decisive:
        progress("check", f"torch {reply['versions'].get('torch', 'absent')}, {built_for}")
    if spec.programs:
        progress("check", f"{', '.join(spec.programs)}: starts")
    return reply


def _publish(spec: ToolchainSpec, path: Path, reply: WorkerReply, started_ns: int) -> None:
    _remove(path / "tmp")
    (path.parent / LOG_FILE).replace(path / LOG_FILE)
    os.sync()  # tens of thousands of files: one by one would take longer than the install
    marker = _Marker(
        name=spec.name,
        python=platform.python_version(),
        versions=reply["versions"],
        cuda=reply["result"]["cuda"],
        size_bytes=_size_bytes(path),
        duration_s=(time.monotonic_ns() - started_ns) / 1e9,
        installed_at=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
    )
    write_record(path / MARKER_FILE, marker)


def _check_disk(spec: ToolchainSpec, folder: Path) -> None:
    free_bytes = shutil.disk_usage(folder).free
    if free_bytes < spec.free_bytes:
        raise ToolchainError(
            f"{folder}: {free_bytes / 1e9:.1f} GB free; {spec.name} needs {spec.free_bytes / 1e9:.1f} GB",
            "free some space, or set TRTB_HOME to a folder on a larger disk",
        )


def _environments(root: Path) -> list[Path]:
    """Return the environments of one toolchain whose install was finished."""
    return [path for path in _folders(root) if _read_marker(path) is not None]


def _folders(root: Path) -> list[Path]:
    return sorted(path for path in root.glob("*") if path.is_dir())


def _read_marker(path: Path) -> _Marker | None:
    try:
        return read_record(path / MARKER_FILE, _Marker)
    except StoreError:  # not there: no install was finished; not readable: none that this trtb can use
        return None


def _size_bytes(path: Path) -> int:
    return sum(Path(folder, name).lstat().st_size for folder, _, names in os.walk(path) for name in names)


def _remove(path: Path) -> None:
    if path.exists():
        shutil.rmtree(path)


@contextlib.contextmanager
def _locked(root: Path, progress: Progress | None) -> Iterator[None]:
    """Hold the one lock of a toolchain's folder; without `progress`, do not wait for another's."""
    lock = files.lock(root / ".lock", timeout_s=0)
    try:
        lock.acquire()
    except filelock.Timeout as exc:
        if progress is None:
            raise ToolchainError(f"{root}: another process is working on it", "wait for it to end") from exc
        progress("wait", "another process is installing it")
        try:
            lock.acquire(timeout=LOCK_TIMEOUT_S)
        except filelock.Timeout as timeout:
            raise ToolchainError(
                f"{root}: another process has been working on it for {LOCK_TIMEOUT_S / 3600:g} h",
                "end that process, then try again",
            ) from timeout
    try:
        yield
    finally:
        lock.release()
