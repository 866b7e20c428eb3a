"""The report of any run: the one that it left, or one from its ledger while it goes on or was killed.

Reading takes nothing from a run that goes on: its lock is only tried, and its ledger is opened read only.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import sqlite3
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from trtb.build.errors import ConfigError
from trtb.runner import ledger
from trtb.runner.metrics import RunTotals
from trtb.runner.report import Durations, RunReport, SessionFigures, make_report, read_report
from trtb.runner.reporting.distribution import Distribution
from trtb.runner.reporting.ledger_scan import LedgerView, view_ledger
from trtb.runner.reporting.run_figures import RequestName, RunFigures, figures_of
from trtb.runner.reporting.run_sample import SampledRequest, answer_text, read_sample
from trtb.runner.run_folder import LOCK_FILE, RunFolder, RunPaths, RunRecord

State = Literal["running", "finished", "interrupted"]


@dataclass(frozen=True, slots=True)
class RunView:
    """A run at one moment: its record, its report, and the figures of its ledger."""

    record: RunRecord
    report: RunReport
    figures: RunFigures
    sample: tuple[SampledRequest, ...]
    messages: dict[str, str]  # of the first failure of each code; empty without texts
    is_stored: bool  # the report is the one that the run left; else it is made from the ledger


def current_report(paths: RunPaths) -> RunReport:
    """Return a run's report, in whatever state the run is.

    Raises:
        ConfigError: No run was begun here.
        LedgerError: The ledger cannot be read.
    """
    record = _read_record(paths)
    state = _state(record, paths)
    with _view(paths.ledger) as view:
        stored = _stored_report(record, paths, state, view)
        return stored or _made_report(record, paths, state, figures_of(view), view)


def view_run(paths: RunPaths, *, num_sampled: int = 0, seed: int = 0, with_texts: bool = False) -> RunView:
    """Return all that a run's folder tells of it; `with_texts` reads the sampled requests from the input.

    Raises:
        ConfigError: No run was begun here, or it is finished and its ledger has been removed.
        LedgerError: The ledger cannot be read.
    """
    record = _read_record(paths)
    state = _state(record, paths)
    if state == "finished" and not paths.ledger.exists():
        raise ConfigError(
            f"{paths.ledger}: not found; expected the ledger of a finished run",
            "the report is there without it, as text and with --json: trtb report RUN",
        )
    with _view(paths.ledger) as view:
        figures = figures_of(view, num_sampled=num_sampled, seed=seed)
        stored = _stored_report(record, paths, state, view)
        return RunView(
            record=record,
            report=stored or _made_report(record, paths, state, figures, view),
            figures=figures,
            messages=_messages(figures, view) if with_texts else {},
            sample=tuple(read_sample(view.rows(figures.sample), record, with_texts=with_texts)),
            is_stored=stored is not None,
        )


def _messages(figures: RunFigures, view: LedgerView) -> dict[str, str]:
    """Return what the first failure of each code says; it may quote the request."""
    rows = {row.line: row for row in view.rows([each.examples[0].line for each in figures.failures])}
    return {each.code: answer_text(rows[each.examples[0].line]) for each in figures.failures}


def _read_record(paths: RunPaths) -> RunRecord:
    record = RunFolder(paths.output).read()
    if record is None:
        raise ConfigError(
            f"{paths.folder}: no run was begun here; expected the folder of a run (OUTPUT.run)",
            "give the run's folder, or its output file",
        )
    return record


def _state(record: RunRecord, paths: RunPaths) -> State:
    """Return a run's state; one that was killed still says that it is running, and holds no lock."""
    if record.state == "running":
        return "running" if is_locked(paths.folder / LOCK_FILE) else "interrupted"
    return record.state


def is_locked(path: Path) -> bool:
    """Return whether a process holds a lock file, without taking it from anybody for longer than this."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    else:
        return False
    finally:
        os.close(descriptor)  # and with it the lock


@contextlib.contextmanager
def _view(path: Path) -> Iterator[LedgerView]:
    """View a ledger; an empty one where the run has not come to make it."""
    if path.exists():
        with view_ledger(path) as view:
            yield view
        return
    with contextlib.closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(ledger.SCHEMA)
        yield LedgerView(connection)


def _stored_report(record: RunRecord, paths: RunPaths, state: State, view: LedgerView) -> RunReport | None:
    """Return the report that the run left, unless the run has gone on since."""
    if state == "running":
        return None
    try:
        found = read_report(paths)
    except ConfigError:
        if paths.report.exists():
            raise
        return None
    if found.run_id != record.run_id or found.state != state:
        return None
    is_of_now = state == "finished" or found.completed + found.failed == view.num_rows()
    return found if is_of_now else None


def _made_report(
    record: RunRecord, paths: RunPaths, state: State, figures: RunFigures, view: LedgerView
) -> RunReport:
    """Make a report from what the ledger has; what only the run's own process knew is missing."""
    kv = figures.kv
    totals = RunTotals(
        completed=figures.num_completed,
        failed=figures.num_failed,
        reused=figures.num_equal,
        cached=figures.num_cached,
        prompt_tokens=figures.prompt_tokens,
        completion_tokens=figures.completion_tokens,
        attempts=figures.num_attempts,
        told=kv.num_requests if kv else 0,
        reused_blocks=kv.num_blocks if kv else 0,
        told_prompt_tokens=kv.prompt_tokens if kv else 0,
        codes=Counter({failure.code: failure.count for failure in figures.failures}),
        finish_reasons=Counter(figures.finish_reasons),
        samples={each.code: list(map(name_of, each.examples[:3])) for each in figures.failures},
    )
    made = make_report(record, paths, totals, _last_session(record, figures, view), [], state)
    update = {"request_latency": _durations(figures.latency), "ttft": _durations(figures.ttft)}
    return made.model_copy(update=update)


def name_of(name: RequestName) -> str:
    """Return what a person finds a request by."""
    return f"line {name.line}" if name.custom_id is None else name.custom_id


def _last_session(record: RunRecord, figures: RunFigures, view: LedgerView) -> SessionFigures:
    """Return what the ledger tells of the last session: its last span of time."""
    concurrency = record.job.get("concurrency")
    session = SessionFigures(num_resumed=0, concurrency=concurrency if isinstance(concurrency, int) else 0)
    if figures.spans:
        last = [each for each in figures.bins if each.span == len(figures.spans) - 1]
        session.num_completed = sum(each.num_finished for each in last)
        session.num_tokens = round(sum(each.output_tokens for each in last))
        session.duration_s = figures.spans[-1].duration_s
        session.max_in_flight = round(max(each.in_flight for each in last))
        if record.num_starts > 1:
            session.num_resumed = view.num_finished_before(figures.spans[-1].start_ns)
    return session


def _durations(found: Distribution | None) -> Durations:
    if found is None:
        return Durations(p50_ms=None, p90_ms=None, p99_ms=None, max_ms=None)
    p50, p90, p99, most = (round(value / 1e6, 3) for value in (found.p50, found.p90, found.p99, found.max))
    return Durations(p50_ms=p50, p90_ms=p90, p99_ms=p99, max_ms=most)
