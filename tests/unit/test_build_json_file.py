"""JSON files of strangers: a pipe, a device, a loop or a giant is refused, never read to its end."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from trtb.build.checkpoints import json_file
from trtb.build.checkpoints.hf_config import read_config
from trtb.build.checkpoints.json_file import load_json, load_object, read_bounded
from trtb.build.errors import CheckpointError, CheckpointNotFoundError


def test_an_object_is_read(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text('{"a": 1, "a": 2}')
    assert load_object(path) == {"a": 2}
    with pytest.raises(CheckpointError, match=r"config.json: not JSON \(key 'a' twice\)"):
        load_json(path, is_strict=True)


def test_what_is_no_regular_file_is_never_opened(tmp_path: Path) -> None:
    pipe = tmp_path / "config.json"
    os.mkfifo(pipe)
    for path in (Path("/dev/zero"), pipe):
        with pytest.raises(
            CheckpointError, match=rf"{path}: a pipe, socket or device; expected a regular file"
        ):
            read_config(path)
    with pytest.raises(CheckpointError, match="a folder; expected a regular file"):
        load_json(tmp_path)


def test_a_link_that_leads_nowhere_is_a_checkpoint_s_error(tmp_path: Path) -> None:
    loop = tmp_path / "config.json"
    loop.symlink_to(loop)
    with pytest.raises(CheckpointError, match=r"config.json: Too many levels of symbolic links"):
        load_object(loop)
    with pytest.raises(CheckpointNotFoundError, match=r"other.json: not found"):
        load_object(tmp_path / "other.json")
    with pytest.raises(CheckpointError, match=r"Not a directory"):
        load_object(Path(__file__) / "config.json")


def test_a_file_is_read_up_to_its_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(b"12345")
    assert read_bounded(path, 5) == b"12345"
    with pytest.raises(CheckpointError, match=r"more than 4 bytes"):
        read_bounded(path, 4)
    monkeypatch.setattr(json_file, "MAX_CONFIG_BYTES", 4)
    with pytest.raises(CheckpointError, match=r"config.json: more than 4 bytes"):
        load_json(path)
    path.rename(tmp_path / "tokenizer.json")
    assert load_json(tmp_path / "tokenizer.json") == 12345


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, "\xff"])
def test_what_is_not_json_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "tokenizer_config.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(CheckpointError, match=r"tokenizer_config.json: not JSON"):
        load_object(path)
