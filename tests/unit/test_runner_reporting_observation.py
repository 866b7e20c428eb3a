"""The observation of a session: what it takes from feed and workers, and whom it watches."""

from __future__ import annotations

import pytest
from fakes.runs import fake_options
from fakes.transport import Answers, FakeServer
from fakes.work import Work, item

from trtb.runner.reporting import observation
from trtb.runner.reporting.observation import Observation
from trtb.runner.reporting.sampler import Load


@pytest.fixture
def work() -> Work:
    """Return work of six lines of three blocks each, two at a time for want of places."""
    server = FakeServer(lambda _: Answers())
    return Work([item(line, num_blocks=3) for line in range(6)], server, concurrency=2, capacity=100)


def test_a_load_is_what_workers_and_feed_have_to_do(work):
    seen: list[Load] = []

    def look(running: Work) -> None:
        seen.append(observation._load(running.workers, running.feed, 2))

    work.run(during=look)
    look(work)
    first, last = seen
    assert first == Load(0, 2, 0, is_drained=False, blocks_held=0, num_blocks=100)
    assert last == Load(0, 2, 0, is_drained=True, blocks_held=0, num_blocks=100)


def test_what_is_in_flight_is_in_the_load(work):
    def take_all(running: Work) -> None:
        tasks = [running.feed.take(), running.feed.take()]
        assert None not in tasks
        assert running.feed.take() is None
        load = observation._load(running.workers, running.feed, 2)
        assert (load.bound, load.waiting, load.blocks_held) == (2, 1, 6)
        for task in tasks:
            running.feed.put_back(task)

    work.run(during=take_all)
    assert len(work.answers) == 6


def test_a_pool_that_is_not_known_is_not_told(work):
    work.capacity = None  # type: ignore[assignment]
    work.run()
    load = observation._load(work.workers, work.feed, 2)
    assert (load.blocks_held, load.num_blocks) == (None, None)


def test_servers_of_others_are_not_looked_at_and_a_cpu_engine_needs_no_gpu(work, tmp_path, monkeypatch):
    monkeypatch.setattr(observation, "GpuWatch", lambda: pytest.fail("asked for a GPU"))
    work.run()
    watched = Observation(fake_options(tmp_path), tmp_path, 1)
    watched.begin(work.workers, work.feed, [work.endpoint], source=None)  # type: ignore[arg-type]
    assert watched.sampler
    assert watched.sampler._watch is None
    assert watched.fault is None
