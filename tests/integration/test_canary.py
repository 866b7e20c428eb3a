"""Runs whose requests fail, on a real server: what stops one, what stays, and what the same command does."""

from __future__ import annotations

import contextlib
import json
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import commands
import pytest
import request_lines
from request_lines import chat

from trtb.build.store import EngineStore
from trtb.model_repo import contract
from trtb.runner.errors import TooManyFailuresError
from trtb.runner.options import RunOptions
from trtb.runner.report import RunReport, read_report
from trtb.runner.run import run_batch
from trtb.runner.run_folder import RunFolder, RunPaths
from trtb.tools.bench.noop import noop_server

pytestmark = pytest.mark.triton

FAILING = Path(__file__).parents[1] / "fakes" / "failing_model" / "model.py"
Plan = Callable[..., None]


@pytest.fixture(scope="module")
def failing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Plan]]:
    """A server that fails what its plan says; yields its address, and what sets the plan."""
    folder = tmp_path_factory.mktemp("failing")
    with noop_server(folder, FAILING) as endpoint:
        model = folder / "repository" / contract.MODEL_NAME / contract.MODEL_VERSION

        def plan(**fields: Any) -> None:
            made = model / "plan.new"
            made.write_text(json.dumps({**fields, "nonce": str(fields)}))
            made.rename(model / "plan.json")

        yield endpoint, plan


@pytest.fixture
def run(engine_home: Path, failing: tuple[str, Plan], tmp_path: Path) -> Callable[..., RunReport]:
    """Run a file of so many requests on that server."""
    stored = EngineStore(engine_home).resolve()

    def run_file(count: int, **fields: Any) -> RunReport:
        path = tmp_path / "in.jsonl"
        if not path.exists():
            request_lines.write(
                path, [chat(f"c-{n}", f"Say {n}.", max_tokens=2) for n in range(1, count + 1)]
            )
        values = {
            "endpoints": (failing[0],),
            "model_aliases": ("*",),
            "order": "input",
            "concurrency": 16,
            **fields,
        }
        return run_batch(RunOptions(path, tmp_path / "out.jsonl", stored.path, stored.manifest, **values))

    return run_file


def superseded(output: Path) -> list[tuple[int, str]]:
    with contextlib.closing(sqlite3.connect(RunPaths(output).ledger)) as connection:
        return connection.execute("SELECT line, code FROM superseded ORDER BY line").fetchall()


def test_a_run_whose_first_requests_all_fail_is_stopped_and_goes_on_when_the_cause_is_mended(
    run, failing, tmp_path
):
    _, plan = failing
    output = tmp_path / "out.jsonl"
    plan(fails="all")
    with pytest.raises(TooManyFailuresError) as caught:
        run(40)
    assert caught.value.exit_code == 8
    assert "all of the first 8 requests failed (8 engine_error), such as line " in caught.value.message
    assert "the engine is sick" in caught.value.message
    assert "0 of 40 requests are done" in caught.value.message
    assert not output.exists()
    record = RunFolder(output).read()
    assert record
    assert record.state == "interrupted"
    made = read_report(RunPaths(output))
    assert (made.state, made.failed, made.remaining) == ("interrupted", 0, 40)
    assert made.canary
    assert (made.canary.stopped_by, made.canary.codes, made.canary.set_aside) == (
        "canary", {"engine_error": 8}, 8
    )  # fmt: skip
    assert superseded(output) == [(line, "engine_error") for line in range(1, 9)]

    plan()
    made = run(40)
    assert (made.state, made.completed, made.failed, made.resumed) == ("finished", 40, 0, 0)
    assert made.canary
    assert made.canary.stopped_by is None


def test_a_server_that_fails_only_its_first_requests_stops_the_run_once(run, failing):
    _, plan = failing
    plan(first=8, why="only the first")
    with pytest.raises(TooManyFailuresError):
        run(30)
    made = run(30)
    assert (made.completed, made.failed) == (30, 0)


def test_a_file_that_fails_half_is_run_to_its_end_and_stopped_where_a_rate_is_given(run, failing, tmp_path):
    _, plan = failing
    plan(fails=list(range(1, 61, 2)), why="half")
    made = run(60)
    assert (made.completed, made.failed) == (30, 30)
    assert made.canary
    assert made.canary.codes == {"engine_error": 30}
    shutil.rmtree(tmp_path / "out.jsonl.run")
    for path in tmp_path.glob("out*"):
        path.unlink()
    plan(fails=list(range(31, 61)), why="late")
    with pytest.raises(TooManyFailuresError, match=r"of the last 20 requests failed; at most 50\.0% may"):
        run(60, max_failure_rate=0.5, concurrency=1)
    made = read_report(RunPaths(tmp_path / "out.jsonl"))
    assert made.completed == 30
    assert made.failed == 0
    assert [line for line, _ in superseded(tmp_path / "out.jsonl")] == list(range(31, 42))
    plan()
    assert run(60, max_failure_rate=0.5).completed == 60


def test_a_small_file_that_fails_wholly_is_finished_and_says_so(run, failing, tmp_path):
    _, plan = failing
    plan(fails="all", why="small")
    made = run(5)
    assert (made.state, made.total, made.completed, made.failed) == ("finished", 5, 0, 5)
    assert [(group.code, group.count) for group in made.failures] == [("engine_error", 5)]
    assert len(request_lines.read(tmp_path / "out.failed.jsonl")) == 5


def test_a_file_no_longer_than_the_canary_ends_as_ever_and_a_longer_one_does_without_a_canary(
    run, failing, tmp_path
):
    _, plan = failing
    plan(fails="all", why="as long")
    assert run(8).failed == 8
    shutil.rmtree(tmp_path / "out.jsonl.run")
    for path in tmp_path.glob("*.jsonl"):
        path.unlink()
    assert run(12, canary=0).failed == 12


def test_a_retry_of_what_fails_again_is_no_reason_to_stop(run, failing, engine_home, tmp_path):
    endpoint, plan = failing
    plan(fails=list(range(1, 13)), why="retry")
    assert run(30, canary=0).failed == 12
    ended = commands.trtb(engine_home, "retry", tmp_path / "out.jsonl.run", "--endpoint", endpoint)
    assert ended.code == 1, ended.stderr


def test_a_timeout_that_nothing_meets_stops_the_run_on_the_real_engine(shared_server, tmp_path):
    path = request_lines.write(
        tmp_path / "in.jsonl", [chat(f"t-{n}", f"Say {n}.", max_tokens=3) for n in range(24)]
    )
    common = (path, "-o", tmp_path / "out.jsonl", "--endpoint", shared_server.endpoint, "--model-alias", "*")
    ended = commands.trtb(shared_server.home, "run", *common, "--request-timeout", "0.001", "--canary", "3")
    assert ended.code == 8, ended.stderr
    assert "all of the first 3 requests failed (" in ended.stderr
    assert "timeout" in ended.stderr
    ended = commands.trtb(shared_server.home, "run", *common, "--json")
    assert ended.code == 0, ended.stderr
    made = ended.json
    assert (made["completed"], made["failed"]) == (24, 0)
    assert made["canary"]["stopped_by"] is None
