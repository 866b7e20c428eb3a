"""One line becomes a request, or every fault of it."""

from __future__ import annotations

import json

import pytest

from trtb.runner.request import Capabilities
from trtb.runner.schema import MAX_DEPTH, Invalid, LineParser, Valid

BODY = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
LINE = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": BODY}


def parse(data: bytes | dict, **options) -> Valid | Invalid:
    parser = LineParser(**{"model_names": frozenset({"m"}), "strict_params": False, **options})
    return parser.parse(7, data if isinstance(data, bytes) else json.dumps(data).encode())


def with_body(**changes) -> dict:
    return LINE | {"body": BODY | changes}


def with_message(**message) -> dict:
    return with_body(messages=[message])


def found(parsed: Valid | Invalid) -> list[tuple[str, str | None]]:
    assert isinstance(parsed, Invalid)
    return [(finding.code, finding.path) for finding in parsed.findings]


def test_a_valid_line_keeps_its_number_id_model_and_messages():
    parsed = parse(LINE)
    assert isinstance(parsed, Valid)
    request = parsed.request
    assert (request.line, request.custom_id, request.model) == (7, "a", "m")
    assert request.messages == BODY["messages"]
    assert parsed.warnings == ()


def test_all_faults_of_a_line_are_found_at_once():
    line = {
        "custom_id": 5,
        "method": "get",
        "url": "/v1/chat/completions",
        "body": with_body(best_of=3)["body"] | {"model": 1},
    }
    assert found(parse(line)) == [
        ("invalid_request", "custom_id"),
        ("invalid_request", "method"),
        ("invalid_request", "body.model"),
        ("unsupported_parameter", "body.best_of"),
    ]


@pytest.mark.parametrize("key", ["custom_id", "method", "url", "body"])
def test_each_part_of_the_line_must_be_there(key):
    assert found(parse({k: v for k, v in LINE.items() if k != key})) == [("invalid_request", key)]


@pytest.mark.parametrize("data", [b"[1]", b"1", b'"x"', b"null", b"true"])
def test_a_line_that_is_no_object_is_refused(data):
    assert found(parse(data)) == [("invalid_json_line", None)]


@pytest.mark.parametrize("value", [b"NaN", b"Infinity", b"1e999", b"01", b"1,", b"+1"])
def test_what_only_lenient_parsers_take_is_not_json(value):
    data = json.dumps(with_body(temperature="HERE")).encode().replace(b'"HERE"', value)
    assert found(parse(data))[0] == ("invalid_json_line", None)


@pytest.mark.parametrize("depth", [MAX_DEPTH + 1, 255, 300, 1023, 1024, 1030, 100_000])
def test_deep_nesting_is_a_finding_and_never_an_exception(depth):
    nested = b"[" * depth + b"]" * depth
    for place in ({"metadata": "HERE"}, {"messages": "HERE"}, {"temperature": "HERE"}):
        data = json.dumps(with_body(**place)).encode().replace(b'"HERE"', nested)
        assert found(parse(data)) == [("invalid_json_line", None)]


def test_an_integer_beyond_64_bits_is_refused_and_not_rounded():
    assert found(parse(with_body(seed=2**70))) == [("invalid_request", "body.seed")]
    assert found(parse(with_body(seed=2**63))) == [("invalid_request", "body.seed")]
    assert parse(with_body(seed=-(2**63))).request.sampling.seed == -(2**63)


def test_of_a_key_given_twice_the_last_counts():
    data = json.dumps(LINE).encode().replace(b'"custom_id": "a"', b'"custom_id": "x", "custom_id": "b"')
    assert parse(data).request.custom_id == "b"


def test_the_column_of_broken_json_counts_bytes_from_one():
    data = '{"custom_id": "ééé", x}'.encode()
    assert parse(data).findings[0].column == data.index(b"x") + 1


@pytest.mark.parametrize(("start", "name"), [(b"\xff\xfe", "UTF-16"), (b"\x1f\x8b", "gzip")])
def test_other_encodings_and_compression_are_guessed_in_the_hint(start, name):
    finding = parse(start + b"{\x00").findings[0]
    assert finding.code == "invalid_encoding"
    assert name in finding.hint


def test_a_byte_order_mark_inside_the_file_is_named():
    assert "byte order mark" in parse(b"\xef\xbb\xbf{}").findings[0].message


def test_any_model_is_taken_where_no_names_are_given():
    assert parse(with_body(model="gpt-4o"), model_names=None).request.model == "gpt-4o"


def test_developer_is_read_as_system():
    assert parse(with_message(role="developer", content="x")).request.messages == [
        {"role": "system", "content": "x"}
    ]


def test_an_assistant_may_have_no_text_and_empty_tool_calls():
    message = {"role": "assistant", "content": None, "tool_calls": [], "refusal": None}
    assert parse(with_body(messages=[message])).request.messages == [{"role": "assistant", "content": None}]


@pytest.mark.parametrize(
    ("message", "code", "place"),
    [
        ({"role": "tool", "content": "x"}, "invalid_request", "tool_call_id"),
        ({"role": "function", "content": "x"}, "unsupported_parameter", "role"),
        ({"role": ["user"], "content": "x"}, "invalid_request", "role"),
        ({"role": "assistant", "content": "x", "tool_calls": [{}]}, "invalid_request", "tool_calls[0]"),
        ({"role": "assistant", "content": "x", "refusal": "no"}, "unsupported_parameter", "refusal"),
        ({"role": "user", "content": 5}, "invalid_request", "content"),
        ({"role": "user"}, "invalid_request", "content"),
        ({"role": "system", "content": None}, "invalid_request", "content"),
        ({"role": "user", "content": ["x"]}, "invalid_request", "content[0]"),
        ({"role": "user", "content": [{"text": "x"}]}, "invalid_request", "content[0].type"),
        ({"role": "user", "content": [{"type": "text"}]}, "invalid_request", "content[0].text"),
        ({"role": "user", "content": [{"type": "file"}]}, "unsupported_parameter", "content[0].type"),
        ({"role": "user", "content": [{"type": "input_audio"}]}, "unsupported_parameter", "content[0].type"),
    ],
)
def test_each_fault_of_a_message_has_its_place(message, code, place):
    assert found(parse(with_body(messages=[message]))) == [(code, f"body.messages[0].{place}")]


