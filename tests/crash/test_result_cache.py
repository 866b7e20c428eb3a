"""The result cache under several processes, and under kills: within its capacity, sound, never wrong."""

from __future__ import annotations

import os
import random
import resource
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import commands
import pytest
from fakes.cached import answer, cache_in, entry, key

from trtb.runner.caching.cache_database import CacheDatabase
from trtb.runner.caching.cache_file import FILE_NAME
from trtb.runner.caching.result_cache import ResultCache

pytestmark = pytest.mark.slow

CAPACITY_BYTES = 3_000_000
NUM_KEYS = 4000
TEXT_BYTES = 1500
# Stores answers of numbers in a random order, over and over; what it stores of a number is always the same.
WRITER = f"""
import random, sys
from pathlib import Path
from fakes.cached import answer, cache_in, key
seed, count = int(sys.argv[2]), int(sys.argv[3])
numbers = random.Random(seed)
cache = cache_in(Path(sys.argv[1]), capacity_bytes={CAPACITY_BYTES})
for turn in range(count):
    number = numbers.randrange({NUM_KEYS})
    cache.keep(key(number), answer(number, text_bytes={TEXT_BYTES}))
    if turn % 50 == 0:
        cache.look_up([key(numbers.randrange({NUM_KEYS})) for _ in range(20)])
        print(turn, flush=True)
cache.close()
print(cache.figures.num_stored, cache.figures.num_not_stored, cache.figures.warnings, flush=True)
"""


def start(folder: Path, seed: int, count: int, **options: Any) -> subprocess.Popen[str]:
    tests = str(Path(__file__).parents[1])
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, str(folder), str(seed), str(count)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": tests},
        cwd=sys.prefix,
        **options,
    )


def files_bytes(folder: Path) -> int:
    total = 0
    for path in folder.glob(f"{FILE_NAME}*"):
        try:
            total += path.stat().st_size
        except FileNotFoundError:  # the log of the last connection
            continue
    return total


def check(folder: Path) -> int:
    """Check every entry against what is always stored of its number; returns how many there are."""
    with closing(CacheDatabase(folder, CAPACITY_BYTES)) as database:
        assert not database.file.was_set_aside
        assert database.file.query("PRAGMA integrity_check") == [("ok",)]
        found = database.find([key(number) for number in range(NUM_KEYS)])
        assert sum(count for _, count, _ in database.count()) == len(found)
    for number in range(NUM_KEYS):
        if (each := found.get(key(number))) is not None:
            assert each.is_sound
            assert each.value == entry(number, text_bytes=TEXT_BYTES).value
    return len(found)


def look_up_all(cache: ResultCache) -> int:
    found = cache.look_up([key(number) for number in range(NUM_KEYS)])
    for number in range(NUM_KEYS):
        assert found.get(key(number)) in (None, answer(number, text_bytes=TEXT_BYTES))
    return len(found)


def test_several_processes_write_at_once_and_stay_within_the_capacity(tmp_path: Path) -> None:
    writers = [start(tmp_path, seed, 2500) for seed in range(3)]
    most = 0

    def all_ended() -> bool:
        nonlocal most
        most = max(most, files_bytes(tmp_path))
        return all(writer.poll() is not None for writer in writers)

    commands.wait_until(all_ended, 120, "the writers end")
    for writer in writers:
        stdout, stderr = writer.communicate()
        assert writer.returncode == 0, stderr
        assert stdout.splitlines()[-1].endswith("[]"), stdout
        assert int(stdout.splitlines()[-1].split()[0]) > 0
    assert CAPACITY_BYTES // 3 < most <= CAPACITY_BYTES
    assert check(tmp_path) > 100


@pytest.mark.parametrize("seed", range(4))
def test_a_writer_that_is_killed_leaves_a_sound_cache(tmp_path: Path, seed: int) -> None:
    other = start(tmp_path, 100 + seed, 1000)
    for turn in range(3):
        writer = start(tmp_path, seed * 10 + turn, 10**6)
        assert writer.stdout
        for _ in range(random.Random(seed + turn).randrange(2, 12)):
            writer.stdout.readline()
        writer.send_signal(signal.SIGKILL)
        writer.communicate()
        with closing(cache_in(tmp_path, capacity_bytes=CAPACITY_BYTES)) as cache:
            look_up_all(cache)
        assert cache.figures.warnings == []
        assert cache.figures.num_corrupted == 0
    _, stderr = other.communicate(timeout=120)
    assert other.returncode == 0, stderr
    assert check(tmp_path) > 0
    assert files_bytes(tmp_path) <= CAPACITY_BYTES


def test_a_full_disk_costs_new_entries_and_nothing_else(tmp_path: Path) -> None:
    def small_files() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))

    writer = start(tmp_path, 1, 2000, preexec_fn=small_files)
    stdout, stderr = writer.communicate(timeout=120)
    assert writer.returncode == 0, stderr
    stored, not_stored, warnings = stdout.splitlines()[-1].split(maxsplit=2)
    assert int(stored) + int(not_stored) == 2000
    assert int(not_stored) > 0
    assert "not used" in warnings
    check(tmp_path)
    with closing(cache_in(tmp_path, capacity_bytes=CAPACITY_BYTES)) as cache:
        cache.keep(key(1), answer(1, text_bytes=TEXT_BYTES))
    assert cache.figures.warnings == []
    assert check(tmp_path) > 0
