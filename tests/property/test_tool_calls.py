"""Whatever a model writes: no error, no lost character, and calls that are what they are said to be."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtb.runner.tool_calls import ToolStyle, check_tool_choice, check_tools, find_calls, parse

NAMES = frozenset({"a", "look_up"})
styles = st.sampled_from(["hermes", "llama3_json"])
plain = st.text(st.characters(exclude_characters="<{;", exclude_categories=["Cs"]), max_size=8)
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | plain,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(plain, inner, max_size=3),
    max_leaves=5,
)
objects = st.dictionaries(plain, json_values, max_size=3)
marks = ["<tool_call>", "</tool_call>", "<|python_tag|>", ";", *'{}[]":,\\ \n', "NaN", "\ud800"]
words = ['"name"', '"function"', '"arguments"', '"parameters"', '"a"', '"look_up"', "{}", '{"x": 1}']
whole = ['{"name": "a", "arguments": {}}', '{"name": "look_up", "parameters": {"x": []}}', '{"name": "b"}']
fragments = st.sampled_from([*marks, *words, *whole])
pieced = st.lists(fragments | plain, max_size=14).map("".join)


@given(styles, pieced | st.text(st.characters(exclude_categories=[])))
def test_every_character_is_in_the_content_or_in_a_call(style: ToolStyle, text: str) -> None:
    located = find_calls(text, style, NAMES)
    rest, at = "", 0
    for one in located:
        assert at <= one.start < one.end <= len(text)
        assert one.call.arguments in text[one.start : one.end]
        assert isinstance(orjson.loads(one.call.arguments), dict)
        assert one.call.name in NAMES
        rest += text[at : one.start]
        at = one.end
    rest += text[at:]
    content, calls = parse(text, style, NAMES)
    assert calls == tuple(one.call for one in located)
    assert content == ((rest.strip() or None) if calls else text)


@given(plain, st.lists(st.tuples(st.sampled_from(sorted(NAMES)), objects, plain), max_size=4), st.booleans())
def test_hermes_calls_are_read_back_with_the_text_around_them(
    before: str, calls: list[tuple[str, dict[str, Any], str]], is_indented: bool
) -> None:
    text, content = before, before
    for name, arguments, after in calls:
        call = {"name": name, "arguments": arguments}
        text += f"<tool_call>\n{json.dumps(call, indent=1 if is_indented else None)}\n</tool_call>{after}"
        content += after
    found, read = parse(text, "hermes", NAMES)
    assert [(call.name, json.loads(call.arguments)) for call in read] == [(n, a) for n, a, _ in calls]
    assert found == (content.strip() or None if calls else text)


@given(st.lists(st.tuples(st.sampled_from(sorted(NAMES)), objects), min_size=1, max_size=4), st.booleans())
def test_llama_calls_are_read_back(calls: list[tuple[str, dict[str, Any]]], is_tagged: bool) -> None:
    text = "; ".join(json.dumps({"name": name, "parameters": arguments}) for name, arguments in calls)
    content, read = parse("<|python_tag|>" * is_tagged + text, "llama3_json", NAMES)
    assert [(call.name, json.loads(call.arguments)) for call in read] == calls
    assert content is None


@given(styles, st.sampled_from(sorted(NAMES)), objects, st.integers(1, 40))
def test_a_call_cut_within_its_json_stays_text(
    style: ToolStyle, name: str, arguments: dict[str, Any], num_cut: int
) -> None:
    call = json.dumps({"name": name, "arguments": arguments})
    cut = ("<tool_call>" if style == "hermes" else "") + call[: max(0, len(call) - num_cut)]
    assert parse(cut, style, NAMES) == (cut, ())


names = st.sampled_from(["a", "look_up", "", "a b", "x" * 65]) | json_values
tools = st.fixed_dictionaries(
    {"type": st.just("function") | json_values},
    optional={
        "function": st.fixed_dictionaries(
            {"name": names},
            optional={"description": json_values, "parameters": objects, "strict": json_values},
        )
        | json_values
    },
)


@given(st.lists(tools | json_values, max_size=4) | json_values)
def test_no_json_makes_the_check_of_tools_raise(value: Any) -> None:
    for fault in check_tools(value):
        assert fault.path is not None
        assert fault.path.startswith("body.tools")
        assert fault.message.startswith("body.tools")


@pytest.mark.parametrize("wrap", [lambda v: v, lambda v: {"type": "function", "function": v}])
@given(json_values)
def test_no_json_makes_the_check_of_a_tool_choice_raise(wrap: Any, value: Any) -> None:
    assert all(
        fault.message.startswith("body.tool_choice") for fault in check_tool_choice(wrap(value), NAMES)
    )