def test_keys_that_the_model_never_sees_are_warned_of_once_a_line():
    part = {"type": "text", "text": "x", "cache_control": {}}
    messages = [
        {"role": "user", "content": "x", "name": "Ann"},
        {"role": "user", "content": [part], "name": "Bob"},
    ]
    parsed = parse(with_body(messages=messages))
    assert [finding.path for finding in parsed.warnings] == [
        "body.messages[0].name",
        "body.messages[1].content[0].cache_control",
    ]


def test_findings_say_nothing_of_the_prompt():
    secret = "my secret prompt"
    for message in ({"role": "user", "content": {"a": secret}}, {"role": "user", "content": [secret]}):
        assert all(secret not in f.message + f.hint for f in parse(with_body(messages=[message])).findings)


def test_a_line_of_countless_faults_gives_a_bounded_list():
    assert len(parse(with_body(messages=[1] * 10_000)).findings) == 20


def test_values_that_python_calls_equal_are_told_apart_in_one_file():
    parser = LineParser(frozenset({"m"}), strict_params=False)
    kinds = [
        type(parser.parse(1, json.dumps(with_body(top_k=value)).encode())) for value in (1, True, 1.0, 1)
    ]
    assert kinds == [Valid, Invalid, Invalid, Valid]


def test_lines_that_share_their_bytes_get_their_own_ids_messages_and_seeds():
    parser = LineParser(frozenset({"m"}), strict_params=False)
    for i in range(600):
        text = f"prompt {i} \u00e9"
        line = LINE | {"custom_id": f"id-{i}\u00e9"}
        line["body"] = BODY | {"messages": [{"role": "user", "content": text}], "seed": i // 200}
        parsed = parser.parse(i, json.dumps(line, ensure_ascii=i % 3 == 0).encode() + b"\n")
        assert isinstance(parsed, Valid)
        assert parsed.request.custom_id == f"id-{i}\u00e9"
        assert parsed.request.messages == [{"role": "user", "content": text}]
        assert parsed.request.sampling.seed == i // 200


CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}


def test_tool_calls_and_their_results_reach_the_chat_template_with_parsed_arguments():
    messages = [
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c1", "content": "2"},
    ]
    called, result = parse(with_body(messages=messages)).request.messages[1:]
    assert called["tool_calls"][0]["function"] == {"name": "f", "arguments": {"a": 1}}
    assert result == {"role": "tool", "tool_call_id": "c1", "content": "2"}


@pytest.mark.parametrize("arguments", ["[1]", "{", "1", 5])
def test_the_arguments_of_a_call_are_a_json_object(arguments):
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    line = parse(with_body(messages=[{"role": "assistant", "content": None, "tool_calls": [call]}]))
    assert found(line) == [("invalid_request", "body.messages[0].tool_calls[0].function.arguments")]


TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]


def test_an_engine_whose_template_has_no_tools_refuses_them_and_their_traffic():
    parser = LineParser(None, strict_params=False, capabilities=Capabilities(tool_style=None))
    messages = [{"role": "tool", "tool_call_id": "c1", "content": "2"}]
    line = parser.parse(1, json.dumps(with_body(messages=messages, tools=TOOLS)).encode())
    assert found(line) == [
        ("unsupported_parameter", "body.tools"),
        ("unsupported_parameter", "body.messages[0].role"),
    ]


def test_tools_reach_the_request_unless_they_are_not_to_be_called():
    assert parse(with_body(tools=TOOLS, tool_choice="auto")).request.tools == TOOLS
    assert parse(with_body(tools=TOOLS, tool_choice="none")).request.tools == []


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "f"}}])
def test_a_call_cannot_be_forced(choice):
    assert found(parse(with_body(tools=TOOLS, tool_choice=choice))) == [
        ("unsupported_parameter", "body.tool_choice")
    ]


def test_only_an_assistants_message_can_be_gone_on_with():
    messages = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]
    good = parse(with_body(messages=messages, continue_final_message=True, add_generation_prompt=False))
    assert good.request.continue_final_message
    bad = parse(with_body(messages=messages[:1], continue_final_message=True))
    assert found(bad) == [("invalid_request", "body.continue_final_message")]


def completion(**body):
    return {
        "custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"model": "m", **body},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("prompt", "wanted"),
    [
        ("a", ("a",)), (["a", "b"], ("a", "b")), ([1, 2], ([1, 2],)), ([[1], [2, 3]], ([1], [2, 3])),
    ],
)  # fmt: skip
def test_a_completion_has_one_prompt_or_many(prompt, wanted):
    assert parse(completion(prompt=prompt)).request.prompts == wanted


@pytest.mark.parametrize(
    "prompt", [None, "", [], [""], [[]], [1, "a"], ["a", 1], [[1], "a"], [-1], [1.5], [True], {}, ["a"] * 129]
)
def test_a_prompt_that_is_none_is_an_invalid_request(prompt):
    codes = {code for code, path in found(parse(completion(prompt=prompt)))}
    assert codes == {"invalid_request"}
