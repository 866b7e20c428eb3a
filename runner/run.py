"""The run: validate, resume or begin, work, publish, reconcile, report. The order of things, no more.

Whatever can be refused is refused before a server starts.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from trtb.build import files
from trtb.runner import follow, job_file, ledger, publish, report, run_folder
from trtb.runner.caching.cached_run import CachedRun
from trtb.runner.errors import InputRefusedError, RunInterruptedError, TooManyFailuresError
from trtb.runner.exactness import weakest
from trtb.runner.line_set import LineSet
from trtb.runner.metrics import RunTotals
from trtb.runner.options import Observer, Progress, RunOptions
from trtb.runner.recording import recording
from trtb.runner.records import answers_id
from trtb.runner.report import RunReport, SessionFigures
from trtb.runner.run_folder import RunFolder, RunRecord
from trtb.runner.validate import ValidationReport, validate_file

log = logging.getLogger(__name__)


def run_batch(options: RunOptions, observer: Observer = lambda _: None) -> RunReport:
    """Answer every line of the input file; returns when the output is published.

    Raises:
        TrtbError: The run was refused, interrupted, or lost its server; see the class for the exit code.
            What was done is on disk, and the same call resumes it.
    """
    run_folder.check_output(options.input_path, options.output, options.follow)
    folder = RunFolder(options.output)
    if not options.overwrite:
        folder.check_free()
    _check_followed(options, folder)
    with _interruptible():
        return _Run(options, folder, observer).execute()


def _check_followed(options: RunOptions, folder: RunFolder) -> None:
    """Refuse a followed file with lines that are not of the run; its folder is as it was then."""
    if options.follow is None:
        return
    record = None if options.overwrite else folder.read()
    if record is None or not record.has_followed(options.follow):
        follow.check_free(options.follow)


class _Run:
    """One call of `run_batch`."""

    def __init__(self, options: RunOptions, folder: RunFolder, observer: Observer) -> None:
        self._options = options
        self._folder = folder
        self._paths = folder.paths
        self._observer = observer
        self._progress = Progress()
        self._warnings: list[str] = []

    def execute(self) -> RunReport:
        """Go through the steps."""
        checked = self._validate()
        self._check_machine()
        self._folder.acquire()
        try:
            return self._run(checked)
        finally:
            self._folder.release()

    def _run(self, checked: ValidationReport) -> RunReport:
        record, is_resumed = self._folder.begin(self._new_record(checked), overwrite=self._options.overwrite)
        with _log_to(self._paths.log), self._left_resumable(record):
            done = self._done_lines(record) if is_resumed else LineSet()
            if self._options.follow is not None:
                self._repair(self._options.follow, record)
            figures = self._work(record, done, checked.invalid_lines)
            if record.state == "interrupted":
                self._leave(record, figures)
            return self._finish(record, figures)

    def _validate(self) -> ValidationReport:
        options = self._options
        self._observer(self._progress)
        checked = validate_file(
            options.input_path,
            model_names=options.model_names,
            strict_params=options.strict_params,
            capabilities=options.capabilities(),
            max_line_bytes=options.max_line_bytes,
        )
        if checked.is_refused or (checked.has_errors and options.on_invalid == "refuse"):
            raise InputRefusedError(options.input_path, checked)
        self._warnings += [found.message for found in checked.findings if found.severity == "warning"]
        self._progress.total = checked.total if options.limit is None else min(checked.total, options.limit)
        return checked

    def _check_machine(self) -> None:
        """Refuse a new run whose server could not start here; a resumed or a cached one may need none."""
        if self._folder.read() is None and not self._options.cache:
            from trtb.runner import deploy  # the client: a second to import

            deploy.check(self._options)

    def _new_record(self, checked: ValidationReport) -> RunRecord:
        options = self._options
        now = run_folder.now_iso()
        return RunRecord(
            run_id=secrets.token_hex(6),
            state="running",
            input_path=str(options.input_path.resolve()),
            input_sha256=checked.sha256,
            input_bytes=checked.num_bytes,
            total=self._progress.total,
            engine_id=options.manifest.engine_id,
            engine=options.manifest.reference,
            settings=options.settings(),
            job=options.job(),
            versions=run_folder.versions(),
            host=run_folder.host_name(),
            created_at=now,
            created_s=int(time.time()),
            updated_at=now,
            followed=[] if options.follow is None else [str(options.follow.resolve())],
        )

    def _done_lines(self, record: RunRecord) -> LineSet:
        done = LineSet()
        for line, _ in ledger.done_lines(self._paths.ledger):
            done.add(line)
        self._progress.num_resumed = len(done)
        log.info("resumed with %d results of %d", len(done), record.total)
        return done

    def _work(self, record: RunRecord, done: LineSet, invalid: LineSet) -> SessionFigures:
        """Let a session answer what is not done; a finished ledger needs none."""
        figures = SessionFigures(num_resumed=len(done), concurrency=self._options.concurrency)
        if len(done) == record.total:
            return figures
        if not self._options.cache:
            self._run_session(record, done, invalid, figures, None)
            return figures
        cached_run = CachedRun(self._options, record, self._paths)
        try:
            self._enter("looking up the result cache")
            with recording(self._paths.ledger, self._options.follow, self._progress) as add:
                cached_run.look_up(done, invalid, add)
            figures.is_exact = weakest(cached_run.exactness)
            if len(done) == record.total:
                return figures
            if cached_run.is_interrupted:
                record.state = "interrupted"
                return figures
            self._run_session(record, done, invalid, figures, cached_run)
        finally:
            cached_run.close()
            self._warnings += cached_run.warnings
            figures.cache = cached_run.report()
        return figures

    def _run_session(
        self,
        record: RunRecord,
        done: LineSet,
        invalid: LineSet,
        figures: SessionFigures,
        cached_run: CachedRun | None,
    ) -> None:
        """Let the servers answer what is left."""
        from trtb.runner.scheduling.schedule_report import canary_figures
        from trtb.runner.session import Session  # the tokenizer and the client: a second to import

        session = Session(self._options, record, self._paths, self._progress, self._observer, cached_run)
        asyncio.run(session.work(done, invalid))
        if session.is_interrupted and self._progress.num_done < record.total:
            record.state = "interrupted"
        num_aside = 0
        if session.canary.stop is not None and self._progress.num_done < record.total:
            record.state = "interrupted"
            num_aside = ledger.reopen_failures(self._paths.ledger, lines=session.canary.failed_lines)
        figures.canary = canary_figures(session.canary, num_aside)
        num_hits = cached_run.num_hits if cached_run else 0
        figures.num_completed = self._progress.num_completed - num_hits
        figures.num_tokens = self._progress.num_tokens
        figures.num_restarts = session.num_restarts
        figures.duration_s = session.duration_s
        figures.max_in_flight = session.max_in_flight
        figures.is_exact = weakest({session.is_exact, *(cached_run.exactness if cached_run else ())})
        figures.schedule = session.schedule
        figures.admission = session.admission
        figures.diagnosis = session.diagnosis
        figures.sample_fault = session.observation.fault

    def _enter(self, phase: str) -> None:
        log.info("%s", phase)
        self._progress.enter(phase)
        self._observer(self._progress)

    def _repair(self, path: Path, record: RunRecord) -> None:
        """Make the followed file whole."""
        follow.repair(
            path, self._paths.ledger, answers_id(record.input_sha256, record.engine_id, record.settings)
        )

    @contextlib.contextmanager
    def _left_resumable(self, record: RunRecord) -> Iterator[None]:
        """Whatever ends the run early, its record says that it can go on."""
        try:
            yield
        except BaseException as exc:
            log.error("the run ended early: %s: %s", type(exc).__name__, exc)
            record.state = "interrupted"
            raise
        finally:
            self._folder.write(record)

    def _finish(self, record: RunRecord, figures: SessionFigures) -> RunReport:
        """Publish, reconcile and report."""
        self._progress.enter("publishing")
        self._observer(self._progress)
        options = self._options
        plan = publish.PublishPlan(
            options.input_path, self._paths, options.max_line_bytes, options.limit, record.total
        )
        totals = publish.publish(plan)
        files.write_atomic(self._paths.folder / job_file.FILE_NAME, job_file.to_yaml(record))
        made = self._report(record, totals, figures, "finished")
        record.state = "finished"
        log.info("finished: %d completed, %d failed", totals.completed, totals.failed)
        self._progress.enter("finished")
        self._observer(self._progress)
        return made

    def _leave(self, record: RunRecord, figures: SessionFigures) -> None:
        """Report an interrupted run; its output is not published."""
        totals = RunTotals()
        for row in ledger.read_rows(self._paths.ledger):
            totals.add(row)
        self._report(record, totals, figures, "interrupted")
        if figures.canary is not None and figures.canary.why is not None:
            raise TooManyFailuresError(
                f"stopped: {figures.canary.why}; "
                f"{totals.total} of {record.total} requests are done, and on disk",
                f"mend the cause ({self._paths.log} may tell it); the same command then goes on, and sends "
                "these again; to run whatever fails: --canary 0 without --max-failure-rate",
            )
        raise RunInterruptedError(
            f"interrupted with {totals.total} of {record.total} requests done; they are on disk",
            "the same command goes on where this one stopped",
        )

    def _report(
        self,
        record: RunRecord,
        totals: RunTotals,
        figures: SessionFigures,
        state: Literal["finished", "interrupted"],
    ) -> RunReport:
        made = report.make_report(record, self._paths, totals, figures, self._warnings, state)
        report.write_report(self._paths, made)
        return made


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Let SIGTERM end the run as SIGINT does, wherever nothing else hears of them.

    Raises:
        RunInterruptedError: One came.
    """
    is_main = threading.current_thread() is threading.main_thread()  # no other has signals
    before = signal.signal(signal.SIGTERM, signal.default_int_handler) if is_main else None
    try:
        yield
    except KeyboardInterrupt as exc:
        raise RunInterruptedError(
            "interrupted; what was answered is on disk", "the same command goes on where this one stopped"
        ) from exc
    finally:
        if is_main:
            signal.signal(signal.SIGTERM, before or signal.SIG_DFL)  # None: a handler that is not Python's


@contextlib.contextmanager
def _log_to(path: Path) -> Iterator[None]:
    """Send what our own loggers say to the run's log as well."""
    handler = logging.FileHandler(path, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logger = logging.getLogger("trtb")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        handler.close()
