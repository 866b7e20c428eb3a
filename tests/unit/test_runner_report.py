"""The report of a run."""

from __future__ import annotations

import pytest
from fakes.rows import completed_row, failed_row
from fakes.runs import fake_options, fake_record

from trtb.build.errors import ConfigError
from trtb.runner import report
from trtb.runner.metrics import RunTotals
from trtb.runner.report import SessionFigures
from trtb.runner.run_folder import RunPaths


@pytest.fixture
def made(tmp_path):
    options = fake_options(tmp_path)
    totals = RunTotals()
    for row in (
        completed_row(1),
        completed_row(2, finish_reason="stop"),
        failed_row(3, "timeout", attempts=3),
    ):
        totals.add(row)
    figures = SessionFigures(
        num_resumed=1, concurrency=8, num_completed=2, num_tokens=8, duration_s=2.0, max_in_flight=5
    )
    return report.make_report(
        fake_record(options), RunPaths(options.output), totals, figures, ["odd"], "interrupted"
    )


def test_it_adds_up_and_says_what_is_left(made):
    assert made.total == made.completed + made.failed + made.remaining == 4
    assert (made.completed, made.failed, made.remaining, made.resumed) == (2, 1, 1, 1)
    assert made.attempts == 5
    assert made.failures[0].model_dump() == {"code": "timeout", "count": 1, "samples": ["c-3"]}
    assert (made.requests_per_s, made.output_tokens_per_s) == (1.0, 4.0)
    assert (made.prompt_tokens, made.completion_tokens) == (20, 8)


def test_failures_make_no_speed(tmp_path):
    options = fake_options(tmp_path)
    totals = RunTotals()
    for line in (1, 2, 3, 4):
        totals.add(failed_row(line, "invalid_request"))
    figures = SessionFigures(num_resumed=0, concurrency=8, duration_s=0.01)
    made = report.make_report(fake_record(options), RunPaths(options.output), totals, figures, [], "finished")
    assert (made.failed, made.requests_per_s, made.output_tokens_per_s) == (4, 0.0, 0.0)


def test_cut_answers_are_counted_and_remarked_upon(made):
    assert made.truncated == 1
    assert made.warnings[0] == "odd"
    assert any("1 answer cut by" in warning for warning in made.warnings)


def test_it_reads_back_as_it_was_written(made, tmp_path):
    paths = RunPaths(tmp_path / "out.jsonl")
    report.write_report(paths, made)
    assert report.read_report(paths) == made


def test_one_that_is_missing_or_not_ours_is_refused(tmp_path):
    paths = RunPaths(tmp_path / "out.jsonl")
    with pytest.raises(ConfigError, match="no report"):
        report.read_report(paths)
    paths.folder.mkdir()
    paths.report.write_bytes(b'{"schema_version": 99}')
    with pytest.raises(ConfigError, match="not a report of schema version 1"):
        report.read_report(paths)
