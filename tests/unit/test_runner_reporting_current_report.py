"""The report of a run in any state: left by it, going on, killed, or changed since."""

from __future__ import annotations

import pytest
from fakes.reported import MESSAGE, PROMPT, reported_rows, write_run
from fakes.rows import write_ledger

from trtb.build import files
from trtb.build.errors import ConfigError
from trtb.runner.errors import LedgerError
from trtb.runner.report import read_report, write_report
from trtb.runner.reporting.current_report import current_report, is_locked, view_run
from trtb.runner.run_folder import LOCK_FILE, RunPaths


def test_a_run_that_goes_on_is_reported_from_its_ledger(tmp_path):
    paths = write_run(tmp_path, reported_rows()[:25], state="running")
    with files.lock(paths.folder / LOCK_FILE, timeout_s=0):
        found = current_report(paths)
    assert (found.state, found.total, found.completed, found.failed, found.remaining) == (
        *("running", 40, 23, 2, 15),
    )
    assert [(each.code, each.count, each.samples) for each in found.failures] == [
        ("timeout", 2, ["c-10", "c-20"])
    ]
    assert (found.reused, found.cached) == (2, 1)
    assert found.completion_tokens == sum(row.completion_tokens for row in reported_rows()[:25])
    assert found.request_latency.max_ms == 3500
    assert found.duration_s > 0 < found.output_tokens_per_s


def test_reading_leaves_a_run_its_lock_and_its_folder_as_it_was(tmp_path):
    paths = write_run(tmp_path, state="running")
    (paths.folder / LOCK_FILE).touch()
    before = {path.name: path.read_bytes() for path in paths.folder.iterdir()}
    view_run(paths)
    assert {path.name: path.read_bytes() for path in paths.folder.iterdir()} == before
    with files.lock(paths.folder / LOCK_FILE, timeout_s=0):
        assert is_locked(paths.folder / LOCK_FILE)
    assert not is_locked(paths.folder / LOCK_FILE)


def test_a_killed_run_is_interrupted_whatever_its_record_says(tmp_path):
    assert current_report(write_run(tmp_path, state="running")).state == "interrupted"


def test_a_run_that_has_no_ledger_yet_has_all_to_do(tmp_path):
    paths = write_run(tmp_path, state="running")
    paths.ledger.unlink()
    found = view_run(paths)
    assert (found.report.completed, found.report.remaining, found.figures.bins) == (0, 40, ())


def test_the_report_that_a_finished_run_left_is_the_one(tmp_path):
    paths = write_run(tmp_path)
    left = current_report(paths).model_copy(update={"server_restarts": 7})
    write_report(paths, left)
    assert current_report(paths) == left == read_report(paths)
    assert view_run(paths).is_stored


def test_a_report_that_the_run_has_gone_past_is_not(tmp_path):
    paths = write_run(tmp_path, reported_rows()[:25], state="interrupted")
    write_report(paths, current_report(paths))
    write_ledger(paths.ledger, reported_rows()[25:30])
    found = view_run(paths)
    assert (found.report.completed + found.report.failed, found.is_stored) == (30, False)


def test_a_report_of_another_run_is_not(tmp_path):
    paths = write_run(tmp_path)
    write_report(paths, current_report(paths).model_copy(update={"run_id": "another"}))
    assert current_report(paths).run_id == "run"


def test_where_no_run_was_begun_it_says_so(tmp_path):
    with pytest.raises(ConfigError, match="no run was begun here"):
        current_report(RunPaths(tmp_path / "out.jsonl"))


def test_texts_are_read_where_they_are_asked_for_and_not_else(tmp_path):
    paths = write_run(tmp_path)
    with_texts = view_run(paths, num_sampled=3, seed=5, with_texts=True)
    assert [each.texts.request for each in with_texts.sample] == [f"[user] {PROMPT}"] * 3
    assert with_texts.messages == {"timeout": MESSAGE}
    without = view_run(paths, num_sampled=3, seed=5)
    assert [each.row.line for each in without.sample] == [each.row.line for each in with_texts.sample]
    assert [each.texts for each in without.sample] == [None] * 3
    assert without.messages == {}


@pytest.mark.parametrize("new", [None, b'{"custom_id": "other"}\n' * 40])
def test_a_request_is_not_shown_from_an_input_that_is_gone_or_another(tmp_path, new):
    paths = write_run(tmp_path)
    if new is None:
        (tmp_path / "in.jsonl").unlink()
    else:
        (tmp_path / "in.jsonl").write_bytes(new)
    texts = [each.texts for each in view_run(paths, num_sampled=2, with_texts=True).sample]
    assert [each.request for each in texts] == [None, None]
    assert all(each.answer for each in texts)


def test_a_folder_in_the_place_of_its_report_or_record_is_told(tmp_path):
    paths = write_run(tmp_path)
    paths.report.unlink(missing_ok=True)
    paths.report.mkdir()
    with pytest.raises(ConfigError, match=r"report.json: Is a directory; expected the report of a run"):
        current_report(paths)
    paths.record.unlink()
    paths.record.mkdir()
    with pytest.raises(LedgerError, match=r"run.json: Is a directory; expected a run's record"):
        current_report(paths)
