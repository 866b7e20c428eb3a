"""What is seen of the engine's reuse: its own counts, or what prompts took."""

from __future__ import annotations

import pytest

from trtb.runner.answer import Answer, Choice
from trtb.runner.scheduling.schedule_reuse import ReuseMeter, SeenReuse, UnseenReuse

MS = 1_000_000


def answer(start_ms: int, end_ms: int, reused_blocks: int | None = None) -> Answer:
    choice = Choice("", "stop", 1)
    return Answer(
        [choice], 1, 1, arrival_ns=start_ms * MS, first_token_ns=end_ms * MS, reused_blocks=reused_blocks
    )


def share_of(meter: ReuseMeter) -> float:
    found = meter.result()
    assert isinstance(found, SeenReuse), found
    return found.share


def test_nothing_is_seen_where_nothing_was_measured():
    meter = ReuseMeter(1, 32)
    assert meter.result() == UnseenReuse("no request was answered")
    meter.add(0, 100, answer(0, 0), is_lone=False)
    assert isinstance(meter.result(), UnseenReuse)


def test_what_others_take_at_the_leaders_pace_is_what_they_computed():
    meter = ReuseMeter(1, 32)
    for number in range(4):
        meter.add_leader(0, 100, answer(100 * number, 100 * number + 100))  # a token a ms
    for _ in range(16):  # one step for all, of 480 tokens
        meter.add(0, 430, answer(400, 880), is_lone=False)
    assert meter.result() == SeenReuse(
        pytest.approx(1 - (400 + 480) / (16 * 430)), "derived from prefill times"
    )


def test_time_that_overlaps_a_leaders_is_not_counted_twice():
    meter = ReuseMeter(1, 32)
    for number in range(4):
        meter.add_leader(0, 100, answer(100 * number, 100 * number + 100))
    for number in range(16):
        meter.add(0, 430, answer(390 + 10 * number, 400 + 10 * number), is_lone=False)
    assert share_of(meter) == pytest.approx(1 - (400 + 150) / (16 * 430))


def test_what_was_computed_at_the_same_time_as_the_others_is_not_told():
    # 64 requests at once: whatever the few that share a prefix took lies within the time of the others
    meter = ReuseMeter(1, 32)
    meter.add_leader(0, 60, answer(0, 400))
    for number in range(58):
        meter.add(0, 68, answer(0, 400 + 110 * number), is_lone=True)
    for _ in range(6):
        meter.add(0, 100, answer(400, 4900), is_lone=False)
    assert meter.result() == UnseenReuse("prompts with a shared prefix were computed together with others")


@pytest.mark.parametrize(("num_known", "is_told"), [(1, False), (3, False), (4, True)])
def test_a_pace_is_not_told_by_a_few_prompts(num_known, is_told):
    meter = ReuseMeter(1, 32)
    for number in range(num_known):
        meter.add_leader(0, 100, answer(100 * number, 100 * number + 100))
    meter.add(0, 2000, answer(1000, 1100), is_lone=False)
    found = meter.result()
    assert isinstance(found, SeenReuse) is is_told
    if isinstance(found, UnseenReuse):
        assert found.reason.startswith(f"{num_known} prompt{'s' * (num_known > 1)} computed whole")


def test_lines_without_a_prefix_compute_all_of_theirs():
    meter = ReuseMeter(1, 32)
    for number in range(4):
        meter.add(0, 100, answer(100 * number, 100 * number + 100), is_lone=True)
    assert share_of(meter) == 0.0


def test_servers_have_a_pace_of_their_own():
    meter = ReuseMeter(2, 32)
    for server, pace in ((0, 1), (1, 10)):
        for number in range(4):
            meter.add_leader(server, 25, answer(25 * pace * number, 25 * pace * (number + 1)))
        meter.add(server, 200, answer(100 * pace, 150 * pace), is_lone=False)
    assert share_of(meter) == pytest.approx(1 - 300 / 400)


def test_an_engines_own_counts_come_first():
    meter = ReuseMeter(1, 32)
    meter.add_leader(0, 320, answer(0, 400, reused_blocks=0))
    for _ in range(4):
        meter.add(0, 400, answer(0, 400, reused_blocks=10), is_lone=False)
    assert meter.result() == SeenReuse((4 * 320 - 320) / 1600, "engine counters")


@pytest.mark.parametrize(
    ("num_above", "leader_blocks", "led_tokens"),
    [(0, 0, 320), (64, 2, 320), (0, 9, 32), (64, 11, 32), (64, 0, 384), (0, 11, 0)],
)
def test_a_leader_costs_what_it_computed_not_what_it_found(num_above, leader_blocks, led_tokens):
    meter = ReuseMeter(1, 32)
    meter.add_leader(0, 320, answer(0, 400, reused_blocks=leader_blocks), num_above=num_above)
    for _ in range(4):
        meter.add(0, 400, answer(0, 400, reused_blocks=10), is_lone=False)
    assert meter.result() == SeenReuse((4 * 320 - led_tokens) / 1600, "engine counters")
