"""The quick way takes what files mostly hold, and never more than the long way."""

from __future__ import annotations

import json

import pytest

from trtb.runner.plain import read_plain
from trtb.runner.schema import LineParser, Valid

BODY = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
LINE = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": BODY}
NUMBERS = [
    "8", "8.0", "1e1", "1E0", "-0", "0", "-0.0", "1e-400", "1e999", "01", "true", '"8"', "2.5", "null",
    "9223372036854775807", "9223372036854775808", "-9223372036854775808", "-9223372036854775809",
    "1180591620717411303424",
]  # fmt: skip
NAMES = ["max_tokens", "temperature", "top_p", "top_k", "seed", "n", "repetition_penalty"]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"max_tokens": 5, "temperature": 0, "top_p": 1, "seed": 3, "stop": ["a"], "n": 1, "stream": False},
        {"messages": [{"role": "developer", "content": [{"type": "text", "text": "x"}]}]},
        {"max_completion_tokens": 5, "top_k": -1, "presence_penalty": 1, "repetition_penalty": 1.1},
    ],
)
def test_common_lines_go_the_quick_way(changes):
    data = json.dumps(LINE | {"body": BODY | changes}).encode() + b"\r\n"
    assert read_plain(data, frozenset({"m"})) is not None
    assert read_plain(data, None) is not None
    assert read_plain(data, frozenset({"other"})) is None


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("number", NUMBERS)
def test_every_spelling_of_a_number_means_the_same_on_both_ways(name, number):
    data = json.dumps(LINE | {"body": BODY | {name: "HERE"}}).encode().replace(b'"HERE"', number.encode())
    parser = LineParser(frozenset({"m"}), strict_params=False)
    quick, long = parser.parse(1, data), parser._examine(1, data)
    assert quick == long
    if isinstance(quick, Valid):
        # 1 == 1.0 in Python: the types must agree too
        assert repr(quick.request.sampling) == repr(long.request.sampling)
