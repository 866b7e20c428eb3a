"""Rows a second that the ledger makes durable, over the requests a second of the client itself."""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path

import orjson
import psutil

from trtb.build.store import StoredEngine
from trtb.runner.ledger import LedgerWriter, ResultRow
from trtb.tools.bench.client import RUN, ClientBench
from trtb.tools.bench.noop import noop_server
from trtb.tools.bench.targets import Outcome, Target, interleave, median_ratio

NUM_ROUNDS = 3
TEXT = "All that the river has carried away it gives back in another place. " * 9


def measure(quick: bool, engine: StoredEngine) -> Outcome:
    """Return the ratio of both rates, measured by turns in one folder."""
    num_rows, num_requests = (60_000, 10_000) if quick else (200_000, 30_000)
    with tempfile.TemporaryDirectory(prefix="trtb-bench-") as name, noop_server(Path(name, "server")) as at:
        folder = Path(name)
        bench = ClientBench(folder, engine, at)
        found = interleave(
            {
                "ledger": lambda number: write_rows(folder / f"{number}.db", num_rows),
                "client": lambda _: float(bench.side(RUN, num_requests)["report"]["requests_per_s"]),
            },
            NUM_ROUNDS,
        )
        file_system = _file_system(folder)
    ratio = median_ratio(found["ledger"], found["client"])
    figures = {
        "quick": quick,
        "row_bytes": len(_row(1).record),
        "rows_per_s": statistics.median(found["ledger"]),
        "client_requests_per_s": statistics.median(found["client"]),
        "file_system": file_system,
    }
    return Outcome("ledger", [Target("rows/s durable / requests/s", ratio, hold=3, reach=10)], figures)


def write_rows(path: Path, num_rows: int, *, keep: bool = False) -> float:
    """Return the rows a second from the first `add` to the return of `flush`; rows are made beforehand."""
    rows = [_row(line) for line in range(1, num_rows + 1)]
    writer = LedgerWriter(path)
    start = time.monotonic()
    for row in rows:
        writer.add(row)
    writer.flush()
    seconds = time.monotonic() - start
    writer.close()
    if not keep:
        path.unlink()
    return num_rows / seconds


def _row(line: int) -> ResultRow:
    custom_id = f"request-{line:08d}"
    message = {"role": "assistant", "content": f"{TEXT}{line}", "refusal": None}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}
    body = {
        "id": f"chatcmpl-0123456789ab-{line}",
        "object": "chat.completion",
        "created": 0,
        "model": "bench@1",
        "choices": [choice],
        "usage": {"prompt_tokens": 60, "completion_tokens": 128, "total_tokens": 188},
    }
    response = {"status_code": 200, "request_id": f"0123456789ab-{line}", "body": body}
    record = orjson.dumps({"id": f"batch_req_{line}", "custom_id": custom_id, "response": response})
    return ResultRow(line, custom_id, "completed", None, 1, 60, 128, "stop", 1, 1, 1, record)


def _file_system(folder: Path) -> str:
    """Return the kind of file system; on tmpfs a sync costs nothing, and the figure says little."""
    mounts = [disk for disk in psutil.disk_partitions(all=True) if folder.is_relative_to(disk.mountpoint)]
    return max(mounts, key=lambda disk: len(disk.mountpoint)).fstype if mounts else "unknown"
