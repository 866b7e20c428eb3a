"""Encode text word by word from memory, where the tokenizer is known to treat each word alone.

A byte-level BPE tokenizer first cuts a text by a pattern and then encodes each piece by itself; nearly all
of its time goes into the cutting. All patterns that are taken here cut between a letter and a space
before a letter, whatever stands around. So a text may be cut at those places beforehand, and the ids of
a part that was seen before need no tokenizer: the few thousand words of a language make up most texts.
"""

from __future__ import annotations

import re
from itertools import chain
from typing import Any

import orjson

MAX_PARTS = 1 << 16
MAX_PART_CHARS = 32  # longer parts hardly come twice
MAX_SEGMENTS = 2048
MAX_SEGMENT_CHARS = 2048

# ASCII only: what counts as a letter elsewhere depends on the tokenizer's version of Unicode
_CUT = re.compile(r"(?<=[A-Za-z])(?= [A-Za-z])")
_CUT_IN_TOKEN = re.compile(r"[A-Za-z] [A-Za-z]")
# the patterns of Llama 3, and of Qwen 2 and 3; that of GPT-2 is within the step ByteLevel. Others may cut
# so too, but are not known to: a pattern that takes two words at once would be cut wrongly
_PATTERNS = frozenset(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|" + numbers + "|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    for numbers in (r"\p{N}{1,3}", r"\p{N}")
)


class WordCache:
    """The ids of parts of texts; `encode` returns what the tokenizer itself would, for every text."""

    def __init__(self, backend: Any) -> None:
        self._backend = backend
        self._parts = _Parts(backend)
        self._segments: dict[
            str, list[int]
        ] = {}  # whole texts between added tokens: system prompts come often
        tokenizer = orjson.loads(backend.to_str())
        self.is_usable = cuts_between_words(tokenizer)
        tokens = {token["content"]: token["id"] for token in tokenizer["added_tokens"]}
        self._added_ids = tokens
        longest_first = sorted(tokens, key=len, reverse=True)
        # with a group, split() returns the tokens too: every other item, from the second on
        self._split_added = re.compile(f"({'|'.join(map(re.escape, longest_first)) or '(?!)'})").split

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text, special tokens in it included, none added."""
        if not self.is_usable:
            return encode_all(self._backend, text)
        ids: list[int] = []
        for index, segment in enumerate(self._split_added(text)):
            if index % 2:
                ids.append(self._added_ids[segment])
            elif segment:
                ids += self._segments.get(segment) or self._encode_segment(segment)
        return ids

    def _encode_segment(self, segment: str) -> list[int]:
        ids = list(chain.from_iterable(map(self._parts.__getitem__, _CUT.split(segment))))
        if len(segment) <= MAX_SEGMENT_CHARS:
            if len(self._segments) >= MAX_SEGMENTS:
                self._segments.clear()
            self._segments[segment] = ids
        return ids


class _Parts(dict[str, list[int]]):
    """The ids of each part that was met; an unknown one is asked of the tokenizer."""

    def __init__(self, backend: Any) -> None:
        super().__init__()
        self._backend = backend

    def __missing__(self, part: str) -> list[int]:
        ids = encode_all(self._backend, part)
        if len(part) <= MAX_PART_CHARS:
            if len(self) >= MAX_PARTS:
                self.clear()
            self[part] = ids
        return ids


def encode_all(backend: Any, text: str) -> list[int]:
    """Return the ids of a text as the tokenizer gives them, none added; offsets are not computed."""
    ids: list[int] = backend.encode_batch_fast([text], add_special_tokens=False)[0].ids
    return ids


def cuts_between_words(tokenizer: dict[str, Any]) -> bool:
    """Say whether a tokenizer.json cuts every text between a letter and a space before a letter."""
    model = tokenizer["model"]
    if model["type"] != "BPE" or model.get("dropout"):
        return False
    if any(tokenizer[step] is not None for step in ("normalizer", "truncation", "padding")):
        return False
    if any(
        token["lstrip"] or token["rstrip"] or token["single_word"] or _CUT_IN_TOKEN.search(token["content"])
        for token in tokenizer["added_tokens"]
    ):
        return False
    first = tokenizer["pre_tokenizer"] or {}
    steps = first["pretokenizers"] if first.get("type") == "Sequence" else [first]
    return all(map(_is_harmless, steps)) and any(map(_cuts_words, steps))


def _is_harmless(step: dict[str, Any]) -> bool:
    """Say whether a step treats the start of a text as any other place."""
    if step.get("type") == "ByteLevel":
        return not step["add_prefix_space"]
    return step.get("type") == "Digits" or _cuts_words(step)


def _cuts_words(step: dict[str, Any]) -> bool:
    if step.get("type") == "ByteLevel":
        return bool(step.get("use_regex", True)) and not step["add_prefix_space"]
    if step.get("type") != "Split" or step["behavior"] != "Isolated" or step["invert"]:
        return False
    return step["pattern"].get("Regex") in _PATTERNS
