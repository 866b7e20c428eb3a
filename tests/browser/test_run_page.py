"""The page of a run as a browser shows it, with ids and texts that would do harm if they could."""

from __future__ import annotations

import pytest
from browser.visit import open_page
from fakes.reported import reported_rows, write_gpu_samples, write_run

from trtb.runner.report import write_report
from trtb.runner.reporting.current_report import current_report
from trtb.runner.reporting.diagnosis import Bottleneck, Diagnosis
from trtb.tools.report import Wanted, write_run_page

pytestmark = pytest.mark.slow

HOSTILE = (
    "</script><img src=x onerror=alert(1)><svg onload=alert(2)>\"'&\x00\x1b\u202e {line} " + "x" * 10_000
)


def full_page(folder):
    """Write the page of a run with everything that a page can hold."""
    paths = write_run(folder)
    write_gpu_samples(paths)
    diagnosis = Diagnosis(
        bottlenecks=[
            Bottleneck(
                kind="kv_pool",
                share=0.7,
                evidence=["71 of 100 KV blocks held, 12 requests ready to be sent"],
                setting="--num-kv-blocks 200",
            )
        ],
        unknown_share=0.2,
        unknown_why="requests waited, with places and KV blocks free",
        tail_s=1.0,
        num_samples=20,
    )
    warnings = ["12 answers cut by max_tokens (raise the request's max_tokens)", HOSTILE]
    made = current_report(paths).model_copy(update={"diagnosis": diagnosis, "warnings": warnings})
    write_report(paths, made)
    page = folder / "run.html"
    write_run_page(paths, page, Wanted(sample=4, include_text=True, cost_per_hour=12))
    return page


def hostile_page(folder):
    """Write the page of a run whose ids are not harmless."""
    paths = write_run(folder, reported_rows(HOSTILE))
    page = folder / "run.html"
    write_run_page(paths, page, Wanted(sample=8))
    return page


def empty_page(folder):
    """Write the page of a run that has answered nothing."""
    paths = write_run(folder, [], state="interrupted")
    page = folder / "run.html"
    write_run_page(paths, page, Wanted(sample=8, cost_per_hour=1))
    return page


@pytest.mark.parametrize("build", [full_page, hostile_page, empty_page], ids=lambda build: build.__name__)
def test_it_is_clean_and_fits_screen_and_paper(build, tmp_path):
    visit = open_page(build(tmp_path), name=f"run_{build.__name__}")
    assert visit.console == []
    assert visit.requests == []
    assert (visit.overflow_px, visit.print_overflow_px) == (0, 0)
    assert visit.collisions == []


def test_an_id_that_is_markup_is_shown_as_text(tmp_path):
    visit = open_page(hostile_page(tmp_path), name="run_hostile_page")
    assert any("</script><img src=x onerror=alert(1)>" in text for text in visit.texts)
    assert not any("\u202e" in text for text in visit.texts)
