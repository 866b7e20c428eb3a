"""The request lines of an acceptance, and what their answers hold; none of it goes into the evidence."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import orjson

from trtb.build import files

MODEL: Final = "acceptance"  # the runs take any name
SMOKE_TEXT: Final = "What is the capital of France? Answer in one sentence."
REPEATED_TEXT: Final = "List three colours of the rainbow."
LONG_TEXT: Final = "Tell a very long story about a lighthouse."
SHORT_TEXT: Final = "Say hello."
_TOPICS: Final = ("bridges", "rivers", "bread", "maps", "winter", "clocks", "gardens", "music")


def chat_line(custom_id: str, text: str, **body: Any) -> dict[str, Any]:
    """Return a greedy chat request; `body` adds to its body."""
    values = {"model": MODEL, "messages": [{"role": "user", "content": text}], "temperature": 0, **body}
    return {"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions", "body": values}


def topic_lines(name: str, num_requests: int, **body: Any) -> list[dict[str, Any]]:
    """Return as many different requests; none of another `name` is like them."""
    return [
        chat_line(
            f"{name}-{number:05}",
            f"Question {number} of {name}: say one thing about {_TOPICS[number % len(_TOPICS)]}.",
            **body,
        )
        for number in range(1, num_requests + 1)
    ]


def write_lines(path: Path, lines: Iterable[dict[str, Any]]) -> Path:
    """Write a file of requests; returns its path."""
    files.write_atomic(path, b"".join(orjson.dumps(line) + b"\n" for line in lines))
    return path


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a requests or output file."""
    return [orjson.loads(line) for line in path.read_bytes().split(b"\n") if line]


def answer_of(record: dict[str, Any]) -> tuple[str, str]:
    """Return the text and the finish reason of an answered line."""
    choice = record["response"]["body"]["choices"][0]
    return choice["message"]["content"] or "", choice["finish_reason"]
