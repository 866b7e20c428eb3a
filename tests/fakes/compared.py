"""Runs to compare, on disk, without a server: answers of given texts, a ledger, a record and a report."""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import orjson
from fakes.rows import completed_row, failed_row, write_ledger
from fakes.runs import fake_options, fake_record

from trtb.runner.ledger import ResultRow
from trtb.runner.metrics import RunTotals
from trtb.runner.report import SessionFigures, make_report, write_report
from trtb.runner.run_folder import RunFolder, RunPaths

WORDS = (
    "the",
    "sky",
    "is",
    "blue",
    "because",
    "air",
    "scatters",
    "short",
    "waves",
    "of",
    "light",
    "more",
    "so",
)


def answer_row(
    line: int, text: str | None, *, calls: tuple[tuple[str, str], ...] = (), **fields: Any
) -> ResultRow:
    """Return the row of a chat answer."""
    message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None}
    if calls:
        functions = [{"name": name, "arguments": arguments} for name, arguments in calls]
        message["tool_calls"] = [
            {"id": f"call_{line}-{n}", "type": "function", "function": function}
            for n, function in enumerate(functions)
        ]
    values = {"finish_reason": "stop", "completion_tokens": len((text or "").split()), **fields}
    choice = {"index": 0, "message": message, "finish_reason": values["finish_reason"]}
    body = {"id": f"chatcmpl-{random.random()}", "choices": [choice]}
    return completed_row(line, record=orjson.dumps({"response": {"body": body}}), **values)


def texts_row(line: int, texts: list[str], **fields: Any) -> ResultRow:
    """Return the row of an answer of /v1/completions, with a choice for each text."""
    choices = [{"index": n, "text": text, "finish_reason": "stop"} for n, text in enumerate(texts)]
    record = orjson.dumps({"response": {"body": {"choices": choices}}})
    return completed_row(line, **{"finish_reason": "stop", "record": record, **fields})


def run_on_disk(
    folder: Path, rows: Iterable[ResultRow], *, seconds: float = 10.0, is_exact: bool = True, **fields: Any
) -> RunPaths:
    """Write a finished run of these rows; `fields` are of its record."""
    folder.mkdir(parents=True)
    options = fake_options(folder)
    paths = RunPaths(options.output)
    totals = RunTotals()

    def counted() -> Iterable[ResultRow]:
        for row in rows:
            totals.add(row)
            yield row

    write_ledger(paths.ledger, counted())
    values = {"state": "finished", "total": totals.total, **fields}
    record = fake_record(options, **values)
    RunFolder(options.output).write(record)
    if record.state != "running":
        figures = SessionFigures(
            num_resumed=0,
            concurrency=64,
            num_completed=totals.completed,
            num_tokens=totals.completion_tokens,
            duration_s=seconds,
            max_in_flight=64,
            is_exact=is_exact,
        )
        write_report(paths, make_report(record, paths, totals, figures, [], record.state))
    return paths


def sample_rows(num: int, *, seed: int, changed: float = 0.0, failed: float = 0.0) -> Iterable[ResultRow]:
    """Yield answers; of another seed they are the same, but for shares that are changed or failed."""
    own = random.Random(seed)
    for line in range(1, num + 1):
        shared = random.Random(line)
        words = [shared.choice(WORDS) for _ in range(int(shared.lognormvariate(4, 0.6)) + 1)]
        latency_ns = int(own.lognormvariate(0, 0.5) * len(words) * 20e6)
        if own.random() < failed:
            yield failed_row(line, "timeout")
            continue
        if own.random() < changed:
            at = own.randrange(len(words))
            words[at:] = [own.choice(WORDS) for _ in range(max(1, len(words) - at + own.randint(-9, 20)))]
        yield answer_row(
            line,
            " ".join(words),
            latency_ns=latency_ns,
            ttft_ns=int(latency_ns / 9),
            finished_ns=10**18 + line * 10**7,
            finish_reason="length" if len(words) > 150 else "stop",
        )
