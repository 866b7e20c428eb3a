"""A run on disk without a server: an input file, a ledger, and the options that go with them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from fakes.manifest import fake_manifest
from fakes.rows import write_ledger

from trtb.runner.ledger import ResultRow
from trtb.runner.options import RunOptions
from trtb.runner.publish import PublishPlan
from trtb.runner.run_folder import RunPaths, RunRecord


def request_line(line: int, **fields: Any) -> bytes:
    """Return a request without its line end, with the custom_id of a row of that line."""
    body = {"model": "tiny", "messages": [{"role": "user", "content": f"Say {line}."}]}
    values = {
        "custom_id": f"c-{line}",
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": body,
        **fields,
    }
    return json.dumps(values).encode()


def plan_of(folder: Path, data: bytes, rows: Iterable[ResultRow], total: int, **fields: Any) -> PublishPlan:
    """Write an input and its ledger; return the plan that publishes them."""
    input_path = folder / "in.jsonl"
    input_path.write_bytes(data)
    paths = RunPaths(folder / "out.jsonl")
    write_ledger(paths.ledger, rows)
    values = {"max_line_bytes": 1 << 20, "limit": None, **fields}
    return PublishPlan(input_path, paths, total=total, **values)


def fake_options(folder: Path, **fields: Any) -> RunOptions:
    """Return the options of a run in a folder."""
    values = {"endpoints": ("127.0.0.1:1",), **fields}
    return RunOptions(folder / "in.jsonl", folder / "out.jsonl", folder / "engine", fake_manifest(), **values)


def fake_record(options: RunOptions, **fields: Any) -> RunRecord:
    """Return the record of a run with these options."""
    values: dict[str, Any] = {
        "run_id": "run",
        "state": "running",
        "input_path": str(options.input_path),
        "input_sha256": "a" * 64,
        "input_bytes": 1000,
        "total": 4,
        "engine_id": options.manifest.engine_id,
        "engine": options.manifest.reference,
        "settings": options.settings(),
        "job": options.job(),
        "versions": {"trtb": "0.1.0"},
        "host": "here",
        "created_at": "2026-01-01T00:00:00+00:00",
        "created_s": 1767225600,
        "updated_at": "2026-01-01T00:00:00+00:00",
        **fields,
    }
    return RunRecord(**values)
