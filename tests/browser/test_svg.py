"""Charts are drawn as SVG that stands in a page: tooltips, no shared ids, nothing that is not escaped."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from trtb.tools.pages.axes import Axis
from trtb.tools.pages.chart_data import Bar, Bin, Histogram, Point, Rule, Series
from trtb.tools.pages.charts import bar_chart, category_chart, line_chart, scatter_chart
from trtb.tools.pages.svg import to_svg

pytestmark = pytest.mark.slow

X, Y = Axis("time", "elapsed"), Axis("requests")


def _texts(svg, tag):
    return [
        element.text for element in ElementTree.fromstring(svg).iter() if element.tag.endswith(f"}}{tag}")
    ]


def test_each_mark_has_its_tooltip_and_each_tick_its_name():
    svg = to_svg(line_chart([Series("", [Point(0, 1), Point(90, 2, text="two at 1:30")])], x=X, y=Y))
    assert _texts(svg, "title") == ["0:00: 1", "two at 1:30"]
    assert {"0:00", "1:15", "requests"} <= set(_texts(svg, "text"))


def test_a_negative_tick_has_its_name():
    svg = to_svg(bar_chart([Histogram("", [Bin(-10, 0, 2), Bin(0, 10, 3)])], x=Axis("d"), y=Y))
    assert "-10" in _texts(svg, "text")


def test_a_gap_breaks_the_line():
    def moves(points):
        svg = to_svg(line_chart([Series("", points)], x=X, y=Y))
        (line,) = [
            path for path in re.findall(r'<path [^>]*?d="([^"]+)"[^>]*stroke-width="2"', svg) if "L" in path
        ]
        return line.count("M")

    assert moves([Point(0, 1), Point(1, 2), Point(2, 3), Point(3, 4)]) == 1
    assert moves([Point(0, 1), Point(1, 2), Point(1.5, None), Point(2, 3), Point(3, 4)]) == 2


def test_hostile_names_are_text():
    name = '</svg><script>alert(1)</script>&"'
    svg = to_svg(
        scatter_chart([Series(name, [Point(1, 1)]), Series("b", [Point(2, 2, label=name)])], x=Y, y=Y)
    )
    assert "<script" not in svg
    assert any(text.startswith(f"{name}, 1") for text in _texts(svg, "title"))
    assert "<script" not in to_svg(category_chart([Bar(name, 1)], x=Y))


def test_two_charts_share_no_id_and_one_is_always_the_same():
    def clipped(y):
        spec = line_chart([Series("", [Point(0, y)])], x=X, y=Y, rules=[Rule(1, "goal")])
        for layer in spec["layer"]:
            layer["mark"]["clip"] = True  # by an id
        return to_svg(spec)

    first, other = clipped(1), clipped(9)
    assert first == clipped(1)
    ids = [set(re.findall(r' id="([^"]+)"', svg)) for svg in (first, other)]
    assert ids[0]
    assert not ids[0] & ids[1]
    for svg, own in zip((first, other), ids, strict=True):
        assert set(re.findall(r"url\(#([^)]+)\)", svg)) == own
