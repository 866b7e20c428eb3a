"""What holds of any two runs that are compared."""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path

import pytest
from fakes.compared import answer_row, run_on_disk
from fakes.rows import failed_row
from hypothesis import given, settings
from hypothesis import strategies as st

from trtb.runner.reporting.answer_texts import AnswerText, _common_length, difference
from trtb.runner.reporting.comparison import compare
from trtb.runner.reporting.comparison_bins import MAX_BINS, pair_bins, percentile, value_bins
from trtb.runner.reporting.intervals import share_of

words = st.lists(st.sampled_from("abc"), max_size=12)
answers = st.one_of(st.none(), st.tuples(words.map(" ".join), st.integers(1, 10**10)))
# by the number of an id: an answer with its latency, or a failure
runs = st.dictionaries(st.integers(1, 12), answers, max_size=10)


def rows_of(run, lines):
    for line, (number, answer) in zip(lines, run.items(), strict=True):
        custom_id = f"id-{number}"
        if answer is None:
            yield failed_row(line, "timeout", custom_id=custom_id)
        else:
            text, latency_ns = answer
            yield answer_row(line, text, custom_id=custom_id, latency_ns=latency_ns)


def both_ways(run_a, run_b):
    with tempfile.TemporaryDirectory() as folder:
        a = run_on_disk(Path(folder) / "a", rows_of(run_a, range(1, len(run_a) + 1)))
        b = run_on_disk(Path(folder) / "b", rows_of(run_b, range(2, 2 * len(run_b) + 2, 2)))
        return compare(a, b), compare(b, a)


@settings(max_examples=25, deadline=None)
@given(runs, runs)
def test_a_and_b_may_change_places(run_a, run_b):
    found, mirrored = both_ways(run_a, run_b)
    there, back = found.counts, mirrored.counts
    shared = set(run_a) & set(run_b)
    assert there.in_both == back.in_both == len(shared)
    assert there.completed_in_both == back.completed_in_both
    assert (there.only_a, there.only_b) == (back.only_b, back.only_a)
    assert (there.regressed, there.repaired) == (back.repaired, back.regressed)
    assert there.in_both == (
        there.completed_in_both + there.failed_in_both + there.regressed + there.repaired
    )
    assert there.in_both + there.only_a == len(run_a)
    assert found.agreement.equal == mirrored.agreement.equal
    assert found.agreement.similarity_mean == pytest.approx(mirrored.agreement.similarity_mean)
    assert found.agreement.first_difference_p50 == mirrored.agreement.first_difference_p50
    assert (found.lengths.a, found.lengths.b) == (mirrored.lengths.b, mirrored.lengths.a)
    if found.speed.latency_ratio_of_pairs is not None:
        assert found.speed.latency_ratio_of_pairs * mirrored.speed.latency_ratio_of_pairs == pytest.approx(1)
    same = sum(
        run_a[key] is not None and run_b[key] is not None and run_a[key][0] == run_b[key][0] for key in shared
    )
    assert found.agreement.equal.count == same


@settings(max_examples=15, deadline=None)
@given(runs)
def test_a_run_agrees_with_itself(run):
    found, _ = both_ways(run, run)
    num = sum(answer is not None for answer in run.values())
    assert (found.agreement.equal.count, found.agreement.equal.of) == (num, num)
    assert found.most_different == []
    assert found.counts.regressed == found.counts.only_a == 0
    assert found.agreement.similarity_mean == (1.0 if num else None)


@given(words, words)
def test_the_common_subsequence_is_the_longest(words_a, words_b):
    row = [0] * (len(words_b) + 1)
    for word in words_a:
        before = row
        row = [0]
        for place, other in enumerate(words_b):
            row.append(before[place] + 1 if word == other else max(before[place + 1], row[place]))
    assert _common_length(words_a, words_b) == row[-1]


@given(st.text(max_size=30), st.text(max_size=30))
def test_likeness_is_between_0_and_1_and_the_same_from_both_sides(a, b):
    there, back = (difference(AnswerText((x,), ((),)), AnswerText((y,), ((),))) for x, y in ((a, b), (b, a)))
    assert 0 <= there.similarity <= 1
    assert there.similarity == back.similarity
    assert (there.kind == "equal") == (a == b)


@given(st.lists(st.integers(-500, 500), max_size=400), st.lists(st.integers(-500, 500), max_size=400))
def test_bins_hold_every_value_once(a, b):
    bins = pair_bins(Counter(a), Counter(b))
    assert (sum(held.a for held in bins), sum(held.b for held in bins)) == (len(a), len(b))
    assert len(bins) <= MAX_BINS
    assert sum(held.count for held in value_bins(Counter(a))) == len(a)


@given(st.lists(st.integers(-99, 99), min_size=1), st.floats(0.01, 1))
def test_a_percentile_is_the_least_value_that_so_many_do_not_exceed(values, fraction):
    found = percentile(Counter(values), fraction)
    assert sum(value <= found for value in values) >= fraction * len(values)
    assert sum(value < found for value in values) < fraction * len(values)


@given(st.integers(0, 10**6), st.integers(1, 10**6))
def test_an_interval_holds_its_share(count, of):
    made = share_of(min(count, of), of)
    assert 0 <= made.low <= made.share <= made.high <= 1
