"""Tools of a request, and calls in an answer: what counts as one, and what stays text."""

from __future__ import annotations

from typing import Any

import pytest

from trtb.runner.tool_calls import (
    ToolCall,
    ToolStyle,
    check_tool_choice,
    check_tools,
    names_of,
    parse,
    style_of_template,
)

NAMES = frozenset({"look_up", "now"})
LOOK_UP = ToolCall("look_up", '{"city": "Köln"}')
NOW = ToolCall("now", "{}")
HERMES_BLOCK = '<tool_call>\n{"name": "look_up", "arguments": {"city": "Köln"}}\n</tool_call>'
NOW_BLOCK = '<tool_call>{"arguments":{},"name":"now"}</tool_call>'
LLAMA_CALL = '{"name": "look_up", "parameters": {"city": "Köln"}}'
LLAMA_NOW = '{"name": "now", "parameters": {}}'


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        (HERMES_BLOCK, None, (LOOK_UP,)),
        (f"\n\n{HERMES_BLOCK}\n{NOW_BLOCK}\n", None, (LOOK_UP, NOW)),
        (f"Let me see.\n{HERMES_BLOCK}", "Let me see.", (LOOK_UP,)),
        (f"One {HERMES_BLOCK} two {NOW_BLOCK} three", "One  two  three", (LOOK_UP, NOW)),
        (HERMES_BLOCK.removesuffix("\n</tool_call>"), None, (LOOK_UP,)),
        (HERMES_BLOCK.removesuffix("</tool_call>") + " ", None, (LOOK_UP,)),
        (f"{NOW_BLOCK}{HERMES_BLOCK[:40]}", HERMES_BLOCK[:40], (NOW,)),
        (f"<tool_call>{NOW_BLOCK}", "<tool_call>", (NOW,)),
        (f"<tool_call>{{oops}}</tool_call>{NOW_BLOCK}", "<tool_call>{oops}</tool_call>", (NOW,)),
    ],
)
def test_hermes_blocks_become_calls_and_the_text_around_them_content(
    text: str, content: str | None, calls: tuple[ToolCall, ...]
) -> None:
    assert parse(text, "hermes", NAMES) == (content, calls)


def test_a_closing_tag_inside_an_argument_closes_nothing() -> None:
    text = '<tool_call>{"name": "now", "arguments": {"a": "</tool_call> }"}}</tool_call>'
    assert parse(text, "hermes", NAMES) == (None, (ToolCall("now", '{"a": "</tool_call> }"}'),))


def test_a_call_of_an_unknown_tool_stays_whole_whatever_it_quotes() -> None:
    text = f'<tool_call>{{"name": "other", "arguments": {{"a": "{NOW_BLOCK[:11]}{{}}"}}}}</tool_call>'
    assert parse(text, "hermes", NAMES) == (text, ())


def test_arguments_are_kept_as_they_were_written() -> None:
    arguments = '{ "b": 1.50,\n "a": "\\u00e9", "big": 123456789012345678901234567890 }'
    text = f'<tool_call>{{"name": "now", "arguments": {arguments}}}</tool_call>'
    assert parse(text, "hermes", NAMES) == (None, (ToolCall("now", arguments),))


@pytest.mark.parametrize(
    "inside",
    [
        '{"name": "other", "arguments": {}}',
        '{"name": "now"}',
        '{"name": "now", "arguments": null}',
        '{"name": "now", "arguments": []}',
        '{"name": "now", "arguments": "{}"}',
        '{"name": ["now"], "arguments": {}}',
        '{"name": "now", "arguments": {"a": NaN}}',
        '{"name": "now", "arguments": {"a": "\\ud800"}}',
        '{"name": "now", "arguments": {}',
        '{"name": "now", "arguments": {}} and more',
        "{'name': 'now', 'arguments': {}}",
        '[{"name": "now", "arguments": {}}]',
        '{"name": "now", "arguments": ' + '{"a":' * 5000 + "1" + "}" * 5001,
        '{"name": "now", "arguments": {"a": ' + "[" * 900 + "]" * 900 + "}}x",
        '{"name": "now", "arguments": {"a": ' + "9" * 5000 + "}}",
        "",
    ],
)
@pytest.mark.parametrize("style", ["hermes", "llama3_json"])
def test_what_is_no_call_stays_in_the_text(style: ToolStyle, inside: str) -> None:
    if style == "hermes":
        text = f" <tool_call>{inside}</tool_call> "
    else:
        text = inside.replace('"arguments"', '"parameters"')
    assert parse(text, style, NAMES) == (text, ())


