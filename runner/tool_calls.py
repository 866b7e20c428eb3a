"""Tools: what a request may say of them, and the calls in an answer's text.

A model writes its calls as its chat template taught it. A call counts only if it is whole and names a tool
of the request; whatever else looks like one stays text, since a reader can still use text. Nothing that a
model writes raises an error here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal

import msgspec
import orjson

from trtb.runner.findings import Fault, invalid, kind_of, shown, unsupported, warning

ToolStyle = Literal["hermes", "llama3_json"]

MAX_TOOLS: Final = 128

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_PYTHON_TAG = "<|python_tag|>"
_XML_CALLS = re.compile(r"<function=|<arg_key>|<parameter=")
_BLANKS = re.compile(r"\s*")
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_EXPECTED_NAME = "1 to 64 of the characters A-Z a-z 0-9 _ -"
_UNGUIDED = "answers are not constrained to a grammar"
_JSON_TOKEN = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[{}\[\]]|[\s\w,:.+-]+')


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call as the model wrote it; `arguments` is the JSON text of an object."""

    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class LocatedCall:
    """A call and the part of the answer that it is made of, marks included."""

    start: int
    end: int
    call: ToolCall


def style_of_template(chat_template: str) -> ToolStyle | None:
    """Return the format in which a chat template has the model call tools.

    None is a template that takes no `tools`, or one whose calls are in a format that is not read here.
    """
    import jinja2

    try:
        tokens = list(jinja2.Environment().lex(chat_template))
    except jinja2.TemplateSyntaxError:
        return None
    if not any(kind == "name" and value == "tools" for _, kind, value in tokens):
        return None
    # in a literal of the template the quotes may be escaped
    keys = set(re.findall(r"""["']([a-z]+)["']\s*:""", chat_template.replace("\\", "")))
    # the same tag also stands around calls in XML of several makes, whose arguments are no JSON
    if _OPEN in chat_template and "arguments" in keys and not _XML_CALLS.search(chat_template):
        return "hermes"
    if "parameters" in keys and (_PYTHON_TAG in chat_template or "ipython" in chat_template):
        return "llama3_json"
    return None


def parse(text: str, style: ToolStyle, tool_names: frozenset[str]) -> tuple[str | None, tuple[ToolCall, ...]]:
    """Return an answer's content and its calls.

    Without a call the content is the text as it is. Beside calls it is what they leave, less the blanks at
    both ends, and None where that is nothing.
    """
    located = find_calls(text, style, tool_names)
    if not located:
        return text, ()
    ends = [0, *(one.end for one in located)]
    starts = [*(one.start for one in located), len(text)]
    content = "".join([text[end:start] for end, start in zip(ends, starts, strict=True)]).strip()
    return content or None, tuple([one.call for one in located])


def find_calls(text: str, style: ToolStyle, tool_names: frozenset[str]) -> tuple[LocatedCall, ...]:
    """Return the calls of an answer and their places, in order and apart from each other."""
    find = _find_hermes if style == "hermes" else _find_llama3
    return tuple(find(text, tool_names))


def _find_hermes(text: str, tool_names: frozenset[str]) -> Iterator[LocatedCall]:
    """Yield the calls of text with `<tool_call>` blocks in it.

    A block whose closing tag is missing is whole only if its JSON is and the text ends there: the closing
    tag may have been a stop string, or the token limit came just before it.
    """
    at = text.find(_OPEN)
    while at >= 0:
        end = at + len(_OPEN)
        span = _object_at(text, _after_blanks(text, end))
        if span is not None:
            after = _after_blanks(text, span[1])
            is_closed = text.startswith(_CLOSE, after)
            if is_closed or after == len(text):
                end = after + len(_CLOSE) if is_closed else after
                call = _hermes_call(text[slice(*span)], tool_names)
                if call is not None:
                    yield LocatedCall(at, end, call)
        at = text.find(_OPEN, end)


def _find_llama3(text: str, tool_names: frozenset[str]) -> Iterator[LocatedCall]:
    """Yield the calls of text that is JSON objects with `;` between them, from its beginning on.

    Objects count up to the first that is not whole. One that is followed by anything but `;` or the end of
    the text is part of a sentence, and so is what comes after it.
    """
    begin = taken = 0
    at = _after_blanks(text, 0)
    if text.startswith(_PYTHON_TAG, at):
        at = _after_blanks(text, at + len(_PYTHON_TAG))
    while (span := _object_at(text, at)) is not None:
        end = _after_blanks(text, span[1])
        if end < len(text):
            if text[end] != ";":
                return
            at = _after_blanks(text, end + 1)
        else:
            at = end
        call = _llama3_call(text[slice(*span)], tool_names)
        if call is not None:
            # the marks on both sides go with the call, unless the call before has taken them
            yield LocatedCall(max(begin, taken), at, call)
            taken = at
        begin = span[1]


def _after_blanks(text: str, at: int) -> int:
    match = _BLANKS.match(text, at)
    assert match is not None  # no blank is a match, too
    return match.end()


def _object_at(text: str, start: int) -> tuple[int, int] | None:
    """Return the start and the end of the object that begins at `start`, or None if it does not end.

    Its brackets are balanced; whether it is JSON is still to be seen. The search ends at the first character
    that JSON has in strings only, so that an answer full of broken blocks is not read once for each.
    """
    if not text.startswith("{", start):
        return None
    at, depth = start, 0
    while (match := _JSON_TOKEN.match(text, at)) is not None:
        first, at = text[at], match.end()
        depth += (first in "{[") - (first in "}]")
        if not depth:
            return start, at
    return None


