"""Axes: round ends and marks, and values as people write them."""

from __future__ import annotations

import pytest

from trtb.tools.pages.axes import Axis, as_text, axis_spec, domain_of, is_wide, names_of, ticks


@pytest.mark.parametrize(
    ("axis", "values", "ends", "marks"),
    [
        (Axis("n"), [3, 97], (0, 100), [0, 20, 40, 60, 80, 100]),
        (Axis("n", has_zero=False), [52, 97], (50, 100), [50, 60, 70, 80, 90, 100]),
        (Axis("n"), [-5, 5], (-6, 6), [-6, -4, -2, 0, 2, 4, 6]),
        (Axis("n"), [], (0, 1), [0, 0.2, 0.4, 0.6, 0.8, 1]),
        (Axis("n"), [None, float("nan"), 4], (0, 4), [0, 1, 2, 3, 4]),
        (Axis("use", "percent", high=1.0), [0.31], (0, 1), [0, 0.2, 0.4, 0.6, 0.8, 1]),
        (Axis("time", "elapsed"), [0, 840], (0, 840), [0, 120, 240, 360, 480, 600, 720, 840]),
        (Axis("ms", "log"), [80, 800], (64, 1000), [100, 200, 500, 1000]),
        (Axis("load", marked=(1, 4, 900)), [1, 64], (0, 80), [1, 4]),
    ],
)
def test_ends_and_marks_are_round(axis, values, ends, marks):
    domain = domain_of(values, axis)
    assert domain == pytest.approx(ends)
    assert ticks(axis, domain) == pytest.approx(marks)


@pytest.mark.parametrize(
    ("value", "kind", "text"),
    [
        (None, "linear", "none"),
        (0, "linear", "0"),
        (0.1234, "linear", "0.123"),
        (999.6, "linear", "1,000"),
        (12345.6, "linear", "12,346"),
        (2_345_678, "linear", "2.346 M"),
        (59.6, "elapsed", "1:00"),
        (3725, "elapsed", "1:02:05"),
        (90_000, "elapsed", "25:00:00"),
        (0.125, "percent", "12.5%"),
    ],
)
def test_a_value_reads_as_people_write_it(value, kind, text):
    assert as_text(value, Axis("a", kind)) == text


def test_equal_values_have_an_axis_around_them():
    low, high = domain_of([5, 5], Axis("n", has_zero=False))
    assert low < 5 < high


def test_marks_of_an_axis_are_written_by_the_value():
    encoding = axis_spec(Axis("time", "elapsed"), (0.0, 60.0))
    assert encoding["scale"]["domain"] == [0.0, 60.0]
    assert "60.0: '1:00'" in encoding["axis"]["labelExpr"]
    assert encoding["title"] == "time"


def test_only_values_far_apart_need_a_logarithm():
    assert is_wide([1, 64])
    assert not is_wide([1, 4])
    assert not is_wide([0, 64])


def test_marks_that_stand_close_have_as_many_digits_as_tell_them_apart():
    assert names_of([90.0, 90.001, 90.002], Axis("ms")) == ["90", "90.001", "90.002"]
    assert names_of([0.0, 0.5], Axis("ms")) == ["0", "0.5"]
    assert names_of([], Axis("ms")) == []
