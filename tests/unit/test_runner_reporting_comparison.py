"""Two runs, request by request."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from dataclasses import fields

import pytest
from fakes.compared import answer_row, run_on_disk, sample_rows
from fakes.rows import completed_row, failed_row
from fakes.runs import fake_options

from trtb.build.errors import ConfigError
from trtb.runner.errors import LedgerCorruptError
from trtb.runner.options import RunOptions
from trtb.runner.report import read_report, write_report
from trtb.runner.reporting.comparison import compare
from trtb.runner.reporting.comparison_differences import NO_MATTER_OF_SPEED
from trtb.runner.run_folder import RunPaths

PEAK_OF_COMPARING = """
import sys
from pathlib import Path
from trtb.runner.reporting.comparison import compare
from trtb.runner.run_folder import RunPaths
found = compare(*(RunPaths(Path(argument)) for argument in sys.argv[1:]))
status = Path("/proc/self/status").read_text()
print(found.counts.completed_in_both, status.partition("VmHWM:")[2].split()[0])
"""


@pytest.fixture
def compared(tmp_path):
    """Return the comparison of two runs of these rows; keywords are of B."""

    def make(rows_a, rows_b, *, include_text=False, **fields):
        a, b = (run_on_disk(tmp_path / "a", rows_a), run_on_disk(tmp_path / "b", rows_b, **fields))
        return compare(a, b, include_text=include_text)

    return make


def test_lines_belong_together_by_custom_id_wherever_they_stand(compared):
    found = compared(
        [answer_row(1, "one"), answer_row(2, "two"), answer_row(3, "three")],
        [
            answer_row(1, "four", custom_id="c-4"),
            answer_row(2, "three", custom_id="c-3"),
            answer_row(7, "two!", custom_id="c-2"),
        ],
        input_sha256="b" * 64,
    )
    counts = found.counts
    assert (counts.in_both, counts.only_a, counts.only_b) == (2, 1, 1)
    assert (counts.only_a_samples, counts.only_b_samples) == (["c-1"], ["c-4"])
    assert (found.agreement.equal.count, found.agreement.equal.of) == (1, 2)
    (pair,) = found.most_different
    assert (pair.custom_id, pair.line_a, pair.line_b) == ("c-2", 2, 7)
    assert not found.same_input
    assert any("taken on trust" in line for line in found.verdict)


def test_an_id_that_failed_twice_meets_itself_and_lines_without_one_nobody(compared):
    nameless = failed_row(3, "invalid_json_line", custom_id=None)
    counts = compared(
        [failed_row(1, "invalid_request", custom_id="x"), answer_row(2, "fine", custom_id="x"), nameless],
        [answer_row(1, "fine", custom_id="x"), failed_row(2, "duplicate_custom_id", custom_id="x"), nameless],
    ).counts
    assert (counts.completed_in_both, counts.failed_in_both) == (1, 1)
    assert (counts.without_id_a, counts.without_id_b, counts.only_a) == (1, 1, 0)


def test_what_b_fails_at_is_named_with_its_code(compared):
    found = compared(
        [answer_row(1, "a"), answer_row(2, "b"), failed_row(3, "timeout"), failed_row(4, "timeout")],
        [failed_row(1, "engine_error"), answer_row(2, "b"), answer_row(3, "c"), failed_row(4, "queue_full")],
    )
    assert [change.model_dump() for change in found.regressions] == [
        {"custom_id": "c-1", "code": "engine_error"}
    ]
    assert [(change.custom_id, change.code) for change in found.repairs] == [("c-3", "timeout")]
    counts = found.counts
    assert (counts.regressed, counts.repaired, counts.failed_in_both) == (1, 1, 1)
    assert "regressions: 1 that A completed failed in B: 'c-1' (engine_error)" in found.verdict


def test_under_like_conditions_the_verdict_is_faster_or_slower(compared):
    rows = [answer_row(line, "ten words " * 5) for line in range(1, 5)]
    found = compared(rows, rows, seconds=8.0, engine="other@1", engine_id="f" * 64)
    assert found.speed.cautions == []
    assert found.speed.figures[0].ratio == pytest.approx(1.25)
    assert "speed: B is faster: 1.25 times A's output tokens/s" in found.verdict
    assert {held.name for held in found.differences} == {"engine", "engine_id"}


@pytest.mark.parametrize(
    ("fields", "caution"),
    [
        ({"host": "there"}, "host: A here, B there"),
        ({"job": {"concurrency": 8}}, "concurrency: A 64, B 8"),
        ({"input_sha256": "c" * 64}, "the inputs are not the same"),
        ({"state": "interrupted", "total": 9}, "B is interrupted"),
    ],
)
def test_what_else_differs_forbids_a_verdict_on_speed(compared, fields, caution):
    rows = [answer_row(1, "words")]
    found = compared(rows, rows, **fields)
    assert caution in found.speed.cautions
    (line,) = (line for line in found.verdict if line.startswith("speed"))
    assert "not compared" in line
    assert caution in line


def test_options_that_change_no_speed_or_were_not_there_are_told_and_forbid_nothing(compared, tmp_path):
    rows = [answer_row(1, "words")]
    found = compared(rows, rows, job={**fake_options(tmp_path).job(), "grace_s": 5.0, "new_option": 7})
    assert [held.name for held in found.differences] == ["grace_s", "new_option"]
    assert found.speed.cautions == []


def test_reused_answers_have_no_part_in_latencies(compared):
    found = compared(
        [answer_row(1, "a", latency_ns=8_000_000), answer_row(2, "a")],
        [answer_row(1, "a", latency_ns=2_000_000), answer_row(2, "a", latency_ns=0, reused_from="equal")],
    )
    assert found.speed.latency_ratio_of_pairs == pytest.approx(0.25)
    assert sum(held.a for held in found.distributions.request_latency_ms) == 1
    assert "answers that cost nothing, being those of equal requests: A 0, B 1" in found.speed.cautions


def test_times_of_a_damaged_row_have_no_part_in_latencies(compared):
    rows = [answer_row(1, "a", latency_ns=8_000_000), answer_row(2, "b", latency_ns=8_000_000)]
    found = compared(rows, [answer_row(1, "a", latency_ns=-5), answer_row(2, "b", latency_ns=4_000_000)])
    assert found.speed.latency_ratio_of_pairs == pytest.approx(0.5)


def test_a_run_that_computed_nothing_has_no_speed(tmp_path):
    rows = [answer_row(1, "a", reused_from="cache", latency_ns=0)]
    a, b = run_on_disk(tmp_path / "a", [answer_row(1, "a")]), run_on_disk(tmp_path / "b", rows)
    nothing = {"output_tokens_per_s": 0.0, "requests_per_s": 0.0, "duration_s": 0.0}
    write_report(b, read_report(b).model_copy(update=nothing))
    found = compare(a, b)
    assert [figure.ratio for figure in found.speed.figures] == [None] * 9
    assert all(figure.b is None for figure in found.speed.figures)


def test_runs_with_nothing_in_common_have_no_regressions_to_tell_of(compared):
    found = compared([answer_row(1, "a")], [answer_row(1, "a", custom_id="other")])
    assert "regressions: cannot be told: no request has a result in both" in found.verdict
    assert not any("B completed all" in line for line in found.verdict)


def test_cached_answers_say_nothing_of_speed_though_both_runs_have_them(compared):
    rows = [answer_row(1, "a", reused_from="cache", latency_ns=0)]
    assert any("of the result cache: A 1, B 1" in caution for caution in compared(rows, rows).speed.cautions)


def test_only_options_of_a_run_are_called_no_matter_of_speed():
    assert {option.name for option in fields(RunOptions)} >= NO_MATTER_OF_SPEED


def test_lengths_and_their_difference_are_of_pairs(compared):
    found = compared(
        [
            answer_row(1, "a", completion_tokens=10),
            answer_row(2, "b", completion_tokens=30),
            answer_row(3, "x"),
        ],
        [
            answer_row(1, "a", completion_tokens=12, finish_reason="length"),
            answer_row(2, "b", completion_tokens=36),
            failed_row(3),
        ],
    )
    lengths = found.lengths
    assert (lengths.a.mean, lengths.b.mean, lengths.ratio) == (20, 24, 1.2)
    assert (lengths.difference.mean, lengths.difference.num_more) == (4, 2)
    assert (lengths.a.truncated.count, lengths.b.truncated.count) == (0, 1)
    assert [change.model_dump() for change in found.agreement.finish_changes] == [
        {"a": "stop", "b": "length", "count": 1}
    ]


def test_json_and_tool_calls_are_compared_by_value(compared):
    found = compared(
        [
            answer_row(1, '{"a": 1, "b": 2}'),
            answer_row(2, "[1]"),
            answer_row(3, "{}"),
            answer_row(4, None, calls=(("f", '{"x": 1}'),)),
            answer_row(5, None, calls=(("f", "{}"),)),
        ],
        [
            answer_row(1, '{"b":2,"a":1}'),
            answer_row(2, "[2]"),
            answer_row(3, "sorry"),
            answer_row(4, None, calls=(("f", '{"x":1}'),)),
            answer_row(5, "no"),
        ],
    )
    values, calls = found.agreement.json_answers, found.agreement.tool_calls
    assert (values.in_both, values.only_a, values.only_b, values.equal.count) == (2, 1, 0, 1)
    assert (calls.count, calls.of) == (1, 2)
    assert found.agreement.equal.count == 0


def test_texts_are_shown_on_request_only(compared, tmp_path):
    rows = [answer_row(1, "secret answer")], [answer_row(1, "hidden answer")]
    assert "secret" not in compared(*rows).model_dump_json()
    paths = RunPaths(tmp_path / "a" / "out.jsonl"), RunPaths(tmp_path / "b" / "out.jsonl")
    (pair,) = compare(*paths, include_text=True).most_different
    assert (pair.text_a, pair.text_b) == ("secret answer", "hidden answer")


def test_the_answers_that_agree_the_least_come_first_and_are_few(compared):
    rows_a = [answer_row(line, "w " * 40) for line in range(1, 41)]
    rows_b = [answer_row(line, "w " * (40 - line) + "x " * line) for line in range(1, 41)]
    found = compared(rows_a, rows_b)
    assert [pair.line_a for pair in found.most_different] == list(range(40, 30, -1))
    assert found.most_different[0].similarity == 0


def test_another_number_of_prompt_tokens_is_remarked_upon(compared):
    found = compared([answer_row(1, "a", prompt_tokens=10)], [answer_row(1, "a", prompt_tokens=11)])
    assert found.agreement.prompts_differ == 1
    assert any(line.startswith("prompts: 1 request ") for line in found.verdict)


def test_answers_that_may_depend_on_company_are_not_laid_to_the_engine(compared):
    rows = [answer_row(1, "one")], [answer_row(1, "two")]
    assert any("chance" in line for line in compared(*rows, is_exact=False).verdict)


def test_exact_runs_have_no_chance_to_speak_of(compared):
    found = compared([answer_row(1, "one")], [answer_row(1, "two")])
    assert not any("chance" in line for line in found.verdict)


def test_where_nothing_was_completed_in_both_it_says_so(compared):
    found = compared([failed_row(1)], [failed_row(1)])
    assert "neither speed nor answers can be compared" in found.verdict[0]
    assert found.agreement.equal.share is None
    assert found.distributions.output_tokens == []


def test_a_run_that_goes_on_is_compared_as_far_as_it_is(compared):
    rows = list(sample_rows(20, seed=1))
    found = compared(rows, rows[:10], state="running", total=20)
    assert (found.counts.in_both, found.counts.only_a) == (10, 10)
    assert found.b.state == "interrupted"  # nobody holds its lock


def test_what_is_no_run_is_refused(tmp_path):
    paths = run_on_disk(tmp_path / "a", [completed_row(1)])
    with pytest.raises(ConfigError, match="no run was begun here"):
        compare(paths, RunPaths(tmp_path / "none.jsonl"))


def test_a_damaged_ledger_is_named(tmp_path):
    a = run_on_disk(tmp_path / "a", sample_rows(50, seed=1))
    b = run_on_disk(tmp_path / "b", sample_rows(50, seed=1))
    data = bytearray(b.ledger.read_bytes())
    with sqlite3.connect(b.ledger) as connection:
        (page,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'results'").fetchone()
    connection.close()
    data[(page - 1) * 16384 : page * 16384] = b"\xff" * 16384
    b.ledger.write_bytes(data)
    with pytest.raises(LedgerCorruptError, match="expected"):
        compare(a, b)


def test_it_is_one_object_of_json(compared):
    rows = list(sample_rows(30, seed=1))
    told = json.loads(compared(rows, sample_rows(30, seed=2, changed=0.5)).model_dump_json())
    assert told["schema_version"] == 1
    assert told["agreement"]["equal"]["of"] == 30


@pytest.mark.slow
def test_memory_does_not_grow_with_the_runs(tmp_path):
    peaks = []
    for num in (5_000, 45_000):
        outputs = [
            run_on_disk(tmp_path / f"{num}-{seed}", sample_rows(num, seed=seed, changed=0.3)).output
            for seed in (1, 2)
        ]
        child = [sys.executable, "-c", PEAK_OF_COMPARING, *map(str, outputs)]
        done = subprocess.run(child, check=True, capture_output=True, text=True, cwd=tmp_path)
        num_compared, peak_kib = map(int, done.stdout.split())
        assert num_compared == num
        peaks.append(peak_kib)
    # the 80,000 rows more have 40 MB
    assert peaks[1] - peaks[0] < 12_000, f"{peaks} KiB"
