"""A run to report on, on disk, without a server: its ledger, its record, its input and its samples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
from fakes.compared import answer_row
from fakes.rows import failed_row, write_ledger
from fakes.runs import fake_options, fake_record, request_line

from trtb.runner.ledger import ResultRow
from trtb.runner.reporting.samples import GpuUse, Sample, write_samples
from trtb.runner.run_folder import RunFolder, RunPaths

NS_PER_S = 1_000_000_000
STARTED_NS = 1_796_122_000 * NS_PER_S
PROMPT = "the prompt's own words"
ANSWER = "the answer's own words"
MESSAGE = "what the error quotes"


def reported_rows(custom_id: str = "c-{line}") -> list[ResultRow]:
    """Return 40 results: answers of two stretches of time, reused ones, and failures."""
    rows = []
    for line in range(1, 41):
        name = custom_id.format(line=line)
        finished_ns = STARTED_NS + (line * 500_000_000) + (line > 20) * 900 * NS_PER_S
        if line % 10 == 0:
            record = orjson.dumps({"error": {"code": "timeout", "message": MESSAGE}})
            rows.append(
                failed_row(
                    line, "timeout", attempts=3, finished_ns=finished_ns, custom_id=name, record=record
                )
            )
            continue
        is_reused = line % 7 == 0
        rows.append(
            answer_row(
                line,
                f"{ANSWER} {line}",
                custom_id=name,
                attempts=0 if is_reused else 1,
                reused_from=("cache" if line % 2 == 0 else "equal") if is_reused else None,
                reused_blocks=None if is_reused else 2,
                prompt_tokens=100 + line,
                completion_tokens=line,
                latency_ns=0 if is_reused else (line % 5 + 1) * 700_000_000,
                ttft_ns=0 if is_reused else 90_000_000,
                finished_ns=finished_ns,
            )
        )
    return rows


def write_run(folder: Path, rows: list[ResultRow] | None = None, **fields: Any) -> RunPaths:
    """Write a run of 40 requests whose input is there; `fields` are of its record."""
    rows = reported_rows() if rows is None else rows
    folder.mkdir(exist_ok=True)
    options = fake_options(folder)
    names = {row.line: row.custom_id for row in rows}
    body = {"model": "tiny", "messages": [{"role": "user", "content": PROMPT}]}
    lines = [request_line(line, custom_id=names.get(line, f"c-{line}"), body=body) for line in range(1, 41)]
    options.input_path.write_bytes(b"\n".join(lines) + b"\n")
    run_folder = RunFolder(options.output)
    run_folder.paths.folder.mkdir()
    write_ledger(run_folder.paths.ledger, rows)
    run_folder.write(fake_record(options, **{"total": 40, "state": "finished", **fields}))
    return run_folder.paths


def write_gpu_samples(paths: RunPaths) -> None:
    """Write a sample each second of a run on one GPU."""
    write_samples(
        paths.folder,
        [
            Sample(
                session=1,
                time_s=STARTED_NS / NS_PER_S + second,
                span_s=1.0,
                in_flight=4.0,
                max_in_flight=5,
                bound=8.0,
                waiting=2.0,
                drained_fraction=0.0,
                client_cpu_s=0.25,
                loop_busy_s=0.2,
                prepare_s=0.1,
                loop_lag_s=0.001,
                max_loop_lag_s=0.002,
                blocks_held=50.0 + second,
                max_blocks_held=80,
                num_blocks=100,
                server_cpu_s=1.5,
                server_rss_bytes=2**31,
                gpus=(GpuUse(0, 0.93, 60 * 2**30, 80 * 2**30, 500.0),),
            )
            for second in range(20)
        ],
    )
