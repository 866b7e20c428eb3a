"""Charts: what is drawn, told apart and read aloud. Pure; the drawing itself is in tests/browser."""

from __future__ import annotations

import pytest

from trtb.tools.pages.axes import Axis
from trtb.tools.pages.chart_data import Bar, Bin, Histogram, Point, Rule, Series
from trtb.tools.pages.charts import bar_chart, category_chart, line_chart, scatter_chart

X, Y = Axis("time", "elapsed"), Axis("requests")


def _rows(spec):
    return spec["data"]["values"]


def _marks(spec):
    return [layer["mark"]["type"] for layer in spec["layer"]]


def test_each_point_says_what_it_is():
    spec = line_chart([Series("in flight", [Point(60, 4), Point(120, 8, text="eight")])], x=X, y=Y)
    assert [row["text"] for row in _rows(spec)] == ["1:00: 4", "eight"]
    spec = line_chart([Series("a", [Point(60, 4)]), Series("b", [Point(60, 5)])], x=X, y=Y)
    assert [row["text"] for row in _rows(spec)] == ["a, 1:00: 4", "b, 1:00: 5"]


def test_one_series_has_no_legend_and_several_have_one():
    def legends(spec):
        return [
            channel["legend"]
            for layer in spec["layer"]
            for channel in layer.get("encoding", {}).values()
            if isinstance(channel, dict) and channel.get("legend")
        ]

    points = [Point(0, 1), Point(1, 2)]
    assert legends(line_chart([Series("a", points)], x=X, y=Y)) == []
    two = [Series("a", points), Series("b", points)]
    assert len(legends(line_chart(two, x=X, y=Y))) == 2  # colour and shape, which are drawn as one
    assert len(legends(scatter_chart(two, x=X, y=Y))) == 2


def test_series_differ_in_colour_dash_and_shape():
    spec = line_chart([Series(f"s{n}", [Point(0, n)]) for n in range(12)], x=X, y=Y)
    line, _, marked = (layer["encoding"] for layer in spec["layer"])
    looks = list(
        zip(
            line["color"]["scale"]["range"],
            map(tuple, line["strokeDash"]["scale"]["range"]),
            marked["shape"]["scale"]["range"],
            strict=True,
        )
    )
    assert len(set(looks)) == 12


def test_a_legend_of_long_names_makes_the_figure_higher():
    short = line_chart([Series(f"s{n}", [Point(0, n)]) for n in range(4)], x=X, y=Y)
    long = line_chart([Series(f"s{n}" * 15, [Point(0, n)]) for n in range(4)], x=X, y=Y)
    assert long["height"] > short["height"]


def test_many_points_are_only_there_for_the_pointer():
    def opacity(num):
        spec = line_chart([Series("", [Point(n, n) for n in range(num)])], x=X, y=Y)
        return spec["layer"][-1]["mark"]["opacity"]

    assert opacity(10) == 1
    assert opacity(120) == 0


def test_more_points_than_a_chart_shows_are_refused():
    with pytest.raises(AssertionError, match="500 points"):
        line_chart([Series("", [Point(n, n) for n in range(500)])], x=X, y=Y)


def test_spreads_rules_and_front_are_within_the_ends():
    series = [Series("", [Point(10, 50, y_low=40, y_high=130, label="1")])]
    spec = scatter_chart(series, x=X, y=Y, front=[Point(10, 50)], rules=[Rule(300, "limit", of_x=True)])
    assert spec["encoding"]["y"]["scale"]["domain"][1] >= 130
    assert spec["encoding"]["x"]["scale"]["domain"][1] >= 300
    assert _marks(spec) == [
        *("line", "rule", "tick", "tick", "line", "point", "point", "point", "text", "rule", "text"),
    ]


def test_a_label_stands_beside_its_point():
    spec = scatter_chart([Series("", [Point(1, 1), Point(50, 50, label="16"), Point(100, 100)])], x=Y, y=Y)
    row = _rows(spec)[1]
    assert (row["label_x"], row["label_y"]) != (50, 50)
    assert abs(row["label_x"] - 50) < 10
    assert abs(row["label_y"] - 50) < 10


def test_bins_are_bars_and_several_histograms_are_outlines_too():
    bins = [Bin(0, 10, 3), Bin(10, 20, 5)]
    spec = bar_chart([Histogram("", bins)], x=Y, y=Y)
    assert _marks(spec) == ["rect"]
    assert _rows(spec)[1] | {} == {"x": 10, "x2": 20, "y": 5, "y0": 0, "series": "", "text": "10 to 20: 5"}
    spec = bar_chart([Histogram("A", bins), Histogram("B", [])], x=Y, y=Y)
    assert _marks(spec) == ["rect", "line"]
    outline = [(row["x"], row["y"]) for row in spec["layer"][1]["data"]["values"]]
    assert outline == [(0, 0), (0, 3), (10, 3), (10, 5), (20, 5), (20, 0)]


def test_named_amounts_keep_their_order_and_have_room():
    few = category_chart([Bar("z", 3), Bar("a", 9)], x=Axis("s"))
    many = category_chart([Bar(f"bar {n}", n) for n in range(20)], x=Axis("s"))
    assert [row["name"] for row in _rows(few)] == ["z", "a"]
    assert few["encoding"]["y"]["sort"] is None
    assert many["height"] > few["height"]


def test_nothing_to_draw_is_an_empty_chart():
    for spec in (line_chart([], x=X, y=Y), bar_chart([], x=X, y=Y)):
        assert _rows(spec) == []


def test_the_word_of_a_rule_stays_within_the_plot():
    def align(value):
        rule = Rule(value, "p99", of_x=True)
        spec = bar_chart([Histogram("", [Bin(0, 100, 1)])], x=Y, y=Y, rules=[rule])
        return spec["layer"][-1]["mark"]["align"]

    assert (align(10), align(95)) == ("left", "right")
