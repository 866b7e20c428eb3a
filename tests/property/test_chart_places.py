"""Axes hold every value and mark round ones; labels keep off points and one another where there is room."""

from __future__ import annotations

import itertools

from hypothesis import assume, given
from hypothesis import strategies as st

from trtb.tools.pages.axes import MAX_TICKS, Axis, domain_of, ticks
from trtb.tools.pages.labels import GLYPH_HEIGHT, GLYPH_WIDTH, Place, place_labels

axes = st.builds(
    Axis,
    title=st.just("a"),
    kind=st.sampled_from(["linear", "log", "elapsed", "percent"]),
    has_zero=st.booleans(),
)
sizes = st.floats(1e-6, 1e9) | st.integers(1, 10**9)


@given(axes, st.lists(sizes, min_size=1, max_size=20))
def test_an_axis_holds_every_value_and_marks_few_round_ones(axis, values):
    low, high = domain = domain_of(values, axis)
    assert low < high
    assert low <= min(values)
    assert max(values) <= high * (1 + 1e-9)
    marked = ticks(axis, domain)
    assert len(marked) <= MAX_TICKS + 1
    assert marked == sorted(set(marked))
    assert all(low - high * 1e-9 <= value <= high * (1 + 1e-9) for value in marked)


@given(axes, st.lists(sizes, min_size=2, max_size=20), st.floats(0, 1))
def test_a_place_on_an_axis_is_the_value_that_stands_there(axis, values, share):
    assume(max(values) / min(values) < 1e6)
    domain = domain_of(values, axis)
    assert abs(axis.share(axis.value_at(share, domain), domain) - share) < 1e-6


@given(st.lists(st.tuples(st.integers(0, 8), st.integers(0, 5)), unique=True, max_size=20), st.integers(1, 4))
def test_labels_of_points_that_stand_apart_cover_nothing(cells, digits):
    places = [Place(x=30 + 60 * x, y=30 + 50 * y, label="9" * digits) for x, y in cells]
    centres = place_labels(places, [], 560, 330)
    width = digits * GLYPH_WIDTH
    for (a_x, a_y), (b_x, b_y) in itertools.combinations(centres, 2):
        assert abs(a_x - b_x) >= width or abs(a_y - b_y) >= GLYPH_HEIGHT
    for (x, y), place in itertools.product(centres, places):
        assert abs(x - place.x) >= width / 2 or abs(y - place.y) >= GLYPH_HEIGHT / 2
