"""The page of a run: complete, without texts unless they are asked for, and small whatever the run's size."""

from __future__ import annotations

import re

import pytest
from fakes.reported import ANSWER, MESSAGE, PROMPT, reported_rows, write_gpu_samples, write_run
from typer.testing import CliRunner

from trtb.build import files
from trtb.runner.report import CacheReport, write_report
from trtb.runner.reporting.current_report import current_report, view_run
from trtb.runner.run_folder import LOCK_FILE
from trtb.tools.bench.page import MAX_PAGE_MB, page_in_child
from trtb.tools.cli import app

HOSTILE = (
    "</script><img src=x onerror=alert(1)>\"'&{{ 7 * 7 }}\x00\x1b\u202egpj.\u2066 {line} " + "x" * 10_000
)


def report(*arguments):
    result = CliRunner().invoke(app, ["report", *map(str, arguments)])
    assert result.exit_code == 0, result.output
    return result.stdout


def words(html):
    """Return what a page says, without its markup."""
    body = re.sub(r"<style>.*?</style>", "", html, flags=re.DOTALL)
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", body))


def test_a_page_accounts_for_every_request_and_says_what_it_is(tmp_path):
    paths = write_run(tmp_path)
    write_gpu_samples(paths)
    report(paths.folder, "--html", "--cost-per-hour", "12")
    html = (paths.folder / "report.html").read_text()
    said = words(html)
    assert "40 requests = 36 completed + 4 failed + 0 to do" in said
    assert "timeout 4 10% c-10, c-20, c-30, c-40" in said
    assert "a" * 64 in said  # the input's hash
    titles = re.findall(r"<h3>([^<]*)</h3><svg", html)
    assert titles == [
        *("Throughput", "Requests in flight", "Answers"),
        *("Request latency", "Time to first token", "Prompt length", "Answer length"),
        *("Processor time", "KV blocks", "Requests waiting", "Server memory", "GPU use", "GPU memory"),
    ]
    assert re.search(r"pause 14:5\d", said)  # between the two stretches
    assert "of equal requests 3 answers (8.33%) of the result cache 2 answers (5.56%)" in said
    cost = re.search(r"cost ([\d.]+) = 12 an hour x ([\d.]+) hours", said)
    assert cost
    assert float(cost[1]) == pytest.approx(12 * float(cost[2]), rel=1e-3)
    seconds = view_run(paths).figures.active_s
    assert float(cost[2]) == pytest.approx(seconds / 3600, rel=1e-3)
    assert seconds < 30  # the pause costs nothing


def test_no_text_of_a_request_is_in_it_unless_it_is_asked_for(tmp_path):
    paths = write_run(tmp_path)
    page = tmp_path / "page.html"
    report(paths.output, "--html", page, "--sample", 40)
    said = words(page.read_text())
    assert "40 requests, chosen with seed 0" in said
    for text in (PROMPT, ANSWER, MESSAGE):
        assert text not in said
        assert text.replace("'", "&#39;") not in said
    report(paths.output, "--html", page, "--sample", 40, "--include-text")
    said = words(page.read_text())
    for text in (PROMPT, ANSWER, MESSAGE):
        assert text.replace("'", "&#39;") in said


def test_ids_that_are_not_harmless_are_shown_and_do_nothing(tmp_path):
    paths = write_run(tmp_path, reported_rows(HOSTILE.replace("{{ 7 * 7 }}", "{{{{ 7 * 7 }}}}")))
    report(paths.folder, "--html", "--sample", "5", "--include-text")
    html = (paths.folder / "report.html").read_text()
    assert "<img" not in html
    assert "<script" not in html
    assert "{{ 7 * 7 }}" in html
    assert not {"\x00", "\x1b", "\u202e", "\u2066"} & set(html)
    assert "x" * 100 not in html
    assert "\\u202e" in html


def test_a_page_of_a_run_that_goes_on_says_so(tmp_path):
    paths = write_run(tmp_path, reported_rows()[:25], state="running")
    with files.lock(paths.folder / LOCK_FILE, timeout_s=0):
        shown = report(paths.folder, "--html")
    assert "running" in shown
    said = words((paths.folder / "report.html").read_text())
    assert "40 requests = 23 completed + 2 failed + 15 to do The run goes on" in said
    assert "Those that have not ended are not in it" in said


def test_a_page_of_a_run_without_an_answer_is_one_too(tmp_path):
    paths = write_run(tmp_path, [], state="interrupted")
    report(paths.folder, "--html")
    assert "0 completed + 0 failed + 40 to do" in words((paths.folder / "report.html").read_text())


def test_a_result_too_many_or_too_few_is_told(tmp_path):
    paths = write_run(tmp_path, total=39)
    report(paths.folder, "--html")
    html = (paths.folder / "report.html").read_text()
    assert "1 result more than the input has requests" in html
    assert 'class="notice good"' not in html
    paths = write_run(tmp_path / "other", reported_rows()[:39])
    report(paths.folder, "--html")
    assert "1 request have no result" in (paths.folder / "report.html").read_text()


def test_html_may_stand_before_other_options_and_with_a_file(tmp_path):
    paths = write_run(tmp_path)
    assert '"total": 40' in report("--html", "--json", paths.folder)
    assert (paths.folder / "report.html").exists()
    (paths.folder / "report.html").unlink()
    report("--html", f"{paths.folder}/")
    assert (paths.folder / "report.html").exists()
    report(paths.folder, f"--html={tmp_path / 'a.html'}")
    report(paths.folder, "--html", tmp_path / "b.html")
    assert (tmp_path / "a.html").exists()
    assert (tmp_path / "b.html").exists()


def test_a_page_that_cannot_be_written_is_an_error_with_its_place(tmp_path):
    paths = write_run(tmp_path)
    result = CliRunner().invoke(app, ["report", str(paths.folder), "--html", str(tmp_path)])
    assert result.exit_code == 2
    assert str(tmp_path) in result.stderr


def test_what_the_result_cache_gave_is_told(tmp_path):
    paths = write_run(tmp_path)
    cache = CacheReport(
        hits=2,
        misses=29,
        expired=0,
        corrupted=0,
        stored=27,
        not_stored=2,
        evicted=5,
        size_bytes=1000,
        capacity_bytes=2000,
        look_up_s=0.1,
    )
    write_report(paths, current_report(paths).model_copy(update={"cache": cache}))
    report(paths.folder, "--html")
    said = words((paths.folder / "report.html").read_text())
    assert "2 of 31 look-ups found, 27 stored, 5 evicted" in said


def test_a_finished_run_without_its_ledger_has_a_report_and_no_page(tmp_path):
    paths = write_run(tmp_path)
    write_report(paths, current_report(paths))
    paths.ledger.unlink()
    assert "36 completed" in report(paths.folder)
    result = CliRunner().invoke(app, ["report", str(paths.folder), "--html"])
    assert result.exit_code == 2
    assert "ledger.db: not found" in result.stderr


@pytest.mark.slow
def test_the_page_of_many_requests_is_small_and_its_memory_flat(tmp_path):
    long, short = (page_in_child(tmp_path, number) for number in (200_000, 20_000))
    assert long["page_bytes"] < MAX_PAGE_MB * 1e6
    assert long["rss_bytes"] < 1.2 * short["rss_bytes"]
