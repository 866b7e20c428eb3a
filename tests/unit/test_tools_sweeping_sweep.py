"""The sweep goes on past what fails: a server that is gone, a perf_analyzer that forgets its export."""

from __future__ import annotations

import contextlib
from pathlib import Path
from types import SimpleNamespace

import pytest
from fakes.manifest import fake_manifest
from fakes.sweeps import fake_plan, fake_run

from trtb.build.store import StoredEngine
from trtb.runner.errors import ServerLostError
from trtb.tools.sweeping import sweep
from trtb.tools.sweeping.perf_analyzer import PerfAnalyzer, RunFailure
from trtb.tools.sweeping.store import SweepFolder
from trtb.tools.sweeping.sweep import SweepJob, run_sweep
from trtb.tools.sweeping.target import TargetOptions

NO_EXPORT = RunFailure("no_export", "perf_analyzer ended with status 0, and wrote no export")
REFUSED = RunFailure("request_error", "perf_analyzer ended with status 99: bad")


class FakeTarget:
    """A server that is there until `lives` points have begun."""

    endpoint = "127.0.0.1:8001"
    servers = ()

    def __init__(self, lives: int) -> None:
        self._lives = lives
        self.stored = SimpleNamespace(manifest=fake_manifest())

    def fault(self) -> None:
        return None

    def ensure_alive(self, _tell: object) -> None:
        self._lives -= 1
        if self._lives < 0:
            raise ServerLostError("the server does not answer")


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SweepJob:
    """Return a sweep of two points, two runs each, whose runs all measure the same."""
    plan = fake_plan(values=[1.0, 4.0], repeats=2)
    folder = SweepFolder(tmp_path / "sweep")
    with folder.locked():
        folder.begin(plan)
    stored = StoredEngine(tmp_path / "engine", fake_manifest())
    monkeypatch.setattr(sweep._Measurement, "_entries", lambda *_: [])
    monkeypatch.setattr(sweep._Measurement, "_read_run", lambda *_: fake_run(4))
    analyzer = PerfAnalyzer(Path("/bin/perf_analyzer"), "2.51.0", {})
    return SweepJob(plan, folder, stored, analyzer, TargetOptions(tmp_path), None, lambda _: None)


def measure(monkeypatch: pytest.MonkeyPatch, job: SweepJob, *ends: RunFailure | None, lives: int = 9):
    """Run the sweep; `ends` are those of perf_analyzer, and then all is well."""
    left = list(ends)
    monkeypatch.setattr(sweep, "_target", lambda *_: contextlib.nullcontext(FakeTarget(lives)))
    monkeypatch.setattr(sweep, "run_command", lambda *_: left.pop(0) if left else None)
    return [(point.state, point.why) for point in run_sweep(job)]


def test_a_server_that_is_gone_fails_the_points_that_are_left_and_the_sweep_ends(monkeypatch, job):
    assert measure(monkeypatch, job, lives=1) == [("ok", ""), ("failed", "the server does not answer")]


def test_a_server_that_was_never_there_is_an_error(monkeypatch, job):
    @contextlib.contextmanager
    def nobody(*_: object):
        raise ServerLostError("nobody listens")
        yield

    monkeypatch.setattr(sweep, "_target", nobody)
    with pytest.raises(ServerLostError):
        run_sweep(job)
    assert job.folder.points() == []


def test_a_run_without_an_export_is_done_once_more_and_only_once(monkeypatch, job):
    assert measure(monkeypatch, job, NO_EXPORT) == [("ok", ""), ("ok", "")]
    for point in job.folder.points():
        (job.folder.path / "points" / f"{point.name}.json").unlink()
    assert measure(monkeypatch, job, NO_EXPORT, NO_EXPORT) == [("failed", NO_EXPORT.why), ("ok", "")]


def test_a_run_that_failed_otherwise_is_not_repeated(monkeypatch, job):
    assert measure(monkeypatch, job, REFUSED) == [("failed", REFUSED.why), ("ok", "")]
