"""A full, read-only or mistaken disk is an error of ours, with the path and the next step."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import NoReturn

import filelock
import pytest
from fakes.gguf_file import write_tiny

from trtb.build import checkpoint, files
from trtb.build.disk_errors import check_home, tell_disk_errors
from trtb.build.errors import CheckpointError, StoreError
from trtb.build.store import EngineStore


def fail_with(number: int) -> NoReturn:
    raise OSError(number, os.strerror(number), "/disk/a/file")


@pytest.mark.parametrize(
    ("number", "found", "hint"),
    [
        (
            errno.ENOSPC,
            r"/disk: No space left on device; expected room for 3 MiB on its disk",
            "free some space",
        ),
        (errno.EDQUOT, r"Disk quota exceeded; expected room for 3 MiB", "free some space"),
        (errno.EROFS, r"/disk/a/file: Read-only file system; expected to write below /disk", "the hint"),
        (errno.EACCES, r"Permission denied", "the hint"),
    ],
)
def test_an_error_of_the_disk_is_told_with_its_next_step(number: int, found: str, hint: str) -> None:
    place = Path("/disk")
    with (
        pytest.raises(StoreError, match=found) as caught,
        tell_disk_errors(StoreError, place, "the hint", needed_bytes=3 << 20),
    ):
        fail_with(number)
    assert caught.value.hint.startswith(hint)


def test_what_is_about_something_else_is_left_alone() -> None:
    with pytest.raises(FileNotFoundError), tell_disk_errors(StoreError, Path(), "", is_disk_alone=True):
        fail_with(errno.ENOENT)
    with pytest.raises(filelock.Timeout), tell_disk_errors(StoreError, Path(), ""):
        raise filelock.Timeout("a lock")


def test_a_full_disk_while_pinning_says_how_much_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "a.gguf"
    source.write_bytes(b"GGUF" + bytes(3 << 20))
    monkeypatch.setattr(files, "link_or_copy", lambda _source, _target: fail_with(errno.ENOSPC))
    with pytest.raises(CheckpointError, match=r"No space left on device; expected room for 3 MiB"):
        checkpoint.pin_path(source, tmp_path / "home")


def test_a_full_disk_while_an_engine_is_staged_is_the_store_s_error(tmp_path: Path) -> None:
    store = EngineStore(tmp_path)
    with pytest.raises(StoreError, match=r"No space left on device"), store.stage():
        fail_with(errno.ENOSPC)
    assert not any((tmp_path / "engines" / ".staging").iterdir())
    with pytest.raises(FileNotFoundError), store.stage():
        fail_with(errno.ENOENT)


@pytest.mark.parametrize("name", ["home", "home/below"])
def test_a_home_that_is_a_file_is_no_empty_home(tmp_path: Path, name: str) -> None:
    (tmp_path / "home").write_text("a file")
    home = tmp_path / name
    (tmp_path / "model").mkdir()
    source = write_tiny(tmp_path / "model" / "a.gguf")
    found = r"home: not a folder; expected TRTB_HOME there"
    with pytest.raises(StoreError, match=found):
        check_home(StoreError, home)
    with pytest.raises(CheckpointError, match=found):
        checkpoint.list_pinned(home)
    with pytest.raises(CheckpointError, match=found):
        checkpoint.pin_path(source, home)
    store = EngineStore(home)
    with pytest.raises(StoreError, match=found):
        store.list()
    with pytest.raises(StoreError, match=found):
        store.resolve("a")
    with pytest.raises(StoreError, match=r"expected to write below"), store.stage():
        pass


def test_a_home_that_is_not_there_yet_is_empty(tmp_path: Path) -> None:
    assert not checkpoint.list_pinned(tmp_path / "a" / "b")
    assert not EngineStore(tmp_path / "a" / "b").list()
