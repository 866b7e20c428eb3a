"""Where a file of the user's may be put: nothing but another file is replaced."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from trtb.build.errors import ConfigError
from trtb.build.files import check_replaceable


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRTB_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def test_a_new_file_and_another_regular_one_may_be_written(tmp_path: Path, home: Path) -> None:
    path = tmp_path / "deep" / "page.html"
    check_replaceable(path)
    path.parent.mkdir()
    path.write_bytes(b"old")
    check_replaceable(path)
    check_replaceable(home / "out.html")
    check_replaceable(home / "cache" / "accept" / "1" / "sweep.html")
    check_replaceable(path / "below a file")  # whoever writes tells of it


@pytest.mark.parametrize(
    ("kind", "told"),
    [("folder", "is a folder"), ("link", "is a link"), ("dangling", "is a link"), ("fifo", "is no regular")],
)
def test_what_is_no_file_is_not_replaced_by_one(tmp_path: Path, kind: str, told: str) -> None:
    path, file = tmp_path / "there", tmp_path / "file"
    file.touch()
    if kind == "folder":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    else:
        path.symlink_to(file if kind == "link" else tmp_path / "nowhere")
    with pytest.raises(ConfigError, match=f"there: {told}") as caught:
        check_replaceable(path)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    "name", ["cache/results.db", "cache/new.db", "engines/a/1/manifest.json", "models/x"]
)
def test_nothing_is_put_among_what_the_home_keeps(tmp_path: Path, home: Path, name: str) -> None:
    (tmp_path / "linked").symlink_to(home)
    for path in (home / name, tmp_path / "linked" / name):
        with pytest.raises(ConfigError, match="only trtb writes"):
            check_replaceable(path)