@pytest.mark.parametrize("text", ["", "  ", "An answer.\n"])
@pytest.mark.parametrize("style", ["hermes", "llama3_json"])
def test_an_answer_without_calls_is_not_touched(style: ToolStyle, text: str) -> None:
    assert parse(text, style, NAMES) == (text, ())


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        (LLAMA_CALL, None, (LOOK_UP,)),
        (f"\n <|python_tag|> {LLAMA_CALL}\n", None, (LOOK_UP,)),
        (f"{LLAMA_CALL}; {LLAMA_NOW}", None, (LOOK_UP, NOW)),
        (f"{LLAMA_CALL} ;\n{LLAMA_NOW};", None, (LOOK_UP, NOW)),
        ('{"type": "function", "name": "now", "parameters": {}}', None, (NOW,)),
        ('{"type": "function", "function": {"name": "now", "parameters": {}}}', None, (NOW,)),
        ('{"function": "now", "parameters": {}}', None, (NOW,)),
        ('{"name": "now", "arguments": {}}', None, (NOW,)),
        (f'{LLAMA_CALL}; {{"name": "other"}}', '{"name": "other"}', (LOOK_UP,)),
        (f'{{"name": "other"}} ; {LLAMA_CALL}', '{"name": "other"}', (LOOK_UP,)),
        (f'{LLAMA_CALL}; {{"name": "now", "para', '{"name": "now", "para', (LOOK_UP,)),
    ],
)
def test_llama_answers_with_json_and_nothing_else(
    text: str, content: str | None, calls: tuple[ToolCall, ...]
) -> None:
    assert parse(text, "llama3_json", NAMES) == (content, calls)


@pytest.mark.parametrize("text", [f"Call {LLAMA_CALL}", f"{LLAMA_CALL} is the call.", "<|python_tag|>now()"])
def test_llama_json_within_a_sentence_is_no_call(text: str) -> None:
    assert parse(text, "llama3_json", NAMES) == (text, ())


def test_many_broken_blocks_take_no_more_than_one_look_each() -> None:
    text = '<tool_call>{"name": "' * 50_000
    assert parse(text, "hermes", NAMES) == (text, ())


# as in the field's templates: the format is told in a literal with escaped quotes, or shown part by part
QWEN = r"""{%- if tools %}{{- "<tools>" }}{%- for tool in tools %}{{- tool | tojson }}{%- endfor %}
{{- "</tools>\n<tool_call>\n{\"name\": <name>, \"arguments\": <object>}\n</tool_call>" }}{%- endif %}"""
LLAMA = """{%- if not tools is defined %}{%- set tools = none %}{%- endif %}
{%- if tools is not none %}{{- "Environment: ipython" }}
{{- 'In the format {"name": function name, "parameters": dictionary of argument names and values}.' }}
{%- endif %}"""
XML = """{%- for tool in tools %}{{ tool | tojson }}{%- endfor %}
{{- '<tool_call>\n<function=name>\n<parameter=a>1</parameter>\n</function>\n</tool_call>' }}
{{- '{"arguments": ' }}"""


