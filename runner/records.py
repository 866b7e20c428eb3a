"""The output lines: OpenAI's batch output objects, for answers and for failures."""

from __future__ import annotations

import hashlib
import itertools
from typing import Any, Final

import orjson

from trtb.runner.answer import Choice
from trtb.runner.errors import RequestError

OUTPUT_ID_PREFIX = "batch_req_"  # then the request id
ANSWERS_ID_CHARS: Final = 12


def answers_id(
    input_sha256: str, engine_id: str, settings: dict[str, str | int | float | bool | None]
) -> str:
    """Return what the ids of all output lines of a file begin with.

    It comes from what decides the answers and not from the run, so that a run of the same file whose answers
    are cached ones writes the same bytes.
    """
    told = orjson.dumps([input_sha256, engine_id, settings], option=orjson.OPT_SORT_KEYS)
    return hashlib.sha256(told).hexdigest()[:ANSWERS_ID_CHARS]


def request_id(answers_id: str, line: int) -> str:
    """Return the id of a line's request; it does not depend on attempts, so that a resumed run agrees."""
    return f"{answers_id}-{line}"


def completed_record(
    *,
    answers_id: str,
    line: int,
    custom_id: str,
    model: str,
    fingerprint: str,
    created_s: int,
    is_chat: bool,
    choices: list[Choice],
    prompt_tokens: int,
    completion_tokens: int,
    cached_tokens: int | None = None,
) -> bytes:
    """Return an answer's output line, without its newline.

    `cached_tokens`, of the prompts, are those that the engine had in its KV cache; None where it does not
    tell, and then the line does not speak of them.
    """
    identity = request_id(answers_id, line)
    make = _chat_choice if is_chat else _text_choice
    body: dict[str, Any] = {
        "id": f"{'chatcmpl' if is_chat else 'cmpl'}-{identity}",
        "object": "chat.completion" if is_chat else "text_completion",
        "created": created_s,
        "model": model,
        "system_fingerprint": fingerprint,
        "choices": [make(identity, index, choice) for index, choice in enumerate(choices)],
        "usage": {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": completion_tokens,
            "total_tokens": prompt_tokens + completion_tokens,
        },
    }
    if cached_tokens is not None:
        body["usage"]["prompt_tokens_details"] = {"cached_tokens": cached_tokens}
    response = {"status_code": 200, "request_id": identity, "body": body}
    return _dump(identity, custom_id, response, None)


def _chat_choice(identity: str, index: int, choice: Choice) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": choice.text, "refusal": None}
    if choice.tool_calls:
        message["tool_calls"] = [
            {
                "id": f"call_{identity}-{index}-{i}",
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for i, call in enumerate(choice.tool_calls)
        ]
    log_probs = None
    if choice.log_probs is not None:
        content = [
            {"token": token.text, "logprob": token.log_prob, "bytes": list(token.data), "top_logprobs": []}
            for token in choice.log_probs
        ]
        log_probs = {"content": content, "refusal": None}
    return {"index": index, "message": message, "logprobs": log_probs, "finish_reason": choice.finish_reason}


def _text_choice(_identity: str, index: int, choice: Choice) -> dict[str, Any]:
    log_probs = None
    if choice.log_probs is not None:
        ends = [0, *itertools.accumulate(len(token.text) for token in choice.log_probs)]
        log_probs = {
            "tokens": [token.text for token in choice.log_probs],
            "token_logprobs": [token.log_prob for token in choice.log_probs],
            "top_logprobs": None,
            "text_offset": ends[:-1],
        }
    return {"index": index, "text": choice.text, "logprobs": log_probs, "finish_reason": choice.finish_reason}


def failed_record(
    *, answers_id: str, line: int, custom_id: str | None, code: str, message: str, status_code: int
) -> bytes:
    """Return a failure's output line, without its newline.

    Both fields tell of it, as a hosted API's do where the request reached the model; a line that was
    never a request (status 400 at validation) has the same form, so a reader of either field is right.
    """
    identity = request_id(answers_id, line)
    kind = "invalid_request_error" if 400 <= status_code < 500 else "server_error"
    detail = {"message": message, "type": kind, "param": None, "code": code}
    response = {"status_code": status_code, "request_id": identity, "body": {"error": detail}}
    return _dump(identity, custom_id, response, {"code": code, "message": message})


def failure_of(error: RequestError) -> tuple[str, str, int]:
    """Return the code, message and HTTP status that tell of an error."""
    return error.code, error.message, error.status_code


def _dump(identity: str, custom_id: str | None, response: Any, error: Any) -> bytes:
    return orjson.dumps(
        {"id": f"{OUTPUT_ID_PREFIX}{identity}", "custom_id": custom_id, "response": response, "error": error}
    )
