"""Shares, signs and differences, held against figures from tables."""

from __future__ import annotations

import math

import pytest

from trtb.runner.reporting.intervals import DifferenceCount, share_of, sign_test


@pytest.mark.parametrize(
    ("count", "of", "low", "high"),
    # R: binom::binom.wilson
    [(81, 100, 0.7222, 0.8749), (0, 10, 0.0, 0.2775), (10, 10, 0.7225, 1.0), (1, 2, 0.0945, 0.9055)],
)
def test_a_share_has_wilsons_interval(count, of, low, high):
    made = share_of(count, of)
    assert made.share == count / of
    assert (made.low, made.high) == (pytest.approx(low, abs=1e-4), pytest.approx(high, abs=1e-4))


def test_of_nothing_there_is_no_share():
    assert share_of(0, 0).model_dump() == {"count": 0, "of": 0, "share": None, "low": None, "high": None}


def test_signs_are_tested_exactly_and_of_many_pairs_nearly_so():
    assert sign_test(8, 2) == pytest.approx(0.109375)
    assert sign_test(2, 8) == sign_test(8, 2)
    assert sign_test(0, 0) is None
    exact = 2 * sum(math.comb(1002, n) for n in range(470)) / 2**1002
    assert sign_test(469, 533) == pytest.approx(exact, rel=0.02)


def test_differences_add_up_with_an_interval_once_there_are_enough():
    count = DifferenceCount()
    for difference in (1, -1, 0, 4):
        count.add(difference)
    few = count.made()
    assert (few.num_pairs, few.num_more, few.num_less, few.num_same) == (4, 2, 1, 1)
    assert (few.mean, few.low, few.high) == (1.0, None, None)
    for _ in range(9):
        for difference in (1, -1, 0, 4):
            count.add(difference)
    many = count.made()
    half = 1.959964 * math.sqrt(sum((d - 1) ** 2 for d in (1, -1, 0, 4)) * 10 / 39 / 40)
    assert (many.low, many.high) == (pytest.approx(1 - half), pytest.approx(1 + half))


def test_differences_of_very_many_tokens_lose_nothing():
    count = DifferenceCount()
    for _ in range(1000):
        count.add(10**9)
        count.add(10**9 + 1)
    made = count.made()
    assert made.high - made.low == pytest.approx(2 * 1.959964 * 0.5 / math.sqrt(1999), rel=1e-3)
