"""What holds for any file, any pool and any luck: nothing lost, nobody starved, nobody before its leader."""

from __future__ import annotations

import random
from collections.abc import Callable

from fakes.lines import FakeSource, indexed
from fakes.transport import Answers, Fails, FakeServer, Kills
from fakes.work import Work, item, line_of
from hypothesis import given, settings
from hypothesis import strategies as st

from trtb.runner.admission import Admission
from trtb.runner.answer import Answer, Choice
from trtb.runner.errors import ConnectionLostError, EngineError, QueueFullError
from trtb.runner.scheduling.prefix_tree import (
    KEY_BYTES,
    MIN_SEGMENT_BLOCKS,
    NO_NODE,
    PrefixTree,
    build,
    num_shared_keys,
    settle,
)
from trtb.runner.scheduling.schedule import blend
from trtb.runner.scheduling.schedule_feed import OVERTAKES_PER_PLACE, Feed
from trtb.runner.scheduling.schedule_sort import SpillSorter
from trtb.runner.scheduling.schedule_survey import BEGINNING_BYTES, BeginningSketch
from trtb.runner.scheduling.schedule_task import Task
from trtb.runner.transport import EngineRequest

WIDTH = 2
keys = st.lists(st.sampled_from("ab"), max_size=9).map(
    lambda found: "".join(each * KEY_BYTES for each in found).encode()
)
# short prompts over few tokens: shared prefixes, and prefixes within them, come by themselves
prompts = st.lists(st.lists(st.integers(1, 2), min_size=1, max_size=14), min_size=1, max_size=24)


def prefix(key: bytes, depth: int) -> bytes:
    return key[: depth * KEY_BYTES]


@given(st.lists(keys, max_size=30))
def test_the_tree_has_of_each_prompt_what_it_shares_with_any_other(found):
    found = sorted(found)
    tree = PrefixTree()
    nodes = list(build(found, tree))
    for index, (key, node) in enumerate(zip(found, nodes, strict=True)):
        others = found[:index] + found[index + 1 :]
        assert tree.depth_of(node) == max((num_shared_keys(key, other) for other in others), default=0)
    stands_for = settle(tree)
    for key, raw in zip(found, nodes, strict=True):
        node = stands_for[raw] if raw != NO_NODE else NO_NODE
        if node == NO_NODE:
            assert tree.depth_of(raw) < MIN_SEGMENT_BLOCKS
            continue
        depth = tree.depth[node]
        assert tree.depth_of(raw) - depth < MIN_SEGMENT_BLOCKS
        assert tree.num_lines[node] == sum(prefix(other, depth) == prefix(key, depth) for other in found)
        assert [tree.depth[each] for each in tree.path(node)] == sorted(
            {tree.depth[each] for each in tree.path(node)}
        )
        assert all(tree.segment(each) >= MIN_SEGMENT_BLOCKS for each in tree.path(node))


@given(
    pairs=st.lists(st.tuples(st.binary(max_size=4), st.binary(max_size=3)), max_size=60),
    max_chunk_bytes=st.integers(1, 2000),
)
def test_what_is_spilled_comes_back_sorted(pairs, max_chunk_bytes, tmp_path_factory):
    sorter = SpillSorter(tmp_path_factory.getbasetemp(), max_chunk_bytes)
    for key, value in pairs:
        sorter.add(key, value)
    assert list(sorter.sorted()) == sorted(pairs)
    sorter.close()


@given(st.lists(st.tuples(st.integers(0, 500), st.integers(0, 500)), max_size=40))
def test_a_blend_is_a_permutation(groups):
    order = blend([prefill for prefill, _ in groups], [decode for _, decode in groups])
    assert sorted(order) == list(range(len(groups)))


@given(found=prompts, order=st.sampled_from(["prefix", "length"]), max_chunk_bytes=st.integers(200, 5000))
def test_an_order_is_a_permutation_of_the_lines(found, order, max_chunk_bytes, tmp_path_factory):
    source = FakeSource(found)
    index, plan, refused = indexed(
        source, tmp_path_factory.getbasetemp(), order, max_chunk_bytes=max_chunk_bytes
    )
    assert sorted(planned.place.line for planned in plan) == list(range(1, len(found) + 1))
    assert refused == []
    assert 0 <= index.figures.reused_tokens < max(1, index.figures.prompt_tokens)


