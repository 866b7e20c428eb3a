"""Hashing in parallel: the same digests as one by one, and word of it only where it takes long."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from trtb.build import files
from trtb.build.checkpoints import checkpoint_hashes
from trtb.build.checkpoints.checkpoint_hashes import find_changes, hash_tree
from trtb.build.files import sha256_bytes

CONTENT = {"a.bin": b"a" * 3_000_000, "b.json": b"", "sub/c": b"c" * 100, "z": b"z" * 2_000_000}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "tree"
    for name, data in CONTENT.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    return root


def test_every_file_is_hashed_in_the_order_of_names(tree: Path) -> None:
    assert [(entry.path, entry.size_bytes, entry.sha256) for entry in hash_tree(tree)] == [
        (name, len(data), sha256_bytes(data)) for name, data in sorted(CONTENT.items())
    ]
    assert find_changes(tree, hash_tree(tree), exclude=frozenset()) == []


def test_every_kind_of_change_is_named(tree: Path) -> None:
    entries = hash_tree(tree)
    (tree / "a.bin").write_bytes(b"b" + CONTENT["a.bin"][1:])
    (tree / "b.json").write_bytes(b"{}")
    (tree / "sub" / "c").unlink()
    (tree / "sub" / "new.py").write_text("print()")
    (tree / "dangling").symlink_to("nowhere")
    (tree / "pin.json").write_text("{}")
    assert find_changes(tree, entries, exclude=frozenset({"pin.json"})) == [
        "a.bin: content differs from its sha256",
        "b.json: 2 bytes; expected 0",
        "dangling: not in the pin",
        "sub/c: missing",
        "sub/new.py: not in the pin",
    ]


def test_progress_is_told_by_bytes_and_not_by_time(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[str, str]] = []
    hash_tree(tree, lambda step, detail: told.append((step, detail)))
    assert told == []
    monkeypatch.setattr(checkpoint_hashes, "MIN_REPORT_BYTES", 2_000_000)
    hash_tree(tree, lambda step, detail: told.append((step, detail)))
    assert [step for step, _ in told] == ["hash", "hash"]
    assert all(detail.endswith("of 0.0 GB") for _, detail in told)


def test_an_error_in_one_file_ends_the_others(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tree / "a.bin").unlink()
    (tree / "a.bin").mkdir()
    before = threading.active_count()
    monkeypatch.setattr(Path, "is_file", lambda path: path.name != "sub")
    with pytest.raises(IsADirectoryError):
        hash_tree(tree)
    assert threading.active_count() == before


def test_files_are_hashed_side_by_side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two files whose reads wait for each other: one after the other they would never end."""
    meeting = threading.Barrier(2, timeout=30)
    real = files.sha256_file
    monkeypatch.setattr(checkpoint_hashes.os, "cpu_count", lambda: 2)
    monkeypatch.setattr(files, "sha256_file", lambda *args: (meeting.wait(), real(*args))[1])
    for name in ("a", "b"):
        (tmp_path / name).write_bytes(b"x")
    assert len(hash_tree(tmp_path)) == 2
