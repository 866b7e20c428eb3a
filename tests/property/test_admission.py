"""Blocks are conserved, whatever is taken and given back."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from trtb.runner.admission import BlockBudget


@given(st.integers(1, 50), st.lists(st.tuples(st.integers(1, 60), st.booleans()), max_size=60))
def test_what_is_held_is_what_was_taken_and_not_given_back(capacity, steps):
    budget = BlockBudget(capacity)
    taken: list[int] = []
    for num_blocks, gives_back in steps:
        if gives_back and taken:
            budget.release(taken.pop())
        else:
            fits = sum(taken) + num_blocks <= capacity
            assert budget.try_acquire(num_blocks) == fits
            if fits:
                taken.append(num_blocks)
        assert budget.held == sum(taken)
        assert 0 <= budget.held <= capacity
    for num_blocks in taken:
        budget.release(num_blocks)
    assert budget.held == 0
