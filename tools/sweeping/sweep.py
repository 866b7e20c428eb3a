"""The sweep: one server after the other, one point after the other, each on disk when it is over.

A point that cannot be measured is a result, with its reason; it never ends the sweep, and a server that it
took down is started again for the next one.
"""

from __future__ import annotations

import contextlib
import datetime
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from trtb.build import files
from trtb.build.errors import TrtbError
from trtb.build.store import EngineStore, StoredEngine
from trtb.runner.errors import RunInterruptedError
from trtb.runner.options import RunOptions
from trtb.tools.sweeping import workload
from trtb.tools.sweeping.export import ExportError, figures_of, read_export, times_of
from trtb.tools.sweeping.metrics import watching
from trtb.tools.sweeping.perf_analyzer import Load, PerfAnalyzer, RunFailure, command_of, run_command
from trtb.tools.sweeping.plan import PlannedPoint, SweepPlan
from trtb.tools.sweeping.point import PointRun, State, SweepPoint, median_of, spread_of
from trtb.tools.sweeping.settings import Settings
from trtb.tools.sweeping.store import SweepFolder
from trtb.tools.sweeping.target import Target, TargetOptions, Tell, engine_of, named_target, own_target

MIN_RUNS: Final = 3  # two agree by chance
MIN_RUN_S: Final = 1.0  # that must be left of a point's time for another run


@dataclass(frozen=True, slots=True)
class SweepJob:
    """All that a sweep needs."""

    plan: SweepPlan
    folder: SweepFolder
    stored: StoredEngine
    analyzer: PerfAnalyzer
    target: TargetOptions
    input_options: RunOptions | None  # of the user's file; None: synthetic prompts
    tell: Tell


def run_sweep(job: SweepJob) -> list[SweepPoint]:
    """Measure every point that is not finished; returns all of them.

    Raises:
        RunInterruptedError: A signal came; the same call goes on with the points that are missing.
        TrtbError: The only server of the sweep does not start.
    """
    planned = job.plan.points()
    done = sum(job.folder.has_point(point.name) for point in planned)
    if done:
        job.tell(f"{done} of {len(planned)} points are there already")
    try:
        with _terminable():
            for settings, points in job.plan.groups():
                if todo := [point for point in points if not job.folder.has_point(point.name)]:
                    _measure_group(job, settings, todo)
    except KeyboardInterrupt as exc:
        done = len(job.folder.points())
        raise RunInterruptedError(
            f"{job.folder.path}: interrupted with {done} of {len(planned)} points measured",
            "the same command resumes it",
        ) from exc
    finally:
        job.folder.clean()
    return job.folder.points()


def engine_that_answered(job: SweepJob, point: SweepPoint) -> StoredEngine | None:
    """Return the engine whose server of our own a point measured; None where the server was another's."""
    if job.plan.endpoint is not None:
        return None
    return EngineStore(job.target.home).find(point.engine_id)


def _measure_group(job: SweepJob, settings: Settings, todo: Sequence[PlannedPoint]) -> None:
    """Measure the points of one server; where it fails, they have failed.

    Raises:
        TrtbError: It is the only one of the sweep, and was never there.
    """
    has_started = False
    try:
        stored = engine_of(settings, job.stored, job.target.home, job.tell)
        with _target(job, settings, stored) as target:
            has_started = True
            for point in todo:
                target.ensure_alive(job.tell)
                measured = _Measurement(job, target, point).execute()
                job.folder.write_point(measured)
                job.tell(_describe(measured))
    except TrtbError as exc:
        if not settings and not has_started:
            raise
        for point in todo:
            if not job.folder.has_point(point.name):
                job.folder.write_point(_failed(point, exc.message))
                job.tell(f"{point.name}: failed: {exc.message}")


def _target(job: SweepJob, settings: Settings, stored: StoredEngine) -> AbstractContextManager[Target]:
    if job.plan.endpoint is not None:
        return named_target(job.plan.endpoint, stored, job.target)
    named = ", ".join(f"{name} {value}" for name, value in settings.items())
    job.tell(f"starting a server of {stored.manifest.reference}" + (f": {named}" if named else ""))
    job.folder.work_dir.mkdir(parents=True, exist_ok=True)
    return own_target(stored, settings, job.target, job.folder.work_dir, job.tell)


