"""What is seen of the engine's reuse: its own counts, or what prompts took."""

from __future__ import annotations

import pytest

from trtb.runner.answer import Answer, Choice
from trtb.runner.scheduling.schedule_reuse import ReuseMeter

MS = 1_000_000


def answer(start_ms: int, end_ms: int, reused_blocks: int | None = None) -> Answer:
    choice = Choice("", "stop", 1)
    return Answer(
        [choice], 1, 1, arrival_ns=start_ms * MS, first_token_ns=end_ms * MS, reused_blocks=reused_blocks
    )


def test_nothing_is_seen_where_nothing_was_measured():
    meter = ReuseMeter(1, 32)
    assert meter.result() is None
    meter.add(0, 100, answer(0, 0), is_lone=False)
    assert meter.result() is None


def test_what_others_take_at_the_leaders_pace_is_what_they_computed():
    meter = ReuseMeter(1, 32)
    meter.add_leader(0, 400, answer(0, 400))  # a token a ms
    for _ in range(16):  # one step for all, of 480 tokens
        meter.add(0, 430, answer(400, 880), is_lone=False)
    share, method = meter.result() or (0, "")
    assert share == pytest.approx(1 - (400 + 480) / (16 * 430))
    assert method == "derived from prefill times"


def test_time_that_overlaps_a_leaders_is_not_counted_twice():
    meter = ReuseMeter(1, 32)
    meter.add_leader(0, 400, answer(0, 400))
    meter.add(0, 430, answer(100, 300), is_lone=False)
    assert (meter.result() or (0,))[0] == pytest.approx(1 - 400 / 430)


def test_lines_without_a_prefix_compute_all_of_theirs():
    meter = ReuseMeter(1, 32)
    for number in range(4):
        meter.add(0, 100, answer(100 * number, 100 * number + 100), is_lone=True)
    assert (meter.result() or (1,))[0] == 0.0


def test_servers_have_a_pace_of_their_own():
    meter = ReuseMeter(2, 32)
    for server, pace in ((0, 1), (1, 10)):
        meter.add_leader(server, 100, answer(0, 100 * pace))
        meter.add(server, 200, answer(100 * pace, 150 * pace), is_lone=False)
    assert (meter.result() or (0,))[0] == pytest.approx(1 - 300 / 400)


def test_an_engines_own_counts_come_first():
    meter = ReuseMeter(1, 32)
    meter.add_leader(0, 320, answer(0, 400, reused_blocks=0))
    for _ in range(4):
        meter.add(0, 400, answer(0, 400, reused_blocks=10), is_lone=False)
    assert meter.result() == ((4 * 320 - 320) / 1600, "engine counters")
