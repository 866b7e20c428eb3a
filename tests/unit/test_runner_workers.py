"""The workers: every request ends once, whatever the server does, and nothing that was held stays held."""

from __future__ import annotations

import asyncio
import random

import pytest
from fakes.transport import TICK_S, Answers, Fails, FakeServer, Hangs, Kills
from fakes.work import Work, attempt_of, item, line_of, scripted
from hypothesis import given, settings
from hypothesis import strategies as st

from trtb.runner.errors import (
    CancelledRequestError,
    ConnectionLostError,
    DeadlineExceededError,
    EngineError,
    InvalidRequestError,
    QueueFullError,
    ServerLostError,
)
from trtb.runner.source import Refused

QUEUE_FULL = QueueFullError("no room")


def assert_nothing_is_held(work: Work) -> None:
    assert work.admission.num_held_blocks(0) == 0
    assert work.num_in_flight_at_end == 0
    assert work.server.in_flight == set()


def sent_lines(work: Work) -> list[int]:
    return [line_of(request) for request in work.server.sent]


def test_every_request_is_answered_with_its_own_answer():
    work = Work([item(line) for line in range(1, 21)], FakeServer()).run()
    assert sorted(work.ended) == list(range(1, 21))
    for line, answers in work.answers.items():
        assert [choice.text for choice in answers[0].choices] == [
            f"{line} {line + 7} {line + 14} {line + 21} "
        ]
        assert answers[0].finish_reason == "length"
        assert answers[0].num_tokens == 4
    assert_nothing_is_held(work)


def test_each_attempt_has_an_id_of_its_own_that_is_not_the_custom_id():
    server = FakeServer(scripted({1: [Fails(QUEUE_FULL), Fails(QUEUE_FULL), Answers()]}))
    work = Work([item(1)], server).run()
    assert [request.request_id for request in server.sent] == ["run-1-0-1", "run-1-0-2", "run-1-0-3"]
    assert work.attempts == {1: 3}


@pytest.mark.parametrize(
    ("error", "num_sent"),
    [
        (QUEUE_FULL, 3),
        (CancelledRequestError("by someone"), 3),
        (ConnectionLostError("one stream broke, the server lives"), 3),
        (EngineError("bad luck"), 1),
        (InvalidRequestError("never"), 1),
    ],
    ids=lambda value: getattr(value, "code", ""),
)
def test_only_errors_that_can_heal_are_tried_again_and_only_so_often(error, num_sent):
    server = FakeServer(scripted({1: [Fails(error)], 2: [Answers()]}))
    work = Work([item(1), item(2)], server).run()
    assert [type(found) for found in work.errors[1]] == [type(error)]
    assert sent_lines(work).count(1) == num_sent
    assert list(work.answers) == [2]
    assert_nothing_is_held(work)


