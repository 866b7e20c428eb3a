"""Copies of the result cache: whole or refused, each entry as it was stored or left out."""

from __future__ import annotations

import base64
import gzip
import json
import time
from contextlib import closing
from pathlib import Path

import pytest
from fakes.cached import CAPACITY_BYTES, NOW, answer, cache_in, entry, keep_all, key

from trtb.runner.answer import Choice
from trtb.runner.caching.cache_database import CacheDatabase
from trtb.runner.caching.cache_entry import CachedAnswer, checksum_of, encode
from trtb.runner.caching.cache_transfer import CacheCopyError, ImportFigures, export_cache, import_cache
from trtb.runner.errors import InputNotFoundError


def export(folder: Path, path: Path) -> int:
    with closing(CacheDatabase(folder, CAPACITY_BYTES)) as database:
        return export_cache(database, path)


def import_into(folder: Path, path: Path, capacity_bytes: int = CAPACITY_BYTES) -> ImportFigures:
    with closing(CacheDatabase(folder, capacity_bytes)) as database:
        return import_cache(database, path)


def lines_of(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]


def write(path: Path, lines: list[object]) -> None:
    path.write_bytes(gzip.compress("".join(json.dumps(line) + "\n" for line in lines).encode()))


@pytest.fixture
def copy(tmp_path) -> Path:
    keep_all(tmp_path / "from", 5)
    assert export(tmp_path / "from", tmp_path / "copy.gz") == 5
    return tmp_path / "copy.gz"


def test_a_copy_brings_every_answer_along_and_keeps_what_is_there(tmp_path, copy):
    keep_all(tmp_path / "to", 2)
    assert import_into(tmp_path / "to", copy) == ImportFigures(num_taken=3, num_known=2)
    assert import_into(tmp_path / "to", copy) == ImportFigures(num_known=5)
    with closing(cache_in(tmp_path / "to")) as cache:
        assert cache.look_up([key(number) for number in range(5)]) == {
            key(number): answer(number) for number in range(5)
        }
    before = copy.read_bytes()
    export(tmp_path / "to", copy)
    assert sorted(map(str, lines_of(copy))) == sorted(
        str(json.loads(line)) for line in gzip.decompress(before).splitlines()
    )


def test_a_copy_of_nothing_is_one(tmp_path):
    assert export(tmp_path / "from", tmp_path / "copy.gz") == 0
    assert import_into(tmp_path / "to", tmp_path / "copy.gz") == ImportFigures()


def test_what_is_used_the_longest_ago_is_left_out_where_the_capacity_is_small(tmp_path):
    with closing(CacheDatabase(tmp_path / "from", 4_000_000)) as database:
        for number in range(120):
            database.put([entry(number, text_bytes=20_000, stored_s=NOW + number)])
        export_cache(database, tmp_path / "copy.gz")
    figures = import_into(tmp_path / "to", tmp_path / "copy.gz", 1_000_000)
    assert (figures.num_taken, figures.num_not_stored) == (120, 0)
    assert 0 < figures.num_evicted < 120
    kept = [key(number) for number in range(figures.num_evicted, 120)]
    with closing(CacheDatabase(tmp_path / "to", 1_000_000)) as database:
        assert set(database.find([key(number) for number in range(120)])) == set(kept)
        assert database.file.size_bytes <= 1_000_000


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("key", "00" * 32), ("key", "zz"), ("key", None), ("value", "AAAA"), ("value", 7),
        ("stored_s", NOW + 1), ("checksum", "00"), ("stored_s", "x"),
        ("used_s", -5), ("used_s", 10**30), ("used_s", 1.5e308), ("used_s", 2**63 - 1), ("used_s", True),
        ("engine_id", "\x1b[2J"), ("engine_id", 7), ("num_entries", 0), ("more", 1),
    ],
)  # fmt: skip
def test_an_entry_that_is_not_as_it_was_stored_is_refused_alone(tmp_path, copy, name, value):
    lines = lines_of(copy)
    lines[2][name] = value
    write(copy, lines)
    assert import_into(tmp_path / "to", copy) == ImportFigures(num_taken=4, num_refused=1)


