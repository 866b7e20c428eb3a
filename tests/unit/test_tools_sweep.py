"""`trtb sweep`: what --show heeds and refuses, and how a measurement ends."""

from __future__ import annotations

import errno
from pathlib import Path
from types import SimpleNamespace

import pytest
from fakes.sweeps import fake_plan, fake_point
from typer.testing import CliRunner

from trtb.build.errors import ConfigError, StoreError
from trtb.tools.cli import app
from trtb.tools.sweep import _measure
from trtb.tools.sweeping import sweep
from trtb.tools.sweeping.store import SweepFolder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    found = SweepFolder(tmp_path / "sweep")
    with found.locked():
        found.begin(fake_plan(values=[4.0], axes={}))
    found.write_point(fake_point(4).model_copy(update={"name": "concurrency-4"}))
    return found.path


def test_show_refuses_the_options_of_a_measurement(folder: Path):
    done = CliRunner().invoke(app, ["sweep", "--show", str(folder), "--concurrency", "1", "--seed", "3"])
    assert done.exit_code == 2
    assert "--concurrency, --seed: with --show" in done.stderr


def test_show_heeds_its_own(folder: Path):
    done = CliRunner().invoke(app, ["sweep", "--show", str(folder), "--best", "throughput", "--json"])
    assert done.exit_code == 0, done.stderr
    assert '"best": "concurrency-4"' in done.stdout


def measure(folder: Path, html: Path | None = None) -> int:
    found = SweepFolder(folder)
    job = SimpleNamespace(folder=found, plan=found.read_plan().model_copy(update={"endpoint": "h:1"}))
    found.begin = lambda _: None  # type: ignore[method-assign]
    return _measure(job, "throughput", html, retry_failed=False, as_json=True)  # type: ignore[arg-type]


def test_a_disk_that_is_full_is_told_and_the_sweep_goes_on_later(monkeypatch, folder: Path):
    def fill(_job: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(sweep, "run_sweep", fill)
    with pytest.raises(StoreError, match="No space left"):
        measure(folder)


def test_a_page_that_cannot_be_is_refused_before_anything_is_measured(monkeypatch, folder: Path):
    def never(_job: object) -> None:
        raise AssertionError

    monkeypatch.setattr(sweep, "run_sweep", never)
    with pytest.raises(ConfigError, match="/proc/nope"):
        measure(folder, Path("/proc/nope/x.html"))
    (folder / "sweep.html").mkdir()
    with pytest.raises(ConfigError, match="is a folder"):
        measure(folder)


def test_a_damaged_point_is_measured_again_and_what_failed_has_its_way_out(monkeypatch, folder, capsys):
    (folder / "points" / "concurrency-4.json").write_text("{")

    def fail(job: SimpleNamespace):
        assert not job.folder.has_point("concurrency-4")
        point = fake_point(4, state="failed", why="gone").model_copy(update={"name": "concurrency-4"})
        job.folder.write_point(point)
        return [point]

    monkeypatch.setattr(sweep, "run_sweep", fail)
    assert measure(folder) == 1
    told = capsys.readouterr().err
    assert "concurrency-4.json.damaged: damaged; its point is measured again" in told
    assert "--retry-failed" in told
