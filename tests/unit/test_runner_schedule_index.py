"""The index: what stands together, what the plan comes to, and that it does not depend on memory."""

from __future__ import annotations

from fakes.lines import FakeSource, indexed

from trtb.runner.scheduling.prefix_tree import NO_NODE, block_keys

A, B = [1, 2, 3, 4, 5, 6, 7, 8], [9, 8, 7, 6, 5, 4, 3, 2]


def shuffled() -> FakeSource:
    prompts = [[*A, 11], [*B, 12], [50, 51, 52], [*A, 13], [*B, 14], [*A, 15]]
    return FakeSource(prompts)


def test_lines_that_begin_alike_come_together(tmp_path):
    index, plan, refused = indexed(shuffled(), tmp_path)
    lines = [planned.place.line for planned in plan]
    groups = [set(lines[at : at + 3]) for at in range(len(lines) - 2)]
    assert {1, 4, 6} in groups
    assert abs(lines.index(2) - lines.index(5)) == 1
    assert refused == []
    depths = {planned.place.line: index.tree.depth_of(planned.node) for planned in plan}
    assert depths == {1: 4, 2: 4, 3: 0, 4: 4, 5: 4, 6: 4}


def test_the_plan_says_what_need_not_be_computed(tmp_path):
    figures = indexed(shuffled(), tmp_path)[0].figures
    assert (figures.num_lines, figures.num_prefixes, figures.num_grouped) == (6, 2, 5)
    assert figures.prompt_tokens == 5 * 9 + 3
    assert figures.reused_tokens == 3 * 8  # of five times 8 shared tokens two are the first
    assert figures.reuse_share == 24 / 48


def test_prefixes_within_prefixes_have_a_node_each(tmp_path):
    deep = [*A, 20, 21, 22, 23]
    source = FakeSource([[*deep, 1], [*deep, 2], [*A, 3], [*A, 4], [*deep, 5]])
    index, plan, _ = indexed(source, tmp_path)
    depths = {planned.place.line: index.tree.depth_of(planned.node) for planned in plan}
    assert depths == {1: 6, 2: 6, 3: 4, 4: 4, 5: 6}
    deepest = next(planned.node for planned in plan if planned.place.line == 1)
    root = index.tree.parent[deepest]
    assert index.tree.depth_of(root) == 4
    assert (index.tree.num_lines[root], index.tree.num_lines[deepest]) == (5, 3)
    assert index.figures.reused_tokens == 3 * 12 + 2 * 8 - (8 + 4)


def test_a_block_more_is_no_prefix_of_its_own(tmp_path):
    one_more = [*A, 20, 21]
    index, plan, _ = indexed(FakeSource([[*one_more, 1], [*one_more, 2], [*A, 3]]), tmp_path)
    assert {index.tree.depth_of(planned.node) for planned in plan} == {4}
    assert len({planned.node for planned in plan}) == 1


def test_what_is_refused_is_told_and_not_planned(tmp_path):
    source = FakeSource([[*A, 1], [], [*A, 2]], skipped={3})
    _, plan, refused = indexed(source, tmp_path)
    assert [planned.place.line for planned in plan] == [1]
    assert refused == [2]


def test_the_longest_first_is_prompts_and_answers_together(tmp_path):
    source = FakeSource([[1] * 5, [1] * 50, [1] * 9, [1] * 7], max_tokens=[60, 4, 4, 6])
    _, plan, _ = indexed(source, tmp_path, order="length")
    assert [planned.place.line for planned in plan] == [1, 2, 3, 4]
    assert {planned.node for planned in plan} == {NO_NODE}


def test_the_same_lines_have_the_same_order_whatever_memory_there_is(tmp_path):
    prompts = [[number % 7, 1, 2, number % 5, 3, 4, number % 3, 5, number] for number in range(300)]
    whole = indexed(FakeSource(prompts), tmp_path)[1]
    spilled = indexed(FakeSource(prompts), tmp_path, max_chunk_bytes=1000)[1]
    assert whole == spilled
    assert sorted(planned.place.line for planned in whole) == list(range(1, 301))


def test_the_block_of_the_last_token_is_never_shared():
    assert len(block_keys([1, 2, 3, 4], 2)) == 8  # one of two full blocks
    assert len(block_keys([1, 2, 3, 4, 5], 2)) == 16
    assert block_keys([1], 2) == b""
    assert block_keys([1, 2, 3], 2) != block_keys([1, 9, 3], 2)
