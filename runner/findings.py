"""What is wrong with a request file, or worth a word: one finding for each fault, with its place.

A `Fault` is a finding without its line: what is the same on many lines is examined once and placed often.
The codes are stable and documented; messages may change. No message repeats a prompt.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, Literal

import orjson

INVALID_JSON_LINE: Final = "invalid_json_line"
INVALID_ENCODING: Final = "invalid_encoding"
LINE_TOO_LONG: Final = "line_too_long"
DUPLICATE_CUSTOM_ID: Final = "duplicate_custom_id"
INVALID_REQUEST: Final = "invalid_request"
UNSUPPORTED_PARAMETER: Final = "unsupported_parameter"
UNSUPPORTED_ENDPOINT: Final = "unsupported_endpoint"
MODEL_MISMATCH: Final = "model_mismatch"
EMPTY_FILE: Final = "empty_file"
CONTEXT_LENGTH_EXCEEDED: Final = "context_length_exceeded"
TIMEOUT: Final = "timeout"
CONNECTION_LOST: Final = "connection_lost"
CANCELLED: Final = "cancelled"
ENGINE_ERROR: Final = "engine_error"
QUEUE_FULL: Final = "queue_full"

REQUEST_CODES: Final = (
    INVALID_JSON_LINE, INVALID_ENCODING, LINE_TOO_LONG, DUPLICATE_CUSTOM_ID, INVALID_REQUEST,
    UNSUPPORTED_PARAMETER, UNSUPPORTED_ENDPOINT, MODEL_MISMATCH, EMPTY_FILE, CONTEXT_LENGTH_EXCEEDED,
    TIMEOUT, CONNECTION_LOST, CANCELLED, ENGINE_ERROR, QUEUE_FULL,
)  # fmt: skip

MAX_SHOWN_CHARS = 60
MAX_CUSTOM_ID_CHARS = 256
MAX_FAULTS_PER_LINE = 20

Severity = Literal["error", "warning"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault of one line, or of the file where `line` is None; `column` is a byte of the line, from 1."""

    line: int | None
    column: int | None
    custom_id: str | None
    path: str | None
    code: str
    severity: Severity
    message: str
    hint: str


@dataclass(frozen=True, slots=True)
class Fault:
    """A finding that has no line yet; a warning's message is the same on every line that earns it."""

    path: str | None
    code: str
    message: str
    hint: str = ""
    severity: Severity = "error"
    column: int | None = None

    @property
    def is_error(self) -> bool:
        """Say whether the line cannot run."""
        return self.severity == "error"

    def on(self, line: int | None, custom_id: str | None) -> Finding:
        """Place the fault on a line; a very long custom_id is cut, so that findings stay small."""
        if custom_id is not None and len(custom_id) > MAX_CUSTOM_ID_CHARS:
            custom_id = custom_id[:MAX_CUSTOM_ID_CHARS] + "…"
        return Finding(
            line, self.column, custom_id, self.path, self.code, self.severity, self.message, self.hint
        )


@dataclass(slots=True)
class Faults:
    """The faults of one line: at most so many of each severity, however long the line; warnings once each."""

    items: list[Fault] = field(default_factory=list)
    num_errors: int = 0
    _warned: set[str] = field(default_factory=set)

    def add(self, fault: Fault) -> None:
        """Keep a fault, unless there are enough of its severity."""
        if fault.is_error:
            self.num_errors += 1
            if self.num_errors <= MAX_FAULTS_PER_LINE:
                self.items.append(fault)
        elif len(self._warned) < MAX_FAULTS_PER_LINE and fault.message not in self._warned:
            self._warned.add(fault.message)
            self.items.append(fault)

    @property
    def is_full(self) -> bool:
        """Say whether more errors would not be kept."""
        return self.num_errors >= MAX_FAULTS_PER_LINE


def invalid(path: str, found: str, expected: str, hint: str = "") -> Fault:
    """Return the fault of a value that the request format does not allow."""
    return Fault(path, INVALID_REQUEST, f"{path}: {found}; expected {expected}", hint)


def unsupported(path: str, found: str, expected: str, hint: str = "") -> Fault:
    """Return the fault of a value that is legal elsewhere and would be ignored here, changing the answer."""
    return Fault(path, UNSUPPORTED_PARAMETER, f"{path}: {found}; expected {expected}", hint)


def warning(path: str, message: str, hint: str = "", code: str = UNSUPPORTED_PARAMETER) -> Fault:
    """Return a fault that does not stop the line."""
    return Fault(path, code, message, hint, "warning")


def kind_of(value: Any) -> str:
    """Name the JSON kind of a value, with its article.

    >>> kind_of(True), kind_of([1]), kind_of(None)
    ('a boolean', 'a list', 'null')
    """
    if value is None:
        return "null"
    kinds = {str: "a string", bool: "a boolean", int: "an integer", float: "a number", list: "a list"}
    return kinds.get(type(value), "an object")


def shown(value: Any) -> str:
    """Return a scalar as JSON, cut to a readable length; for a list or an object, its kind.

    >>> shown("sytem"), shown(2.5), shown({"a": 1})
    ('"sytem"', '2.5', 'an object')
    """
    if isinstance(value, list | dict):
        return kind_of(value)
    if isinstance(value, str) and len(value) > MAX_SHOWN_CHARS:
        value = value[:MAX_SHOWN_CHARS] + "…"
    if isinstance(value, int) and abs(value) >= 1 << 63:  # more than orjson writes
        return str(value)[:MAX_SHOWN_CHARS]
    return orjson.dumps(value).decode()


def shown_key(key: str) -> str:
    """Return a key of the user's, cut to a readable length.

    >>> shown_key("frobnicate")
    'frobnicate'
    """
    return key if len(key) <= MAX_SHOWN_CHARS else key[:MAX_SHOWN_CHARS] + "…"