@pytest.mark.parametrize(
    ("template", "style"),
    [
        (QWEN, "hermes"),
        ('{{ tools }}{{- \'<tool_call>\n{"name": "\' + name + \'", "arguments": \' }}', "hermes"),
        (LLAMA, "llama3_json"),
        (LLAMA.replace("Environment: ipython", "<|python_tag|>"), "llama3_json"),
        (XML, None),
        ("{{ tools }}{{ '[TOOL_CALLS]' }}", None),
        ("{% for message in messages %}{{ message.content }}{% endfor %}", None),
        ("tools {# tools #}{{ 'tools: <tool_call>{\"arguments\": ' }}{{ message.tools_used }}", None),
        (QWEN + "{{ ° }}", None),
        ("", None),
    ],
)
def test_a_template_tells_the_format_of_calls(template: str, style: ToolStyle | None) -> None:
    assert style_of_template(template) == style


def tool(name: Any = "now", **function: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **function}}


def test_well_formed_tools_have_no_fault() -> None:
    tools = [
        tool("now"),
        tool("Look-Up_2", description="d", parameters={"type": "object"}, strict=None),
        tool("x" * 64, description=None, parameters=None, strict=False),
    ]
    assert check_tools(tools) == []
    assert names_of(tools) == {"now", "Look-Up_2", "x" * 64}
    assert check_tools([]) == []


@pytest.mark.parametrize(
    ("tools", "path"),
    [
        ({}, "body.tools"),
        ("now", "body.tools"),
        ([tool(f"t{i}") for i in range(129)], "body.tools"),
        ([1], "body.tools[0]"),
        ([tool(), {"function": {"name": "x"}}], "body.tools[1].type"),
        ([{"type": "function"}], "body.tools[0].function"),
        ([tool(None)], "body.tools[0].function.name"),
        ([tool("")], "body.tools[0].function.name"),
        ([tool("a b")], "body.tools[0].function.name"),
        ([tool("now\n")], "body.tools[0].function.name"),
        ([tool("x" * 65)], "body.tools[0].function.name"),
        ([tool("é")], "body.tools[0].function.name"),
        ([tool(), tool()], "body.tools[1].function.name"),
        ([tool(description=1)], "body.tools[0].function.description"),
        ([tool(parameters="{}")], "body.tools[0].function.parameters"),
        ([tool(strict=1)], "body.tools[0].function.strict"),
    ],
)
def test_a_malformed_tool_is_one_fault_at_its_place(tools: Any, path: str) -> None:
    (fault,) = check_tools(tools)
    assert (fault.path, fault.code, fault.severity) == (path, "invalid_request", "error")


def test_a_tool_that_is_no_function_is_not_supported() -> None:
    (fault,) = check_tools([{"type": "web_search"}])
    assert (fault.path, fault.code) == ("body.tools[0].type", "unsupported_parameter")


def test_a_strict_tool_is_worth_a_warning() -> None:
    (fault,) = check_tools([tool(strict=True)])
    assert fault.severity == "warning"


@pytest.mark.parametrize("choice", [None, "none", "auto"])
def test_a_free_choice_of_tools_has_no_fault(choice: Any) -> None:
    assert check_tool_choice(choice, NAMES) == []


@pytest.mark.parametrize(
    ("choice", "code"),
    [
        ("required", "unsupported_parameter"),
        ({"type": "function", "function": {"name": "now"}}, "unsupported_parameter"),
        ({"type": "allowed_tools", "allowed_tools": {}}, "unsupported_parameter"),
        ({"type": "function", "function": {"name": "other"}}, "invalid_request"),
        ({"type": "function", "function": {}}, "invalid_request"),
        ({"type": "function", "function": "now"}, "invalid_request"),
        ({"type": ["function"]}, "invalid_request"),
        ("any", "invalid_request"),
        (True, "invalid_request"),
        ([], "invalid_request"),
    ],
)
def test_a_choice_that_forces_a_call_is_refused(choice: Any, code: str) -> None:
    (fault,) = check_tool_choice(choice, NAMES)
    assert fault.code == code
