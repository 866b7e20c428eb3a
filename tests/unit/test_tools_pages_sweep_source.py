"""Sweeps on disk become views, with the best point by a rule and what was measured."""

from __future__ import annotations

import pytest
from fakes.sweeps import fake_plan, fake_point

from trtb.build.errors import ConfigError
from trtb.tools.pages.sweep_source import _identity, view_of
from trtb.tools.sweeping.store import SweepFolder


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Return the folder of a sweep of two points, one of them failed, of an engine that the store lacks."""
    monkeypatch.setenv("TRTB_HOME", str(tmp_path / "home"))
    found = SweepFolder(tmp_path / "sweep")
    found.path.mkdir()
    found.begin(fake_plan(values=[4.0, 16.0]))
    for planned, state in zip(found.read_plan().points(), ("ok", "failed"), strict=True):
        point = fake_point(planned.value, state=state)
        found.write_point(point.model_copy(update={"name": planned.name}))
    return found.path


def test_a_sweep_on_disk_is_shown_with_its_best_and_its_files(folder):
    view = view_of(folder)
    assert view.name == "smollm2@1"
    assert [point.state for point in view.points] == ["ok", "failed"]
    assert view.best == view.points[0].name
    assert "the most output tokens/s" in view.rule
    assert [file.removeprefix(f"{folder}/") for file in view.files] == ["sweep.json", "sweep.csv", "points"]


def test_what_was_measured_is_told(folder):
    identity = dict(view_of(folder).identity)
    assert identity["engine"] == "smollm2@1"
    assert identity["perf_analyzer"] == "2.59.1"
    assert identity["concurrency"] == "4, 16"
    assert identity["requests of a run"] == "as the load needs, after 0 to warm up"
    assert "quantisation" not in identity  # the engine is not in the store any more


def test_what_every_server_was_given_is_told(folder):
    points = SweepFolder(folder).points()
    plan = fake_plan(values=[4.0], num_kv_blocks=64, deterministic=True)
    settings = dict(_identity(plan, points))["settings"]
    assert settings == "num_kv_blocks 64, deterministic True, input_tokens 128, output_tokens 32"


def test_a_rule_without_its_limit_chooses_nothing(folder):
    assert view_of(folder, rule="goodput").best is None


def test_another_folder_is_refused_with_the_reason(tmp_path):
    with pytest.raises(ConfigError, match="sweep"):
        view_of(tmp_path)
