"""The feed on a fake server: leaders first, groups that stay together, room for everyone in the end."""

from __future__ import annotations

from pathlib import Path

import pytest
from fakes.lines import FakeSource, indexed
from fakes.transport import Answers, Fails, FakeServer, Hangs, Kills
from fakes.work import Work, item, line_of

from trtb.runner.admission import Admission, Demand
from trtb.runner.answer import Answer, Choice
from trtb.runner.errors import EngineError, QueueFullError
from trtb.runner.scheduling.schedule_feed import Feed
from trtb.runner.scheduling.schedule_task import Candidate, Task
from trtb.runner.transport import EngineRequest

WIDTH = 2
A, B, C = ([base + each for each in range(8)] for base in (100, 200, 300))


def is_leader(request: EngineRequest) -> bool:
    return "-prefix" in request.request_id


def planned_work(folder: Path, prompts: list[list[int]], server: FakeServer, **options: object) -> Work:
    source = FakeSource(prompts)
    index, plan, _ = indexed(source, folder)
    return Work(plan, server, prepare=source.at, tree=index.tree, tokens_per_block=WIDTH, **options)


def members(*prefixes: list[int], num_each: int) -> list[list[int]]:
    return [[*prefix, number] for number in range(num_each) for prefix in prefixes]


def assert_led_first(server: FakeServer, prompts: list[list[int]]) -> None:
    leaders = [request for request in server.sent if is_leader(request)]
    for request in server.sent:
        if is_leader(request):
            continue
        prefix = prompts[line_of(request) - 1][:8]
        ended = [each for each in leaders if each.input_ids == prefix]
        assert ended, "no leader"
        assert server.ended_before(ended[0].request_id, request.request_id)


def test_a_prefix_is_computed_once_before_its_lines_go(tmp_path):
    prompts = members(A, B, num_each=6)
    server = FakeServer(lambda request: Answers(9 if is_leader(request) else 3))
    work = planned_work(tmp_path, prompts, server, concurrency=8, capacity=100).run()
    leaders = [request for request in server.sent if is_leader(request)]
    assert sorted(tuple(request.input_ids) for request in leaders) == [tuple(A), tuple(B)]
    assert all((request.max_tokens, request.top_k) == (1, 1) for request in leaders)
    assert sorted(work.answers) == list(range(1, 13))
    assert_led_first(server, prompts)
    assert len({request.request_id for request in server.sent}) == len(server.sent)
    assert work.admission.num_held_blocks(0) == 0


def test_a_shared_prefix_is_counted_once(tmp_path):
    # a line comes to 7 blocks, 4 of them shared: 3 lines fit beside the prefix, where only 1 would alone
    server = FakeServer(lambda _: Answers(5))
    work = planned_work(tmp_path, members(A, num_each=9), server, concurrency=8, capacity=13).run()
    assert server.max_in_flight == 3
    assert work.max_held <= 13


def test_only_as_many_prefixes_are_begun_as_there_is_room_to_use(tmp_path):
    server = FakeServer(lambda _: Answers(5))
    work = planned_work(tmp_path, members(A, B, C, num_each=20), server, concurrency=8, capacity=100).run()
    order = ["L" if is_leader(request) else line_of(request) % 3 for request in server.sent]
    assert order[:2] == ["L", order[1]]
    assert order.count("L") == 3
    first_group = [kind for kind in order if kind != "L"][:20]
    assert len(set(first_group)) == 1
    assert len(work.answers) == 60


@pytest.mark.parametrize("reply", [Fails(EngineError("bad luck"), 3), Hangs()], ids=["fails", "hangs"])
def test_a_leader_that_does_not_succeed_lets_its_lines_go(reply, tmp_path):
    server = FakeServer(lambda request: reply if is_leader(request) else Answers())
    work = planned_work(
        tmp_path, members(A, num_each=5), server, request_timeout_s=2.0, concurrency=4, capacity=50
    ).run()
    assert sorted(work.answers) == [1, 2, 3, 4, 5]
    assert work.errors == {}
    assert sum(is_leader(request) for request in server.sent) == 1
    assert work.admission.num_held_blocks(0) == 0


def test_a_server_that_died_has_its_prefixes_computed_again(tmp_path):
    killed: list[str] = []

    def reply(request: EngineRequest):
        if not is_leader(request) and not killed:
            killed.append(request.request_id)
            return Kills(5, back_after_ticks=20)
        return Answers(3)

    server = FakeServer(reply)
    work = planned_work(tmp_path, members(A, num_each=12), server, concurrency=3, capacity=50).run()
    assert sorted(work.answers) == list(range(1, 13))
    assert sum(is_leader(request) for request in server.sent) == 2
    assert work.admission.num_held_blocks(0) == 0


