"""The bytes that the lines of one file share, so that only what differs has to be parsed.

The lines of a file mostly come from one program: they differ in custom_id and messages, and everything
before, between and after these two values is byte for byte the same. A line that fits is

    before  custom_id  between  messages  after

and only its messages are parsed. That this reads exactly what parsing the whole line would read is proven
when the template is made: with two marks put in the places of the values, the line must parse to the marks
in `custom_id` and `body.messages`, and to the same everything else. JSON has no context: what is a value's
place for one value is its place for all.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import orjson

_MARK = "\u2402trtb-mark\u2402"


@dataclass(frozen=True, slots=True)
class Template:
    """The shared bytes of lines: `before` ends with custom_id's opening quote, `between` starts with the other."""

    before: bytes
    between: bytes
    after: bytes

    def match(self, data: bytes) -> tuple[str, Any] | None:
        """Return custom_id and the parsed messages of a line that fits.

        Raises:
            ValueError: The line seems to fit, and one of the two values is broken.
        """
        if not data.startswith(self.before) or not data.endswith(self.after):
            return None
        start = len(self.before)
        end = data.find(b'"', start)
        if end < 0 or not data.startswith(self.between, end):
            return None
        custom_id = data[start:end].decode()
        if "\\" in custom_id or not custom_id.isprintable():  # escapes, and what a JSON string may not hold
            return None
        return custom_id, orjson.loads(data[end + len(self.between) : -len(self.after)])


def learn(data: bytes) -> Template | None:
    """Make a template of a valid line, or return None where the line has no such form."""
    line = orjson.loads(data)
    quoted_id = b'"' + line["custom_id"].encode() + b'"'
    id_start = data.find(quoted_id) + 1
    key_end = data.find(b'"messages"', id_start) + len(b'"messages"')
    list_start = data.find(b"[", key_end)
    if not id_start or list_start < 0:
        return None
    try:
        text = data[list_start:].decode()
        _, num_chars = json.JSONDecoder().raw_decode(text)
    except (ValueError, RecursionError):
        return None
    list_end = list_start + len(text[:num_chars].encode())
    id_end = id_start + len(quoted_id) - 2
    template = Template(data[:id_start], data[id_end:list_start], data[list_end:])
    return template if template.after and _is_proven(template, line) else None


def _is_proven(template: Template, line: dict[str, Any]) -> bool:
    mark = _MARK.encode()
    marked = template.before + mark + template.between + b'["' + mark + b'"]' + template.after
    if marked.count(mark) != 2:
        return False
    try:
        probe = orjson.loads(marked)
        is_placed = probe.pop("custom_id") == _MARK and probe["body"].pop("messages") == [_MARK]
    except (ValueError, KeyError):
        return False
    rest = {key: value for key, value in line.items() if key != "custom_id"}
    rest["body"] = {key: value for key, value in line["body"].items() if key != "messages"}
    return is_placed and bool(orjson.dumps(probe) == orjson.dumps(rest))
