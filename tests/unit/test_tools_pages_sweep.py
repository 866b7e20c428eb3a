"""Sweeps as they are shown: curves, the front, the best, what is left out; on a page and in a terminal."""

from __future__ import annotations

import importlib.util
from dataclasses import replace

import pytest
from fakes.sweeps import fake_point, fake_view

from trtb.tools.pages import sweep_plot
from trtb.tools.pages.sweep_page import render_sweeps
from trtb.tools.pages.sweep_plot import HOW_TO_GET, terminal_plot
from trtb.tools.pages.sweep_view import (
    curves_of,
    front_of,
    latency_p90_ms,
    output_tokens_per_s,
    series_of,
)


def test_a_sweep_of_one_setting_is_one_curve_by_its_load():
    view = replace(fake_view(), points=[fake_point(16), fake_point(1)])
    (curve,) = curves_of([view])
    assert curve.name == "smollm2/1"
    assert [point.value for point in curve.points] == [1, 16]


def test_settings_that_differ_name_the_curves():
    points = [fake_point(4, settings={"quant": quant, "seed": 1}) for quant in ("bf16", "int8_wo")]
    view = replace(fake_view(), points=points)
    assert [curve.name for curve in curves_of([view])] == ["quant bf16", "quant int8_wo"]
    names = [curve.name for curve in curves_of([view, fake_view("other")])]
    assert names == ["smollm2/1, quant bf16", "smollm2/1, quant int8_wo", "other"]


def test_sweeps_of_one_name_are_told_apart():
    assert [curve.name for curve in curves_of([fake_view("a"), fake_view("a")])] == ["a", "a (2)"]


def test_the_front_holds_what_nothing_beats():
    slow, fast = fake_view("slow", speed=0.5), fake_view("fast", speed=2.0)
    front = front_of(curves_of([slow, fast]), latency_p90_ms)
    assert {curve.name for curve, _ in front} == {"fast"}
    assert [point.value for _, point in front] == [1, 4, 16, 64]  # without the unstable and the failed one


def test_of_equal_latency_only_the_faster_point_is_on_the_front():
    slow, fast = fake_point(4), fake_point(4, speed=2.0)
    assert slow.median is not None
    assert fast.median is not None
    same = fast.median.model_copy(update={"latency": slow.median.latency})
    view = replace(fake_view(), points=[slow, fast.model_copy(update={"median": same})])
    front = front_of(curves_of([view]), latency_p90_ms)
    assert [point.median.output_tokens_per_s for _, point in front] == [same.output_tokens_per_s]


def test_unstable_points_are_hollow_and_failed_ones_are_not_drawn():
    (series,) = series_of(curves_of([fake_view()]), latency_p90_ms, output_tokens_per_s)
    assert [(point.label, point.is_hollow) for point in series.points] == [
        *(("1", False), ("4", False), ("16", False), ("64", False), ("128", True)),
    ]
    assert [point.is_best for point in series.points] == [False, False, True, False, False]
    assert series.points[0].y_low < series.points[0].y < series.points[0].y_high


def test_an_unstable_point_is_never_shown_as_the_best():
    (series,) = series_of(curves_of([fake_view(best="c128")]), latency_p90_ms, output_tokens_per_s)
    assert not any(point.is_best for point in series.points)


def test_a_page_tells_every_point_with_its_state_and_why(monkeypatch):
    monkeypatch.setattr("trtb.tools.pages.sweep_page.to_svg", lambda spec: "")
    html = render_sweeps([fake_view()])
    assert "the server ended with code -9; see server.log" in html
    assert "spread 14.0% after 5 runs" in html
    assert "ok, best, front" in html
    assert "4 of 6" in html
    assert "perf_analyzer -m &#39;an engine&#39; --concurrency-range 16" in html
    assert "sweep-smollm2-1/sweep.csv" in html


def test_a_sweep_without_a_measured_point_is_a_page_too():
    view = replace(fake_view(), points=[fake_point(1, state="failed", why="no server")])
    html = render_sweeps([view])
    assert "there is nothing to draw" in html
    assert "no server" in html


def test_the_terminal_shows_every_point_with_its_load():
    drawn = terminal_plot([fake_view("a"), fake_view("b", speed=1.5)], width=100, has_colour=False)
    lines = drawn.splitlines()
    assert lines[0] == "● a   ■ b"
    assert max(map(len, lines)) <= 100
    assert "\x1b" not in drawn
    assert drawn.count("128") == 2
    assert "output tokens/s" in lines[-1]


def test_colours_come_only_when_asked_for():
    assert "\x1b[" in terminal_plot([fake_view("a"), fake_view("b")], width=80)


def test_without_plotext_one_line_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert terminal_plot([fake_view()], width=80) == HOW_TO_GET
    assert "\n" not in HOW_TO_GET
    assert "trtb[plots]" in HOW_TO_GET


def test_a_sweep_without_figures_draws_nothing():
    view = replace(fake_view(), points=[fake_point(1, state="failed")])
    assert terminal_plot([view], width=80) == ""


@pytest.mark.parametrize("width", [10, 40, 200])
def test_the_plot_is_as_wide_as_the_terminal(width):
    drawn = terminal_plot([fake_view()], width=width, has_colour=False)
    assert max(map(len, drawn.splitlines())) == max(width, sweep_plot.MIN_WIDTH)