def test_no_more_are_in_flight_than_asked_for_and_as_many_as_there_is_work_for():
    server = FakeServer(lambda _: Answers(3))
    work = Work([item(line) for line in range(1, 51)], server, concurrency=7).run()
    assert server.max_in_flight == 7
    assert work.workers.max_in_flight == 7
    assert work.duration_s == pytest.approx(-(-50 // 7) * 3 * TICK_S)


def test_requests_wait_for_blocks_and_not_in_the_server():
    server = FakeServer(lambda _: Answers(3))
    work = Work([item(line, num_blocks=3) for line in range(1, 11)], server, concurrency=8, capacity=7).run()
    assert server.max_in_flight == 2
    assert len(work.answers) == 10
    assert_nothing_is_held(work)


def test_requests_that_need_the_whole_pool_run_one_after_another():
    server = FakeServer(lambda _: Answers(3))
    work = Work([item(line, num_blocks=8) for line in range(1, 7)], server, concurrency=4, capacity=8).run()
    assert server.max_in_flight == 1
    assert sorted(work.answers) == [1, 2, 3, 4, 5, 6]
    assert_nothing_is_held(work)


def test_a_request_that_waits_for_many_blocks_is_overtaken_so_often_and_no_more():
    server = FakeServer(scripted({line: [Answers(5 + line % 3)] for line in range(1, 41)}))
    items = [item(line, num_blocks=8 if line == 4 else 1) for line in range(1, 41)]
    work = Work(items, server, concurrency=4, capacity=8).run()
    place = sent_lines(work).index(4)
    # the others go on meanwhile: what is in flight when it comes to the front, and twice the places
    assert 3 < place <= 3 + 2 * 4
    assert len(work.answers) == 40


def test_slot_and_blocks_are_free_while_a_request_waits_for_another_attempt():
    # line 1 is told to come back later, and all the others go through its place meanwhile
    server = FakeServer(
        scripted({1: [Fails(QUEUE_FULL), Answers()], **{n: [Answers()] for n in range(2, 9)}})
    )
    work = Work([item(line, num_blocks=4) for line in range(1, 9)], server, concurrency=1, capacity=4).run()
    assert sent_lines(work) == [1, 2, 3, 4, 5, 6, 7, 8, 1]
    assert work.attempts[1] == 2
    assert_nothing_is_held(work)


def test_a_timeout_counts_from_sending_cancels_the_stream_and_is_final():
    server = FakeServer(scripted({1: [Hangs()], 2: [Answers()], 3: [Answers()]}))
    work = Work([item(1), item(2), item(3)], server, concurrency=2, request_timeout_s=2.0).run()
    assert [type(error) for error in work.errors[1]] == [DeadlineExceededError]
    assert work.errors[1][0].code == "timeout"
    assert server.cancelled == ["run-1-0-1"]
    assert sorted(work.answers) == [2, 3]
    assert work.duration_s == pytest.approx(2.0, abs=0.05)
    assert_nothing_is_held(work)


def test_time_spent_waiting_for_a_place_is_not_part_of_a_timeout():
    server = FakeServer(lambda _: Answers(ticks=90))
    work = Work([item(line) for line in range(1, 9)], server, concurrency=1, request_timeout_s=1.0).run()
    assert len(work.answers) == 8


def test_a_stop_string_ends_the_answer_and_cancels_what_would_follow():
    server = FakeServer()
    work = Work([item(1, max_tokens=50, stop=("15 ",)), item(2)], server).run()
    (answer,) = work.answers[1]
    assert (answer.choices[0].text, answer.finish_reason) == ("1 8 ", "stop")
    assert server.cancelled == ["run-1-0-1"]
    assert server.sent[0].streaming
    assert not server.sent[1].streaming
    assert_nothing_is_held(work)


def test_a_request_under_way_at_two_deaths_of_the_server_runs_alone_afterwards():
    deaths = {1: [Kills(ticks=20), Kills(ticks=20), Answers()]}
    server = FakeServer(scripted({**deaths, **{line: [Answers(400)] for line in range(2, 5)}}))
    work = Work([item(line) for line in range(1, 5)], server, concurrency=4).run()
    assert sorted(work.answers) == [1, 2, 3, 4]
    assert server.num_deaths == 2
    last = {line_of(request): request.request_id for request in server.sent}
    assert [server.company[request_id] for request_id in last.values()] == [1, 1, 1, 1]
    assert_nothing_is_held(work)


def test_a_request_that_kills_the_server_each_time_fails_alone():
    rest = {line: [Answers(30)] for line in range(1, 30) if line != 7}
    server = FakeServer(scripted({7: [Kills(ticks=5)], **rest}))
    work = Work([item(line) for line in range(1, 30)], server, concurrency=4).run()
    assert sorted(work.answers) == sorted(rest)
    assert [type(error) for error in work.errors[7]] == [ConnectionLostError]
    assert server.num_deaths == 3
    assert_nothing_is_held(work)


def test_several_requests_that_kill_the_server_fail_and_the_rest_is_answered():
    poison = {3, 11, 12}
    replies = {line: [Kills(ticks=5) if line in poison else Answers(30)] for line in range(1, 25)}
    server = FakeServer(scripted(replies))
    work = Work([item(line) for line in range(1, 25)], server, concurrency=4).run()
    assert set(work.errors) == poison
    assert set(work.answers) == set(range(1, 25)) - poison


def test_a_server_that_does_not_come_back_ends_the_work_with_what_is_done_kept():
    server = FakeServer(scripted({1: [Answers()], 2: [Kills(ticks=10, back_after_ticks=None)], 3: [Hangs()]}))
    work = Work([item(1), item(2), item(3)], server, server_wait_s=0.05)
    with pytest.raises(ServerLostError, match="no token within"):
        work.run()
    assert list(work.answers) == [1]
    assert work.errors == {}


def test_an_engine_error_of_a_dead_server_is_the_servers_and_not_the_requests():
    def reply(request):
        if attempt_of(request) == 1:
            server.is_down = True
            asyncio.get_running_loop().call_later(1.0, server.come_back)
            return Fails(EngineError("Stub process is not healthy."))
        return Answers()

    server = FakeServer(reply)
    work = Work([item(1)], server).run()
    assert list(work.answers) == [1]
    assert work.errors == {}


def test_stopping_drains_what_is_in_flight_and_takes_nothing_new():
    server = FakeServer(lambda _: Answers(10))
    work = Work([item(line) for line in range(1, 21)], server, concurrency=3)
    work.run(during=lambda work: work.after(15 * TICK_S, work.workers.stop))
    assert sorted(work.answers) == [1, 2, 3, 4, 5, 6]
    assert len(server.sent) == 6
    assert server.cancelled == []
    assert_nothing_is_held(work)


def test_stopping_while_requests_wait_for_blocks_or_for_another_attempt_ends_at_once():
    server = FakeServer(scripted({1: [Answers(50)], 2: [Fails(QUEUE_FULL)], 3: [Answers()], 4: [Answers()]}))
    items = [item(1, num_blocks=3), item(2, num_blocks=1), item(3, num_blocks=4), item(4, num_blocks=4)]
    work = Work(items, server, concurrency=4, capacity=4)
    work.run(during=lambda work: work.after(10 * TICK_S, work.workers.stop))
    assert list(work.answers) == [1]
    assert work.errors == {}
    assert_nothing_is_held(work)


def test_cancelling_gives_up_what_is_in_flight_and_its_lines_stay_to_do():
    server = FakeServer(scripted({1: [Answers(2)], 2: [Hangs()], 3: [Hangs()], 4: [Answers()]}))
    work = Work([item(line) for line in range(1, 5)], server, concurrency=3)
    work.run(during=lambda work: work.after(1.0, work.workers.cancel))
    assert sorted(work.answers) == [1, 4]
    assert work.errors == {}
    assert sorted(server.cancelled) == ["run-2-0-1", "run-3-0-1"]
    assert_nothing_is_held(work)


def test_stopping_while_the_server_is_down_ends_the_work():
    server = FakeServer(scripted({1: [Kills(ticks=2, back_after_ticks=10_000)], 2: [Answers()]}))
    work = Work([item(1), item(2)], server, concurrency=1)
    work.run(during=lambda work: work.after(2.0, work.workers.stop))
    assert work.ended == []
    assert_nothing_is_held(work)


def test_many_refused_lines_in_a_row_are_ended_and_let_others_have_their_turn():
    refused = [Refused(line, None, "invalid_request", "bad", 400) for line in range(2, 900)]
    server = FakeServer()
    work = Work([item(1), *refused, item(900)], server, concurrency=2).run()
    assert work.refused == list(range(2, 900))
    assert sorted(work.answers) == [1, 900]


def test_an_error_of_who_records_answers_ends_the_work_and_frees_everything():
    work = Work([item(line) for line in range(1, 9)], FakeServer())

    def full_disk(*_: object) -> None:
        raise OSError("no space")

    work._on_answer = full_disk
    with pytest.raises(OSError, match="no space"):
        work.run()
    assert work.admission.num_held_blocks(0) == 0


replies = st.one_of(
    st.builds(Answers, st.integers(1, 40)),
    st.builds(
        Fails,
        st.sampled_from(
            [QUEUE_FULL, ConnectionLostError("lost"), EngineError("no"), InvalidRequestError("bad"),
             CancelledRequestError("by someone")]
        ),
        st.integers(1, 20),
    ),
    st.just(Hangs()),
    st.builds(Kills, st.integers(1, 20), st.integers(1, 200)),
)  # fmt: skip
scripts = st.lists(st.tuples(st.integers(1, 8), st.lists(replies, min_size=1, max_size=4)), max_size=14)


def expected_ends(script: list, max_attempts: int) -> str | None:
    """Return the code that an item without company ends with, "" for an answer, None where deaths decide."""
    for number in range(1, max_attempts + 1):
        reply = script[min(number, len(script)) - 1]
        if isinstance(reply, Answers):
            return ""
        if isinstance(reply, Hangs):
            return "timeout"
        if isinstance(reply, Kills):
            return None
        if not reply.error.retryable or number == max_attempts:
            return reply.error.code
    raise AssertionError


@settings(max_examples=150, deadline=None)
@given(scripts, st.integers(1, 6), st.integers(8, 20), st.integers(1, 4), st.integers(0, 999))
def test_whatever_the_server_does_every_request_ends_once_and_everything_is_given_back(
    script, concurrency, capacity, max_attempts, seed
):
    random.seed(seed)
    by_line = dict(enumerate((replies for _, replies in script), start=1))
    server = FakeServer(scripted(by_line))
    items = [item(line, num_blocks) for line, (num_blocks, _) in enumerate(script, start=1)]
    blocks = {each.line: each.num_blocks for each in items}
    work = Work(
        items, server, concurrency=concurrency, capacity=capacity, max_attempts=max_attempts,
        request_timeout_s=2.0, server_wait_s=600.0,
    )  # fmt: skip
    work.run()
    assert sorted(work.ended) == sorted(by_line)
    assert server.max_in_flight <= concurrency
    assert work.max_held <= capacity
    assert work.workers.max_in_flight <= concurrency
    assert_nothing_is_held(work)
    assert max(blocks.values(), default=0) <= capacity
    kills = any(isinstance(reply, Kills) for replies in by_line.values() for reply in replies)
    for line, own in by_line.items():
        wanted = expected_ends(own, max_attempts)
        if not kills and wanted is not None:
            found = work.errors[line][0].code if line in work.errors else ""
            assert found == wanted


@settings(max_examples=150, deadline=None)
@given(scripts, st.integers(1, 6), st.integers(0, 400), st.integers(0, 100), st.booleans())
def test_stopped_or_cancelled_at_any_time_no_request_ends_twice_and_nothing_new_is_sent(
    script, concurrency, stop_tick, cancel_ticks, is_cancelled
):
    random.seed(stop_tick)
    server = FakeServer(scripted(dict(enumerate((replies for _, replies in script), start=1))))
    items = [item(line, num_blocks) for line, (num_blocks, _) in enumerate(script, start=1)]
    work = Work(
        items, server, concurrency=concurrency, capacity=8, request_timeout_s=2.0, server_wait_s=600.0
    )
    sent_at_stop = []

    def stop() -> None:
        work.workers.stop()
        sent_at_stop.append(len(server.sent))

    def during(work: Work) -> None:
        work.after(stop_tick * TICK_S, stop)
        if is_cancelled:
            work.after((stop_tick + cancel_ticks) * TICK_S, work.workers.cancel)

    work.run(during=during)
    assert len(work.ended) == len(set(work.ended))
    assert_nothing_is_held(work)
    if sent_at_stop:
        # a worker that had taken its request may still send it
        assert len(server.sent) <= sent_at_stop[0] + concurrency
        assert work.duration_s <= stop_tick * TICK_S + 2.0 + 1.5
