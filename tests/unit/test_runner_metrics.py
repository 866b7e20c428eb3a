"""Totals and percentiles of a run."""

from __future__ import annotations

import math

import pytest
from fakes.rows import completed_row, failed_row
from hypothesis import given
from hypothesis import strategies as st

from trtb.runner.metrics import Histogram, RunTotals


@given(st.lists(st.integers(1, 10**12), min_size=1, max_size=300), st.floats(0.01, 1.0))
def test_a_percentile_is_exact_to_two_percent(values, fraction):
    histogram = Histogram()
    for value in values:
        histogram.add(value)
    exact = sorted(values)[math.ceil(fraction * len(values)) - 1]
    assert histogram.percentile(fraction) == pytest.approx(exact, rel=0.022, abs=1)
    assert histogram.percentile(1.0) <= histogram.max_value == max(values)
    assert (histogram.count, histogram.total) == (len(values), sum(values))


def test_no_values_have_no_percentile_and_zero_is_a_value():
    histogram = Histogram()
    assert histogram.percentile(0.5) is None
    histogram.add(0)
    assert histogram.percentile(0.5) == 0


def test_a_histogram_does_not_grow_with_its_values():
    histogram = Histogram()
    for value in range(1, 200_000, 7):
        histogram.add(value)
    assert len(histogram._counts) < 32 * 18


def test_rows_add_up_and_failures_keep_a_few_samples():
    totals = RunTotals()
    for line in range(1, 5):
        totals.add(
            completed_row(line, completion_tokens=3, prompt_tokens=5, finish_reason="stop", attempts=2)
        )
    for line in range(5, 10):
        totals.add(failed_row(line, code="timeout"))
    totals.add(failed_row(10, code="invalid_json_line", custom_id=None, attempts=0))
    assert (totals.completed, totals.failed, totals.total) == (4, 6, 10)
    assert (totals.prompt_tokens, totals.completion_tokens) == (20, 12)
    assert totals.attempts == 4 * 2 + 5
    assert totals.codes == {"timeout": 5, "invalid_json_line": 1}
    assert totals.samples == {"timeout": ["c-5", "c-6", "c-7"], "invalid_json_line": ["line 10"]}
    assert totals.finish_reasons == {"stop": 4}
    assert totals.latency.count == 4


def test_reused_blocks_count_where_they_are_told_and_the_engine_answered():
    totals = RunTotals()
    totals.add(completed_row(1, reused_blocks=3, prompt_tokens=100))
    totals.add(completed_row(2, reused_blocks=0, prompt_tokens=10))
    totals.add(completed_row(3, reused_blocks=None, prompt_tokens=1000))
    totals.add(completed_row(4, reused_blocks=None, reused_from="equal", prompt_tokens=1000))
    assert (totals.told, totals.reused_blocks, totals.told_prompt_tokens) == (2, 3, 110)


def test_an_unknown_time_to_first_token_is_no_value():
    totals = RunTotals()
    totals.add(completed_row(1, ttft_ns=0))
    assert totals.ttft.count == 0
