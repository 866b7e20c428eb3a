"""`trtb report A B`: what it prints, its page, and how it exits."""

from __future__ import annotations

import json

import pytest
from fakes.compared import answer_row, run_on_disk, sample_rows
from fakes.reported import write_run
from fakes.rows import failed_row
from typer.testing import CliRunner

from trtb.tools.cli import app

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&\u202e" + "x" * 10_000


@pytest.fixture
def runs(tmp_path):
    """Two runs of 20 requests, of which 15 have the same answer and one failed in B."""
    rows = list(sample_rows(20, seed=1))
    others = [answer_row(line, "something else") for line in range(1, 5)]
    a = run_on_disk(tmp_path / "a", rows)
    b = run_on_disk(tmp_path / "b", [*others, failed_row(5, "timeout"), *rows[5:]], engine="tiny-fp8@1")
    return a, b


def report(*arguments):
    return CliRunner().invoke(app, ["report", *map(str, arguments)])


def test_two_runs_are_compared_by_output_or_folder(runs):
    a, b = runs
    done = report(a.output, b.folder)
    assert done.exit_code == 0
    lines = done.stdout.splitlines()
    assert "requests   20 in both: 19 completed in both, 1 only in A, 0 only in B, 0 in neither" in lines
    assert any(line.startswith("verdict    answers: 15 of 19 (78.9%") for line in lines)
    assert "verdict    regressions: 1 that A completed failed in B: 'c-5' (timeout)" in lines
    assert any(line.startswith("differs    engine: A tiny-int8_wo@3, B tiny-fp8@1") for line in lines)
    assert "something else" not in done.stdout
    assert "something else" in report(a.output, b.output, "--include-text").stdout


@pytest.mark.parametrize(("least", "code"), [(0.5, 0), (0.78, 0), (0.8, 1), (1, 1)])
def test_less_agreement_than_asked_for_is_exit_code_1(runs, least, code):
    done = report(*(paths.output for paths in runs), "--min-agreement", least, "--json")
    assert done.exit_code == code
    assert json.loads(done.stdout)["agreement"]["equal"]["count"] == 15
    assert ("expected at least" in done.stderr) == bool(code)


def test_runs_without_a_pair_do_not_agree(tmp_path):
    a = run_on_disk(tmp_path / "a", [failed_row(1)])
    done = report(a.output, a.output, "--min-agreement", 0)
    assert done.exit_code == 1
    assert "no request was completed in both" in done.stderr


@pytest.mark.parametrize(
    ("num_runs", "options", "told"),
    [
        (3, [], "expected one, or two to compare"),
        (1, ["--min-agreement", "1"], "expected two"),
        (1, ["--sample", "3"], "found no --html"),
        (1, ["--sample-seed", "3"], "found no --html"),
        (1, ["--include-text"], "found no --html"),
        (1, ["--cost-per-hour", "0"], "found no --html"),
        (2, ["--cost-per-hour", "0"], "found two runs"),
        (2, ["--sample", "3"], "found two runs"),
        (2, ["--cost-per-hour", "2"], "found two runs"),
    ],
)
def test_options_go_with_the_number_of_runs(runs, num_runs, options, told):
    done = report(*[runs[0].output] * num_runs, *options)
    assert done.exit_code == 2
    assert told in done.stderr


def test_its_page_is_put_where_asked_or_beside_the_second_run(runs, tmp_path):
    a, b = runs
    assert report(a.output, b.output, "--html").exit_code == 0
    assert (b.folder / "comparison.html").is_file()
    assert report(a.output, b.output, "--html", tmp_path / "page.html", "--json").exit_code == 0
    html = (tmp_path / "page.html").read_text()
    assert "15 of 19" in html
    assert "something else" not in html
    refused = report(a.output, b.output, "--html", tmp_path)
    assert refused.exit_code == 2
    assert "expected a file that can be written" in refused.stderr


def test_the_page_shows_texts_on_request_and_runs_none_of_them(tmp_path):
    rows_a = [
        answer_row(1, f"left {HOSTILE}", custom_id=HOSTILE),
        answer_row(2, "a", custom_id=f"2{HOSTILE}"),
    ]
    rows_b = [answer_row(1, "right", custom_id=HOSTILE), failed_row(2, custom_id=f"2{HOSTILE}")]
    a, b = run_on_disk(tmp_path / "a", rows_a), run_on_disk(tmp_path / "b", rows_b)
    page = tmp_path / "page.html"
    report(a.output, b.output, "--html", page)
    hidden = page.read_text()
    report(a.output, b.output, "--html", page, "--include-text")
    shown = page.read_text()
    assert "<pre>right</pre>" in shown
    assert "right</pre>" not in hidden
    for html in (hidden, shown):
        assert "<script" not in html
        assert "<img" not in html
    assert "x" * 100 not in hidden  # a very long id is cut


def test_figures_that_neither_run_has_are_no_rows(tmp_path):
    rows = [answer_row(1, "a", reused_from="cache", latency_ns=0)]
    a, b = (run_on_disk(tmp_path / name, rows, job={"cache": name == "a"}) for name in "ab")
    done = report(a.output, b.output)
    assert "output tokens" in done.stdout
    assert "request latency" not in done.stdout
    quick = run_on_disk(tmp_path / "quick", rows, seconds=0.02)
    assert "duration\ts\t10\t0.02\t0.002" in report(a.output, quick.output).stdout
    assert "differs    cache: A on, B off" in done.stdout


def test_a_page_takes_the_place_of_no_output_or_ledger(runs):
    a, b = runs
    a.output.write_text('{"id": 1}\n')
    for taken in (a.output, a.ledger, a.record):
        held = taken.read_bytes()
        for compared in ([a.output], [a.output, b.output]):
            done = report(*compared, "--html", taken)
            assert done.exit_code == 2
            assert "is no page, and would be lost" in done.stderr
        assert taken.read_bytes() == held


def test_a_run_is_found_from_within_its_folder(runs, monkeypatch):
    a, _ = runs
    monkeypatch.chdir(a.folder)
    (a.folder / "server").mkdir()
    for inside in (".", "", "server/..", a.folder / "."):
        assert report(inside).exit_code == 0


@pytest.mark.parametrize("command", ["report", "retry"])
@pytest.mark.parametrize("path", [".", "", "/", "..", ".run", "/.run"])
def test_what_has_no_name_of_a_run_is_refused(tmp_path, monkeypatch, command, path):
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, [command, path])
    assert (done.exit_code, "expected" in done.stderr) == (2, True)


def test_a_price_of_less_than_nothing_is_nothing(tmp_path):
    paths, page = write_run(tmp_path), tmp_path / "page.html"
    assert report(paths.output, "--html", page, "--cost-per-hour=-0.0").exit_code == 0
    html = page.read_text()
    assert "0 an hour" in html
    assert "-0 an hour" not in html
