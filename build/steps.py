"""The finished steps of builds, kept until the engine is in the store: a killed build resumes after the last.

Each step is a folder named by the hash of everything that shapes its files, so builds that begin alike
share a step: four quantisations of one checkpoint convert it once. A step's folder appears by one rename
and is hashed again before it is used.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO

import filelock

from trtb.build import files
from trtb.build.errors import StoreError, StoreLockedError
from trtb.build.manifest import FileEntry, Record, StepRecord, changed_files, file_entries, read_record
from trtb.build.manifest import write_record as write_json_record

STEP_SCHEMA = 1
LOCK_TIMEOUT_S = 24 * 3600.0  # another build may be quantising a large model

Progress = Callable[[str, str], None]


class _Finished(Record):
    """What stands beside a finished step's folder: `<step>.json`."""

    name: str
    inputs: str  # canonical JSON; a person can read why two steps differ
    files: list[FileEntry]
    duration_s: float
    finished_at: str


class BuildSteps:
    """The steps of one build; those it used stay locked until `release`."""

    def __init__(
        self, home: Path, log: IO[str], tell: Progress, *, lock_timeout_s: float = LOCK_TIMEOUT_S
    ) -> None:
        self.home = home
        self.root = steps_root(home)
        self.log = log
        self.step = "start"  # the last one told of; an error names it
        self.records: list[StepRecord] = []
        self._tell = tell
        self._lock_timeout_s = lock_timeout_s
        self._started_ns = time.monotonic_ns()
        self._held: dict[Path, filelock.BaseFileLock] = {}
        self._done: set[Path] = set()  # by this build, or found whole by it

    def say(self, step: str, detail: str) -> None:
        """Tell of what is going on, to the caller and to the build's log."""
        self.step = step
        elapsed_s = (time.monotonic_ns() - self._started_ns) / 1e9
        self.log.write(f"{elapsed_s:9.3f} s  {step}: {detail}\n")
        self.log.flush()
        self._tell(step, detail)

    def run(self, name: str, inputs: Mapping[str, object], produce: Callable[[Path], None]) -> Path:
        """Return the folder of a finished step; read it, never change it.

        Args:
            name: What the step is called; part of its folder's name.
            inputs: Everything that shapes the step's files, as JSON; a step before it by its files' hashes.
            produce: Fills the empty folder that it is given; called only where no build finished this step.

        Raises:
            StoreLockedError: Another build has been at this step for too long.
        """
        text = json.dumps({"schema": STEP_SCHEMA, "step": name, "inputs": inputs}, sort_keys=True)
        folder = self.root / f"{name}-{files.sha256_bytes(text.encode())[:16]}"
        if folder in self._done:
            return folder
        self._acquire(folder, name)
        if (finished := self._finished(folder)) is not None:
            self.say(name, f"finished before, in {finished.duration_s:.1f} s")
            self.records.append(StepRecord(name=name, duration_s=finished.duration_s, is_reused=True))
            self._done.add(folder)
            return folder
        started_ns = time.monotonic_ns()
        part = _part(folder)
        _remove(part)
        part.mkdir(parents=True)
        try:
            produce(part)
        except BaseException:
            _remove(part)
            raise
        duration_s = (time.monotonic_ns() - started_ns) / 1e9
        finished = _Finished(
            name=name,
            inputs=text,
            files=file_entries(part),
            duration_s=duration_s,
            finished_at=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="microseconds"),
        )
        write_json_record(_record(folder), finished)
        files.sync_rename(part, folder)
        self.records.append(StepRecord(name=name, duration_s=duration_s, is_reused=False))
        self._done.add(folder)
        return folder

    def release(self, *, keep: bool) -> None:
        """Let other builds have the steps; without `keep`, remove them first."""
        for folder, lock in self._held.items():
            if not keep:
                _record(folder).unlink(missing_ok=True)
                _remove(folder)
            lock.release()
        self._held.clear()
        self._done.clear()

    def _acquire(self, folder: Path, name: str) -> None:
        if folder not in self._held:
            waiting = "another build is at this step; waiting for it"
            self._held[folder] = acquire(_lock(folder), lambda: self.say(name, waiting), self._lock_timeout_s)

    def _finished(self, folder: Path) -> _Finished | None:
        if not (folder.is_dir() and _record(folder).is_file()):
            _remove(folder)
            return None
        try:
            finished = read_record(_record(folder), _Finished)
        except StoreError as exc:
            self.say(folder.name, f"{exc.message}; the step is done again")
            _remove(folder)
            return None
        if changed := changed_files(folder, finished.files):
            self.say(finished.name, f"{folder}: {changed[0]}; the step is done again")
            _remove(folder)
            return None
        return finished


def acquire(
    path: Path, on_wait: Callable[[], None], timeout_s: float = LOCK_TIMEOUT_S
) -> filelock.BaseFileLock:
    """Return the lock of that path, held; `on_wait` is called where another build has it.

    Raises:
        StoreLockedError: It had it for too long.
    """
    lock = files.lock(path, timeout_s=0)
    try:
        lock.acquire()
    except filelock.Timeout:
        on_wait()
        lock = files.lock(path, timeout_s=timeout_s)
        try:
            lock.acquire()
        except filelock.Timeout as exc:
            raise StoreLockedError(
                f"{path.with_suffix('')}: another build has been at this step for {timeout_s:g} s",
                "wait for it, or end it, then try again",
            ) from exc
    return lock


def steps_root(home: Path) -> Path:
    """Return the folder of finished steps: on the store's file system, out of its sight."""
    return home / "engines" / ".steps"


def step_files(folder: Path) -> list[list[str]]:
    """Return the files of a finished step with their hashes: what a step after it names as its input."""
    return [[entry.path, entry.sha256] for entry in read_record(_record(folder), _Finished).files]


def prune_steps(home: Path) -> int:
    """Remove every step that no build is using, finished or not, and return the bytes that were freed."""
    freed = 0
    root = steps_root(home)
    for stem in sorted({_stem(path) for path in root.glob("*")}):
        folder = root / stem
        with _try_lock(_lock(folder)) as is_free:
            if not is_free:
                continue
            for path in (folder, _part(folder)):
                freed += sum(each.stat().st_size for each in path.rglob("*") if each.is_file())
                _remove(path)
            _record(folder).unlink(missing_ok=True)
            # a build that opened this lock file meanwhile makes the step once more at worst
            _lock(folder).unlink(missing_ok=True)
    return freed


@contextlib.contextmanager
def _try_lock(path: Path) -> Iterator[bool]:
    lock = files.lock(path, timeout_s=0)
    try:
        lock.acquire()
    except filelock.Timeout:
        yield False
        return
    try:
        yield True
    finally:
        lock.release()


def _stem(path: Path) -> str:
    return path.name.split(".", 1)[0]


def _part(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.part")


def _record(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.json")


def _lock(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.lock")


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
