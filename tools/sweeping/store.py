"""The folder of a sweep: its plan, its points, and what they were computed from.

A point is one file that appears whole when its runs are over, so that a sweep that was killed goes on
where it was, and a finished point is never measured again.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import filelock

from trtb.build import files
from trtb.build.disk_errors import tell_disk_errors
from trtb.build.errors import ConfigError, StoreError
from trtb.build.manifest import read_record, write_record
from trtb.runner.errors import RunLockedError, RunMismatchError
from trtb.tools.sweeping.plan import SweepPlan
from trtb.tools.sweeping.point import SweepPoint

PLAN_FILE: Final = "sweep.json"
CSV_FILE: Final = "sweep.csv"
PAGE_FILE: Final = "sweep.html"


class SweepFolder:
    """A sweep on disk."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def work_dir(self) -> Path:
        """Return where the sweep's servers and perf_analyzer work; it goes at the end."""
        return self.path / "work"

    def export_path(self, name: str, run: int) -> Path:
        """Return where a run's times are kept."""
        return self.path / "exports" / f"{name}.{run}.json"

    def log_path(self, name: str) -> Path:
        """Return where perf_analyzer's last words are kept, of a point that it did not measure."""
        return self.path / "logs" / f"{name}.log"

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the sweep for this process.

        Raises:
            RunLockedError: Another process is at it.
            ConfigError: There can be no folder there, or nothing can be written into it.
        """
        try:
            with tell_disk_errors(ConfigError, self.path, "choose another folder with -o"):
                lock = files.lock(self.path / ".lock", timeout_s=0)
                lock.acquire()
        except filelock.Timeout as exc:
            raise RunLockedError(
                f"{self.path}: another process is running this sweep", "wait for it, or choose another -o"
            ) from exc
        try:
            yield
        finally:
            lock.release()

    def begin(self, plan: SweepPlan) -> None:
        """Write the plan, or see that the one on disk is the same.

        Raises:
            RunMismatchError: The folder holds another sweep.
            ConfigError: The folder holds something else.
        """
        try:
            found = self.read_plan()
        except ConfigError:
            if any(entry.name != ".lock" for entry in self.path.iterdir()):
                raise
            write_record(self.path / PLAN_FILE, plan)
            return
        if differences := differences_of(found, plan):
            raise RunMismatchError(
                f"{self.path}: holds a sweep of other settings ({'; '.join(differences)})",
                "repeat it with the same ones to resume it, or choose another folder with -o",
            )

    def read_plan(self) -> SweepPlan:
        """Return the plan.

        Raises:
            ConfigError: This is no folder of a sweep.
        """
        if not (self.path / PLAN_FILE).is_file():
            raise ConfigError(
                f"{self.path}: no {PLAN_FILE} in it; expected the folder of a sweep", "trtb sweep -o FOLDER"
            )
        return read_record(self.path / PLAN_FILE, SweepPlan)

    def points(self) -> list[SweepPoint]:
        """Return the points that are finished, in the plan's order.

        Raises:
            StoreError: One of them is damaged.
        """
        done = []
        for planned in self.read_plan().points():
            with contextlib.suppress(FileNotFoundError):
                done.append(self._read_point(planned.name))
        return done

    def set_aside_damaged(self) -> list[Path]:
        """Rename the files of points that cannot be read, so that these are measured; returns the new names.

        Raises:
            StoreError: There is something else than a file in a point's place.
        """
        aside = []
        for planned in self.read_plan().points():
            path = self._point_path(planned.name)
            if path.exists() and not path.is_file():
                raise StoreError(f"{path}: no file; expected that of a point", "move it away")
            try:
                self._read_point(planned.name)
            except FileNotFoundError:
                continue
            except StoreError:
                aside.append(path.rename(path.with_name(f"{path.name}.damaged")))
        return aside

    def has_point(self, name: str) -> bool:
        """Say whether a point is finished."""
        return self._point_path(name).is_file()

    def write_point(self, point: SweepPoint) -> None:
        """Keep a finished point; it is durable when this returns."""
        write_record(self._point_path(point.name), point)

    def remove_failed(self) -> int:
        """Remove the points that are not ok, so that they are measured again; returns how many."""
        doomed = [point for point in self.points() if not point.is_ok]
        for point in doomed:
            self._point_path(point.name).unlink()
        return len(doomed)

    def clean(self) -> None:
        """Remove what only a sweep that runs needs."""
        shutil.rmtree(self.work_dir, ignore_errors=True)

    def _point_path(self, name: str) -> Path:
        return self.path / "points" / f"{name}.json"

    def _read_point(self, name: str) -> SweepPoint:
        path = self._point_path(name)
        if not path.exists():
            raise FileNotFoundError(path)
        try:
            point = read_record(path, SweepPoint)
            if point.name != name:
                raise StoreError(f"{path}: of the point {point.name!r}; expected {name!r}")
        except IsADirectoryError as exc:
            raise StoreError(f"{path}: a folder; expected the file of a point", "move it away") from exc
        except StoreError as exc:
            raise StoreError(exc.message, "with the sweep's own command the point is measured again") from exc
        return point


def differences_of(found: SweepPlan, wanted: SweepPlan) -> list[str]:
    """Return what two plans differ in, as a person reads it."""
    return [
        f"{name} {before!r}, now {now!r}"
        for name, before, now in (
            (name, getattr(found, name), getattr(wanted, name)) for name in SweepPlan.model_fields
        )
        if before != now
    ]
