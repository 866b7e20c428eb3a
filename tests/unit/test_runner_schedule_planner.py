"""The planner: what `auto` makes of a file, and that no line is lost between looking and sending."""

from __future__ import annotations

import itertools
import json

import pytest
from fakes.plans import dumped, planned, request, run
from fakes.transport import Answers, FakeServer
from fakes.work import line_of

SYSTEM = "You answer questions about a long text of which nothing may be left out. " * 4


def sharing(num_lines: int, num_kinds: int) -> list[str]:
    return dumped(
        *(request(f"c-{n}", f"{n % num_kinds} {SYSTEM} {n}", max_tokens=4) for n in range(num_lines))
    )


@pytest.mark.parametrize("is_dedup", [True, False])
def test_auto_takes_prefixes_where_many_begin_alike(is_dedup, tmp_path):
    with planned(tmp_path, sharing(12, 3), "auto", is_dedup=is_dedup) as (planner, _):
        assert planner.choice.order == "prefix"
        server = FakeServer(lambda _: Answers(2))
        work = run(planner, server)
    assert sorted(work.answers) == list(range(1, 13))
    assert "12 of 12 requests share 3 prefixes, expected reuse 7" in planner.describe()
    assert sum("-prefix" in each.request_id for each in server.sent) == 3
    kinds = [line_of(each) % 3 for each in server.sent if "-prefix" not in each.request_id]
    assert sum(one != other for one, other in itertools.pairwise(kinds)) < 6


def test_auto_keeps_the_files_order_where_none_do_and_does_not_tokenise_for_it(tmp_path):
    lines = dumped(*(request(f"c-{n}", f"{n} {SYSTEM}"[:300], max_tokens=4) for n in range(9)))
    with planned(tmp_path, lines, "auto", is_dedup=False) as (planner, _):
        assert (planner.choice.order, planner.figures) == ("input", None)
        server = FakeServer(lambda _: Answers(2))
        assert sorted(run(planner, server).answers) == list(range(1, 10))
    assert [line_of(each) for each in server.sent] == list(range(1, 10))


def test_auto_sends_the_longest_first_where_it_would_end_last(tmp_path):
    lines = dumped(*(request(f"c-{n}", f"{n} {SYSTEM}"[:300], max_tokens=4) for n in range(9)))
    lines.append(json.dumps(request("long", "Tell.", max_tokens=900)))
    with planned(tmp_path, lines, "auto", is_dedup=False) as (planner, _):
        assert planner.choice.order == "length"
        server = FakeServer(lambda _: Answers(2))
        run(planner, server)
    assert line_of(server.sent[0]) == 10


def test_where_counting_shows_that_little_is_shared_refused_lines_are_told_once(tmp_path):
    # all begin alike in letters, but each is far longer than what it shares
    lines = dumped(
        *(request(f"c-{n}", SYSTEM[:170] + f"{n} " * 300, max_tokens=4) for n in range(6)),
        request("too long", SYSTEM, max_tokens=10**6),
    )
    with planned(tmp_path, lines, "auto", is_dedup=False) as (planner, refused):
        found = run(planner, FakeServer(lambda _: Answers(2)))
    assert [each.line for each in refused] + found.refused == [7]
    assert sorted(found.answers) == list(range(1, 7))


@pytest.mark.parametrize("order", ["input", "prefix", "length"])
def test_a_line_with_an_earlier_ones_custom_id_fails_though_it_is_equal(order, tmp_path):
    same = request("c-1", SYSTEM, max_tokens=4, temperature=0)
    lines = dumped(same, same, {**same, "custom_id": "c-3"})
    with planned(tmp_path, lines, order, duplicates=(2,)) as (planner, refused):
        server = FakeServer(lambda _: Answers(2))
        found = run(planner, server)
    assert [each.line for each in refused] + found.refused == [2]
    assert sorted(found.answers) == [1]
    assert [each.line for each in found.reused] == [3]
    assert sum("-prefix" not in each.request_id for each in server.sent) == 1


def test_the_plan_is_told_in_a_sentence(tmp_path):
    with planned(tmp_path, sharing(4, 4), "length", is_dedup=False) as (planner, _):
        assert planner.describe() == "order length (asked for)"
