"""Steps of an acceptance that kill: a run is killed, stopped, and gone on with, and no line of it is lost."""

from __future__ import annotations

import contextlib
import signal
import sqlite3
import time
from collections import Counter
from pathlib import Path
from typing import Final

from trtb.runner import ledger
from trtb.runner.acceptance import accept_lines as lines
from trtb.runner.acceptance.accept_commands import Child
from trtb.runner.acceptance.accept_state import GRACE_S, AcceptState
from trtb.runner.acceptance.accept_step import Figures, StepFailedError
from trtb.runner.acceptance.accept_traces import wait_gone
from trtb.runner.errors import ReconcileError, RunInterruptedError
from trtb.runner.options import default_start_timeout_s
from trtb.runner.report import RunReport
from trtb.runner.run_folder import RunPaths

NUM_TOKENS: Final = 8
# few in flight, so that a fast engine is not done before it can be stopped
STOPPED_CONCURRENCY: Final = 4
FINAL_CONCURRENCY: Final = 32
RUN_TIMEOUT_S: Final = 3600.0
GONE_TIMEOUT_S: Final = 60.0


def requests(state: AcceptState, figures: Figures) -> None:
    """Run a file with servers of the run's own: kill -9, the same command and a Ctrl-C, the same command.

    Raises:
        StepFailedError: A command ended otherwise than it should, or a request failed.
    """
    num_requests = state.options.num_requests
    asked = lines.topic_lines("accept", num_requests, max_tokens=NUM_TOKENS)
    path = lines.write_lines(requests_path(state), asked)
    figures.update(num_requests=num_requests, engine=state.engines[state.main_quant].manifest.reference)
    with contextlib.closing(state.commands):  # where one fails, it may still be running
        child = _start(state, "run to be killed", path, STOPPED_CONCURRENCY)
        kept = _kill(state, child, num_requests // 4, figures)
        child = _start(state, "run to be stopped", path, STOPPED_CONCURRENCY)
        kept = _interrupt(state, child, kept + num_requests // 4, figures)
        child = _start(state, "run to the end", path, FINAL_CONCURRENCY)
        code = child.wait(RUN_TIMEOUT_S)
        if code not in (0, 1) or child.told() is None:
            raise child.failure("ended")
        made = RunReport.model_validate(child.told())
    figures.update(
        completed=made.completed,
        failed=made.failed,
        resumed=made.resumed,
        attempts=made.attempts,
        finish_reasons=dict(made.finish_reasons),
        completion_tokens=made.completion_tokens,
        output_tokens_per_s=made.output_tokens_per_s,
        server_restarts=made.server_restarts,
    )
    if made.failed:
        codes = ", ".join(f"{group.count} {group.code}" for group in made.failures)
        raise StepFailedError(f"{made.failed} of {made.total} requests failed ({codes}); expected none")
    if made.resumed != kept:
        raise StepFailedError(f"the last run resumed with {made.resumed} results; expected {kept}")


def reconcile(state: AcceptState, figures: Figures) -> None:
    """Hold the output against the input, apart from what the run itself says.

    Raises:
        ReconcileError: A line is missing, twice, in another place, or without an answer.
    """
    path = requests_path(state)
    paths = RunPaths(_output_of(path))
    wanted = [str(line["custom_id"]) for line in lines.read_lines(path)]
    records = lines.read_lines(paths.output)
    found = [str(record["custom_id"]) for record in records]
    rows = [row.line for row in ledger.read_rows(paths.ledger)]
    figures.update(num_input_lines=len(wanted), num_output_lines=len(found), num_ledger_rows=len(rows))
    check_lines(wanted, found)
    if rows != list(range(1, len(wanted) + 1)):
        raise ReconcileError(f"the ledger has {len(rows)} rows; expected one for each of {len(wanted)} lines")
    if empty := [record["custom_id"] for record in records if record["error"] or not record["response"]]:
        raise ReconcileError(f"{len(empty)} lines have no answer, such as {empty[0]}; expected none")
    if left := [path.name for path in (paths.failed, paths.retry) if path.exists()]:
        raise ReconcileError(f"{', '.join(left)}: there, though no request failed")


def check_lines(wanted: list[str], found: list[str]) -> None:
    """Check that the output's custom_ids are the input's, each once and in its place.

    Raises:
        ReconcileError: They are not.
    """
    if twice := [name for name, count in Counter(found).items() if count > 1]:
        raise ReconcileError(f"{len(twice)} lines are there twice, such as {twice[0]}; expected each once")
    if missing := [name for name in wanted if name not in set(found)]:
        raise ReconcileError(f"{len(missing)} lines are missing, such as {missing[0]}; expected all")
    if len(found) != len(wanted):
        raise ReconcileError(f"{len(found)} lines; expected {len(wanted)}")
    for number, (name, other) in enumerate(zip(wanted, found, strict=True), start=1):
        if name != other:
            raise ReconcileError(f"output line {number} is {other}; expected {name}")


def requests_path(state: AcceptState) -> Path:
    """Return the file of the run that is killed."""
    return state.work_dir / "requests.jsonl"


def count_rows(ledger_path: Path) -> int:
    """Return how many results another process has committed; 0 where there is no ledger yet."""
    try:
        with contextlib.closing(sqlite3.connect(f"{ledger_path.as_uri()}?mode=ro", uri=True)) as connection:
            return int(connection.execute("SELECT count(*) FROM results").fetchone()[0])
    except sqlite3.OperationalError:  # not there, or its tables are not
        return 0


def _output_of(path: Path) -> Path:
    return path.with_suffix(".out.jsonl")


def _start(state: AcceptState, name: str, path: Path, concurrency: int) -> Child:
    reference = state.engines[state.main_quant].manifest.reference
    arguments = ["--engine", reference, "--model-alias", "*", "--concurrency", concurrency, "--no-dedup"]
    arguments += ["--order", "input", "--grace", GRACE_S, "--json"]
    return state.commands.start(name, "run", path, "-o", _output_of(path), *arguments)


def _wait_for_rows(state: AcceptState, child: Child, num_rows: int) -> None:
    path = RunPaths(_output_of(requests_path(state))).ledger
    timeout_s = default_start_timeout_s(state.engines[state.main_quant].manifest) + RUN_TIMEOUT_S
    try:
        child.wait_until(lambda: count_rows(path) >= num_rows, timeout_s, f"it had {num_rows} results")
    except StepFailedError as exc:
        if child.poll() == 0:
            raise StepFailedError(f"{exc.message}: it was done before", "a larger --num-requests") from exc
        raise


def _kill(state: AcceptState, child: Child, num_rows: int, figures: Figures) -> int:
    """Kill a run in its middle; returns how many results are on disk."""
    paths = RunPaths(_output_of(requests_path(state)))
    _wait_for_rows(state, child, num_rows)
    child.send(signal.SIGKILL)
    child.wait(GONE_TIMEOUT_S)
    started = time.monotonic()
    if left := wait_gone((paths.folder,), GONE_TIMEOUT_S):
        raise StepFailedError(f"{GONE_TIMEOUT_S:g} s after the kill still there: {', '.join(left)}")
    kept = count_rows(paths.ledger)
    figures.update(kept_by_kill=kept, server_gone_after_s=round(time.monotonic() - started, 3))
    if paths.output.exists() or kept >= state.options.num_requests:
        raise StepFailedError("the run was done before it was killed", "a larger --num-requests")
    return kept


def _interrupt(state: AcceptState, child: Child, num_rows: int, figures: Figures) -> int:
    """Stop a run as a Ctrl-C does; returns how many results are on disk."""
    paths = RunPaths(_output_of(requests_path(state)))
    _wait_for_rows(state, child, num_rows)
    child.send(signal.SIGINT)
    code = child.wait(RUN_TIMEOUT_S)
    kept = count_rows(paths.ledger)
    figures.update(kept_by_interrupt=kept, interrupt_exit_code=code)
    if code != RunInterruptedError.exit_code:
        raise StepFailedError(f"{child.failure('ended').message}; expected {RunInterruptedError.exit_code}")
    if paths.output.exists():
        raise StepFailedError("an interrupted run has published its output; expected none yet")
    return kept
