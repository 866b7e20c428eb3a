"""The output lines: OpenAI's batch output objects, for answers and for failures."""

from __future__ import annotations

from typing import Any

import orjson

from trtb.runner.errors import RequestError


def request_id(run_id: str, line: int) -> str:
    """Return the id of a line's request; it does not depend on attempts, so that a resumed run agrees."""
    return f"{run_id}-{line}"


def completed_record(
    *,
    run_id: str,
    line: int,
    custom_id: str,
    model: str,
    fingerprint: str,
    created_s: int,
    text: str,
    finish_reason: str,
    prompt_tokens: int,
    completion_tokens: int,
) -> bytes:
    """Return an answer's output line, without its newline."""
    identity = request_id(run_id, line)
    body = {
        "id": f"chatcmpl-{identity}",
        "object": "chat.completion",
        "created": created_s,
        "model": model,
        "system_fingerprint": fingerprint,
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": text, "refusal": None},
                "logprobs": None,
                "finish_reason": finish_reason,
            }
        ],
        "usage": {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": completion_tokens,
            "total_tokens": prompt_tokens + completion_tokens,
        },
    }
    response = {"status_code": 200, "request_id": identity, "body": body}
    return _dump(identity, custom_id, response, None)


def failed_record(
    *, run_id: str, line: int, custom_id: str | None, code: str, message: str, status_code: int
) -> bytes:
    """Return a failure's output line, without its newline.

    Both fields tell of it, as a hosted API's do where the request reached the model; a line that was
    never a request (status 400 at validation) has the same form, so a reader of either field is right.
    """
    identity = request_id(run_id, line)
    kind = "invalid_request_error" if 400 <= status_code < 500 else "server_error"
    detail = {"message": message, "type": kind, "param": None, "code": code}
    response = {"status_code": status_code, "request_id": identity, "body": {"error": detail}}
    return _dump(identity, custom_id, response, {"code": code, "message": message})


def failure_of(error: RequestError) -> tuple[str, str, int]:
    """Return the code, message and HTTP status that tell of an error."""
    return error.code, error.message, error.status_code


def _dump(identity: str, custom_id: str | None, response: Any, error: Any) -> bytes:
    return orjson.dumps(
        {"id": f"batch_req_{identity}", "custom_id": custom_id, "response": response, "error": error}
    )
