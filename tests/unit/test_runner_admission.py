"""The budget of KV blocks."""

from __future__ import annotations

import pytest

from trtb.runner.admission import BlockBudget


def test_what_does_not_fit_is_not_held_in_part():
    budget = BlockBudget(capacity=10)
    assert budget.try_acquire(7)
    assert not budget.try_acquire(4)
    assert budget.held == 7
    assert budget.try_acquire(3)
    assert budget.held == budget.capacity


def test_more_than_there_is_never_fits():
    budget = BlockBudget(capacity=10)
    assert not budget.try_acquire(11)
    assert budget.held == 0


@pytest.mark.parametrize("num_blocks", [4, -1])
def test_giving_back_what_is_not_held_is_a_bug(num_blocks):
    budget = BlockBudget(capacity=10, held=3)
    with pytest.raises(ValueError, match="3 are held"):
        budget.release(num_blocks)
    assert budget.held == 3
