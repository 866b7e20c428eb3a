"""Request lines for tests, in the hosted APIs' form."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

MODEL = "smollm2-135m-instruct"


def chat(custom_id: str, text: str = "Say hi.", **body: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": text}]
    body = {"model": MODEL, "messages": messages, "max_tokens": 6, "temperature": 0} | body
    return {"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions", "body": body}


def completion(custom_id: str, **body: Any) -> dict[str, Any]:
    body = {"model": MODEL, "max_tokens": 4, "temperature": 0} | body
    return {"custom_id": custom_id, "method": "POST", "url": "/v1/completions", "body": body}


def write(path: Path, lines: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


def read(path: Path) -> list[dict[str, Any]]:
    # split on the newline alone: str.splitlines() would split inside strings
    return [json.loads(line) for line in path.read_bytes().split(b"\n") if line]
