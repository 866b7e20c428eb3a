"""Seconds that the page of a run of 200,000 requests takes, its size, and how its memory grows with the run.

No engine is needed: the run's ledger is made up, with a pause in it, failures, reused answers and records of
about 1 KB. Each page is made in a process of its own.
"""

from __future__ import annotations

import dataclasses
import datetime
import platform
import random
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson

from trtb.runner.ledger import LedgerWriter, ResultRow
from trtb.runner.run_folder import RunFolder, RunPaths, RunRecord
from trtb.tools.bench.children import peak_rss_bytes, run_child, serve_task
from trtb.tools.bench.targets import Outcome, Target

NUM_REQUESTS = 200_000
SHORTER = 10  # the run that memory is compared with has so many times fewer
NUM_SAMPLED = 20
MAX_PAGE_MB = 3
MAX_PAGE_S = 30
NS_PER_S = 1_000_000_000
STARTED_NS = 1_800_000_000 * NS_PER_S
PAUSE_S = 3600
IN_FLIGHT = 256
MAX_TOKENS = 2048
TEXT = "All that the river has carried away it gives back in another place. " * 9


def measure(quick: bool) -> Outcome:
    """Return the time and size of a page, and its memory over that of a shorter run's."""
    num_requests = NUM_REQUESTS // 4 if quick else NUM_REQUESTS
    with tempfile.TemporaryDirectory(prefix="trtb-bench-") as name:
        folder = Path(name)
        long, short = (page_in_child(folder, number) for number in (num_requests, num_requests // SHORTER))
    targets = [
        Target(
            "memory / of a tenth of the run", long["rss_bytes"] / short["rss_bytes"], 1.5, 1.2, is_bound=True
        ),
        Target("time of the page", long["seconds"], MAX_PAGE_S, MAX_PAGE_S / 3, is_bound=True, unit="s"),
        Target("size of the page", long["page_bytes"] / 1e6, MAX_PAGE_MB, 1, is_bound=True, unit="MB"),
    ]
    figures = {
        "quick": quick,
        "num_requests": num_requests,
        "ledger_mb": long["ledger_bytes"] / 1e6,
        "rss_mb": long["rss_bytes"] / 1e6,
        "shorter_rss_mb": short["rss_bytes"] / 1e6,
        "shorter_s": short["seconds"],
    }
    return Outcome("page", targets, figures)


def page_in_child(folder: Path, num_requests: int) -> dict[str, Any]:
    """Make a run and, in a new process, its page; returns seconds, sizes and that process's memory."""
    output = folder / f"{num_requests}.jsonl"
    paths = make_run(output, num_requests)
    found = run_child("trtb.tools.bench.page", {"output": str(output)}, folder)
    return {**found, "ledger_bytes": paths.ledger.stat().st_size}


def make_run(output: Path, num_requests: int) -> RunPaths:
    """Write the folder of an interrupted run in which every request but one has a result."""
    folder = RunFolder(output)
    folder.paths.folder.mkdir(parents=True)
    folder.write(_record(output, num_requests + 1))
    writer = LedgerWriter(folder.paths.ledger)
    for row in _rows(num_requests):
        writer.add(row)
    writer.close()
    return folder.paths


def _rows(num_requests: int) -> Iterator[ResultRow]:
    """Yield results as a run leaves them: ends out of order, one pause, every fiftieth answer reused."""
    rng = random.Random(7)
    ends_s = [0.0] * IN_FLIGHT  # of each place in flight
    for line in range(1, num_requests + 1):
        place = line % IN_FLIGHT
        num_tokens = min(MAX_TOKENS, int(rng.lognormvariate(5, 0.8)) + 1)
        is_reused = line % 50 == 0
        latency_s = 0.0 if is_reused else 0.05 + num_tokens / rng.uniform(60, 100)
        ends_s[place] += latency_s
        paused_s = PAUSE_S if line > num_requests // 2 else 0
        finished_ns = STARTED_NS + int((ends_s[place] + paused_s) * NS_PER_S)
        row = _answer(line, num_tokens, int(latency_s * NS_PER_S), finished_ns)
        if is_reused:
            yield dataclasses.replace(row, attempts=0, reused_from="equal" if line % 100 else "cache")
        elif line % 397 == 0:
            yield _failure(row)
        else:
            yield dataclasses.replace(row, reused_blocks=rng.randrange(8))


def _answer(line: int, num_tokens: int, latency_ns: int, finished_ns: int) -> ResultRow:
    custom_id = f"request-{line:08d}"
    message = {"role": "assistant", "content": TEXT, "refusal": None}
    body = {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
    record = {"id": custom_id, "response": {"status_code": 200, "body": body}, "error": None}
    return ResultRow(
        line=line,
        custom_id=custom_id,
        status="completed",
        code=None,
        attempts=1,
        prompt_tokens=60 + line % 900,
        completion_tokens=num_tokens,
        finish_reason="length" if num_tokens == MAX_TOKENS else "stop",
        latency_ns=latency_ns,
        ttft_ns=latency_ns // 10,
        finished_ns=finished_ns,
        record=orjson.dumps(record),
    )


def _failure(row: ResultRow) -> ResultRow:
    """Return a row as that of a request that timed out."""
    record = {"id": row.custom_id, "error": {"code": "timeout", "message": TEXT}}
    return dataclasses.replace(
        row,
        status="failed",
        code="timeout",
        attempts=3,
        prompt_tokens=0,
        completion_tokens=0,
        finish_reason=None,
        latency_ns=0,
        ttft_ns=0,
        record=orjson.dumps(record),
    )


def _record(output: Path, total: int) -> RunRecord:
    now = datetime.datetime.fromtimestamp(STARTED_NS / NS_PER_S, datetime.timezone.utc).isoformat()
    return RunRecord(
        run_id="0123456789ab",
        state="interrupted",
        input_path=str(output.with_name("input.jsonl")),
        input_sha256="0" * 64,
        input_bytes=0,
        total=total,
        engine_id="0" * 64,
        engine="bench@1",
        settings={},
        job={"concurrency": IN_FLIGHT},
        versions={"python": platform.python_version()},
        host=platform.node(),
        created_at=now,
        created_s=STARTED_NS // NS_PER_S,
        updated_at=now,
    )


def _make_page(task: dict[str, Any]) -> dict[str, Any]:
    """Be the child: make the page of a run."""
    from trtb.tools.report import Wanted, write_run_page

    paths = RunPaths(Path(task["output"]))
    page = paths.folder / "report.html"
    start = time.monotonic()
    write_run_page(paths, page, Wanted(sample=NUM_SAMPLED, include_text=True, cost_per_hour=1.0))
    seconds = time.monotonic() - start
    return {"seconds": seconds, "page_bytes": page.stat().st_size, "rss_bytes": peak_rss_bytes()}


if __name__ == "__main__":
    serve_task(_make_page)
