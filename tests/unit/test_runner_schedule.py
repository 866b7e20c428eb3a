"""Which order is chosen, and how groups are mixed."""

from __future__ import annotations

import pytest

from trtb.runner.scheduling.schedule import Look, PlanFigures, blend, choose_by_look, choose_by_plan


@pytest.mark.parametrize(
    ("look", "order"),
    [
        (Look(1000, 51, 100_000, 200), None),  # prefixes must be counted
        (Look(1000, 40, 100_000, 200), "input"),
        (Look(1000, 0, 100_000, 9_000), "length"),  # one would run on for a third of the run by itself
        (Look(4, 0, 400, 100), "input"),  # all are as long
        (Look(0, 0, 0, 0), "input"),
    ],
)
def test_a_first_look_decides_where_nothing_is_shared(look, order):
    found = choose_by_look(look, concurrency=8)
    assert (found.order if found else None) == order


def test_an_engine_that_reuses_nothing_gets_no_order_of_prefixes():
    look = Look(1000, 900, 100_000, 200)
    assert choose_by_look(look, concurrency=8) is None
    found = choose_by_look(look, concurrency=8, is_reusing=False)
    assert (found.order, found.why) == ("input", "the engine reuses no prefixes")


def test_prefixes_are_worth_their_order_where_they_are_much_of_the_prompts():
    assert choose_by_plan(PlanFigures(10, 1000, 2, 10, 600)).order == "prefix"
    assert choose_by_plan(PlanFigures(10, 1000, 2, 10, 40)).order == "input"
    assert "60%" in choose_by_plan(PlanFigures(10, 1000, 2, 10, 600)).why


def test_groups_of_one_kind_keep_their_order():
    assert blend([5, 5, 5], [7, 7, 7]) == [0, 1, 2]
    assert blend([], []) == []


def test_long_prompts_and_long_answers_come_side_by_side():
    prefill, decode = [1000] * 10 + [10] * 10, [10] * 10 + [1000] * 10
    order = blend(prefill, decode)
    assert sorted(order) == list(range(20))
    for end in range(2, 20):
        taken = order[:end]
        prompts, answers = sum(prefill[each] for each in taken), sum(decode[each] for each in taken)
        assert abs(prompts - answers) <= 1000
