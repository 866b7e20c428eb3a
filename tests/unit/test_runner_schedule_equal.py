"""Equal requests: found whatever their line looks like, computed once, answered each under its own name."""

from __future__ import annotations

import json

import pytest
from fakes.plans import dumped, planned, request, run
from fakes.transport import Answers, Fails, FakeServer
from fakes.work import line_of

from trtb.runner.errors import EngineError
from trtb.runner.scheduling.schedule_planner import Planner


def equal_pairs(planner: Planner) -> dict[int, int]:
    return {line: first for first, line, _, _ in planner.equal._by_first.tolist()}


def test_a_request_is_equal_whatever_its_line_looks_like(tmp_path):
    turned = json.dumps(request("b"), indent=None, separators=(",", ":"), sort_keys=True)
    lines = [
        *dumped(request("a")), turned, *dumped(request("c", model="another-name"), request("d", n=1)),
        *dumped(request("e", max_tokens=5), request("f", "Another text."), request("g", top_p=0.5)),
    ]  # fmt: skip
    with planned(tmp_path, lines) as (planner, _):
        assert equal_pairs(planner) == {2: 1, 3: 1, 4: 1}


def test_only_what_asks_for_the_same_answer_is_equal(tmp_path):
    seeded = [request(name, temperature=1, seed=seed) for name, seed in (("a", 1), ("b", 1), ("c", 2))]
    unseeded = [request(name, temperature=1) for name in ("d", "e")]
    with planned(tmp_path, dumped(*seeded, *unseeded)) as (planner, _):
        assert equal_pairs(planner) == {2: 1}


@pytest.mark.parametrize("order", ["input", "prefix", "length"])
def test_each_is_computed_once_and_answered_under_its_own_custom_id(order, tmp_path):
    lines = dumped(
        *(request(f"same-{number}") for number in range(5)), request("other", "Say more than that.")
    )
    server = FakeServer(lambda _: Answers(3))
    with planned(tmp_path, lines, order) as (planner, _):
        work = run(planner, server)
        assert "4 requests are equal" in planner.describe()
    assert sorted(work.answers) == [1, 6]
    assert sorted((reused.line, reused.custom_id, reused.item.line) for reused in work.reused) == [
        (line, f"same-{line - 1}", 1) for line in range(2, 6)
    ]
    assert {id(reused.answer) for reused in work.reused} == {id(work.answers[1][0])}
    assert len([each for each in server.sent if "-prefix" not in each.request_id]) == 2


def test_where_the_first_fails_the_others_are_computed_by_themselves(tmp_path):
    lines = dumped(*(request(f"same-{number}") for number in range(4)))
    server = FakeServer(lambda each: Fails(EngineError("bad")) if line_of(each) == 1 else Answers())
    with planned(tmp_path, lines) as (planner, _):
        work = run(planner, server)
    assert list(work.errors) == [1]
    assert sorted(work.answers) == [2, 3, 4]
    assert work.reused == []


@pytest.mark.parametrize("order", ["input", "prefix"])
def test_where_the_first_cannot_be_sent_neither_can_the_others(order, tmp_path):
    lines = dumped(*(request(f"same-{number}", max_tokens=10**6) for number in range(3)))
    with planned(tmp_path, lines, order) as (planner, refused):
        work = run(planner, FakeServer())
    assert sorted([each.line for each in refused] + work.refused) == [1, 2, 3]
    assert work.answers == {}


def test_a_byte_order_mark_is_no_part_of_the_first_line(tmp_path):
    lines = dumped(request("a"), request("b"), request("c", "Else"))
    lines[0] = "\ufeff" + lines[0]
    with planned(tmp_path, lines, "prefix") as (planner, _):
        work = run(planner, FakeServer())
    assert sorted(work.answers) == [1, 3]
    assert [(reused.line, reused.custom_id) for reused in work.reused] == [(2, "b")]


def test_without_dedup_every_line_is_computed(tmp_path):
    lines = dumped(*(request(f"same-{number}") for number in range(3)))
    with planned(tmp_path, lines, is_dedup=False) as (planner, _):
        assert sorted(run(planner, FakeServer()).answers) == [1, 2, 3]
