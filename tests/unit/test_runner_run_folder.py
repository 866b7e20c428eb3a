"""A run's folder: whether a run may begin, go on, or must not touch what is there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from fakes.rows import completed_row, write_ledger
from fakes.runs import fake_options, fake_record

from trtb.runner import ledger
from trtb.runner.errors import LedgerCorruptError, OutputExistsError, RunLockedError, RunMismatchError
from trtb.runner.run_folder import RunFolder, RunPaths, check_output


@pytest.fixture
def input_path(tmp_path) -> Path:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"{}\n")
    return path


@pytest.mark.parametrize("kind", ["same", "dotted", "symlink", "hard link", "through a linked folder"])
def test_an_output_that_is_the_input_is_refused(tmp_path, input_path, kind, monkeypatch):
    output = tmp_path / "b.jsonl"
    if kind == "same":
        output = input_path
    elif kind == "dotted":
        monkeypatch.chdir(tmp_path)
        output = Path("./a.jsonl")
    elif kind == "symlink":
        output.symlink_to(input_path)
    elif kind == "hard link":
        os.link(input_path, output)
    else:
        (tmp_path / "linked").symlink_to(tmp_path)
        output = tmp_path / "linked" / "a.jsonl"
    with pytest.raises(OutputExistsError, match="the output is the input") as caught:
        check_output(input_path, output, None)
    assert caught.value.exit_code == 2
    assert input_path.read_bytes() == b"{}\n"


@pytest.mark.parametrize("name", ["out.failed.jsonl", "out.retry.jsonl"])
def test_an_input_that_the_failures_would_overwrite_is_refused(tmp_path, name):
    path = tmp_path / name
    path.write_bytes(b"{}\n")
    with pytest.raises(OutputExistsError, match="is the input"):
        check_output(path, tmp_path / "out.jsonl", None)


@pytest.mark.parametrize("name", ["a.jsonl", "out.jsonl", "out.retry.jsonl"])
def test_a_followed_file_is_a_file_of_its_own(tmp_path, input_path, name):
    with pytest.raises(OutputExistsError, match="the followed file is"):
        check_output(input_path, tmp_path / "out.jsonl", tmp_path / name)


def test_what_is_no_file_is_no_output(tmp_path, input_path):
    os.mkfifo(tmp_path / "out.jsonl")
    with pytest.raises(OutputExistsError, match="not a regular file"):
        check_output(input_path, tmp_path / "out.jsonl", None)


def test_a_folder_is_no_output_and_folders_on_the_way_are_made_later(tmp_path, input_path):
    with pytest.raises(OutputExistsError, match="is a folder"):
        check_output(input_path, tmp_path, None)
    check_output(input_path, tmp_path / "new" / "deep" / "out.jsonl", tmp_path / "follow.jsonl")
    assert not (tmp_path / "new").exists()


def test_the_files_of_a_run_are_named_after_its_output():
    paths = RunPaths(Path("x/out.jsonl"))
    assert [str(path) for path in (paths.folder, paths.failed, paths.retry)] == [
        "x/out.jsonl.run",
        "x/out.failed.jsonl",
        "x/out.retry.jsonl",
    ]


def test_an_output_of_somebody_else_is_left_alone(tmp_path):
    output = tmp_path / "out.jsonl"
    output.write_bytes(b"precious")
    with pytest.raises(OutputExistsError, match="no run of ours") as caught:
        RunFolder(output).check_free()
    assert "--overwrite" in caught.value.hint


@pytest.mark.parametrize("state", ["running", "interrupted", "finished"])
def test_only_a_finished_run_is_refused(tmp_path, state):
    options = fake_options(tmp_path)
    folder = RunFolder(options.output)
    folder.write(fake_record(options, state=state))
    options.output.write_bytes(b"")  # killed between publishing and the last word, the output is there
    if state != "finished":
        folder.check_free()
        return
    with pytest.raises(OutputExistsError, match="finished") as caught:
        folder.check_free()
    assert "trtb retry" in caught.value.hint


def test_the_same_run_goes_on_under_its_own_id(tmp_path):
    options = fake_options(tmp_path)
    folder = RunFolder(options.output)
    begun, is_resumed = folder.begin(fake_record(options), overwrite=False)
    assert (begun.num_starts, is_resumed) == (1, False)
    wanted = fake_record(options, run_id="another", created_s=1, job={"concurrency": 3})
    found, is_resumed = folder.begin(wanted, overwrite=False)
    assert is_resumed
    assert (found.run_id, found.created_s, found.num_starts) == ("run", begun.created_s, 2)
    assert found.job == {"concurrency": 3}
    assert folder.read() == found


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"input_sha256": "b" * 64}, "input"),
        ({"total": 5}, "requests: was 4, now 5"),
        ({"engine_id": "f" * 64, "engine": "tiny-int8_wo@4"}, "engine: was tiny-int8_wo@3 eeeeeeeeeeee"),
        ({"settings": {"strict_params": True}}, "strict_params: was False, now True"),
    ],
)
def test_a_run_of_something_else_is_refused_with_what_differs(tmp_path, change, said):
    options = fake_options(tmp_path)
    folder = RunFolder(options.output)
    folder.begin(fake_record(options), overwrite=False)
    before = folder.paths.record.read_bytes()
    with pytest.raises(RunMismatchError, match=said) as caught:
        folder.begin(fake_record(options, **change), overwrite=False)
    assert caught.value.exit_code == 7
    assert folder.paths.record.read_bytes() == before


def test_beginning_anew_leaves_nothing_of_the_old_run(tmp_path):
    options = fake_options(tmp_path)
    folder = RunFolder(options.output)
    folder.acquire()
    folder.begin(fake_record(options), overwrite=False)
    write_ledger(folder.paths.ledger, [completed_row(1)])
    (folder.paths.folder / "server").mkdir()
    for path in (options.output, folder.paths.failed, folder.paths.retry):
        path.write_bytes(b"old")
    begun, is_resumed = folder.begin(fake_record(options, run_id="new", total=9), overwrite=True)
    folder.release()
    assert (begun.run_id, is_resumed) == ("new", False)
    assert sorted(path.name for path in folder.paths.folder.iterdir()) == ["lock", "run.json"]
    assert not options.output.exists()
    assert list(ledger.done_lines(folder.paths.ledger)) == []


def test_a_damaged_record_or_ledger_is_refused(tmp_path):
    options = fake_options(tmp_path)
    folder = RunFolder(options.output)
    folder.begin(fake_record(options), overwrite=False)
    folder.paths.ledger.write_bytes(b"garbage" * 100)
    with pytest.raises(LedgerCorruptError):
        folder.begin(fake_record(options), overwrite=False)
    for damaged in (b"", b"{}", b'{"schema_version": 99}'):
        folder.paths.record.write_bytes(damaged)
        with pytest.raises(LedgerCorruptError, match="schema version 1"):
            folder.read()


def test_a_run_is_held_by_one_process_at_a_time(tmp_path):
    output = tmp_path / "out.jsonl"
    first, second = RunFolder(output), RunFolder(output)
    first.acquire()
    with pytest.raises(RunLockedError, match="another process is running this run") as caught:
        second.acquire()
    assert caught.value.exit_code == 7
    first.release()
    second.acquire()
    second.release()
