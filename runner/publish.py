"""Publish: the ledger becomes the output, one line for each input line, in input order.

The input and the ledger are read side by side, so the same pass reconciles them: a line without a row, a
row without a line, or a custom_id that is not the line's own ends the run as a bug, with nothing
published. The three files appear by rename, the output last: where it is, the others are complete.
"""

from __future__ import annotations

import contextlib
import io
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import orjson

from trtb.build import files
from trtb.runner import ledger
from trtb.runner.errors import InputFileError, ReconcileError
from trtb.runner.metrics import RunTotals
from trtb.runner.reader import BOM, BUFFER_BYTES, RawLine, open_input, read_lines
from trtb.runner.run_folder import RunPaths

COPY_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class PublishPlan:
    """What is published: the first `limit` requests of the input, or all of them."""

    input_path: Path
    paths: RunPaths
    max_line_bytes: int
    limit: int | None
    total: int  # requests counted when the input was validated


def publish(plan: PublishPlan) -> RunTotals:
    """Write the output, the failed file and the retry file; returns what they add up to.

    Raises:
        ReconcileError: A line is unaccounted for; nothing has been published.
        InputFileError: The input changed while the run went on.
    """
    paths = plan.paths
    totals = RunTotals()
    for path in (paths.output, paths.failed, paths.retry):
        files.remove_parts(path.parent, path.name)  # of a publication that was killed
    with contextlib.ExitStack() as stack:
        # renamed when the stack unwinds, in the reverse of this order: the output comes last
        output = stack.enter_context(files.open_atomic(paths.output))
        failed = stack.enter_context(files.open_atomic(paths.failed))
        retry = stack.enter_context(files.open_atomic(paths.retry))
        _write(plan, output, failed, retry, totals)
        if totals.total != plan.total:
            raise ReconcileError(
                f"{plan.input_path}: {totals.total} requests published; expected {plan.total}",
                "please report this as a bug, with the run's folder",
            )
    if totals.failed == 0:
        paths.failed.unlink()
        paths.retry.unlink()
    return totals


def _write(
    plan: PublishPlan, output: IO[bytes], failed: IO[bytes], retry: IO[bytes], totals: RunTotals
) -> None:
    rows = ledger.read_rows(plan.paths.ledger)
    with (
        open_input(plan.input_path) as copy,
        io.BufferedReader(open_input(plan.input_path), BUFFER_BYTES) as source,
    ):
        for raw in read_lines(source, plan.max_line_bytes):
            if plan.limit is not None and totals.total >= plan.limit:
                break
            row = next(rows, None)
            if row is None or row.line != raw.number:
                raise ReconcileError(
                    f"line {raw.number} of {plan.input_path} has no result; "
                    f"the next one in the ledger is of line {row.line if row else 'none'}",
                    "please report this as a bug, with the run's folder",
                )
            _check_custom_id(raw, row.custom_id, plan.input_path)
            output.write(row.record)
            output.write(b"\n")
            if row.status == "failed":
                failed.write(row.record + b"\n")
                _copy_line(copy, raw, retry)
            totals.add(row)
    if (extra := next(rows, None)) is not None:
        raise ReconcileError(
            f"the ledger has a result of line {extra.line}, past the end of {plan.input_path}",
            "please report this as a bug, with the run's folder",
        )


def _check_custom_id(raw: RawLine, custom_id: str | None, path: Path) -> None:
    if custom_id is None:
        return  # the line has none: it failed at validation
    try:
        found = orjson.loads(raw.data or b"")["custom_id"]
    except (ValueError, KeyError, TypeError):
        found = None
    if found != custom_id:
        raise InputFileError(
            f"{path}: line {raw.number} has the custom_id {found!r} now; it was {custom_id!r} when it was "
            "sent. The file changed while the run went on",
            "restore the file and run again, or begin anew with --overwrite",
        )


def _copy_line(source: IO[bytes], raw: RawLine, target: IO[bytes]) -> None:
    """Copy a line's own bytes, whatever their length; a byte order mark belongs to the file, not to it."""
    source.seek(raw.offset)
    left = raw.num_bytes
    last = b""
    at_start = raw.offset == 0
    while left and (chunk := source.read(min(left, COPY_BYTES))):
        left -= len(chunk)
        last = chunk
        target.write(chunk.removeprefix(BOM) if at_start else chunk)
        at_start = False
    if not last.endswith(b"\n"):
        target.write(b"\n")
