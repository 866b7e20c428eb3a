"""Pages: everything escaped, nothing missing, written whole."""

from __future__ import annotations

import jinja2
import pytest

from trtb.tools.pages.page import CONTENT_POLICY, render, write_page

SWEEP = {
    "heading": "a",
    "headlines": [],
    "notices": [],
    "drawings": [],
    "columns": ["a"],
    "numbers": (),
    "rows": [],
    "best": [],
    "left_out": [],
    "views": [],
    "commands": [],
    "command_columns": [],
}


def test_a_page_carries_its_policy_and_language():
    html = render("sweep.html", SWEEP)
    assert html.startswith("<!doctype html>")
    assert '<html lang="en">' in html
    assert "default-src &#39;none&#39;" in html
    assert "script" not in CONTENT_POLICY


def test_every_text_is_escaped():
    html = render(
        "sweep.html", SWEEP | {"heading": "<b>&", "notices": [("bad", "<i>", '"><u>')], "rows": [["<s>"]]}
    )
    assert "<b>" not in html
    assert "<i>" not in html
    assert "<u>" not in html
    assert "<td>&lt;s&gt;</td>" in html


def test_a_name_that_is_missing_is_an_error():
    with pytest.raises(jinja2.UndefinedError, match="rows"):
        render("sweep.html", {name: value for name, value in SWEEP.items() if name != "rows"})


def test_a_page_is_written_whole_with_text_that_is_no_unicode(tmp_path):
    path = tmp_path / "folder/page.html"
    write_page(path, "half a pair \ud83d, and a whole one \U0001f600")
    assert path.read_text(encoding="utf-8") == "half a pair ?, and a whole one \U0001f600"
    assert list(path.parent.iterdir()) == [path]
