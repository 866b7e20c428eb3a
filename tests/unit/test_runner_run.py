"""The order of a run's steps: what is refused leaves everything as it was, and signals end it in order."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from fakes.runs import fake_options, request_line

from trtb.runner.errors import LedgerCorruptError, RunInterruptedError
from trtb.runner.options import Progress, RunOptions
from trtb.runner.run import run_batch
from trtb.runner.run_folder import RunFolder

FOREIGN = b'{"id": "batch_req_000000000000-1"}\n'


@pytest.fixture
def options(tmp_path: Path) -> RunOptions:
    (tmp_path / "in.jsonl").write_bytes(b"".join(request_line(line) + b"\n" for line in (1, 2)))
    return fake_options(tmp_path, model_aliases=("*",), follow=tmp_path / "followed.jsonl")


def interrupt_at(phase: str):
    def observe(progress: Progress) -> None:
        if progress.phase == phase:
            signal.raise_signal(signal.SIGTERM)

    return observe


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_followed_file_of_others_is_refused_each_time_and_nothing_is_begun_or_removed(
    tmp_path, options, overwrite
):
    assert options.follow
    options.follow.write_bytes(FOREIGN)
    if overwrite:
        options.output.write_bytes(b"finished")
    object.__setattr__(options, "overwrite", overwrite)
    before = files_of(tmp_path)
    for _ in range(2):
        with pytest.raises(LedgerCorruptError, match="has lines that this run did not write"):
            run_batch(options)
    assert files_of(tmp_path) == before
    assert not RunFolder(options.output).paths.folder.exists()


@pytest.mark.own_process
def test_a_run_goes_on_with_the_file_that_it_followed_and_with_no_other_ones(tmp_path, options):
    with pytest.raises(RunInterruptedError):
        run_batch(options, interrupt_at("connecting"))
    record = RunFolder(options.output).read()
    assert record
    assert record.followed == [str(options.follow)]
    object.__setattr__(options, "follow", Path(os.path.relpath(tmp_path / "followed.jsonl")))
    assert record.has_followed(options.follow)
    other = tmp_path / "other.jsonl"
    other.write_bytes(FOREIGN)
    object.__setattr__(options, "follow", other)
    for _ in range(2):
        with pytest.raises(LedgerCorruptError, match=r"other\.jsonl: has lines"):
            run_batch(options)
    other.unlink()
    with pytest.raises(RunInterruptedError):
        run_batch(options, interrupt_at("connecting"))
    record = RunFolder(options.output).read()
    assert record
    assert record.followed == [str(tmp_path / "followed.jsonl"), str(other)]


@pytest.mark.own_process
@pytest.mark.parametrize("phase", ["validating", "connecting"])
def test_a_signal_before_the_first_request_leaves_a_run_that_goes_on(options, phase):
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    with pytest.raises(RunInterruptedError) as caught:
        run_batch(options, interrupt_at(phase))
    assert caught.value.exit_code == 130
    record = RunFolder(options.output).read()
    assert (record and record.state) == (None if phase == "validating" else "interrupted")
    assert not RunFolder(options.output).paths.server_dir.exists()
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before
