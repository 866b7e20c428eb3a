"""Check the messages of a request and bring them to one shape: role, text, and tool calls.

`developer` is read as `system`. Text parts are joined without a separator. Only an assistant's content may
be null. Images, audio, files and tool traffic are refused by name, and no address in them is ever opened.
Written by hand: each of these faults has its own code and words, which a schema library cannot give.
"""

from __future__ import annotations

from typing import Any

import orjson

from trtb.runner.findings import Faults, invalid, kind_of, shown, shown_key, unsupported, warning

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
_TOOL_ROLES = ("tool", "function")
_EXPECTED_ROLES = "system, developer, user or assistant"
_NO_TOOLS = "the engine's chat template has no tools"
_TEXT_ONLY = "this engine takes text only"
# of an assistant's message in an answer of the hosted API; null and [] say nothing
_TOOL_KEYS = ("tool_calls", "function_call")
_MEDIA_KEYS = ("audio", "refusal")


def check(messages: Any, faults: Faults, *, can_call_tools: bool = False) -> list[dict[str, Any]]:
    """Return the normalised messages; they are good for nothing where an error was added to `faults`."""
    path = "body.messages"
    checked: list[dict[str, Any]] = []
    if not isinstance(messages, list):
        faults.add(invalid(path, kind_of(messages), "a list of messages, at least one"))
    elif not messages:
        faults.add(invalid(path, "an empty list", "at least one message"))
    else:
        for i, message in enumerate(messages):
            if faults.is_full:
                break
            checked.append(_message(f"{path}[{i}]", message, faults, can_call_tools))
    return checked


def _message(path: str, message: Any, faults: Faults, can_call_tools: bool) -> dict[str, Any]:
    if not isinstance(message, dict):
        faults.add(invalid(path, kind_of(message), "an object with role and content"))
        return {}
    role = message.get("role")
    if role == "tool" and can_call_tools:
        return _tool_result(path, message, faults)
    if role in _TOOL_ROLES:
        faults.add(unsupported(f"{path}.role", shown(role), _EXPECTED_ROLES, _NO_TOOLS))
        return {}
    if not isinstance(role, str) or role not in _ROLES:
        faults.add(invalid(f"{path}.role", shown(role), _EXPECTED_ROLES))
        return {}
    calls = message.get("tool_calls") if role == "assistant" and can_call_tools else None
    if len(message) > 2:
        _check_other_keys(path, message, faults, known=("tool_calls",) if calls else ())
    content = message.get("content")
    if not isinstance(content, str):
        content = _content(path + ".content", role, content, faults)
    checked: dict[str, Any] = {"role": _ROLES[role], "content": content}
    if calls:
        checked["tool_calls"] = _tool_calls(f"{path}.tool_calls", calls, faults)
    return checked


def _tool_result(path: str, message: dict[str, Any], faults: Faults) -> dict[str, Any]:
    call_id = message.get("tool_call_id")
    if not isinstance(call_id, str):
        faults.add(invalid(f"{path}.tool_call_id", kind_of(call_id), "the id of the call, a string"))
    _check_other_keys(path, message, faults, known=("tool_call_id", "name"))
    content = message.get("content")
    if not isinstance(content, str):
        content = _content(path + ".content", "tool", content, faults)
    return {key: message[key] for key in ("role", "tool_call_id", "name") if key in message} | {
        "content": content
    }


def _tool_calls(path: str, calls: Any, faults: Faults) -> list[dict[str, Any]]:
    if not isinstance(calls, list):
        faults.add(invalid(path, kind_of(calls), "a list of calls"))
        return []
    checked = []
    for i, call in enumerate(calls):
        function = call.get("function") if isinstance(call, dict) else None
        name = function.get("name") if isinstance(function, dict) else None
        if not isinstance(function, dict) or not isinstance(name, str):
            faults.add(invalid(f"{path}[{i}]", kind_of(call), "an object with function.name and arguments"))
            continue
        try:
            arguments = orjson.loads(function.get("arguments") or "{}")
        except (orjson.JSONDecodeError, TypeError):
            arguments = None
        if not isinstance(arguments, dict):
            where = f"{path}[{i}].function.arguments"
            faults.add(invalid(where, kind_of(function.get("arguments")), "a JSON object in a string"))
            continue
        checked.append(
            {"id": call.get("id"), "type": "function", "function": {"name": name, "arguments": arguments}}
        )
    return checked


def _check_other_keys(
    path: str, message: dict[str, Any], faults: Faults, known: tuple[str, ...] = ()
) -> None:
    for key, value in message.items():
        if key in ("role", "content", *known) or value is None or (key in _TOOL_KEYS and value == []):
            continue
        where = f"{path}.{shown_key(key)}"
        if key in _TOOL_KEYS:
            faults.add(unsupported(where, kind_of(value), "none", _NO_TOOLS))
        elif key in _MEDIA_KEYS:
            faults.add(unsupported(where, kind_of(value), "none", _TEXT_ONLY))
        else:
            name = f"body.messages[].{shown_key(key)}"
            faults.add(warning(where, f"{name}: ignored; the model does not see it"))


def _content(path: str, role: str, content: Any, faults: Faults) -> str | None:
    if content is None and role == "assistant":
        return None
    if not isinstance(content, list):
        faults.add(invalid(path, kind_of(content), "a string or a list of text parts"))
        return None
    if not content:
        faults.add(invalid(path, "an empty list", "a string or at least one text part"))
        return None
    texts = []
    for j, part in enumerate(content):
        if faults.is_full:
            break
        texts.append(_part(f"{path}[{j}]", part, faults))
    return "".join(texts)


def _part(path: str, part: Any, faults: Faults) -> str:
    if not isinstance(part, dict):
        faults.add(invalid(path, kind_of(part), 'an object like {"type": "text", "text": "…"}'))
        return ""
    kind = part.get("type")
    if not isinstance(kind, str):
        faults.add(invalid(f"{path}.type", kind_of(kind), '"text"'))
        return ""
    if kind != "text":
        faults.add(unsupported(f"{path}.type", shown(kind), '"text"', _TEXT_ONLY))
        return ""
    text = part.get("text")
    if not isinstance(text, str):
        faults.add(invalid(f"{path}.text", kind_of(text), "a string"))
        return ""
    for key in sorted(part.keys() - {"type", "text"}):
        name = f"body.messages[].content[].{shown_key(key)}"
        faults.add(warning(f"{path}.{shown_key(key)}", f"{name}: ignored; only the text is used"))
    return text
