"""A finished run is opened again for its failures."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fakes.rows import completed_row, failed_row, write_ledger
from fakes.runs import fake_options, fake_record

from trtb.build import files
from trtb.build.errors import ConfigError
from trtb.runner import ledger
from trtb.runner.errors import InputFileError, RunLockedError
from trtb.runner.reopen import NothingToRetry, reopen
from trtb.runner.run_folder import RunFolder

ROWS = [completed_row(1), failed_row(2, "timeout"), failed_row(3, "engine_error"), completed_row(4)]


@pytest.fixture
def options(tmp_path):
    options = fake_options(tmp_path, concurrency=9, model_aliases=("a", "b"), follow=tmp_path / "f.jsonl")
    options.input_path.write_bytes(b"the requests\n")
    folder = RunFolder(options.output)
    digest = files.sha256_file(options.input_path)
    folder.write(fake_record(options, state="finished", input_sha256=digest))
    write_ledger(folder.paths.ledger, ROWS)
    return options


def again(options, **changes):
    settings = {"codes": None, "endpoints": (), "request_timeout_s": None, **changes}
    return reopen(options.output, lambda _: (options.engine_dir, options.manifest), **settings)


def done(options) -> list[int]:
    return [line for line, _ in ledger.done_lines(RunFolder(options.output).paths.ledger)]


def test_the_failures_are_to_do_again_with_the_options_of_the_run(options):
    reopened, num_reopened = again(options)
    assert num_reopened == 2
    # of lines that failed before, many failures say nothing
    assert reopened == replace(options, canary=0)
    assert done(options) == [1, 4]
    assert RunFolder(options.output).read().state == "interrupted"


def test_only_failures_of_some_codes_are_opened_where_they_are_named(options):
    assert again(options, codes=frozenset({"timeout"}))[1] == 1
    assert done(options) == [1, 3, 4]


def test_servers_and_timeout_can_be_others(options):
    reopened, _ = again(options, endpoints=("h:1", "h:2"), request_timeout_s=7.5)
    assert (reopened.endpoints, reopened.request_timeout_s) == (("h:1", "h:2"), 7.5)


@pytest.mark.parametrize("data", [None, b"other requests\n"])
def test_without_its_input_a_run_stays_as_it_is(options, data):
    options.input_path.unlink()
    if data is not None:
        options.input_path.write_bytes(data)
    with pytest.raises(InputFileError):
        again(options)
    assert RunFolder(options.output).read().state == "finished"
    assert done(options) == [1, 2, 3, 4]


def test_where_nothing_failed_nothing_changes(options):
    paths = RunFolder(options.output).paths
    before = (paths.record.read_bytes(), paths.record.stat().st_mtime_ns, paths.ledger.read_bytes())
    assert again(options, codes=frozenset({"queue_full"})) == NothingToRetry(num_failed=2)
    assert (paths.record.read_bytes(), paths.record.stat().st_mtime_ns, paths.ledger.read_bytes()) == before
    assert done(options) == [1, 2, 3, 4]


def test_a_retry_that_was_killed_goes_on(options):
    again(options)
    reopened, num_reopened = again(options)
    assert (reopened, num_reopened) == (replace(options, canary=0), 0)
    assert done(options) == [1, 4]


def test_a_run_that_was_stopped_keeps_its_canary(options):
    folder = RunFolder(options.output)
    record = folder.read()
    record.state = "interrupted"
    folder.write(record)
    assert again(options)[0] == options


def test_where_there_is_no_run_that_is_said(tmp_path):
    with pytest.raises(ConfigError, match="no run; expected"):
        again(fake_options(tmp_path))


def test_a_run_that_is_going_on_is_left_alone(options):
    folder = RunFolder(options.output)
    folder.acquire()
    try:
        with pytest.raises(RunLockedError):
            again(options)
    finally:
        folder.release()
    assert done(options) == [1, 2, 3, 4]
