"""Pages: everything escaped, nothing missing, written whole."""

from __future__ import annotations

from pathlib import Path

import jinja2
import pytest

from trtb.build.errors import ConfigError
from trtb.tools.pages.page import CONTENT_POLICY, check_page, render, write_page

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


@pytest.mark.parametrize(
    "held", [b'{"custom_id":"a"}\n', b"SQLite format 3\0", b"<!doc", b" <!doctype html>"]
)
def test_what_is_no_page_is_not_replaced(tmp_path, held):
    path = tmp_path / "page.html"
    path.write_bytes(held)
    with pytest.raises(ConfigError, match="is no page, and would be lost"):
        write_page(path, "<!doctype html>new")
    assert path.read_bytes() == held


@pytest.mark.parametrize("held", [b"", b"<!DOCTYPE html><p>old", b"<!doctype html>"])
def test_a_page_and_an_empty_file_are_replaced(tmp_path, held):
    path = tmp_path / "page.html"
    path.write_bytes(held)
    write_page(path, "<!doctype html>new")
    assert path.read_text() == "<!doctype html>new"


def test_a_page_replaces_what_it_was_itself(tmp_path):
    for _ in range(2):
        write_page(tmp_path / "page.html", render("sweep.html", SWEEP))


def test_a_place_that_takes_no_files_is_refused_before_the_work_and_nothing_is_left(tmp_path):
    (tmp_path / "file").write_text("text")
    places = [
        "/proc/nope/x.html",
        "/dev/null",
        tmp_path / "file/x.html",
        tmp_path / f"{'x' * 300}.html",
        tmp_path,
    ]
    for place in map(Path, places):
        with pytest.raises(ConfigError, match="expected a file that can be written"):
            check_page(place)
    check_page(tmp_path / "new/page.html")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
