"""Duplicates are found in memory and across spills, and equal hashes prove nothing."""

from __future__ import annotations

import pytest

from trtb.runner.duplicates import Duplicate, DuplicateFinder


def find(tmp_path, ids: list[str], **options) -> list[tuple[int, int, str]]:
    finder = DuplicateFinder(tmp_path / "spill", **options)
    for custom_id in ids:
        finder.add(custom_id)
    found = finder.find(lambda: enumerate(ids, start=1))
    return [(duplicate.line, duplicate.first_line, duplicate.custom_id) for duplicate in found]


@pytest.mark.parametrize("max_in_memory", [1, 7, 100, 10_000])
def test_every_later_occurrence_names_the_first(tmp_path, max_in_memory):
    ids = [f"id-{i}" for i in range(1000)]
    ids[500] = ids[999] = "id-3"
    ids[600] = "id-599"
    found = find(tmp_path, ids, max_in_memory=max_in_memory)
    assert found == [(501, 4, "id-3"), (601, 600, "id-599"), (1000, 4, "id-3")]


def test_different_ids_of_one_hash_are_no_duplicates(tmp_path):
    assert find(tmp_path, ["a", "b", "a"], digest=lambda _id, _seed: 7) == [(3, 1, "a")]


def test_ids_are_compared_byte_for_byte(tmp_path):
    assert find(tmp_path, ["a", "A", " a", "a ", "á", "a\u0301"]) == []


def test_the_file_is_not_read_again_without_candidates(tmp_path):
    finder = DuplicateFinder(tmp_path)
    for custom_id in ("a", "b"):
        finder.add(custom_id)
    assert list(finder.find(lambda: pytest.fail("read again"))) == []


def test_an_empty_file_has_no_duplicates(tmp_path):
    assert find(tmp_path, []) == []


def test_nothing_is_left_on_disk(tmp_path):
    assert find(tmp_path, ["a"] * 3, max_in_memory=2) == [(2, 1, "a"), (3, 1, "a")]
    assert list((tmp_path / "spill").iterdir()) == []


def test_a_duplicate_is_a_value():
    assert Duplicate(2, 1, "a") == Duplicate(2, 1, "a")
