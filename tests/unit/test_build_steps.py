"""Finished steps: shared by builds that begin alike, sound after a kill, a full disk or a flipped byte."""

from __future__ import annotations

import errno
import io
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from trtb.build.errors import StoreLockedError
from trtb.build.steps import BuildSteps, prune_steps, step_files, steps_root

INPUTS = {"checkpoint": "abc", "quant": "fp8"}


def make_steps(home: Path, said: list[str] | None = None, lock_timeout_s: float = 5.0) -> BuildSteps:
    def tell(step: str, detail: str) -> None:
        if said is not None:
            said.append(f"{step}: {detail}")

    return BuildSteps(home, io.StringIO(), tell, lock_timeout_s=lock_timeout_s)


def produce(folder: Path) -> None:
    (folder / "weights").write_bytes(b"0123456789")
    (folder / "deep").mkdir()
    (folder / "deep" / "config").write_text("{}")


def refuse(folder: Path) -> None:
    raise AssertionError("done again")


def test_a_finished_step_is_not_done_again_by_the_next_build(tmp_path: Path) -> None:
    first = make_steps(tmp_path)
    folder = first.run("convert", INPUTS, produce)
    first.release(keep=True)
    second = make_steps(tmp_path)
    assert second.run("convert", INPUTS, refuse) == folder
    assert (folder / "deep" / "config").read_text() == "{}"
    assert [record.is_reused for record in first.records + second.records] == [False, True]
    assert first.records[0].duration_s == second.records[0].duration_s
    second.release(keep=False)
    assert not folder.exists()


def test_other_inputs_are_another_step(tmp_path: Path) -> None:
    steps = make_steps(tmp_path)
    folders = {
        steps.run("convert", INPUTS, produce),
        steps.run("convert", {**INPUTS, "quant": "bf16"}, produce),
        steps.run("quantise", INPUTS, produce),
    }
    assert len(folders) == 3
    assert [name for name, _ in step_files(min(folders))] == ["deep/config", "weights"]
    assert len(step_files(min(folders))[0][1]) == 64


@pytest.mark.parametrize("damage", ["flip", "cut", "missing", "record", "torn record"])
def test_a_damaged_step_is_done_again(tmp_path: Path, damage: str) -> None:
    first = make_steps(tmp_path)
    folder = first.run("convert", INPUTS, produce)
    first.release(keep=True)
    weights = folder / "weights"
    if damage == "flip":
        weights.write_bytes(b"0123456780")
    elif damage == "cut":
        weights.write_bytes(b"012345678")
    elif damage == "missing":
        weights.unlink()
    elif damage == "record":
        folder.with_name(f"{folder.name}.json").unlink()
    else:
        folder.with_name(f"{folder.name}.json").write_text("{")
    second = make_steps(tmp_path)
    assert second.run("convert", INPUTS, produce) == folder
    assert not second.records[0].is_reused
    assert weights.read_bytes() == b"0123456789"


def test_a_step_that_fails_leaves_nothing(tmp_path: Path) -> None:
    def full(folder: Path) -> None:
        produce(folder)
        raise OSError(errno.ENOSPC, "No space left on device")

    steps = make_steps(tmp_path)
    with pytest.raises(OSError, match="No space left"):
        steps.run("convert", INPUTS, full)
    steps.release(keep=True)
    assert {path.suffix for path in steps_root(tmp_path).iterdir()} == {".lock"}


_KILLED = """
import io, os, signal, sys
from pathlib import Path
from trtb.build.steps import BuildSteps
steps = BuildSteps(Path(sys.argv[1]), io.StringIO(), lambda step, detail: None)
def first(folder): (folder / "a").write_text("a")
def second(folder):
    (folder / "b").write_text("b")
    os.kill(os.getpid(), signal.SIGKILL)
steps.run("first", {}, first)
steps.run("second", {}, second)
"""


def test_a_killed_build_resumes_after_its_last_finished_step(tmp_path: Path) -> None:
    killed = subprocess.run([sys.executable, "-c", _KILLED, tmp_path], check=False)
    assert killed.returncode == -signal.SIGKILL
    steps = make_steps(tmp_path)
    assert (steps.run("first", {}, refuse) / "a").read_text() == "a"

    def second(folder: Path) -> None:
        assert not list(folder.iterdir())
        (folder / "c").write_text("c")

    assert [path.name for path in steps.run("second", {}, second).iterdir()] == ["c"]


def test_a_second_build_waits_for_the_first_and_uses_its_step(tmp_path: Path) -> None:
    first, second = make_steps(tmp_path), make_steps(tmp_path, said := [])
    begun, go_on = threading.Event(), threading.Event()

    def slow(folder: Path) -> None:
        begun.set()
        assert go_on.wait(30)
        produce(folder)

    def build() -> None:
        first.run("convert", INPUTS, slow)
        first.release(keep=True)

    thread = threading.Thread(target=build)
    thread.start()
    assert begun.wait(30)
    threading.Timer(0.05, go_on.set).start()
    second.run("convert", INPUTS, refuse)
    thread.join()
    assert said[0] == "convert: another build is at this step; waiting for it"


def test_waiting_has_an_end(tmp_path: Path) -> None:
    first, second = make_steps(tmp_path), make_steps(tmp_path, lock_timeout_s=0.01)
    first.run("convert", INPUTS, produce)
    with pytest.raises(StoreLockedError, match="another build has been at this step"):
        second.run("convert", INPUTS, produce)


def test_pruning_frees_what_no_build_uses(tmp_path: Path) -> None:
    old, running = make_steps(tmp_path), make_steps(tmp_path)
    old.run("convert", INPUTS, produce)
    old.release(keep=True)
    part = steps_root(tmp_path) / "dead-0123.part"
    part.mkdir()
    (part / "half").write_bytes(b"12345")
    kept = running.run("convert", {"other": 1}, produce)
    assert prune_steps(tmp_path) == 12 + 5
    assert {path.name for path in steps_root(tmp_path).iterdir()} == {
        kept.name,
        f"{kept.name}.json",
        f"{kept.name}.lock",
    }
    assert prune_steps(tmp_path / "nothing-here") == 0
