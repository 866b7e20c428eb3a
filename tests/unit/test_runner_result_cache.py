"""The result cache as a run uses it: right answers or none, and no trouble ever reaches the run."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from fakes.cached import NOW, answer, cache_in, entry, keep_all, key

from trtb.runner.answer import Choice, TokenLogProb
from trtb.runner.caching.cache_entry import CachedAnswer, decode, encode
from trtb.runner.caching.cache_file import DAMAGED_NAME, FILE_NAME
from trtb.runner.caching.cache_writer import CacheWriter
from trtb.runner.tool_calls import ToolCall

KEYS = [key(number) for number in range(6)]


def damage(path: Path, offset: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


def change(folder: Path, statement: str, *values: object) -> None:
    with closing(sqlite3.connect(folder / FILE_NAME)) as connection:
        connection.execute(statement, values)
        connection.commit()


@pytest.mark.parametrize("text", ["", "short", "long " * 500, "\U0001f600\n\u2028"])
def test_an_answer_is_the_same_after_its_time_in_bytes(text):
    logged = (TokenLogProb("é", b"\xc3", -0.125), TokenLogProb("", b"", -1e-300))
    calls = (ToolCall("f", '{"a": 1}'),)
    kept = CachedAnswer(
        [Choice(text, "length", 9, logged), Choice(None, "tool_calls", 2, None, calls)], 3, 11, "length", 5
    )
    value = encode(kept)
    assert decode(value) == kept
    assert len(value) < len(text) + 250
    assert decode(value[:-1]) is None
    assert decode(b"") is None


def test_answers_are_found_again_by_their_keys_only(tmp_path):
    keep_all(tmp_path, 4)
    cache = cache_in(tmp_path)
    assert cache.look_up(KEYS) == {KEYS[number]: answer(number) for number in range(4)}
    assert cache.look_up([KEYS[1], KEYS[1], KEYS[5]]) == {KEYS[1]: answer(1)}
    cache.close()
    assert (cache.figures.num_hits, cache.figures.num_misses) == (6, 3)
    assert cache.figures.warnings == []
    assert (tmp_path / FILE_NAME).stat().st_size <= (cache.figures.size_bytes or 0)


def test_an_old_answer_is_not_there_and_a_new_one_takes_its_place(tmp_path):
    keep_all(tmp_path, 1)
    aged = cache_in(tmp_path, now=NOW + 100, ttl_s=100)
    assert aged.look_up(KEYS[:1]) == {}
    assert aged.figures.num_expired == aged.figures.num_misses == 1
    aged.end_look_up()
    aged.keep(KEYS[0], answer(7))
    aged.close()
    assert aged.figures.num_stored == 1
    fresh = cache_in(tmp_path, now=NOW + 199, ttl_s=100)
    assert fresh.look_up(KEYS[:1]) == {KEYS[0]: answer(7)}
    assert cache_in(tmp_path, now=NOW + 10**9).look_up(KEYS[:1]) == {KEYS[0]: answer(7)}
    fresh.close()


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE entries SET value = substr(value, 1, length(value) - 1)",
        "UPDATE entries SET value = x'00' || substr(value, 2) || x'00'",
        "UPDATE entries SET value = x''",
        "UPDATE entries SET checksum = zeroblob(16)",
        "UPDATE entries SET checksum = x''",
        "UPDATE entries SET stored_s = stored_s + 1",
        "UPDATE entries SET value = (SELECT value FROM entries WHERE id = 2) WHERE id = 1",
        "UPDATE entries SET (value, checksum) = (SELECT value, checksum FROM entries ORDER BY id DESC)",
        "UPDATE entries SET value = 7, checksum = 'text', stored_s = 'text'",
    ],
)
def test_what_is_not_as_it_was_stored_is_no_answer_and_is_dropped(tmp_path, statement):
    keep_all(tmp_path, 2)
    change(tmp_path, statement)
    cache = cache_in(tmp_path)
    found = cache.look_up(KEYS[:2])
    cache.close()
    assert KEYS[0] not in found
    assert all(found[each] == answer(KEYS.index(each)) for each in found)
    assert cache.figures.num_corrupted == 2 - len(found) > 0
    again = cache_in(tmp_path)
    again.look_up(KEYS[:2])
    again.close()
    assert again.figures.num_corrupted == 0


@pytest.mark.parametrize("offset", [0, 16, 100, 4096, 4096 * 3 + 5])
def test_a_damaged_database_is_set_aside_and_the_run_goes_on(tmp_path, offset):
    keep_all(tmp_path, 3)
    damage(tmp_path / FILE_NAME, offset, b"\xff" * 4000)
    cache = cache_in(tmp_path)
    found = cache.look_up(KEYS)
    assert all(found[each] == answer(KEYS.index(each)) for each in found)
    cache.end_look_up()
    cache.keep(KEYS[4], answer(4))
    cache.close()
    after = cache_in(tmp_path)
    assert after.look_up(KEYS[4:5]) == {KEYS[4]: answer(4)}
    after.close()
    assert after.figures.warnings == []


@pytest.mark.parametrize("content", [b"junk", b"junk" * 5000, b"SQLite format 3\0" + b"\0" * 4080])
def test_junk_in_its_place_is_set_aside_with_a_warning(tmp_path, content):
    (tmp_path / FILE_NAME).write_bytes(content)
    cache = cache_in(tmp_path)
    assert cache.look_up(KEYS) == {}
    cache.close()
    (warning,) = cache.figures.warnings
    assert DAMAGED_NAME in warning
    assert (tmp_path / DAMAGED_NAME).read_bytes() == content


def test_a_cut_database_gives_right_answers_or_none(tmp_path):
    keep_all(tmp_path, 40, text_bytes=3000)
    size = (tmp_path / FILE_NAME).stat().st_size
    keys = [key(number) for number in range(40)]
    for kept in (size - 1, size // 2, 4096, 4095, 1, 0):
        folder = tmp_path / str(kept)
        folder.mkdir()
        (folder / FILE_NAME).write_bytes((tmp_path / FILE_NAME).read_bytes()[:kept])
        cache = cache_in(folder)
        found = cache.look_up(keys)
        cache.close()
        assert all(found[each] == answer(keys.index(each), text_bytes=3000) for each in found)


def test_a_damaged_database_that_another_process_uses_is_left_to_it(tmp_path):
    keep_all(tmp_path, 1)
    other = cache_in(tmp_path)
    other.look_up(KEYS)
    damage(tmp_path / FILE_NAME, 0, b"\xff" * 100)
    cache = cache_in(tmp_path)
    assert cache.look_up(KEYS) == {}
    cache.keep(KEYS[0], answer(0))
    cache.close()
    (warning,) = cache.figures.warnings
    assert "another process" in warning
    assert cache.figures.num_not_stored == 1
    other.close()


def test_a_cache_of_another_version_is_not_touched(tmp_path):
    keep_all(tmp_path, 1)
    change(tmp_path, "PRAGMA user_version=7")
    before = (tmp_path / FILE_NAME).read_bytes()
    cache = cache_in(tmp_path)
    assert cache.look_up(KEYS) == {}
    cache.close()
    (warning,) = cache.figures.warnings
    assert "schema version 7; expected 1" in warning
    assert (tmp_path / FILE_NAME).read_bytes() == before


def test_a_folder_that_cannot_be_costs_the_hits_alone(tmp_path):
    (tmp_path / "cache").write_text("a file")
    cache = cache_in(tmp_path / "cache")
    assert cache.look_up(KEYS) == {}
    cache.keep(KEYS[0], answer(0))
    cache.close()
    assert len(cache.figures.warnings) == 1
    assert (cache.figures.num_misses, cache.figures.num_not_stored) == (6, 1)


def test_a_folder_in_the_place_of_the_database_costs_the_hits_alone(tmp_path):
    (tmp_path / FILE_NAME).mkdir()
    cache = cache_in(tmp_path)
    assert cache.look_up(KEYS) == {}
    cache.close()
    assert len(cache.figures.warnings) == 1


def test_trouble_of_the_writer_is_a_warning(tmp_path):
    (tmp_path / FILE_NAME).mkdir()
    cache = cache_in(tmp_path)
    for number in range(3):
        cache.keep(KEYS[number], answer(number))
    cache.close()
    assert len(cache.figures.warnings) == 1
    assert (cache.figures.num_stored, cache.figures.num_not_stored) == (0, 3)


def test_what_nobody_foresaw_in_the_writer_is_told_and_ends_no_run_early(tmp_path, monkeypatch):
    def put(*_args: object, **_kwargs: object) -> int:
        raise OverflowError("too large to convert")

    monkeypatch.setattr("trtb.runner.caching.cache_database.CacheDatabase.put", put)
    cache = cache_in(tmp_path)
    for number in range(3):
        cache.keep(KEYS[number], answer(number))
    cache.close()
    assert cache.figures.warnings == [
        "the result cache is not used: writing failed: OverflowError: too large to convert"
    ]
    assert (cache.figures.num_stored, cache.figures.num_not_stored) == (0, 3)


def test_a_writer_that_cannot_wait_says_so(tmp_path):
    writer = CacheWriter(lambda: pytest.fail("nothing to open it for"), 1e12)
    writer.add(entry(1))
    writer._thread.join()
    writer.add(entry(2))
    writer.close()
    assert "OverflowError" in str(writer.figures.error)
    assert writer.figures.num_not_stored == 2


def test_a_value_stands_for_no_more_than_it_may(monkeypatch):
    kept = answer(1, text_bytes=5000)
    value = encode(kept)
    monkeypatch.setattr("trtb.runner.caching.cache_entry.MAX_INFLATED_BYTES", 4000)
    assert decode(value) is None
    assert decode(encode(kept)) == kept  # not compressed, then


def test_more_than_the_disk_takes_is_not_stored_and_not_waited_for(monkeypatch):
    monkeypatch.setattr("trtb.runner.caching.cache_writer.MAX_WAITING_BYTES", 100)
    writer = CacheWriter(lambda: pytest.fail("nothing to open it for"), 0)
    writer.add(entry(1, text_bytes=500))
    writer.close()
    assert (writer.figures.num_stored, writer.figures.num_not_stored) == (0, 1)


def test_uses_are_noted_coarsely_and_decide_who_goes(tmp_path):
    keep_all(tmp_path, 6)
    cache = cache_in(tmp_path, now=NOW + 59)
    cache.look_up(KEYS[:1])
    cache.close()
    with closing(sqlite3.connect(tmp_path / FILE_NAME)) as connection:
        query = "SELECT key FROM entries WHERE used_s > ?"
        assert connection.execute(query, (NOW,)).fetchall() == []
        cache = cache_in(tmp_path, now=NOW + 60)
        cache.look_up([KEYS[0], KEYS[3]])
        cache.close()
        assert {row[0] for row in connection.execute(query, (NOW,))} == {KEYS[0], KEYS[3]}