def _hermes_call(block: str, tool_names: frozenset[str]) -> ToolCall | None:
    fields = _fields(block)
    return _call(fields.get("name"), fields.get("arguments"), tool_names)


def _llama3_call(block: str, tool_names: frozenset[str]) -> ToolCall | None:
    """Read the form of Llama 3's templates, and what its models make of it.

    They are shown tools as `{"type": "function", "function": {…}}`, so some answer in that wrapper, or
    write `function` for `name`.
    """
    fields = _fields(block)
    if "name" not in fields and fields.get("function", "").startswith("{"):
        fields = _fields(fields["function"])
    name = fields.get("name", fields.get("function"))
    return _call(name, fields.get("parameters", fields.get("arguments")), tool_names)


def _fields(block: str) -> dict[str, str]:
    """Return the fields of a JSON object, each as it was written; none where it is not strict JSON."""
    try:
        orjson.loads(block)
        fields = msgspec.json.decode(block, type=dict[str, msgspec.Raw])
    except (orjson.JSONDecodeError, msgspec.DecodeError, RecursionError):
        return {}
    return {key: bytes(value).decode() for key, value in fields.items()}


def _call(name: str | None, arguments: str | None, tool_names: frozenset[str]) -> ToolCall | None:
    """Return the call of two fields that were checked to be JSON, or None if they make none."""
    if name is None or arguments is None or not arguments.startswith("{"):
        return None
    called = orjson.loads(name)
    return ToolCall(called, arguments) if isinstance(called, str) and called in tool_names else None


def check_tools(tools: Any) -> list[Fault]:
    """Return what is wrong with a request's `tools`; other keys than those known reach the chat template."""
    path = "body.tools"
    if not isinstance(tools, list):
        return [invalid(path, kind_of(tools), "a list of tools")]
    if len(tools) > MAX_TOOLS:
        return [invalid(path, f"{len(tools)} tools", f"at most {MAX_TOOLS}")]
    faults: list[Fault] = []
    names: set[str] = set()
    for i, tool in enumerate(tools):
        faults += _check_tool(f"{path}[{i}]", tool, names)
    return faults


def names_of(tools: list[dict[str, Any]]) -> frozenset[str]:
    """Return the names of checked tools."""
    return frozenset(tool["function"]["name"] for tool in tools)


def check_tool_choice(choice: Any, tool_names: frozenset[str]) -> list[Fault]:
    """Return what is wrong with a request's `tool_choice`.

    To force a call would take answers constrained to a grammar.
    """
    path = "body.tool_choice"
    if choice is None or choice in ("none", "auto"):
        return []
    if choice == "required":
        return [unsupported(path, shown(choice), '"none" or "auto"', _UNGUIDED)]
    if isinstance(choice, dict) and choice.get("type") == "function":
        function = choice.get("function")
        name = function.get("name") if isinstance(function, dict) else None
        if not isinstance(name, str):
            return [invalid(f"{path}.function.name", kind_of(name), "the name of one of body.tools")]
        if name not in tool_names:
            return [invalid(f"{path}.function.name", shown(name), "the name of one of body.tools")]
        return [unsupported(path, f"function {shown(name)}", '"none" or "auto"', _UNGUIDED)]
    if isinstance(choice, dict) and choice.get("type") in ("allowed_tools", "custom"):
        return [unsupported(f"{path}.type", shown(choice["type"]), '"none" or "auto"', _UNGUIDED)]
    return [invalid(path, shown(choice), '"none" or "auto"')]


def _check_tool(path: str, tool: Any, names: set[str]) -> list[Fault]:
    """Return the faults of one tool, and add its name to `names`."""
    if not isinstance(tool, dict):
        return [invalid(path, kind_of(tool), 'an object like {"type": "function", "function": {…}}')]
    kind, function = tool.get("type"), tool.get("function")
    if not isinstance(kind, str):
        return [invalid(f"{path}.type", kind_of(kind), '"function"')]
    if kind != "function":
        return [unsupported(f"{path}.type", shown(kind), '"function"', "only functions can be called")]
    path += ".function"
    if not isinstance(function, dict):
        return [invalid(path, kind_of(function), "an object with name, description and parameters")]
    faults = _check_name(f"{path}.name", function.get("name"), names)
    for key, wanted, expected in (
        ("description", str, "a string"),
        ("parameters", dict, "an object, the JSON schema of the arguments"),
        ("strict", bool, "true, false or null"),
    ):
        value = function.get(key)
        if value is not None and not isinstance(value, wanted):
            faults.append(invalid(f"{path}.{key}", kind_of(value), expected))
    if function.get("strict") is True:
        faults.append(warning(f"{path}.strict", f"body.tools[].function.strict: ignored; {_UNGUIDED}"))
    return faults


def _check_name(path: str, name: Any, names: set[str]) -> list[Fault]:
    if not isinstance(name, str):
        return [invalid(path, kind_of(name), _EXPECTED_NAME)]
    if not _NAME.fullmatch(name):
        return [invalid(path, shown(name), _EXPECTED_NAME)]
    if name in names:
        return [invalid(path, f"{shown(name)} again", "another name for each tool")]
    names.add(name)
    return []
