"""Check the messages of a request and bring them to one shape: role and text, nothing else.

`developer` is read as `system`. Text parts are joined without a separator. Only an assistant's content may
be null. Images, audio, files and tool traffic are refused by name, and no address in them is ever opened.
Written by hand: each of these faults has its own code and words, which a schema library cannot give.
"""

from __future__ import annotations

from typing import Any

from trtb.runner.findings import Faults, invalid, kind_of, shown, shown_key, unsupported, warning

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
_TOOL_ROLES = ("tool", "function")
_EXPECTED_ROLES = "system, developer, user or assistant"
_NO_TOOLS = "this engine calls no tools"
_TEXT_ONLY = "this engine takes text only"
# of an assistant's message in an answer of the hosted API; null and [] say nothing
_TOOL_KEYS = ("tool_calls", "function_call")
_MEDIA_KEYS = ("audio", "refusal")


def check(messages: Any, faults: Faults) -> list[dict[str, Any]]:
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
            checked.append(_message(f"{path}[{i}]", message, faults))
    return checked


def _message(path: str, message: Any, faults: Faults) -> dict[str, Any]:
    if not isinstance(message, dict):
        faults.add(invalid(path, kind_of(message), "an object with role and content"))
        return {}
    role = message.get("role")
    if role in _TOOL_ROLES:
        faults.add(unsupported(f"{path}.role", shown(role), _EXPECTED_ROLES, _NO_TOOLS))
        return {}
    if not isinstance(role, str) or role not in _ROLES:
        faults.add(invalid(f"{path}.role", shown(role), _EXPECTED_ROLES))
        return {}
    if len(message) > 2:
        _check_other_keys(path, message, faults)
    content = message.get("content")
    if not isinstance(content, str):
        content = _content(path + ".content", role, content, faults)
    return {"role": _ROLES[role], "content": content}


def _check_other_keys(path: str, message: dict[str, Any], faults: Faults) -> None:
    for key, value in message.items():
        if key in ("role", "content") or value is None or (key in _TOOL_KEYS and value == []):
            continue
        where = f"{path}.{shown_key(key)}"
        if key in _TOOL_KEYS:
            faults.add(unsupported(where, kind_of(value), "none", _NO_TOOLS))
        elif key in _MEDIA_KEYS:
            faults.add(unsupported(where, kind_of(value), "none", _TEXT_ONLY))
        else:
            name = f"body.messages[].{shown_key(key)}"
            faults.add(warning(where, f"{name}: ignored; the model sees role and content only"))


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
