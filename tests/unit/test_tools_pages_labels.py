"""Labels go where nothing is: not onto points, lines, one another, or out of the plot."""

from __future__ import annotations

import pytest

from trtb.tools.pages.labels import Place, place_labels


def _centre(place, others=(), lines=()):
    return place_labels([place, *others], lines, 500, 300)[0]


def test_a_label_stands_above_its_point_where_nothing_is():
    x, y = _centre(Place(100, 100, "16"))
    assert x == 100
    assert 75 < y < 90


@pytest.mark.parametrize(
    ("others", "lines"),
    [
        ([Place(100, 84, "")], []),
        ([], [[Place(60, 85, ""), Place(140, 85, "")]]),
    ],
    ids=["a point", "a line"],
)
def test_a_label_goes_elsewhere_where_something_is_above(others, lines):
    _, y = _centre(Place(100, 100, "16"), others, lines)
    assert y > 90


def test_a_label_stays_within_the_plot():
    assert _centre(Place(100, 0, "16"))[1] > 0
    assert _centre(Place(500, 3, "16"))[0] < 500


def test_two_labels_share_no_place():
    first, second = place_labels([Place(100, 100, "16"), Place(104, 100, "64")], [], 500, 300)
    assert abs(first[0] - second[0]) > 13 or abs(first[1] - second[1]) > 12


def test_a_point_without_a_label_keeps_its_place():
    assert _centre(Place(100, 100, "")) == (100, 100)
