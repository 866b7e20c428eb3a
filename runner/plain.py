"""The quick way through a line: recognise one that is valid without a word, in one step.

msgspec checks types and bounds while it parses, several times faster than parsing first and checking then,
but it stops at the first fault and knows no warnings. So it only ever says yes; every line it does not take
goes the long way (`schema`), which alone decides what is wrong. A property test holds the two together: what
is taken here, the long way takes too, with the same values and no warning.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from trtb.runner import parameters
from trtb.runner.parameter_table import INT32_MAX, INT64_MAX
from trtb.runner.request import ChatRequest

_TokenLimit = Annotated[int, msgspec.Meta(ge=1, le=INT64_MAX)]
_Penalty = Annotated[float, msgspec.Meta(ge=-2, le=2)]
_StopText = Annotated[str, msgspec.Meta(min_length=1)]
_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}


class _TextPart(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    type: Literal["text"]
    text: str


class _Message(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    role: Literal["system", "developer", "user", "assistant"]
    content: str | Annotated[list[_TextPart], msgspec.Meta(min_length=1)]


class _Body(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    model: str
    messages: Annotated[list[_Message], msgspec.Meta(min_length=1)]
    max_tokens: _TokenLimit | None = None
    max_completion_tokens: _TokenLimit | None = None
    temperature: Annotated[float, msgspec.Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, msgspec.Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, msgspec.Meta(ge=-1, le=INT32_MAX)] | None = None
    seed: Annotated[int, msgspec.Meta(ge=-(2**63), le=INT64_MAX)] | None = None
    stop: _StopText | Annotated[list[_StopText], msgspec.Meta(max_length=16)] | None = None
    presence_penalty: _Penalty | None = None
    frequency_penalty: _Penalty | None = None
    repetition_penalty: Annotated[float, msgspec.Meta(gt=0)] | None = None
    n: Literal[1] | None = None
    stream: bool | None = None
    logprobs: bool | None = None


class PlainLine(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """A line as it stands in the file; it is valid once `read_plain` has returned it."""

    custom_id: Annotated[str, msgspec.Meta(min_length=1)]
    method: Literal["POST"]
    url: Literal["/v1/chat/completions"]
    body: _Body


_HONOURED = tuple(name for name in parameters.HONOURED if name in _Body.__struct_fields__)
_decode = msgspec.json.Decoder(PlainLine).decode


def read_plain(data: bytes, model_names: frozenset[str] | None) -> PlainLine | None:
    """Return a line that is valid and earns no warning; None says nothing about the line.

    The data may still have its line end.
    """
    try:
        line = _decode(data)
    except (ValueError, RecursionError):
        return None
    body = line.body
    if (
        (model_names is not None and body.model not in model_names)
        or (body.max_completion_tokens is not None and body.max_tokens is not None)
        or body.stream
        or body.logprobs
        or line.custom_id.isspace()
    ):
        return None
    return line


def to_request(number: int, line: PlainLine) -> ChatRequest:
    """Return the request of a plain line."""
    body = line.body
    values: dict[str, Any] = {name: value for name in _HONOURED if (value := getattr(body, name)) is not None}
    messages = [
        {"role": _ROLES[message.role], "content": _text(message.content)} for message in body.messages
    ]
    return ChatRequest(number, line.custom_id, body.model, messages, parameters.to_sampling(values))


def _text(content: str | list[_TextPart]) -> str:
    return content if isinstance(content, str) else "".join(part.text for part in content)
