"""Request files of the benchmarks: short chats in plain English words, none like another."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import orjson

NUM_WORDS = 40
_TEXT = (
    "the of and to in is that for it as was with be by on not he his but at are this have from which "
    "one had they you were all their there been many some so these would other into has more her two "
    "like him time see no could make than first water people over such new after also day long little "
    "good world house work part place year small great river light garden letter story question number "
    "market winter morning music paper machine company history answer reason village kitchen journey "
    "window teacher "
)
WORDS = _TEXT.split()


def write_requests(
    path: Path,
    num_lines: int,
    *,
    model: str,
    seed: int,
    max_tokens: int = 16,
    num_words: int = NUM_WORDS,
    stop: tuple[str, ...] = (),
) -> None:
    """Write greedy requests; another `seed` makes a file that shares no prompt with this one."""
    rng = random.Random(seed)
    system = {"role": "system", "content": "You are a helpful assistant."}
    with path.open("wb") as file:
        for i in range(num_lines):
            user = {"role": "user", "content": f"{seed}-{i} " + " ".join(rng.choices(WORDS, k=num_words))}
            body: dict[str, Any] = {"model": model, "messages": [system, user]}
            body |= {"max_tokens": max_tokens, "temperature": 0} | ({"stop": stop} if stop else {})
            line = {"custom_id": f"request-{i:08d}", "method": "POST", "url": "/v1/chat/completions"}
            file.write(orjson.dumps(line | {"body": body}) + b"\n")
