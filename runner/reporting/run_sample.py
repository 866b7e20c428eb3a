"""A few requests of a run with their answers, for the eye."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from trtb.runner.errors import InputFileError
from trtb.runner.ledger import ResultRow
from trtb.runner.reader import BUFFER_BYTES, DEFAULT_MAX_LINE_BYTES, open_input, read_lines
from trtb.runner.run_folder import RunRecord

MAX_TEXT_CHARS = 4000  # of a request, and of its answer


@dataclass(frozen=True, slots=True)
class Texts:
    """What was asked and what came back; of a failure, its message."""

    request: str | None  # None: the input file is not there any more, or is another one
    answer: str


@dataclass(frozen=True, slots=True)
class SampledRequest:
    """One request; its texts only where they were asked for."""

    row: ResultRow
    texts: Texts | None


def read_sample(rows: Sequence[ResultRow], record: RunRecord, *, with_texts: bool) -> list[SampledRequest]:
    """Return the requests of rows in line order; the input file is read as far as the last of them."""
    if not with_texts:
        return [SampledRequest(row, None) for row in rows]
    requests = _request_texts(rows, record)
    return [SampledRequest(row, Texts(requests.get(row.line), answer_text(row))) for row in rows]


def answer_text(row: ResultRow) -> str:
    """Return what came back of a request: each choice's text and tool calls, or the error's message."""
    found = orjson.loads(row.record)
    if row.status == "failed":
        return _cut((found.get("error") or {}).get("message", ""))
    choices = found["response"]["body"]["choices"]
    return _cut("\n\n".join(map(_choice_text, choices)))


def request_text(line: bytes) -> str:
    """Return what a request asks, as a person reads it; a line that is no request, as it is."""
    try:
        body = orjson.loads(line)["body"]
        messages = body.get("messages")
        text = body["prompt"] if messages is None else "\n".join(map(_message_text, messages))
    except (ValueError, KeyError, TypeError, AttributeError):
        return _cut(line.decode(errors="replace"))
    return _cut(text if isinstance(text, str) else _json(text))


def _request_texts(rows: Sequence[ResultRow], record: RunRecord) -> dict[int, str]:
    """Return the texts by line; those of a file that is gone, or has other lines now, are left out."""
    wanted = {row.line: row.custom_id for row in rows}
    limit = record.settings.get("max_line_bytes")
    max_line_bytes = limit if isinstance(limit, int) else DEFAULT_MAX_LINE_BYTES
    last = max(wanted, default=0)
    found: dict[int, str] = {}
    try:
        with io.BufferedReader(open_input(Path(record.input_path)), BUFFER_BYTES) as source:
            for raw in read_lines(source, max_line_bytes):
                if raw.number in wanted and raw.data is not None and _is(raw.data, wanted[raw.number]):
                    found[raw.number] = request_text(raw.data)
                if raw.number >= last:
                    break
    except (OSError, InputFileError):
        return found
    return found


def _is(line: bytes, custom_id: str | None) -> bool:
    """Return whether a line is still the one of that id; a line without one cannot be told apart."""
    if custom_id is None:
        return True
    try:
        return bool(orjson.loads(line)["custom_id"] == custom_id)
    except (ValueError, KeyError, TypeError):
        return False


def _message_text(message: dict[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, list):
        content = "".join(part.get("text", "") for part in content)
    calls = f" {_json(message['tool_calls'])}" if message.get("tool_calls") else ""
    return f"[{message['role']}] {content or ''}{calls}"


def _choice_text(choice: dict[str, Any]) -> str:
    message = choice.get("message")
    if message is None:
        return str(choice.get("text", ""))
    calls = message.get("tool_calls")
    return "\n".join(filter(None, (message.get("content"), _json(calls) if calls else "")))


def _json(value: object) -> str:
    return orjson.dumps(value).decode()


def _cut(text: str) -> str:
    left = len(text) - MAX_TEXT_CHARS
    return text if left <= 0 else f"{text[:MAX_TEXT_CHARS]} … ({left} characters more)"
