"""The canary: who goes alone, what lets the others go, and which failures stop a run."""

from __future__ import annotations

import asyncio
import re
from collections import deque

import pytest
from fakes.transport import TICK_S, Answers, Fails, FakeServer, Hangs, Kills, Reply
from fakes.work import Work, attempt_of, item, line_of
from hypothesis import given
from hypothesis import strategies as st

from trtb.runner.canary import SYSTEM_CODES, Canary
from trtb.runner.errors import (
    CancelledRequestError,
    ConnectionLostError,
    ContextLengthError,
    DeadlineExceededError,
    EngineError,
    InvalidRequestError,
    QueueFullError,
    RequestError,
)
from trtb.runner.scheduling.prefix_tree import PrefixTree
from trtb.runner.scheduling.schedule_index import Planned
from trtb.runner.source import Item, LinePlace, Prompt
from trtb.runner.transport import EngineRequest

BROKEN = EngineError("the engine is sick")


def sent_lines(work: Work) -> list[int]:
    return [line_of(request) for request in work.server.sent]


def lines(count: int, **fields: int) -> list[Item]:
    return [item(line, **fields) for line in range(1, count + 1)]


def work_of(count: int, script, *, size: int = 4, rate: float | None = None, **fields: object) -> Work:
    return Work(lines(count), FakeServer(script), canary=Canary(size, rate), **{"concurrency": 16, **fields})


