"""A run on disk: its folder beside the output, its record, its lock, and whether it may be resumed."""

from __future__ import annotations

import datetime
import os
import platform
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import filelock
from pydantic import BaseModel, ConfigDict, Field

from trtb.build import files
from trtb.build.compatibility import OPENVINO_TOOLCHAIN, PYTRITON, installed_versions
from trtb.runner import ledger
from trtb.runner.errors import (
    LedgerCorruptError,
    LedgerError,
    OutputExistsError,
    RunLockedError,
    RunMismatchError,
)

SCHEMA_VERSION: Final = 1
LOCK_FILE = "lock"
MAX_NAME_BYTES = 200  # file systems take 255, and the names of the other files are longer


@dataclass(frozen=True, slots=True)
class RunPaths:
    """Every file of a run, from its output's path."""

    output: Path

    @property
    def folder(self) -> Path:
        """Return the run's own folder."""
        return self.output.with_name(self.output.name + ".run")

    @property
    def failed(self) -> Path:
        """Return the failures' output lines."""
        return self._sibling("failed")

    @property
    def retry(self) -> Path:
        """Return the failures' request lines."""
        return self._sibling("retry")

    @property
    def record(self) -> Path:
        """Return the run's record."""
        return self.folder / "run.json"

    @property
    def ledger(self) -> Path:
        """Return the ledger."""
        return self.folder / "ledger.db"

    @property
    def report(self) -> Path:
        """Return the report's JSON."""
        return self.folder / "report.json"

    @property
    def log(self) -> Path:
        """Return the run's log."""
        return self.folder / "run.log"

    @property
    def server_log(self) -> Path:
        """Return the log of the server that the run started."""
        return self.folder / "server.log"

    @property
    def server_dir(self) -> Path:
        """Return the working folder of the server that the run started."""
        return self.folder / "server"

    def _sibling(self, kind: str) -> Path:
        return self.output.with_name(f"{self.output.stem}.{kind}{self.output.suffix}")


class RunRecord(BaseModel):
    """What a run is, and how far it came: `run.json`."""

    model_config = ConfigDict(strict=True, extra="forbid")

    schema_version: Literal[1] = SCHEMA_VERSION
    run_id: str
    state: Literal["running", "interrupted", "finished"]
    input_path: str
    input_sha256: str
    input_bytes: int
    total: int  # requests of the input, or the limit
    engine_id: str
    engine: str  # name@version
    settings: dict[str, str | int | float | bool | None]  # what decides the answers; a resume must agree
    job: dict[str, str | int | float | bool | list[str] | None]  # every option, resolved
    versions: dict[str, str]
    host: str
    created_at: str
    created_s: int  # the same, in seconds since the epoch; every answer's "created"
    updated_at: str
    num_starts: int = 1
    followed: list[str] = Field(default_factory=list)  # every file that the run's results were appended to

    def has_followed(self, path: Path) -> bool:
        """Say whether what stands in a file is the run's own."""
        known = set(map(Path, self.followed))
        if before := self.job.get("follow"):  # all that a run of an older version tells
            known.add(Path(str(before)).resolve())
        return path.resolve() in known

    def differences(self, other: RunRecord) -> list[str]:
        """Return what makes the two runs different, one line each."""
        pairs: list[tuple[str, object, object]] = [
            ("input (sha256)", self.input_sha256, other.input_sha256),
            ("requests", self.total, other.total),
            ("engine", f"{self.engine} {self.engine_id[:12]}", f"{other.engine} {other.engine_id[:12]}"),
        ]
        keys = sorted({*self.settings, *other.settings})
        pairs += [(key, self.settings.get(key), other.settings.get(key)) for key in keys]
        return [f"{name}: was {old}, now {new}" for name, old, new in pairs if old != new]


def now_iso() -> str:
    """Return the time, UTC, ISO 8601, to the second."""
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")


def host_name() -> str:
    """Return this machine's name."""
    return platform.node()


def check_output(input_path: Path, output: Path, follow: Path | None) -> None:
    """Refuse an output that would overwrite the input, or another file of the run.

    Raises:
        OutputExistsError: Two of the paths are one file, also through links.
    """
    _check_name(output)
    if follow is not None and follow.exists() and not follow.is_file():
        raise OutputExistsError(f"{follow}: not a regular file; expected a file to append to")
    paths = RunPaths(output)
    if follow is not None and follow.resolve().is_relative_to(paths.folder.resolve()):
        raise OutputExistsError(f"{follow}: inside the run's own folder; expected a file of its own")
    taken: list[tuple[str, Path]] = [("the input", input_path)]
    named = [("the output", output), ("the failed file", paths.failed), ("the retry file", paths.retry)]
    if follow is not None:
        named.append(("the followed file", follow))
    for name, path in named:
        for other_name, other in taken:
            if _same_file(path, other):
                raise OutputExistsError(
                    f"{path}: {name} is {other_name}; expected a file of its own", "choose another -o"
                )
        taken.append((name, path))
    if output.is_dir():
        raise OutputExistsError(f"{output}: is a folder; expected a file", "choose another -o")
    if output.exists() and not output.is_file():
        raise OutputExistsError(f"{output}: not a regular file; expected one, or none", "choose another -o")
    if not os.access(_existing_parent(output), os.W_OK):
        raise OutputExistsError(f"{output.parent}: cannot be written; expected a writable folder")


