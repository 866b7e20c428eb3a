"""The sampler: when it samples, what it makes of what it sees, and what becomes of its file."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
from fakes.clock import run_virtual
from fakes.samples import sample

from trtb.build.errors import ConfigError
from trtb.runner.reporting import sampler
from trtb.runner.reporting.sampler import Load, Sampler
from trtb.runner.reporting.samples import read_samples, samples_path, to_line, write_samples
from trtb.runner.reporting.server_watch import ServerUse

BUSY = Load(in_flight=4, bound=8, waiting=2, is_drained=False, blocks_held=10, num_blocks=40)
DONE = Load(in_flight=2, bound=8, waiting=0, is_drained=True, blocks_held=5, num_blocks=40)


class FakeWatch:
    """Tells of its looks; waits for `gate` where it is asked to."""

    def __init__(self, gate: threading.Event | None = None) -> None:
        self.gate = gate
        self.num_looks = 0
        self.is_closed = False

    def look(self) -> ServerUse:
        self.num_looks += 1
        if self.gate is not None:
            self.gate.wait(10)
        return ServerUse(cpu_s=float(self.num_looks), rss_bytes=7)

    def interrupt(self) -> None:
        if self.gate is not None:
            self.gate.set()

    def close(self) -> None:
        self.is_closed = True


def make(folder: Path, **fields: Any) -> Sampler:
    values: dict[str, Any] = {"load": lambda: BUSY, "prepare_ns": lambda: 0, **fields}
    return Sampler(folder, values.pop("session", 1), **values)


async def run_until(taker: Sampler, num_samples: int) -> None:
    enough = asyncio.Event()

    def load() -> Load:
        if len(taker.samples) >= num_samples:
            enough.set()
        return BUSY

    taker._load = load
    task = asyncio.ensure_future(taker.run())
    await asyncio.wait_for(enough.wait(), 20)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def run_for(taker: Sampler, seconds: float) -> None:
    task = asyncio.ensure_future(taker.run())
    await asyncio.sleep(seconds)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await taker.finish()


def test_there_is_a_sample_for_every_second_and_one_for_the_rest(tmp_path):
    taker = make(tmp_path)
    run_virtual(run_for(taker, 3.5))
    assert [round(each.span_s, 1) for each in taker.samples] == [1.0, 1.0, 1.0, 0.5]
    found = taker.samples[0]
    assert (found.in_flight, found.bound, found.waiting, found.drained_fraction) == (4.0, 8.0, 2.0, 0.0)
    assert (found.blocks_held, found.max_blocks_held, found.num_blocks) == (10.0, 10, 40)
    assert found.server_cpu_s is None
    assert [round(each.span_s, 1) for each in read_samples(tmp_path)] == [1.0, 1.0, 1.0, 0.5]


def test_a_gauge_is_the_mean_of_what_it_was_ten_times_a_second(tmp_path):
    loads = iter([*[BUSY] * 5, *[DONE] * 5, *[DONE] * 50])
    taker = make(tmp_path, load=lambda: next(loads))
    run_virtual(run_for(taker, 1.5))
    first = taker.samples[0]
    assert (first.in_flight, first.max_in_flight, first.drained_fraction) == (3.0, 4, 0.5)
    assert (first.blocks_held, first.max_blocks_held) == (7.5, 10)


def test_work_is_what_was_done_in_the_span(tmp_path):
    spent_ns = iter(range(0, 10**12, 3 * 10**8))
    taker = make(tmp_path, prepare_ns=lambda: next(spent_ns))
    run_virtual(run_for(taker, 1.05))
    assert round(taker.samples[0].prepare_s, 3) == 0.3


def test_a_busy_thread_is_seen_as_busy():
    before = sampler._busy_s()
    sum(range(5_000_000))  # longer than a tick of the kernel, which is when it counts
    assert sampler._busy_s() > before


def test_many_samples_are_merged_and_the_period_doubles(tmp_path, monkeypatch):
    monkeypatch.setattr(sampler, "MAX_SAMPLES", 8)
    monkeypatch.setattr(sampler, "MIN_SAMPLES", 4)
    taker = make(tmp_path)
    run_virtual(run_for(taker, 60.0))
    spans_s = [each.span_s for each in read_samples(tmp_path)]
    assert len(spans_s) <= 8
    assert round(sum(spans_s)) == 60
    assert max(spans_s) > 7.5
    assert len(taker.samples) == len(spans_s)


def test_a_later_session_goes_on_behind_the_earlier_and_mends_what_was_torn(tmp_path):
    write_samples(tmp_path, [sample(), sample()])
    path = samples_path(tmp_path)
    path.write_bytes(path.read_bytes() + to_line(sample())[:40])
    taker = make(tmp_path, session=2)
    run_virtual(run_for(taker, 1.95))
    assert [each.session for each in taker.samples] == [2, 2]
    assert [each.session for each in read_samples(tmp_path)] == [1, 1, 2, 2]
    assert path.read_bytes().count(b"\n") == 5


def test_a_disk_that_takes_nothing_costs_the_file_and_not_the_run(tmp_path):
    folder = tmp_path / "file"
    folder.touch()
    with pytest.raises(ConfigError, match="Not a directory"):
        read_samples(folder)
    taker = make(tmp_path)
    taker._folder = folder  # it has become one meanwhile
    run_virtual(run_for(taker, 1.5))
    assert len(taker.samples) == 2
    assert taker.fault
    assert "samples.jsonl: " in taker.fault


def test_a_folder_in_the_files_place_costs_the_samples_and_not_the_run(tmp_path):
    samples_path(tmp_path).mkdir()
    taker = make(tmp_path)
    run_virtual(run_for(taker, 1.5))
    assert len(taker.samples) == 2
    assert taker.fault


def test_one_that_never_ran_leaves_nothing(tmp_path):
    watch = FakeWatch()
    asyncio.run(make(tmp_path, watch=watch).finish())
    assert not samples_path(tmp_path).exists()
    assert watch.is_closed


def test_servers_are_looked_at_once_a_sample(tmp_path, monkeypatch):
    monkeypatch.setattr(sampler, "TICK_S", 0.0005)
    monkeypatch.setattr(sampler, "PERIOD_S", 0.001)
    monkeypatch.setattr(sampler, "MIN_SPAN_S", 0.0)
    watch = FakeWatch()
    taker = make(tmp_path, watch=watch)

    async def go() -> None:
        await run_until(taker, 2)
        await taker.finish()

    asyncio.run(go())
    # the first look is at what had been used before
    assert [each.server_cpu_s for each in taker.samples][:2] == [2.0, 3.0]
    assert watch.is_closed


def test_a_server_or_driver_that_hangs_costs_its_own_figures_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(sampler, "LOOK_PATIENCE_S", 0.001)
    monkeypatch.setattr(sampler, "TICK_S", 0.0005)
    monkeypatch.setattr(sampler, "PERIOD_S", 0.001)
    watch = FakeWatch(threading.Event())
    taker = make(tmp_path, watch=watch)

    async def go() -> None:
        await run_until(taker, 3)
        monkeypatch.setattr(sampler, "LOOK_PATIENCE_S", 1.0)
        watch.interrupt()
        await taker.finish()

    asyncio.run(go())
    assert {each.server_cpu_s for each in taker.samples[:3]} == {None}
    assert watch.num_looks == 1
    assert watch.is_closed