class _Measurement:
    """The runs of one point, until they agree, or its time is up."""

    def __init__(self, job: SweepJob, target: Target, point: PlannedPoint) -> None:
        self._job = job
        self._target = target
        self._point = point
        self._runs: list[PointRun] = []
        self._failed_command: list[str] = []
        self._deadline = time.monotonic() + job.plan.point_timeout_s

    def execute(self) -> SweepPoint:
        """Run perf_analyzer until the point is settled, one way or the other."""
        plan = self._job.plan
        while len(self._runs) < plan.repeats:
            left_s = self._deadline - time.monotonic()
            if self._runs and left_s < MIN_RUN_S:
                return self._settle("unstable", f"the time was up after {len(self._runs)} runs")
            failure = self._run(len(self._runs), left_s)
            left_s = self._deadline - time.monotonic()
            if failure is not None and failure.kind == "no_export" and left_s >= MIN_RUN_S:
                self._job.tell(
                    f"{self._point.name}: {failure.why}; once more"
                )  # seen of a run that went well
                failure = self._run(len(self._runs), left_s)
            if failure is not None:
                if failure.kind == "timeout" and self._runs:
                    return self._settle("unstable", f"the time was up after {len(self._runs)} runs")
                return self._settle("unstable" if failure.kind == "unstable" else "failed", failure.why)
            spread = self._spread()
            is_told = len(self._runs) >= min(MIN_RUNS, plan.repeats)
            if is_told and spread is not None and spread <= plan.max_spread:
                return self._settle("ok", "")
        spread = self._spread()
        if spread is None:
            return self._settle("ok", "")  # one run was asked for: nobody knows, nobody asked
        return self._settle(
            "unstable",
            f"spread {spread:.1%} after {plan.repeats} runs; expected {plan.max_spread:.1%} at most",
        )

    def _run(self, index: int, timeout_s: float) -> RunFailure | None:
        point, folder = self._point, self._job.folder
        folder.work_dir.mkdir(parents=True, exist_ok=True)
        load = Load(
            self._target.endpoint,
            point.mode,
            point.value,
            point.num_requests + point.num_warmup,
            folder.work_dir / "input.json",
        )
        workload.write_input_data(load.input_data, self._entries(index))
        raw = folder.work_dir / "export.json"
        command = self._failed_command = command_of(self._job.analyzer, load, raw)
        started_at = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
        has_gpus = self._target.stored.manifest.backend == "tensorrt_llm"
        try:
            with watching(self._target.servers, has_gpus=has_gpus) as looks:
                failure = run_command(self._job.analyzer, command, raw, timeout_s, self._target.fault)
            if failure is not None:
                files.write_atomic(folder.log_path(point.name), "\n".join(failure.said).encode() + b"\n")
                return failure
            self._runs.append(self._read_run(index, raw, command, started_at, looks.figures()))
        except ExportError as exc:
            return RunFailure("bad_export", str(exc))
        finally:
            raw.unlink(missing_ok=True)  # it holds prompts and answers
        self._failed_command = []
        return None

    def _read_run(
        self, index: int, raw: Path, command: list[str], started_at: str, metrics: dict[str, float]
    ) -> PointRun:
        """Return what a run measured; the times that it stands on are kept."""
        folder, point = self._job.folder, self._point
        answers = read_export(raw)
        figures = figures_of(
            answers,
            num_warmup=point.num_warmup,
            is_streamed=True,
            latency_limit_ms=self._job.plan.latency_limit_ms,
        )
        kept = folder.export_path(point.name, index)
        files.write_atomic(kept, times_of(answers))
        values: dict[str, Any] = {**dict(figures), "metrics": metrics}
        return PointRun(
            **values,
            command=command,
            perf_analyzer_version=self._job.analyzer.version,
            started_at=started_at,
            export=kept.relative_to(folder.path).as_posix(),
        )

    def _entries(self, index: int) -> list[workload.Entry]:
        """Return the prompts of a run: other ones in each, unless they are the user's."""
        point, stored = self._point, self._target.stored
        count = point.num_requests + point.num_warmup
        if self._job.input_options is not None:
            return workload.file_entries(self._job.input_options, count)
        assert point.lengths is not None
        return workload.synthetic_entries(
            stored.manifest,
            stored.path / "tokenizer",
            point.lengths,
            count,
            seed=f"{self._job.plan.seed}:{point.name}:{index}",
        )

    def _spread(self) -> float | None:
        return spread_of([run.output_tokens_per_s for run in self._runs])

    def _settle(self, state: State, why: str) -> SweepPoint:
        manifest = self._target.stored.manifest
        return SweepPoint(
            name=self._point.name,
            settings=self._point.settings,
            mode=self._point.mode,
            value=self._point.value,
            state=state,
            why=why,
            runs=self._runs,
            median=median_of(self._runs),
            spread=self._spread(),
            failed_command=self._failed_command,
            engine=manifest.reference,
            engine_id=manifest.engine_id,
        )


def _failed(point: PlannedPoint, why: str) -> SweepPoint:
    return SweepPoint(
        name=point.name,
        settings=point.settings,
        mode=point.mode,
        value=point.value,
        state="failed",
        why=why,
    )


def _describe(point: SweepPoint) -> str:
    if point.median is None:
        return f"{point.name}: {point.state}: {point.why}"
    spread = "" if point.spread is None else f", spread {point.spread:.1%} over {len(point.runs)} runs"
    why = f": {point.why}" if point.why else ""
    return f"{point.name}: {point.state}{why}, {point.median.output_tokens_per_s:.1f} output tokens/s{spread}"


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    """Let SIGTERM end the sweep as Ctrl-C does."""

    def interrupt(_number: int, _frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