def _check_name(output: Path) -> None:
    """Refuse a name that is none, or has no room for those made from it."""
    num_bytes = len(os.fsencode(output.name))
    if not output.name or num_bytes > MAX_NAME_BYTES:
        raise OutputExistsError(
            f"{str(output)[:80]!r}: the name has {num_bytes} bytes; expected 1 to {MAX_NAME_BYTES}",
            "choose another -o",
        )


def _same_file(path: Path, other: Path) -> bool:
    if path.exists() and other.exists():
        return path.samefile(other)
    return path.resolve() == other.resolve()


def _existing_parent(path: Path) -> Path:
    parent = path.resolve().parent
    while not parent.exists():
        parent = parent.parent
    return parent


class RunFolder:
    """A run's folder, held by one process."""

    def __init__(self, output: Path) -> None:
        self.paths = RunPaths(output)
        self._lock: filelock.BaseFileLock | None = (
            None  # made when it is taken: a refused run leaves no folder
        )

    def acquire(self) -> None:
        """Take the run's lock.

        Raises:
            RunLockedError: Another process has it.
        """
        lock = files.lock(self.paths.folder / LOCK_FILE, timeout_s=0)
        try:
            self.paths.folder.mkdir(parents=True, exist_ok=True)
        except OSError as exc:
            raise OutputExistsError(
                f"{self.paths.folder}: {exc.strerror}; expected a folder that can be written",
                "choose another -o",
            ) from exc
        try:
            lock.acquire()
        except filelock.Timeout as exc:
            raise RunLockedError(
                f"{self.paths.folder}: another process is running this run", "wait for it, or stop it"
            ) from exc
        self._lock = lock

    def release(self) -> None:
        """Give the lock back."""
        assert self._lock
        self._lock.release()

    def read(self) -> RunRecord | None:
        """Return the record, or None where no run was begun here.

        Raises:
            LedgerError: The record cannot be read.
            LedgerCorruptError: It is no record.
        """
        try:
            return RunRecord.model_validate_json(self.paths.record.read_bytes())
        except FileNotFoundError:
            return None
        except OSError as exc:
            raise LedgerError(
                f"{self.paths.record}: {exc.strerror}; expected a run's record",
                "give the folder of a run, with a run.json that can be read",
            ) from exc
        except ValueError as exc:
            raise LedgerCorruptError(
                f"{self.paths.record}: not a run's record of schema version {SCHEMA_VERSION}",
                "finish the run with the version of trtb that began it, or use --overwrite",
            ) from exc

    def check_free(self) -> None:
        """Refuse an output that is there, unless it is that of a run to go on with.

        Raises:
            OutputExistsError: The run is finished, or the output is not a run's.
        """
        found = self.read()
        if found is not None and found.state == "finished":
            raise OutputExistsError(
                f"{self.paths.output}: this run is finished",
                f"see it: trtb report {self.paths.folder}; failures again: trtb retry {self.paths.folder}; "
                "all again: --overwrite",
            )
        if found is None and self.paths.output.exists():
            raise OutputExistsError(
                f"{self.paths.output}: exists, and no run of ours is beside it; nothing was run",
                "choose another -o, or replace it with --overwrite",
            )

    def write(self, record: RunRecord) -> None:
        """Write the record; it is durable when this returns."""
        record.updated_at = now_iso()
        files.write_atomic(self.paths.record, record.model_dump_json(indent=2).encode() + b"\n")

    def begin(self, wanted: RunRecord, *, overwrite: bool) -> tuple[RunRecord, bool]:
        """Begin a run, or resume the one that is here; returns its record and whether it is resumed.

        Raises:
            RunMismatchError: The run here was begun with something else.
        """
        if overwrite:
            self.remove()
        found = self.read()
        if found is None:
            self.write(wanted)
            return wanted, False
        if differences := found.differences(wanted):
            raise RunMismatchError(
                f"{self.paths.folder}: begun with something else: {'; '.join(differences)}",
                "choose another -o, or begin anew with --overwrite",
            )
        ledger.check_integrity(self.paths.ledger)
        found.state = "running"
        found.num_starts += 1
        found.job = wanted.job
        found.followed = sorted({*found.followed, *wanted.followed})
        self.write(found)
        return found, True

    def remove(self) -> None:
        """Remove all of the run but its lock, and what it has published."""
        for path in self.paths.folder.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            elif path.name != LOCK_FILE:
                path.unlink()
        for path in (self.paths.output, self.paths.failed, self.paths.retry):
            path.unlink(missing_ok=True)


def versions() -> dict[str, str]:
    """Return the versions of everything that has a part in an answer."""
    pinned = [pin.distribution for pin in (*OPENVINO_TOOLCHAIN, PYTRITON)]
    names = ("trtb", *pinned, "transformers")
    return {"python": platform.python_version(), **installed_versions(names)}
