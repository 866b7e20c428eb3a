"""What a run's progress says, and what it does not say yet."""

from __future__ import annotations

import pytest

from trtb.runner.options import Progress
from trtb.tools import progress


@pytest.fixture
def clock(monkeypatch):
    """The seconds that the progress sees; to be set."""
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def run(total: int, **fields: int) -> Progress:
    return Progress(phase="running", total=total, phase_started=0.0, **fields)


@pytest.mark.parametrize(
    ("total", "num_ended", "is_told"),
    [(64, 1, False), (64, 9, False), (64, 10, True), (1000, 49, False), (1000, 50, True), (10, 10, False)],
)
def test_no_end_is_told_before_the_pace_tells_it(clock, total, num_ended, is_told):
    line = progress.Line()
    line(run(total))
    clock[0] = 10.0
    assert ("ETA" in line(run(total, num_completed=num_ended))) is is_told


def test_the_start_of_the_server_is_no_part_of_the_pace(clock):
    line = progress.Line()
    assert line(Progress(phase="starting the server", total=64, phase_started=0.0)) == "starting the server"
    clock[0] = 20.0
    line(run(64))
    clock[0] = 30.0
    assert line(run(64, num_completed=30, num_failed=2)).endswith("ETA 0:10")


def test_what_was_there_from_before_is_no_part_of_the_pace(clock):
    line = progress.Line()
    line(run(100, num_resumed=80))
    clock[0] = 10.0
    assert "ETA" not in line(run(100, num_resumed=80, num_completed=9))
    assert line(run(100, num_resumed=80, num_completed=10)).endswith("ETA 0:10")