def test_an_entry_that_would_fill_the_memory_is_refused(tmp_path, copy, monkeypatch):
    value = encode(CachedAnswer([Choice("x" * 9000, "stop", 3)], 5, 3, "stop", NOW))
    lines = lines_of(copy)
    lines[2]["value"] = base64.b64encode(value).decode()
    lines[2]["checksum"] = checksum_of(bytes.fromhex(str(lines[2]["key"])), NOW, value).hex()
    write(copy, lines)
    assert import_into(tmp_path / "large", copy) == ImportFigures(num_taken=5)
    monkeypatch.setattr("trtb.runner.caching.cache_entry.MAX_INFLATED_BYTES", 9000)
    assert import_into(tmp_path / "to", copy) == ImportFigures(num_taken=4, num_refused=1)


def test_a_use_that_is_still_to_come_counts_as_one_of_now(tmp_path, copy):
    lines = lines_of(copy)
    lines[2]["used_s"] = soon = int(time.time()) + 3600
    write(copy, lines)
    assert import_into(tmp_path / "to", copy) == ImportFigures(num_taken=5)
    with closing(CacheDatabase(tmp_path / "to", CAPACITY_BYTES)) as database:
        assert database.remove_where(engine_id=None, used_before_s=soon) == 5


def test_an_entry_of_any_time_is_exported(tmp_path):
    keep_all(tmp_path / "from", 2)
    with closing(CacheDatabase(tmp_path / "from", CAPACITY_BYTES)) as database:
        database.file.query("UPDATE entries SET used_s = -5 WHERE id = 2")
    assert export(tmp_path / "from", tmp_path / "copy.gz") == 2


def test_a_folder_is_no_copy(tmp_path):
    with pytest.raises(CacheCopyError, match="Is a directory; expected a whole copy"):
        import_into(tmp_path / "to", tmp_path)


def test_a_damaged_entry_is_not_exported_and_gives_way_to_a_sound_one(tmp_path, copy):
    with closing(CacheDatabase(tmp_path / "from", CAPACITY_BYTES)) as database:
        database.file.query("UPDATE entries SET checksum = x'00' WHERE id = 2")
        assert export_cache(database, tmp_path / "other.gz") == 4
        assert import_cache(database, copy) == ImportFigures(num_taken=1, num_known=4)
        assert export_cache(database, tmp_path / "other.gz") == 5


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda lines: lines[:-1], "ends after 5 entries"),
        (lambda lines: lines[1:], "no copy of a result cache"),
        (lambda lines: [{**lines[0], "schema_version": 2}, *lines[1:]], "schema version 2; expected 1"),
        (lambda lines: [*lines[:2], *lines[3:]], "4 entries; expected 5"),
        (lambda lines: [*lines, lines[1]], "5 entries; expected 5 and nothing after"),
        (lambda lines: [lines[0], 3, *lines[1:]], "line 2 is no object"),
        (lambda _: [], "no copy of a result cache"),
    ],
)
def test_what_is_no_whole_copy_of_this_schema_is_refused_before_anything_is_taken(
    tmp_path, copy, change, words
):
    write(copy, change(lines_of(copy)))
    with pytest.raises(CacheCopyError, match=words) as caught:
        import_into(tmp_path / "to", copy)
    assert caught.value.exit_code == 3
    with closing(CacheDatabase(tmp_path / "to", CAPACITY_BYTES)) as database:
        assert database.count() == []


def test_bytes_that_are_no_copy_are_refused(tmp_path, copy):
    data = copy.read_bytes()
    for content in (b"", b"{}\n", data[:-1], data[: len(data) // 2], gzip.compress(b"\xff\n")):
        copy.write_bytes(content)
        with pytest.raises(CacheCopyError):
            import_into(tmp_path / "to", copy)
    with pytest.raises(InputNotFoundError):
        import_into(tmp_path / "to", tmp_path / "none")
