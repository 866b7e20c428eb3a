"""The check of pages finds what is wrong with one; else a clean page would say nothing."""

from __future__ import annotations

import pytest
from browser.visit import open_page

pytestmark = pytest.mark.slow

PAGE = (
    '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>a</title></head><body>{}</body></html>'
)


def _visit(tmp_path, body, head=""):
    page = tmp_path / "page.html"
    page.write_text(PAGE.format(body).replace("</head>", f"{head}</head>"))
    return open_page(page, name="broken")


def test_a_plain_page_is_clean(tmp_path):
    visit = _visit(tmp_path, "<p>some words</p>")
    assert (visit.console, visit.requests, visit.collisions) == ([], [], [])
    assert (visit.overflow_px, visit.print_overflow_px, visit.pdf_pages) == (0, 0, 1)
    assert visit.texts == ["some words"]
    assert visit.screenshot.stat().st_size > 1000
    assert visit.pdf.read_bytes().startswith(b"%PDF")


def test_a_script_that_fails_is_told(tmp_path):
    visit = _visit(tmp_path, "<script>console.error('lost'); nothing.there</script>")
    assert any("lost" in line for line in visit.console)
    assert any("nothing is not defined" in line for line in visit.console)


def test_a_page_that_asks_for_something_is_told_and_gets_nothing(tmp_path):
    visit = _visit(tmp_path, '<img src="https://example.org/a.png" alt="">')
    assert visit.requests == ["https://example.org/a.png"]
    assert any("example.org" in line for line in visit.console)


def test_the_policy_of_pages_refuses_scripts_and_pictures_from_elsewhere(tmp_path):
    from trtb.tools.pages.page import CONTENT_POLICY

    policy = f'<meta http-equiv="Content-Security-Policy" content="{CONTENT_POLICY}">'
    visit = _visit(
        tmp_path, '<img src="https://example.org/a.png" alt=""><script>document.title = 1</script>', policy
    )
    refused = [line for line in visit.console if "Content Security Policy" in line]
    assert len(refused) == 2


def test_a_table_that_is_too_wide_is_told(tmp_path):
    cells = "".join(f"<td>{'wide' * 10}</td>" for _ in range(10))
    scrolled = f'<div class="table" style="overflow-x: auto"><table><tr>{cells}</tr></table></div>'
    visit = _visit(tmp_path, scrolled)
    assert visit.overflow_px > 500
    assert visit.print_overflow_px > visit.overflow_px


def test_words_on_one_another_are_told(tmp_path):
    words = (
        '<text x="20" y="20">first</text><text x="24" y="22">second</text><text x="190" y="50">cut off</text>'
    )
    visit = _visit(tmp_path, f'<svg width="200" height="80">{words}</svg>')
    assert visit.collisions == ["first on second", "cut off sticks out"]


def test_a_long_page_has_several_sheets(tmp_path):
    assert _visit(tmp_path, "<p>some words</p>" * 100).pdf_pages > 2


def test_without_a_browser_the_reason_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr("browser.visit.find_browser", lambda: None)
    with pytest.raises(RuntimeError, match="make browser"):
        _visit(tmp_path, "")
