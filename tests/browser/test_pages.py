"""Every kind of page, as a browser shows it: clean, asking for nothing, readable on a screen and on paper."""

from __future__ import annotations

import pytest
from browser.visit import open_page
from fakes.compared import answer_row, run_on_disk, sample_rows
from fakes.sweeps import fake_point, fake_view

from trtb.runner.reporting.comparison import compare
from trtb.tools.pages.comparison_page import render_comparison
from trtb.tools.pages.page import write_page
from trtb.tools.pages.sweep_page import render_sweeps

pytestmark = pytest.mark.slow

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&\u202e" + "x" * 300


def one_sweep(path):
    """Write the page of a sweep with points of every state."""
    write_page(path, render_sweeps([fake_view()]))


def three_sweeps(path):
    """Write the page of one model in three quantisations."""
    views = [fake_view("bf16"), fake_view("int8_wo", speed=1.5), fake_view("int4_wo", speed=1.9, best="c64")]
    write_page(path, render_sweeps(views))


def settings_sweep(path):
    """Write the page of a sweep over nine settings, more than there are colours."""
    points = [
        fake_point(load, speed=1 + n / 5, settings={"num_kv_blocks": 100 * (n + 1)})
        for n in range(9)
        for load in (1, 4, 16, 64)
    ]
    view = fake_view(best=None)
    write_page(path, render_sweeps([type(view)(name=view.name, points=points, identity=view.identity)]))


def failed_sweep(path):
    """Write the page of a sweep of which no point was measured."""
    points = [fake_point(load, state="failed", why=HOSTILE) for load in (1, 4)]
    view = fake_view()
    write_page(path, render_sweeps([type(view)(name=HOSTILE, points=points, identity=[("engine", HOSTILE)])]))


def two_runs(path):
    """Write the page of two runs of which a third of the answers differ, with their texts."""
    rows = [sample_rows(400, seed=seed, changed=0.3, failed=0.02) for seed in (1, 2)]
    a, b = (run_on_disk(path.parent / f"run-{n}", held) for n, held in enumerate(rows))
    write_page(path, render_comparison(compare(a, b, include_text=True)))


def hostile_runs(path):
    """Write the page of two runs whose ids and answers are no good."""
    a = run_on_disk(path.parent / "a", [answer_row(1, HOSTILE, custom_id=HOSTILE)])
    b = run_on_disk(path.parent / "b", [answer_row(1, f"{HOSTILE} more", custom_id=HOSTILE)], host=HOSTILE)
    write_page(path, render_comparison(compare(a, b, include_text=True)))


PAGES = [one_sweep, three_sweeps, settings_sweep, failed_sweep, two_runs, hostile_runs]


@pytest.mark.parametrize("build", PAGES, ids=lambda build: build.__name__)
def test_a_page_is_clean_and_fits_screen_and_paper(build, tmp_path):
    path = tmp_path / f"{build.__name__}.html"
    build(path)
    visit = open_page(path)
    assert visit.console == []
    assert visit.requests == []
    assert visit.overflow_px == 0
    assert visit.print_overflow_px == 0
    assert visit.collisions == []
    assert visit.texts


@pytest.mark.parametrize("build", PAGES, ids=lambda build: build.__name__)
def test_a_page_holds_no_script_and_no_address(build, tmp_path):
    path = tmp_path / "page.html"
    build(path)
    html = path.read_text()
    assert "<script" not in html
    assert "http://" not in html.replace("http://www.w3.org/", "")
    assert "https://" not in html


def test_what_a_point_measured_stands_on_its_mark(tmp_path):
    path = tmp_path / "page.html"
    one_sweep(path)
    told = open_page(path, name="one_sweep").titles
    assert any(text.startswith("concurrency 16: 266.7 output tokens/s") and "best" in text for text in told)
    assert any("unstable" in text for text in told)


def test_hostile_text_is_shown_as_it_is(tmp_path):
    path = tmp_path / "page.html"
    failed_sweep(path)
    visit = open_page(path, name="failed_sweep")
    assert any("<script>alert(1)</script>" in text for text in visit.texts)
