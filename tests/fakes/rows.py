"""Ledger rows, and a ledger full of them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import orjson

from trtb.runner.ledger import LedgerWriter, ResultRow


def completed_row(line: int, **fields: Any) -> ResultRow:
    """Return the row of an answer."""
    values: dict[str, Any] = {
        "line": line,
        "custom_id": f"c-{line}",
        "status": "completed",
        "code": None,
        "attempts": 1,
        "prompt_tokens": 10,
        "completion_tokens": 4,
        "finish_reason": "length",
        "latency_ns": 1_000_000,
        "ttft_ns": 500_000,
        "finished_ns": 1,
        **fields,
    }
    values.setdefault("record", record_of(line, values["custom_id"], "run"))
    return ResultRow(**values)


def failed_row(line: int, code: str = "engine_error", **fields: Any) -> ResultRow:
    """Return the row of a failure."""
    values = {
        "status": "failed", "code": code, "prompt_tokens": 0, "completion_tokens": 0, "finish_reason": None,
        "latency_ns": 0, "ttft_ns": 0, **fields,
    }  # fmt: skip
    return completed_row(line, **values)


def record_of(line: int, custom_id: str | None, run_id: str) -> bytes:
    """Return something that can stand for an output line."""
    return orjson.dumps({"id": f"batch_req_{run_id}-{line}", "custom_id": custom_id})


def write_ledger(path: Path, rows: Iterable[ResultRow]) -> None:
    """Write rows to a ledger, durably."""
    path.parent.mkdir(parents=True, exist_ok=True)
    writer = LedgerWriter(path)
    for row in rows:
        writer.add(row)
    writer.close()
