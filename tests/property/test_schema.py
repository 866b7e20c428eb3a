"""The quick way through a line and the long way agree, and nothing a line holds raises."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from trtb.runner.schema import Invalid, LineParser, Valid
from trtb.runner.validate import validate_file

text = st.text(st.characters(codec="utf-8"), max_size=12)
scalars = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | text
json_values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=6,
)
messages = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["system", "user", "assistant"]), "content": text}),
    min_size=1,
    max_size=3,
)
settings_of_body = st.fixed_dictionaries(
    {},
    optional={
        "max_tokens": st.none() | st.integers(1, 2**63 - 1),
        "temperature": st.integers(0, 2) | st.floats(0, 2),
        "top_p": st.floats(0, 1, exclude_min=True),
        "top_k": st.integers(-1, 100),
        "seed": st.none() | st.integers(-(2**63), 2**63 - 1),
        "stop": text.filter(bool) | st.lists(text.filter(bool), max_size=16),
        "n": st.just(1),
        "user": text,
    },
)
valid_lines = st.builds(
    lambda custom_id, messages, body: {
        "custom_id": custom_id,
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": {"model": "m", "messages": messages, **body},
    },
    text.filter(lambda value: bool(value.strip())),
    messages,
    settings_of_body,
)


def new_parser() -> LineParser:
    return LineParser(frozenset({"m"}), strict_params=False)


def dump(line: object, ascii_only: bool = True) -> bytes:
    return json.dumps(line, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")


@given(data=st.binary(max_size=300) | json_values.map(dump))
def test_any_bytes_parse_to_exactly_one_verdict(data):
    parsed = new_parser().parse(3, data)
    assert isinstance(parsed, Valid | Invalid)
    if isinstance(parsed, Invalid):
        assert any(finding.severity == "error" for finding in parsed.findings)
        assert {finding.line for finding in parsed.findings} == {3}


@given(lines=st.lists(valid_lines, min_size=1, max_size=6), ascii_only=st.booleans())
def test_valid_lines_are_valid_and_come_through_whole(lines, ascii_only):
    parser = new_parser()
    for number, line in enumerate(lines, start=1):
        parsed = parser.parse(number, dump(line, ascii_only))
        assert isinstance(parsed, Valid)
        request = parsed.request
        assert (request.line, request.custom_id, request.messages) == (
            number,
            line["custom_id"],
            line["body"]["messages"],
        )
        assert request.sampling.seed == line["body"].get("seed")
        assert request.sampling.max_tokens == line["body"].get("max_tokens")


@given(line=valid_lines, data=st.data())
def test_a_changed_line_gets_the_same_verdict_from_a_parser_that_has_learnt(line, data):
    """A template or a remembered frame must never let pass what the long way refuses."""
    original = dump(line)
    start = data.draw(st.integers(0, len(original)))
    end = data.draw(st.integers(start, min(len(original), start + 8)))
    patch = st.binary(max_size=6) | st.sampled_from(
        [
            b'"',
            b"\\",
            b"]",
            b"}",
            b",",
            b"[{",
            b"}]",
            b'"custom_id":"z",',
            b'"messages":[]',
            b"1",
            b"true",
            b"null",
        ]
    )
    changed = original[:start] + data.draw(patch) + original[end:]
    learnt = new_parser()
    learnt.parse(1, original)
    assert learnt.parse(2, changed) == new_parser()._examine(2, changed)
    assert learnt.parse(1, original) == new_parser()._examine(1, original)


@given(
    line=valid_lines,
    path=st.sampled_from(
        ["custom_id", "method", "url", "body", "model", "messages", "role", "content", "stop", "n"]
    ),
    value=json_values,
)
def test_any_value_in_any_place_gets_one_verdict_on_both_ways(line, path, value):
    learnt = new_parser()
    learnt.parse(1, dump(line))
    if path in line:
        line[path] = value
    elif path in ("role", "content"):
        line["body"]["messages"][0][path] = value
    else:
        line["body"][path] = value
    assert learnt.parse(2, dump(line)) == new_parser()._examine(2, dump(line))


@given(data=st.lists(st.binary(max_size=60) | valid_lines.map(dump), max_size=8).map(b"\n".join))
def test_a_file_of_any_bytes_is_validated_with_counts_that_add_up(data):
    with tempfile.NamedTemporaryFile() as file:
        file.write(data)
        file.flush()
        report = validate_file(Path(file.name), model_names=None, strict_params=False, max_ids_in_memory=3)
    blank = sum(not part.strip() for part in data.removeprefix(b"\xef\xbb\xbf").split(b"\n"))
    assert report.total == len(data.removeprefix(b"\xef\xbb\xbf").split(b"\n")) - blank
    assert report.valid + report.invalid == report.total
    assert len(report.invalid_lines) == report.invalid
    assert report.has_errors == (report.invalid > 0 or report.total == 0)
