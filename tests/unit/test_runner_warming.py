"""Which prefixes a warm-up computes, and in which order."""

from __future__ import annotations

from pathlib import Path

import pytest
from fakes.runs import fake_options, request_line
from hypothesis import given
from hypothesis import strategies as st

from trtb.runner.errors import InputFileError, InputNotFoundError
from trtb.runner.scheduling.prefix_tree import PrefixTree
from trtb.runner.warming import check_requests, choose_prefixes


def tree_of(*nodes: tuple[int, int, int]) -> PrefixTree:
    """Return a tree of nodes, each its parent, depth and lines."""
    tree = PrefixTree()
    for parent, depth, num_lines in nodes:
        node = tree.add(depth)
        tree.parent[node] = parent
        tree.num_lines[node] = num_lines
    return tree


def test_all_that_fit_are_computed_and_what_saves_most_comes_last():
    tree = tree_of((-1, 10, 3), (-1, 10, 9), (-1, 10, 5))
    assert choose_prefixes(tree, [0, 1, 2], None, None) == [(0, 10), (2, 10), (1, 10)]
    assert choose_prefixes(tree, [0, 1, 2], 25, None) == [(2, 10), (1, 10)]
    assert choose_prefixes(tree, [0, 1, 2], None, 1) == [(1, 10)]
    assert choose_prefixes(tree, [0, 1, 2], 5, None) == []


def test_what_a_prefix_stands_on_comes_before_it_and_counts_once():
    tree = tree_of((-1, 4, 9), (0, 10, 6), (0, 12, 3))
    assert choose_prefixes(tree, [0, 1, 2], None, None) == [(0, 4), (2, 8), (1, 6)]
    assert choose_prefixes(tree, [0, 1, 2], 10, None) == [(0, 4), (1, 6)]


def test_a_smaller_one_goes_where_a_larger_one_does_not_fit():
    tree = tree_of((-1, 50, 9), (-1, 5, 4))
    assert choose_prefixes(tree, [0, 1], 20, None) == [(1, 5)]


@given(
    st.lists(st.tuples(st.integers(-1, 30), st.integers(2, 9), st.integers(2, 50)), max_size=12),
    st.none() | st.integers(0, 60),
    st.none() | st.integers(1, 6),
)
def test_every_choice_is_whole_ordered_and_within_its_bounds(drawn, capacity, top):
    tree = PrefixTree()
    for parent, more, num_lines in drawn:
        above = parent if parent < len(tree) else -1
        node = tree.add(tree.depth_of(above) + more)
        tree.parent[node] = above
        tree.num_lines[node] = num_lines
    found = choose_prefixes(tree, range(len(tree)), capacity, top)
    order = [node for node, _ in found]
    assert len(set(order)) == len(order)
    for place, (node, num_new_blocks) in enumerate(found):
        assert num_new_blocks == tree.segment(node)
        assert set(tree.path(node)) <= set(order[: place + 1])
    assert capacity is None or sum(count for _, count in found) <= capacity
    assert top is None or len(found) <= top
    if capacity is None and top is None:
        assert set(order) == set(range(len(tree)))


def test_a_file_without_a_request_is_refused_and_one_request_is_enough(tmp_path: Path):
    options = fake_options(tmp_path, model_aliases=("*",))
    with pytest.raises(InputNotFoundError):
        check_requests(options)
    for data in (b"", b"junk\n"):
        options.input_path.write_bytes(data)
        with pytest.raises(InputFileError, match="is a request; expected one") as caught:
            check_requests(options)
        assert caught.value.exit_code == 3
    options.input_path.write_bytes(b"junk\n" + request_line(1))
    check_requests(options)
