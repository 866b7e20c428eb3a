"""How far two answers to one request agree.

What a line's id, time and model say of the run is left out; what a user's program reads is compared. A ledger
has no token ids, so positions and likeness count words: runs of letters and digits, each other mark, and each
character of scripts that put no spaces between words.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, Literal

import orjson

_WORD = re.compile(r"[\u0e00-\u0e7f\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af]|[^\W_]+|[^\w\s]|_")
Kind = Literal["equal", "prefix", "different"]


@dataclass(frozen=True, slots=True)
class AnswerText:
    """What an answer says: the text and the tool calls of every choice, in order."""

    texts: tuple[str, ...]
    calls: tuple[tuple[tuple[str, str], ...], ...]  # of each choice: name and arguments

    @property
    def has_calls(self) -> bool:
        """Return whether any choice calls a tool."""
        return any(self.calls)

    @property
    def whole(self) -> str:
        """Return all of it, as one text."""
        parts = []
        for text, calls in zip(self.texts, self.calls, strict=True):
            parts += [text, *(f"{name}({arguments})" for name, arguments in calls)]
        return "\n".join(part for part in parts if part)


@dataclass(frozen=True, slots=True)
class AnswerDifference:
    """How two answers differ; A and B may change places."""

    kind: Kind  # prefix: one is the beginning of the other
    num_same_words: int  # with which both begin
    num_words: tuple[int, int]
    similarity: float  # 1 where they have the same words in the same order, 0 where they share none

    @property
    def same_beginning(self) -> float:
        """Return the share of the longer answer before the first difference."""
        longer = max(self.num_words)
        return self.num_same_words / longer if longer else 1.0


def answer_of(record: bytes) -> AnswerText:
    """Read an answer from its output line."""
    texts, calls = [], []
    for choice in orjson.loads(record)["response"]["body"]["choices"]:
        message = choice.get("message")
        texts.append((message["content"] if message else choice["text"]) or "")
        called = (message or {}).get("tool_calls") or ()
        calls.append(tuple((call["function"]["name"], call["function"]["arguments"]) for call in called))
    return AnswerText(tuple(texts), tuple(calls))


def words_of(text: str) -> list[str]:
    """Return a text's words.

    >>> words_of("It isn't 3.5, 日本!")
    ['It', 'isn', "'", 't', '3', '.', '5', ',', '日', '本', '!']
    """
    return _WORD.findall(text)


def difference(a: AnswerText, b: AnswerText) -> AnswerDifference:
    """Compare two answers."""
    whole_a, whole_b = a.whole, b.whole
    words_a, words_b = words_of(whole_a), words_of(whole_b)
    num_same = _num_same(words_a, words_b)
    kind: Kind = "different"
    if a == b:
        kind = "equal"
    elif whole_a.startswith(whole_b) or whole_b.startswith(whole_a):
        kind = "prefix"
    num_words = len(words_a), len(words_b)
    similarity = _similarity(words_a, words_b, num_same) if kind != "equal" else 1.0
    return AnswerDifference(kind, num_same, num_words, similarity)


def json_of(answer: AnswerText) -> Any:
    """Return the value of an answer that is JSON, an object or a list; None of any other."""
    text = answer.texts[0].strip() if len(answer.texts) == 1 else ""
    if not text.startswith(("{", "[")):
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def calls_agree(a: AnswerText, b: AnswerText) -> bool:
    """Return whether two answers call the same tools with the same arguments, however these are written."""
    return [[_call(*call) for call in calls] for calls in a.calls] == [
        [_call(*call) for call in calls] for calls in b.calls
    ]


def _call(name: str, arguments: str) -> tuple[str, Any]:
    try:
        return name, json.loads(arguments)
    except (ValueError, RecursionError):
        return name, arguments


def _num_same(words_a: list[str], words_b: list[str]) -> int:
    same = 0
    for word_a, word_b in zip(words_a, words_b, strict=False):
        if word_a != word_b:
            break
        same += 1
    return same


def _similarity(words_a: list[str], words_b: list[str], num_same: int) -> float:
    """Return ROUGE-L's F1: twice the longest common subsequence by the words of both."""
    total = len(words_a) + len(words_b)
    if not total:
        return 1.0
    return 2 * (num_same + _common_length(words_a[num_same:], words_b[num_same:])) / total


def _common_length(words_a: list[str], words_b: list[str]) -> int:
    """Return the length of the longest common subsequence.

    A row of the usual table differs from the last by steps of one, so a row is one integer with a bit a word
    (Hyyrö 2004): a thousand words by a thousand take a thousand operations, not a million.
    """
    places: dict[str, int] = {}
    for place, word in enumerate(words_a):
        places[word] = places.get(word, 0) | 1 << place
    full = (1 << len(words_a)) - 1
    row = full
    for word in words_b:
        matched = row & places.get(word, 0)
        row = ((row + matched) | (row - matched)) & full
    return len(words_a) - row.bit_count() if words_a else 0
