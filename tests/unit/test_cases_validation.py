"""Small request files with one kind of fault each, made from what went wrong in the field."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from pathlib import Path

import pytest

from trtb.runner.reader import open_input, read_lines
from trtb.runner.request import Capabilities
from trtb.runner.schema import Invalid, LineParser, Valid
from trtb.runner.validate import ValidationReport, to_json, validate_file

CASES = Path(__file__).parents[1] / "data" / "cases"
MODEL = "smollm2-135m"


def validate(path: Path, **options) -> ValidationReport:
    return validate_file(path, **{"model_names": frozenset({MODEL}), "strict_params": False, **options})


def case(name: str, **options) -> ValidationReport:
    return validate(CASES / f"{name}.jsonl", **options)


def parsed(name: str) -> list[Valid | Invalid]:
    parser = LineParser(frozenset({MODEL}), strict_params=False)
    with open_input(CASES / f"{name}.jsonl") as file:
        return [parser.parse(line.number, line.data) for line in read_lines(file, 1 << 20)]


def errors(report: ValidationReport) -> list[tuple[int | None, str, str | None]]:
    return [(f.line, f.code, f.path) for f in report.findings if f.severity == "error"]


def warnings(report: ValidationReport) -> list[tuple[int | None, str | None]]:
    return [(f.line, f.path) for f in report.findings if f.severity == "warning"]


def counts(report: ValidationReport) -> tuple[int, int, int]:
    return report.total, report.valid, report.invalid


@pytest.mark.parametrize("name", ["crlf-line-ends", "no-newline-at-eof"])
def test_line_ends_are_framing_and_not_content(name):
    report = case(name)
    assert counts(report) == (2, 2, 0)
    assert report.findings == []


def test_a_byte_order_mark_is_removed_with_one_warning_and_stays_in_the_hash():
    report = case("bom-first-line")
    assert counts(report) == (2, 2, 0)
    assert [(f.line, f.severity, f.code) for f in report.findings] == [(1, "warning", "invalid_encoding")]
    assert "byte order mark removed" in report.findings[0].message
    assert report.sha256 == hashlib.sha256((CASES / "bom-first-line.jsonl").read_bytes()).hexdigest()


@pytest.mark.parametrize("name", ["empty-file", "only-whitespace-lines"])
def test_a_file_without_requests_is_refused(name):
    report = case(name)
    assert errors(report) == [(None, "empty_file", None)]
    assert report.is_refused
    assert report.codes == {"empty_file": 1}
    assert counts(report) == (0, 0, 0)


def test_a_broken_line_is_named_with_its_column_and_spares_its_neighbours():
    report = case("broken-json-middle-line")
    line = (CASES / "broken-json-middle-line.jsonl").read_bytes().split(b"\n")[1]
    assert counts(report) == (3, 2, 1)
    assert [(f.line, f.code, f.column) for f in report.findings] == [
        (2, "invalid_json_line", line.index(b"[}") + 2)
    ]
    assert list(report.invalid_lines) == [2]


def test_pretty_printed_json_is_one_finding_that_says_so():
    report = case("array-instead-of-jsonl")
    assert errors(report) == [(1, "invalid_json_line", None)]
    assert "JSON array" in report.findings[0].message
    assert report.is_refused
    assert not report.truncated
    assert report.valid == 0


def test_bytes_that_are_not_utf8_are_found_at_their_byte():
    report = case("latin1-bytes")
    assert counts(report) == (3, 2, 1)
    (finding,) = report.findings
    line = (CASES / "latin1-bytes.jsonl").read_bytes().split(b"\n")[1]
    assert (finding.line, finding.code, finding.column) == (2, "invalid_encoding", line.index(b"\xe9") + 1)
    assert "0xE9" in finding.message


def test_half_a_surrogate_pair_is_no_json_and_a_whole_one_is_a_character():
    first, second = parsed("lone-surrogate-in-input")
    assert isinstance(first, Invalid)
    assert first.findings[0].code == "invalid_json_line"
    assert isinstance(second, Valid)
    assert second.request.messages[0]["content"] == "whole \U0001f600 emoji"


def test_a_line_over_the_limit_is_skipped_whole_and_its_neighbours_run(tmp_path):
    path = tmp_path / "long.jsonl"
    with path.open("w") as file:
        for name, text in (("long-0", "hi"), ("long-1", "word " * (8 << 18)), ("long-2", "hi")):
            body = {"model": MODEL, "messages": [{"role": "user", "content": text}]}
            line = {"custom_id": name, "method": "POST", "url": "/v1/chat/completions", "body": body}
            file.write(json.dumps(line) + "\n")
    report = validate(path, max_line_bytes=1 << 20)
    assert counts(report) == (3, 2, 1)
    assert errors(report) == [(2, "line_too_long", None)]


def test_a_custom_id_given_twice_names_its_first_line():
    report = case("duplicate-custom-id")
    assert counts(report) == (3, 2, 1)
    assert errors(report) == [(3, "duplicate_custom_id", "custom_id")]
    assert "line 1" in report.findings[0].message
    assert report.findings[0].custom_id == "dup"
    assert 3 in report.invalid_lines
    assert 1 not in report.invalid_lines


def test_a_custom_id_must_say_something_and_is_never_trimmed():
    report = case("custom-id-missing-empty-space")
    found = [(line, path) for line, _, path in errors(report)]
    assert found == [(1, "custom_id"), (1, "body.model"), (2, "custom_id"), (3, "custom_id")]
    assert report.valid == 2
    assert report.codes == {"invalid_request": 3, "model_mismatch": 1}


def test_other_endpoints_and_absolute_addresses_are_refused_with_the_list():
    report = case("url-unknown-mixed")
    assert errors(report) == [(line, "unsupported_endpoint", "url") for line in (2, 3, 4)]
    assert all("/v1/chat/completions" in f.hint for f in report.findings)


def test_azure_addresses_and_a_trailing_slash_are_taken_with_one_warning():
    report = case("url-azure-style")
    assert counts(report) == (2, 2, 0)
    assert warnings(report) == [(1, "url")]
    assert "2 lines" in report.findings[0].message


def test_the_completions_endpoint_takes_text_lists_of_it_and_token_ids():
    assert counts(case("completions-endpoint")) == (3, 3, 0)
    prompts = [line.request.prompts for line in parsed("completions-endpoint")]
    assert prompts == [("The sky is",), ("a", "b"), ([1, 2, 3],)]


def test_only_post_in_capitals_is_a_method():
    assert errors(case("method-not-post")) == [(line, "invalid_request", "method") for line in (1, 2, 3)]


def test_another_model_is_named_beside_the_engines():
    report = case("model-mismatch")
    assert errors(report) == [(2, "model_mismatch", "body.model"), (3, "model_mismatch", "body.model")]
    assert "gpt-4o-mini" in report.findings[0].message
    assert MODEL in report.findings[0].message
    assert case("model-mismatch", model_names=None).valid == 3


def test_unknown_keys_are_warned_of_and_a_grammar_is_honoured():
    report = case("unknown-top-level-and-body-keys")
    assert errors(report) == []
    assert parsed("unknown-top-level-and-body-keys")[1].request.sampling.guide.text == '{"type":"object"}'
    assert warnings(report) == [(1, "priority"), (1, "metadata"), (2, "body.frobnicate")]


def test_strict_params_makes_an_unknown_parameter_an_error():
    report = case("unknown-top-level-and-body-keys", strict_params=True)
    assert [path for _, _, path in errors(report)] == ["body.frobnicate"]


def test_max_completion_tokens_wins_over_max_tokens_with_a_warning():
    requests = [line.request for line in parsed("max-completion-tokens")]
    assert [request.sampling.max_tokens for request in requests] == [3, 3, None]
    assert warnings(case("max-completion-tokens")) == [(2, "body.max_tokens")]


def test_max_tokens_is_a_positive_integer_and_nothing_is_coerced():
    report = case("max-tokens-bad")
    assert errors(report) == [(line, "invalid_request", "body.max_tokens") for line in (1, 2, 3, 4)]
    huge, null, good = parsed("max-tokens-bad")[4:]
    assert [line.request.sampling.max_tokens for line in (huge, null, good)] == [1_000_000_000, None, 8]


def test_temperature_is_a_finite_number_from_0_to_2():
    report = case("temperature-bad")
    assert [(line, code) for line, code, _ in errors(report)] == [
        (1, "invalid_json_line"), (2, "invalid_json_line"), (3, "invalid_request"), (5, "invalid_request"),
        (6, "invalid_request"),
    ]  # fmt: skip
    assert [
        line.request.sampling.temperature for line in parsed("temperature-bad") if isinstance(line, Valid)
    ] == [
        0.0001,
        0.0,
    ]


def test_messages_are_a_list_of_known_roles():
    report = case("messages-bad")
    assert errors(report) == [
        (1, "invalid_request", "body.messages"),
        (2, "invalid_request", "body.messages"),
        (3, "invalid_request", "body.messages[0].role"),
        (4, "invalid_request", "body.messages[0].role"),
        (5, "invalid_request", "body.messages"),
    ]
    assert report.valid == 3


def test_content_is_text_parts_are_joined_and_media_is_refused():
    report = case("content-null-parts-empty")
    assert errors(report) == [
        (2, "invalid_request", "body.messages[0].content"),
        (4, "unsupported_parameter", "body.messages[0].content[0].type"),
        (6, "invalid_request", "body.messages[0].content"),
    ]
    null, _, parts, _, empty, _ = parsed("content-null-parts-empty")
    assert [message["content"] for message in null.request.messages] == [None, "hi"]
    assert parts.request.messages == [{"role": "user", "content": "Say hi"}]
    assert empty.request.messages[0]["content"] == ""


def test_more_than_one_answer_is_honoured_and_none_is_nonsense():
    assert errors(case("n-greater-than-one")) == [(3, "invalid_request", "body.n")]
    assert parsed("n-greater-than-one")[0].request.sampling.n == 2


def test_streaming_has_no_place_in_a_file():
    report = case("stream-true")
    assert errors(report) == [(1, "invalid_request", "body.stream"), (2, "invalid_request", "body.stream")]
    assert "stream must be false in a batch file" in report.findings[0].message
    assert warnings(report) == [(2, "body.stream_options")]


def test_what_the_engine_cannot_do_is_refused_by_name():
    assert errors(case("logprobs-tools-format", capabilities=Capabilities(tool_style=None))) == [
        (1, "unsupported_parameter", "body.top_logprobs"),
        (2, "invalid_request", "body.top_logprobs"),
        (3, "unsupported_parameter", "body.tools"),
        (6, "invalid_request", "body.response_format.json_schema"),
    ]
    guides = [line.request.sampling.guide for line in parsed("logprobs-tools-format")[3:5]]
    assert [guide.kind for guide in guides] == ["json_schema", "json_schema"]
    assert parsed("logprobs-tools-format")[6].request.sampling.seed == 42


def test_a_prompt_of_any_length_is_valid_here_its_tokens_are_counted_later(tmp_path):
    path = tmp_path / "prompt.jsonl"
    body = {"model": MODEL, "messages": [{"role": "user", "content": "word " * 12_000}]}
    line = {"custom_id": "pl-2", "method": "POST", "url": "/v1/chat/completions", "body": body}
    path.write_text(json.dumps(line))
    assert counts(validate(path)) == (1, 1, 0)


@pytest.mark.parametrize("path", sorted(CASES.glob("*.jsonl")), ids=lambda path: path.stem)
def test_the_json_report_agrees_with_itself(path):
    report = validate(path)
    written = json.loads(json.dumps(to_json(report)))
    assert set(written) == {"schema_version", "total", "valid", "invalid", "truncated", "findings"}
    assert written["valid"] + written["invalid"] == written["total"]
    listed = Counter(f["code"] for f in written["findings"] if f["severity"] == "error")
    assert listed == report.codes
    assert {f.line for f in report.findings if f.severity == "error" and f.line} <= set(report.invalid_lines)
    assert len(report.invalid_lines) == report.invalid