def prefix_work(count: int, script, **fields: object) -> Work:
    """Return work on lines of four prefixes, of which two go alone."""
    tree = PrefixTree()
    for _ in range(4):
        tree.num_lines[tree.add(4)] = count // 4
    planned = [
        Planned(LinePlace(line, 0, 1), 5, 1, (line - 1) // (count // 4)) for line in range(1, count + 1)
    ]

    def prepare(place: LinePlace) -> Item:
        prompts = [Prompt([place.line] * 5, 4)]
        return Item(place.line, "c", prompts, item(1).sampling, 0, num_prompt_tokens=5, num_blocks=5)

    server = FakeServer(script)
    return Work(planned, server, tree=tree, canary=Canary(2), concurrency=16, prepare=prepare, **fields)


def test_the_codes_that_speak_of_the_system():
    assert {"cancelled", "connection_lost", "engine_error", "queue_full", "timeout"} == SYSTEM_CODES


def test_the_first_go_alone_until_one_of_them_has_a_token_and_its_answer_is_whole():
    work = work_of(40, lambda request: Answers(3 if line_of(request) == 3 else 9)).run()
    assert work.canary.is_open
    assert len(work.answers) == 40
    assert [request.streaming for request in work.server.sent] == [True] * 4 + [False] * 36
    assert [choice.text for choice in work.answers[3][0].choices] == ["3 10 17 24 "]
    assert work.server.max_in_flight == 16


def test_the_others_start_when_the_first_token_is_there_and_not_when_its_answer_is():
    starts: list[float] = []

    def script(_request: EngineRequest) -> Answers:
        starts.append(asyncio.get_running_loop().time())
        return Answers(2)

    items = [item(line, max_tokens=50) for line in range(1, 9)]
    work = Work(items, FakeServer(script), canary=Canary(2), concurrency=8).run()
    assert starts == pytest.approx([0.0] * 2 + [2 * TICK_S] * 6)
    assert len(work.answers) == 8


def test_where_all_of_the_first_fail_the_run_stops_and_nothing_else_was_sent():
    work = work_of(40, lambda _: Fails(BROKEN)).run()
    assert sent_lines(work) == [1, 2, 3, 4]
    assert work.canary.stop
    assert work.canary.stop.rule == "canary"
    expected = r"all of the first 4 requests failed \(4 engine_error\), such as line \d: the engine is sick"
    assert re.fullmatch(expected, work.canary.stop.why)
    assert sorted(work.canary.failed_lines) == [1, 2, 3, 4]
    assert not work.answers


def test_timeouts_of_the_first_stop_the_run_once_they_are_over():
    work = work_of(40, lambda _: Hangs(), request_timeout_s=2.0).run()
    assert work.canary.stop
    assert "4 timeout" in work.canary.stop.why
    assert sent_lines(work) == [1, 2, 3, 4]
    assert work.duration_s == pytest.approx(2.0, abs=0.05)


def test_failures_that_are_tried_again_count_once_they_are_given_up():
    work = work_of(40, lambda _: Fails(QueueFullError("no room")), max_attempts=3).run()
    assert sorted(sent_lines(work)) == sorted([1, 2, 3, 4] * 3)
    assert work.canary.codes == {"queue_full": 4}


def test_one_answer_among_the_first_lets_the_run_go_on():
    work = work_of(40, lambda request: Answers() if line_of(request) == 4 else Fails(BROKEN)).run()
    assert work.canary.stop is None
    assert len(work.answers) == 1
    assert len(work.errors) == 39


def test_quick_failures_of_others_do_not_stop_a_run_whose_first_lines_are_still_being_answered():
    slow = {1: Answers(500), 2: Answers(500)}
    work = work_of(40, lambda request: slow.get(line_of(request), Fails(BROKEN))).run()
    assert work.canary.stop is None
    assert sorted(work.answers) == [1, 2]


def test_the_first_may_all_fail_late_where_others_were_answered_meanwhile():
    work = work_of(40, lambda request: Hangs() if line_of(request) <= 4 else Answers(), request_timeout_s=9.0)
    work.canary.open()  # as a leader's answer does
    work.run()
    assert work.canary.stop is None
    assert len(work.answers) == 36


def test_the_first_that_all_fail_after_they_had_begun_stop_the_run():
    # the first two are streamed, a token a tick, and would take 10 s
    script = lambda request: Answers() if line_of(request) <= 2 else Hangs()  # noqa: E731
    work = work_of(40, script, size=2, request_timeout_s=2.0)
    work.items = lines(40, max_tokens=1000)
    work.run()
    assert work.canary.stop
    assert not work.answers
    assert len(work.errors) < 40
    assert work.canary.stop.why.startswith("all of the first 2 requests failed")


def test_a_server_that_is_not_ready_for_its_first_requests_but_for_their_next_attempts_goes_on():
    script = lambda request: Fails(ConnectionLostError("not yet")) if attempt_of(request) == 1 else Answers()  # noqa: E731
    work = work_of(40, script).run()
    assert work.canary.stop is None
    assert len(work.answers) == 40


def test_a_file_of_no_more_lines_than_the_canary_is_answered_whatever_fails():
    work = work_of(3, lambda _: Fails(BROKEN)).run()
    assert work.canary.stop is None
    assert len(work.errors) == 3


@pytest.mark.parametrize("error", [ContextLengthError("too long"), InvalidRequestError("cannot be")])
def test_failures_of_single_requests_say_nothing_and_others_take_their_place(error: RequestError):
    work = work_of(40, lambda request: Fails(error) if line_of(request) <= 30 else Answers()).run()
    assert work.canary.stop is None
    assert work.canary.codes == {}
    assert len(work.answers) == 10


def test_lines_that_were_in_flight_at_two_deaths_are_left_for_the_end_and_others_go():
    # the first lines kill the server; alone, at the end, they fail, and all others are answered
    script = lambda request: Kills(back_after_ticks=50) if line_of(request) <= 2 else Answers()  # noqa: E731
    work = work_of(20, script, size=2, server_wait_s=5.0).run()
    assert len(work.answers) == 18
    assert sorted(work.errors) == [1, 2]


def test_leaders_go_ahead_while_lines_wait_and_the_first_of_them_lets_the_lines_go():
    work = prefix_work(16, lambda _: Answers(3)).run()
    assert len(work.answers) == 16
    leaders = [request.request_id for request in work.server.sent if "prefix" in request.request_id]
    assert len(leaders) == 4
    assert {request.request_id for request in work.server.sent[:4]} == set(leaders)


@pytest.mark.parametrize(
    "reply", [Hangs(), Fails(CancelledRequestError("by someone"))], ids=["late", "again"]
)
def test_leaders_are_not_sent_over_and_over_while_lines_wait_for_the_canary(reply: Reply):
    # leaders fail, so that they prove nothing, and their prefixes wait for lines that may not go
    script = lambda request: Fails(BROKEN) if "prefix" in request.request_id else reply  # noqa: E731
    work = prefix_work(8, script, request_timeout_s=3.0).run()
    assert work.canary.stop
    # a line that is tried again may have prefixes led again, once for each of its 3 attempts
    assert sum("prefix" in request.request_id for request in work.server.sent) <= 4 * 3


def test_a_rate_is_held_among_the_first_and_among_the_last_that_ended():
    half = lambda request: Fails(BROKEN) if line_of(request) % 2 else Answers()  # noqa: E731
    assert work_of(200, half).run().canary.stop is None
    stopped = work_of(200, half, rate=0.4, concurrency=1).run()
    assert stopped.canary.stop
    assert stopped.canary.stop.rule == "canary"
    assert len(stopped.errors) == 2
    assert work_of(200, half, rate=0.5, concurrency=1).run().canary.stop is None

    late = lambda request: Fails(BROKEN) if line_of(request) > 100 else Answers()  # noqa: E731
    stopped = work_of(1000, late, rate=0.25, concurrency=1).run()
    assert stopped.canary.window == 40
    assert stopped.canary.stop
    assert stopped.canary.stop.rule == "rate"
    assert stopped.canary.stop.why.startswith("11 of the last 40 requests failed; at most 25.0% may")
    assert sorted(stopped.errors) == list(range(101, 112))


def test_a_rate_of_zero_stops_at_the_first_failure_and_one_of_one_never():
    bad = lambda request: Fails(BROKEN) if line_of(request) == 50 else Answers()  # noqa: E731
    stopped = work_of(100, bad, rate=0.0, concurrency=1).run()
    assert sorted(stopped.ended) == list(range(1, 51))
    assert work_of(100, lambda _: Fails(BROKEN), rate=1.0).run().canary.stop is None


def test_one_bad_request_among_the_first_stops_no_run_that_tolerates_any():
    bad = lambda request: Fails(BROKEN) if line_of(request) == 3 else Answers()  # noqa: E731
    made = work_of(40, bad, size=8, rate=0.1).run()
    assert made.canary.stop is None
    assert len(made.answers) == 39
    two = lambda request: Fails(BROKEN) if line_of(request) in (3, 5) else Answers()  # noqa: E731
    stopped = work_of(40, two, size=8, rate=0.1, concurrency=1).run()
    assert stopped.canary.stop
    assert stopped.canary.stop.why.startswith("2 of the first 8 requests failed; at most 10.0% may")


@pytest.mark.parametrize("rate", [1e-9, 1e-320])
def test_the_smallest_rates_have_a_window(rate):
    canary = Canary(0, rate)
    assert canary.window == 10**9
    assert canary.failed(1, BROKEN) is None or rate < 1e-9


def test_without_a_canary_nobody_waits_and_a_rate_still_holds():
    work = work_of(100, lambda _: Fails(BROKEN), size=0)
    work.run()
    assert work.canary.stop is None
    assert work.server.max_in_flight == 16
    assert work_of(100, lambda _: Fails(BROKEN), size=0, rate=0.5).run().canary.stop


@given(
    st.lists(st.booleans(), max_size=120),
    st.sampled_from([0.0, 0.01, 0.07, 0.1, 0.3, 0.5, 0.9, 1.0]),
    st.integers(0, 30),
)
def test_the_rate_rule_stops_exactly_where_a_window_holds_more_failures_than_it_allows(ends, rate, size):
    canary = Canary(size, rate)
    last: deque[bool] = deque(maxlen=canary.window)
    for number, is_failure in enumerate(ends, start=1):
        last.append(is_failure)
        canary.let_through(number)
        allowed = max(rate * size, 1) if rate and size > 1 else rate * size
        is_first = number <= size and sum(ends[:number]) > allowed
        expected = is_failure and (is_first or sum(last) > rate * canary.window + 1e-9)
        if is_failure:
            found = canary.failed(number, BROKEN)
            assert bool(found) == expected
            if found:
                return
        else:
            canary.answered()


@given(st.lists(st.booleans(), max_size=40), st.integers(1, 10))
def test_without_a_rate_only_a_beginning_of_nothing_but_failures_stops(ends, size):
    canary = Canary(size)
    for number in range(1, size + 1):
        canary.let_through(number)
    stops = [
        number
        for number, is_failure in enumerate(ends, start=1)
        if (canary.failed(number, DeadlineExceededError("late")) if is_failure else canary.answered())
    ]
    assert stops == ([size] if len(ends) >= size and all(ends[:size]) else [])