def test_a_full_server_is_sent_less_and_everything_is_answered(tmp_path):
    server = FakeServer()
    server.script = lambda _: Answers(4) if len(server.in_flight) <= 3 else Fails(QueueFullError("full"), 1)
    work = Work([item(line) for line in range(1, 101)], server, concurrency=16, max_attempts=9).run()
    assert sorted(work.answers) == list(range(1, 101))
    assert work.errors == {}
    assert work.admission.min_bound <= 3
    num_refused = len(server.sent) - 100
    assert num_refused < 40  # the bound was found, and is probed only now and then


def answer() -> Answer:
    return Answer([Choice("", "stop", 1)], 1, 1)


def drain(feed: Feed) -> list[tuple[int, int, bool]]:
    """Take and answer one task at a time; returns (server, line, is a leader)."""
    seen = []
    while isinstance(task := feed.take(), Task):
        seen.append((task.server, task.item.line, task.is_leader))
        feed.answered(task, answer())
    return seen


def test_a_group_stays_on_one_server_and_groups_spread(tmp_path):
    source = FakeSource(members(A, B, num_each=8))
    index, plan, _ = indexed(source, tmp_path)
    admission = Admission([100, 100], 4)
    feed = Feed(iter(plan), admission, prepare=source.at, tree=index.tree, tokens_per_block=WIDTH)
    servers: dict[int, set[int]] = {0: set(), 1: set()}
    held: list[Task] = []
    while len(held) < 6:
        task = feed.take()
        assert isinstance(task, Task)
        servers[task.item.line % 2].add(task.server)
        if task.is_leader:
            feed.answered(task, answer())
        else:
            held.append(task)
    assert {frozenset(used) for used in servers.values()} == {frozenset({0}), frozenset({1})}


def test_an_idle_server_gets_a_prefix_of_its_own(tmp_path):
    source = FakeSource(members(A, num_each=30))
    index, plan, _ = indexed(source, tmp_path)
    admission = Admission([100, 100], 4)
    feed = Feed(iter(plan), admission, prepare=source.at, tree=index.tree, tokens_per_block=WIDTH)
    leader = feed.take()
    assert isinstance(leader, Task)
    second = feed.take()
    assert isinstance(second, Task)
    assert (leader.is_leader, second.is_leader, leader.server + second.server) == (True, True, 1)


def test_lines_of_any_size_come_through_a_pool_that_holds_two_prefixes(tmp_path):
    prompts = [[*A, 1], [*A, 2], [*B, 1], [*B, 2], [900] * 20]
    source = FakeSource(prompts)
    index, plan, _ = indexed(source, tmp_path)
    admission = Admission([12], 8)
    feed = Feed(iter(plan), admission, prepare=source.at, tree=index.tree, tokens_per_block=WIDTH)
    lines = [line for _, line, leads in drain(feed) if not leads]
    assert sorted(lines) == [1, 2, 3, 4, 5]
    assert feed.is_drained
    assert admission.num_held_blocks(0) == 0


def test_prefixes_that_nobody_uses_give_way_when_nothing_else_can(tmp_path):
    source = FakeSource(members(A, B, num_each=2))
    index, plan, _ = indexed(source, tmp_path)
    admission = Admission([14], 8)
    feed = Feed(iter(plan), admission, prepare=source.at, tree=index.tree, tokens_per_block=WIDTH)
    leader = feed.take()
    assert isinstance(leader, Task)
    assert leader.is_leader
    # a line that is to be sent again needs the whole pool, and has been overtaken often enough
    large = Candidate(Demand(14), item=item(9), num_overtaken=10**9)
    feed.answered(leader, answer())
    feed.put_back(Task(item(9), large, 0, None))
    assert admission.num_held_blocks(0) == 4
    found = feed.take()
    assert isinstance(found, Task)
    assert found.candidate is large
    assert admission.num_held_blocks(0) == 14


def test_a_line_that_runs_alone_is_given_all_that_is_kept(tmp_path):
    source = FakeSource(members(A, num_each=3))
    index, plan, _ = indexed(source, tmp_path)
    admission = Admission([10], 8)
    feed = Feed(iter(plan), admission, prepare=source.at, tree=index.tree, tokens_per_block=WIDTH)
    leader = feed.take()
    assert isinstance(leader, Task)
    feed.answered(leader, answer())
    line = feed.take()
    assert isinstance(line, Task)
    line.candidate.demand = Demand(10)
    feed.release(line)
    assert feed.take_alone(line.candidate) is not None


def test_what_can_no_longer_be_rendered_is_refused_and_holds_nothing(tmp_path):
    source = FakeSource(members(A, num_each=3))
    index, plan, _ = indexed(source, tmp_path)
    source.prompts = [[], [], []]
    admission = Admission([100], 8)
    feed = Feed(iter(plan), admission, prepare=source.at, tree=index.tree, tokens_per_block=WIDTH)
    refused = []
    while (found := feed.take()) is not None:
        assert not isinstance(found, Task)
        refused.append(found.line)
    assert sorted(refused) == [1, 2, 3]
    assert admission.num_held_blocks(0) == 0
