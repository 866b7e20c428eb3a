"""A whole file: exact counts, capped findings, one pass."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from trtb.runner.line_set import LineSet
from trtb.runner.validate import ValidationReport, to_json, validate_file


def line(custom_id: str, **body) -> str:
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], **body}
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions", "body": body})


def validate(tmp_path: Path, lines: list[str], **options) -> ValidationReport:
    path = tmp_path / "input.jsonl"
    path.write_text("\n".join(lines) + "\n")
    return validate_file(path, **{"model_names": frozenset({"m"}), "strict_params": False, **options})


def test_findings_are_capped_and_counts_are_not(tmp_path):
    report = validate(tmp_path, [line(str(i), best_of=2) for i in range(50)] + [line("x")], max_findings=10)
    assert (report.total, report.valid, report.invalid) == (51, 1, 50)
    assert len(report.findings) == 10
    assert report.truncated
    assert report.codes == {"unsupported_parameter": 50}
    assert list(report.invalid_lines) == list(range(1, 51))


def test_a_list_that_is_exactly_full_is_not_truncated(tmp_path):
    assert not validate(tmp_path, [line(str(i), best_of=2) for i in range(10)], max_findings=10).truncated


def test_a_warning_of_many_lines_is_told_once_with_their_number(tmp_path):
    lines = [line(str(i), user=f"u{i}", metadata={"i": i}) for i in range(30)]
    report = validate(tmp_path, lines)
    assert [(f.line, f.path, f.severity) for f in report.findings] == [
        (1, "body.user", "warning"),
        (1, "body.metadata", "warning"),
    ]
    assert all("30 lines" in f.message for f in report.findings)
    assert report.num_warnings == 2
    assert not report.has_errors


def test_errors_come_before_warnings_where_not_all_fit(tmp_path):
    report = validate(tmp_path, [line("a", user="u"), line("b", best_of=2)], max_findings=1)
    assert [f.severity for f in report.findings] == ["error"]
    assert report.truncated


def test_countless_kinds_of_warnings_are_counted_and_not_kept(tmp_path):
    report = validate(tmp_path, [line(str(i), **{f"key{i}": 1}) for i in range(3000)])
    assert report.num_warnings == 3000
    assert len(report.findings) == 100
    assert report.truncated


@pytest.mark.parametrize("max_ids_in_memory", [3, 1000])
def test_duplicates_are_found_across_spills_also_of_invalid_lines(tmp_path, max_ids_in_memory):
    lines = [line(str(i)) for i in range(20)]
    lines[0] = line("bad", best_of=2)
    lines[10] = lines[15] = line("bad")
    lines[12] = "{broken"
    lines[19] = line("4", best_of=2)
    report = validate(tmp_path, lines, max_ids_in_memory=max_ids_in_memory)
    assert [(f.line, f.code) for f in report.findings] == [
        (1, "unsupported_parameter"),
        (11, "duplicate_custom_id"),
        (13, "invalid_json_line"),
        (16, "duplicate_custom_id"),
        (20, "unsupported_parameter"),
        (20, "duplicate_custom_id"),
    ]
    assert list(report.invalid_lines) == [1, 11, 13, 16, 20]
    assert (report.total, report.valid, report.invalid) == (20, 15, 5)


def test_an_escaped_custom_id_equals_its_plain_form(tmp_path):
    report = validate(tmp_path, [line("a/é"), line("b"), line("a/é").replace("a/", "a\\/")])
    assert [(f.line, f.code) for f in report.findings] == [(3, "duplicate_custom_id")]


def test_the_hash_and_size_are_those_of_the_whole_file(tmp_path):
    heard: list[int] = []
    report = validate(tmp_path, [line("a"), "", line("a"), "x"], on_progress=heard.append)
    data = (tmp_path / "input.jsonl").read_bytes()
    assert report.sha256 == hashlib.sha256(data).hexdigest()
    assert report.num_bytes == len(data) == sum(heard)


def test_an_array_on_one_line_is_another_format(tmp_path):
    report = validate(tmp_path, ["[" + line("a") + "," + line("b") + "]"])
    assert report.is_refused
    assert [f.code for f in report.findings] == ["invalid_json_line"]


def test_one_bad_first_line_does_not_make_the_file_another_format(tmp_path):
    report = validate(tmp_path, ["[", line("a")])
    assert not report.is_refused
    assert (report.valid, report.invalid) == (1, 1)


def test_the_json_form_is_the_documented_one(tmp_path):
    assert to_json(validate(tmp_path, [line("a", best_of=2)])) == {
        "schema_version": 1,
        "total": 1,
        "valid": 0,
        "invalid": 1,
        "truncated": False,
        "findings": [
            {
                "line": 1,
                "column": None,
                "custom_id": "a",
                "path": "body.best_of",
                "code": "unsupported_parameter",
                "severity": "error",
                "message": "body.best_of: 2; expected 1",
                "hint": "",
            }
        ],
    }


def test_a_line_set_holds_any_numbers():
    numbers = LineSet()
    for number in (1, 8, 7, 8, 100_000):
        numbers.add(number)
    assert list(numbers) == [1, 7, 8, 100_000]
    assert len(numbers) == 4
    assert 9 not in numbers
    assert 1_000_000 not in numbers