@given(st.lists(st.integers(0, 300), max_size=400), st.integers(4, 64))
def test_the_sketch_knows_the_share_of_like_beginnings_from_a_sample(kinds, max_beginnings):
    exact, sampled = BeginningSketch(1 << 20), BeginningSketch(max_beginnings)
    for kind in kinds:
        text = f"{kind} ".encode() * BEGINNING_BYTES
        exact.add(text[:BEGINNING_BYTES])
        sampled.add(text[:BEGINNING_BYTES])
    assert exact.num_alike == len(kinds) - len(set(kinds))
    assert len(sampled._counts) <= max_beginnings
    assert 0 <= sampled.num_alike <= len(kinds)


def is_leader(request: EngineRequest) -> bool:
    return "-prefix" in request.request_id


def lucky(seed: int) -> Callable[[EngineRequest], Answers | Fails | Kills]:
    chance = random.Random(seed)
    errors = [QueueFullError("full"), EngineError("bad"), ConnectionLostError("lost")]

    def reply(_: EngineRequest) -> Answers | Fails | Kills:
        drawn = chance.random()
        if drawn < 0.02:
            return Kills(chance.randint(1, 9), back_after_ticks=chance.randint(5, 50))
        if drawn < 0.1:
            return Fails(chance.choice(errors), chance.randint(1, 9))
        return Answers(chance.randint(1, 12))

    return reply


@settings(max_examples=120, deadline=None)
@given(
    found=prompts,
    concurrency=st.integers(1, 8),
    spare=st.integers(0, 20),
    seed=st.integers(0, 10**6),
    is_lucky=st.booleans(),
)
def test_whatever_happens_every_line_ends_once_and_all_blocks_come_back(
    found, concurrency, spare, seed, is_lucky, tmp_path_factory
):
    random.seed(seed)
    source = FakeSource(found, max_tokens=3)
    index, plan, _ = indexed(source, tmp_path_factory.getbasetemp())
    capacity = max(planned.num_blocks for planned in plan) + spare
    server = FakeServer(lucky(seed) if is_lucky else lambda request: Answers(1 + sum(request.input_ids) % 5))
    work = Work(
        plan, server, concurrency=concurrency, capacity=capacity, request_timeout_s=5.0, server_wait_s=600.0,
        prepare=source.at, tree=index.tree, tokens_per_block=WIDTH,
    ).run()  # fmt: skip
    assert sorted(work.ended) == list(range(1, len(found) + 1))
    assert work.max_held <= capacity
    assert server.max_in_flight <= concurrency
    assert work.admission.num_held_blocks(0) == 0
    if not is_lucky:
        assert sorted(work.answers) == list(range(1, len(found) + 1))
        nodes = {planned.place.line: planned.node for planned in plan}
        for request in server.sent:
            node = nodes[line_of(request)]
            if is_leader(request) or node == NO_NODE:
                continue
            wanted = request.input_ids[: index.tree.depth[node] * WIDTH]
            assert any(
                each.input_ids == wanted and server.ended_before(each.request_id, request.request_id)
                for each in server.sent
                if is_leader(each)
            )


@given(
    st.lists(st.integers(1, 12), min_size=1, max_size=80),
    st.integers(12, 30),
    st.integers(1, 6),
    st.integers(0, 10**6),
)
def test_nobody_is_overtaken_more_often_than_the_bound(sizes, capacity, concurrency, seed):
    chance = random.Random(seed)
    entries = [item(line, num_blocks) for line, num_blocks in enumerate(sizes, start=1)]
    admission = Admission([capacity], concurrency)
    feed = Feed(iter(entries), admission, prepare=lambda _: entries[0], queue_size=1000)
    in_flight: list[Task] = []
    sent: list[int] = []
    while not feed.is_drained or in_flight:
        task = feed.take()
        if isinstance(task, Task):
            in_flight.append(task)
            sent.append(task.item.line)
            assert sum(each.item.num_blocks for each in in_flight) == admission.num_held_blocks(0) <= capacity
        else:
            assert in_flight, "nothing is in flight and nothing may be sent"
            feed.answered(
                in_flight.pop(chance.randrange(len(in_flight))), Answer([Choice("", "stop", 1)], 1, 1)
            )
    assert sorted(sent) == list(range(1, len(sizes) + 1))
    for place, line in enumerate(sent):
        assert sum(earlier > line for earlier in sent[:place]) <= OVERTAKES_PER_PLACE * concurrency
