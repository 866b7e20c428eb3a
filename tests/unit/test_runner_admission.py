"""The budget of KV blocks, what answers are counted with, and the bound that a full server sets."""

from __future__ import annotations

import itertools

import pytest

from trtb.runner.admission import MIN_OUTCOMES, Admission, BlockBudget, Demand, OutputLengths


def test_what_does_not_fit_is_not_held_in_part():
    budget = BlockBudget(capacity=10)
    assert budget.try_acquire(7)
    assert not budget.try_acquire(4)
    assert budget.held == 7
    assert budget.try_acquire(3)
    assert budget.held == budget.capacity == budget.max_held


def test_more_than_there_is_never_fits():
    budget = BlockBudget(capacity=10)
    assert not budget.try_acquire(11)
    assert budget.held == 0


@pytest.mark.parametrize("num_blocks", [-1, 6])
def test_giving_back_what_was_not_taken_is_a_bug(num_blocks):
    budget = BlockBudget(capacity=10)
    budget.try_acquire(5)
    with pytest.raises(ValueError, match="5 are held"):
        budget.release(num_blocks)


def learned(share: float, num_answers: int = MIN_OUTCOMES) -> OutputLengths:
    lengths = OutputLengths()
    for _ in range(num_answers):
        lengths.add(round(share * 640), 640)
    return lengths


def test_answers_are_counted_in_full_until_enough_have_ended():
    assert learned(0.25, MIN_OUTCOMES - 1).share == 1.0
    assert learned(0.25).share == 0.25


def test_what_is_learned_is_a_high_quantile_and_follows_the_run():
    lengths = learned(0.1, 200)
    for _ in range(40):
        lengths.add(640, 640)
    assert lengths.share == 1.0
    for _ in range(2000):
        lengths.add(64, 640)
    assert lengths.share == pytest.approx(0.1, abs=0.02)


def test_a_request_is_counted_with_its_worst_case_where_the_engine_cannot_preempt():
    admission = Admission([100], 8, can_preempt=False, lengths=learned(0.1))
    assert admission.expected(Demand(20, 16)) == 20
    assert Admission([100], 8, can_preempt=True, lengths=learned(0.125)).expected(Demand(20, 16)) == 6


def test_being_wrong_about_answers_is_bounded_by_twice_the_pool():
    admission = Admission([100], 1000, can_preempt=True, lengths=learned(0.02))
    while admission.try_admit(0, Demand(10, 10)):
        pass
    assert admission.num_in_flight(0) == 20


def test_each_server_has_blocks_and_places_of_its_own():
    admission = Admission([10, 20], 3)
    assert admission.try_admit(0, Demand(10))
    assert not admission.try_admit(0, Demand(1))
    grants = [admission.try_admit(1, Demand(1)) for _ in range(4)]
    assert [bool(grant) for grant in grants] == [True, True, True, False]
    assert grants[0]
    admission.release(grants[0])
    assert admission.num_in_flight(1) == 2
    assert admission.num_held_blocks(1) == 2


def test_a_pool_that_is_not_known_bounds_nothing():
    assert Admission([None], 1).try_admit(0, Demand(10**9))


def test_kept_blocks_are_not_for_others():
    admission = Admission([10], 8)
    assert admission.try_keep(0, 6)
    assert not admission.try_admit(0, Demand(5))
    admission.release_kept(0, 6)
    assert admission.try_admit(0, Demand(5))


def test_a_full_server_is_held_to_what_it_had_and_probed_step_by_step():
    admission = Admission([None], 64)
    grants = [admission.try_admit(0, Demand(1)) for _ in range(64)]
    for grant in grants[:60]:
        assert grant
        admission.release(grant)
        admission.note_full(0)
    assert (admission.last_bound, admission.num_full) == (4, 60)
    assert not admission.try_admit(0, Demand(1))
    bounds = []
    for _ in range(20_000):
        admission.note_good(0)
        bounds.append(admission.last_bound)
    assert bounds[0] == 4
    assert bounds[-1] == 64
    assert all(later - earlier <= max(1, earlier // 4) for earlier, later in itertools.pairwise(bounds))
    assert admission.min_bound == 4


def test_a_server_that_refuses_everything_is_still_asked_one_by_one():
    admission = Admission([None], 4)
    for _ in range(9):
        grant = admission.try_admit(0, Demand(1))
        assert grant
        admission.release(grant)
        admission.note_full(0)
    assert admission.last_bound == 1
