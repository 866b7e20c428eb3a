"""What is remarkable about a run's course: its long tail, and the shape of its distributions."""

from __future__ import annotations

import numpy as np
import pytest

from trtb.runner.reporting.active_time import NS_PER_S, SpanFinder, TimeBin, Timeline
from trtb.runner.reporting.distribution import Binner, Buckets
from trtb.runner.reporting.run_figures import find_tail


def bins_of(*in_flight, span=0):
    return [
        TimeBin(span, at * NS_PER_S, (at + 1) * NS_PER_S, 1, 10.0, int(held * NS_PER_S))
        for at, held in enumerate(in_flight)
    ]


def distribution_of(*values):
    found = Buckets()
    found.add(np.array(values, np.int64))
    binner = Binner(found)
    binner.add(np.array(values, np.int64))
    return binner.distribution()


def test_a_tail_is_the_end_with_under_a_quarter_of_the_peak_in_flight():
    tail = find_tail(bins_of(4, 40, 40, 9, 2))
    assert tail is not None
    assert (tail.duration_s, tail.num_finished, tail.peak_in_flight) == (2, 2, 40)


@pytest.mark.parametrize(
    "in_flight",
    [(4, 40, 40, 10), (1, 2, 3, 0.1), (40, 2, 2, 40), (*[40] * 40, 1), ()],
    ids=["busy to the end", "never much", "a trough within", "too short", "nothing"],
)
def test_a_run_without_a_tail_has_none(in_flight):
    assert find_tail(bins_of(*in_flight)) is None


def test_only_the_last_span_has_the_tail():
    assert find_tail([*bins_of(40, 40, 1, 1), *bins_of(40, 40, span=1)]) is None


def test_a_run_of_any_length_has_round_steps_and_few_of_them():
    for seconds in (0.001, 3, 100, 86_400, 10_000_000):
        finder = SpanFinder()
        times = np.array([0, int(seconds * NS_PER_S)])
        finder.add(times[:1], times[1:])
        timeline = Timeline(finder.spans())
        assert 1 <= len(timeline.bins()) <= 120
        assert timeline.width_ns % 10_000_000 == 0


def test_many_starts_keep_the_longest_pauses():
    starts = np.arange(0, 50_000, 100, dtype=np.int64) * NS_PER_S
    starts[300:] += 10_000 * NS_PER_S
    finder = SpanFinder()
    for at in range(len(starts)):
        finder.add(starts[at : at + 1], starts[at : at + 1] + NS_PER_S)
    spans = finder.spans()
    assert len(spans) == 12
    assert any(span.end_ns == starts[299] + NS_PER_S for span in spans)


def test_values_choose_between_even_and_growing_bins():
    assert not distribution_of(*range(100, 200)).is_log
    assert distribution_of(*(2**n for n in range(20))).is_log
    assert distribution_of(*[100] * 500, 100_000).is_log


def test_equal_values_are_one_bar_that_can_be_seen():
    (held,) = distribution_of(*[90_000_000] * 9).bins
    assert (held.low, held.high, held.count) == (90_000_000, 90_100_000, 9)
    (held,) = distribution_of(7, 7).bins
    assert (held.low, held.high) == (7, 8)


def test_a_zero_has_a_bin_of_its_own_beside_growing_ones():
    first, *rest = distribution_of(0, *(2**n for n in range(12))).bins
    assert (first.low, first.high, first.count) == (0, 1, 1)
    assert sum(held.count for held in rest) == 12
