"""The output lines, as readers of the hosted APIs' files expect them."""

from __future__ import annotations

import orjson
import pytest

from trtb.runner.answer import Choice
from trtb.runner.errors import DeadlineExceededError
from trtb.runner.records import answers_id, completed_record, failed_record, failure_of


def completed(**fields):
    values = {
        "answers_id": "abc", "line": 7, "custom_id": 'c\n"7', "model": "tiny@3", "fingerprint": "trtb-0123",
        "created_s": 1767225600, "is_chat": True, "choices": [Choice("Hi \U0001f600\n\u2028", "stop", 3)],
        "prompt_tokens": 11, "completion_tokens": 3, **fields,
    }  # fmt: skip
    return completed_record(**values)


def test_an_answer_is_one_line_with_everything_that_a_reader_needs():
    line = completed()
    assert b"\n" not in line
    record = orjson.loads(line)
    assert record["custom_id"] == 'c\n"7'
    assert record["error"] is None
    assert record["id"] == "batch_req_abc-7"
    assert record["response"]["status_code"] == 200
    assert record["response"]["request_id"] == "abc-7"
    body = record["response"]["body"]
    assert body["object"] == "chat.completion"
    assert (body["model"], body["system_fingerprint"]) == ("tiny@3", "trtb-0123")
    assert body["usage"] == {"prompt_tokens": 11, "completion_tokens": 3, "total_tokens": 14}
    (choice,) = body["choices"]
    assert choice["message"]["content"] == "Hi \U0001f600\n\u2028"
    assert choice["finish_reason"] == "stop"


@pytest.mark.parametrize(
    ("told", "details"), [(None, None), (0, {"cached_tokens": 0}), (9, {"cached_tokens": 9})]
)
def test_cached_tokens_are_told_where_the_engine_tells_them(told, details):
    usage = orjson.loads(completed(cached_tokens=told))["response"]["body"]["usage"]
    assert usage.get("prompt_tokens_details") == details


def test_the_same_answer_is_the_same_bytes():
    assert completed() == completed()


@pytest.mark.parametrize(("status_code", "kind"), [(400, "invalid_request_error"), (504, "server_error")])
def test_a_failure_is_told_to_readers_of_either_field(status_code, kind):
    line = failed_record(
        answers_id="abc", line=9, custom_id=None, code="timeout", message="too\nlong", status_code=status_code
    )
    record = orjson.loads(line)
    assert b"\n" not in line
    assert record["custom_id"] is None
    assert record["error"] == {"code": "timeout", "message": "too\nlong"}
    assert record["response"]["status_code"] == status_code
    error = record["response"]["body"]["error"]
    assert (error["code"], error["message"], error["type"]) == ("timeout", "too\nlong", kind)


def test_an_error_says_its_own_code_and_status():
    assert failure_of(DeadlineExceededError("late")) == ("timeout", "late", 504)


def test_ids_come_from_what_decides_the_answers_and_not_from_the_run():
    settings = {"limit": None, "deterministic": False}
    made = answers_id("a" * 64, "e" * 64, settings)
    assert made == answers_id("a" * 64, "e" * 64, dict(reversed(settings.items())))
    others = {
        answers_id("b" * 64, "e" * 64, settings),
        answers_id("a" * 64, "f" * 64, settings),
        answers_id("a" * 64, "e" * 64, {**settings, "limit": 3}),
    }
    assert len(others | {made}) == 4
    assert made.isalnum()
