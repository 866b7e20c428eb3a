"""The folder of a sweep: what is finished stays, what differs is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from fakes.manifest import fake_manifest
from fakes.sweeps import fake_plan, fake_point

from trtb.build.errors import ConfigError, StoreError
from trtb.build.store import StoredEngine
from trtb.runner.errors import RunLockedError, RunMismatchError
from trtb.tools.sweeping.recommended import Recommendation, read_recommendation, recommend, why_not
from trtb.tools.sweeping.store import SweepFolder
from trtb.tools.sweeping.table import COLUMNS, rows_of, write_csv

PLAN = fake_plan(values=[1.0, 4.0, 16.0], axes={})


def named(concurrency: float, **fields):
    return fake_point(concurrency, **fields).model_copy(update={"name": f"concurrency-{concurrency:g}"})


@pytest.fixture
def folder(tmp_path: Path) -> SweepFolder:
    made = SweepFolder(tmp_path / "sweep")
    made.path.mkdir()
    made.begin(PLAN)
    return made


def test_points_come_back_in_the_plans_order_as_they_were_written(folder: SweepFolder):
    points = [named(16), named(1, state="failed", why="it was killed")]
    for point in points:
        folder.write_point(point)
    assert folder.points() == [points[1], points[0]]
    assert folder.has_point("concurrency-1")
    assert not folder.has_point("concurrency-4")
    assert SweepFolder(folder.path).read_plan() == PLAN


def test_the_same_plan_goes_on_and_another_is_refused_with_what_differs(folder: SweepFolder):
    folder.write_point(named(1))
    folder.begin(PLAN)
    assert folder.has_point("concurrency-1")
    with pytest.raises(RunMismatchError) as caught:
        folder.begin(PLAN.model_copy(update={"repeats": 9, "engine_id": "f" * 64}))
    assert "repeats 3, now 9" in caught.value.message
    assert caught.value.exit_code == 7


def test_only_what_is_not_ok_is_measured_again(folder: SweepFolder):
    for point in (named(1), named(4, state="unstable"), named(16, state="failed")):
        folder.write_point(point)
    assert folder.remove_failed() == 2
    assert [point.name for point in folder.points()] == ["concurrency-1"]


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path):
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(ConfigError, match=r"no sweep\.json"):
        SweepFolder(tmp_path).begin(PLAN)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_damaged_point_is_named_with_the_way_out(folder: SweepFolder):
    folder.write_point(named(1))
    (folder.path / "points" / "concurrency-1.json").write_text('{"schema_version": 1')
    with pytest.raises(StoreError, match=r"concurrency-1\.json") as caught:
        folder.points()
    assert "measured again" in caught.value.hint


def test_a_damaged_point_is_set_aside_to_be_measured_again(folder: SweepFolder):
    for concurrency in (1, 4, 16):
        folder.write_point(named(concurrency))
    points = folder.path / "points"
    (points / "concurrency-1.json").write_text('{"schema_version": 1')
    (points / "concurrency-4.json").write_bytes((points / "concurrency-16.json").read_bytes())  # of another
    aside = folder.set_aside_damaged()
    assert [path.name for path in aside] == ["concurrency-1.json.damaged", "concurrency-4.json.damaged"]
    assert [point.name for point in folder.points()] == ["concurrency-16"]
    assert not folder.has_point("concurrency-1")
    assert folder.set_aside_damaged() == []


def test_a_folder_in_the_place_of_a_point_is_named(folder: SweepFolder):
    (folder.path / "points" / "concurrency-1.json").mkdir(parents=True)
    with pytest.raises(StoreError, match=r"concurrency-1\.json: no file"):
        folder.set_aside_damaged()
    with pytest.raises(StoreError, match=r"concurrency-1\.json: a folder"):
        folder.points()


@pytest.mark.parametrize("name", ["file", "n" * 300, "file/below"])
def test_a_place_where_no_folder_can_be_is_refused(tmp_path: Path, name: str):
    (tmp_path / "file").write_text("x")
    with (
        pytest.raises(ConfigError, match="expected to write below") as caught,
        SweepFolder(tmp_path / name).locked(),
    ):
        pass
    assert "-o" in caught.value.hint


def test_one_process_at_a_time(folder: SweepFolder):
    with folder.locked(), pytest.raises(RunLockedError), SweepFolder(folder.path).locked():
        pass


def test_the_table_marks_the_best_and_shows_a_point_without_figures(folder: SweepFolder):
    points = [named(4), named(16, state="failed", why="the server was killed")]
    rows = rows_of(points, points[0])
    assert all(len(row) == len(COLUMNS) for row in rows)
    assert rows[0][0] == "c4 *"
    assert rows[1][:3] == ["c16", "failed", "-"]


def test_the_csv_has_a_row_for_each_point_and_a_cell_for_each_figure(folder: SweepFolder):
    import csv

    points = [named(4), named(16, state="failed", why="killed, twice")]
    write_csv(folder.path / "sweep.csv", points)
    with (folder.path / "sweep.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["name"] for row in rows] == ["concurrency-4", "concurrency-16"]
    assert float(rows[0]["output_tokens_per_s"]) == points[0].median.output_tokens_per_s
    assert float(rows[0]["latency_p99_ms"]) == points[0].median.latency.p99_ms
    assert rows[0]["kv_use_max"]
    assert (rows[1]["output_tokens_per_s"], rows[1]["why"]) == ("", "killed, twice")


def test_a_recommendation_stands_beside_its_engine_and_is_of_it_alone(tmp_path: Path):
    manifest = fake_manifest()
    stored = StoredEngine(tmp_path / manifest.name / str(manifest.version), manifest)
    stored.path.mkdir(parents=True)
    path = recommend(stored, named(16), "throughput", PLAN, tmp_path)
    assert path == stored.path.parent / f"recommended-{manifest.version}.json"
    found = read_recommendation(stored.path, manifest)
    assert found is not None
    assert (found.value, found.rule, found.engine_id) == (16, "throughput", manifest.engine_id)
    assert found.describe().startswith("concurrency 16")
    assert read_recommendation(stored.path, fake_manifest(engine_id="a" * 64)) is None
    path.write_text("{}")
    assert read_recommendation(stored.path, manifest) is None


def recommended(tmp_path: Path, plan, settings) -> Recommendation:
    stored = StoredEngine(tmp_path / "e" / "1", fake_manifest())
    stored.path.mkdir(parents=True, exist_ok=True)
    recommend(stored, named(16, settings=settings), "throughput", plan, tmp_path)
    found = read_recommendation(stored.path, stored.manifest)
    assert found is not None
    return found


def test_a_recommendation_has_all_that_the_measured_server_was_given(tmp_path: Path):
    plan = PLAN.model_copy(update={"num_kv_blocks": 3, "deterministic": True})
    found = recommended(tmp_path, plan, {"quant": "bf16"})
    assert found.settings == {"num_kv_blocks": 3, "deterministic": True, "quant": "bf16"}
    assert recommended(tmp_path, PLAN, {"num_kv_blocks": 9}).settings == {"num_kv_blocks": 9}


def test_a_pool_that_is_smaller_than_the_engines_longest_request_is_told(tmp_path: Path):
    limits = fake_manifest().limits
    enough = -(-limits.max_seq_len // limits.tokens_per_block) + 1
    note = recommended(tmp_path, PLAN, {"num_kv_blocks": enough - 1}).describe()
    assert f"the engine {limits.max_seq_len}" in note
    assert recommended(tmp_path, PLAN, {"num_kv_blocks": enough}).note == ""
    assert recommended(tmp_path, PLAN, {}).note == ""


def test_what_was_measured_once_is_not_recommended():
    point = named(4)
    once = point.model_copy(update={"runs": point.runs[:1], "spread": None})
    assert "--repeats 3" in (why_not(once) or "")
    assert why_not(point) is None
