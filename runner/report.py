"""The report of a run: what it did, in figures, from its ledger and its record."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict

from trtb.build import files
from trtb.build.errors import ConfigError
from trtb.runner.metrics import Histogram, RunTotals
from trtb.runner.run_folder import RunPaths, RunRecord
from trtb.runner.wording import counted

SCHEMA_VERSION: Final = 1


class Durations(BaseModel):
    """Percentiles of one kind of duration, in milliseconds; null where nothing was measured."""

    model_config = ConfigDict(strict=True, extra="forbid")

    p50_ms: float | None
    p90_ms: float | None
    p99_ms: float | None
    max_ms: float | None


class FailureGroup(BaseModel):
    """The failures of one code."""

    model_config = ConfigDict(strict=True, extra="forbid")

    code: str
    count: int
    samples: list[str]  # custom_ids, or lines where there is none


class ScheduleReport(BaseModel):
    """In which order the last session sent its requests, and what came of it."""

    model_config = ConfigDict(strict=True, extra="forbid")

    order: Literal["prefix", "length", "input"]
    why: str
    planning_s: float  # of looking at the file, before its first request
    num_prefixes: int  # that several requests share
    num_grouped: int  # requests that share one
    num_leaders: int  # requests of our own that computed a prefix for others
    # shares of the prompt tokens that the engine need not compute; null where not counted, or not seen
    expected_reuse: float | None
    seen_reuse: float | None
    seen_by: Literal["engine counters", "derived from prefill times"] | None
    unseen_why: str | None = None  # in the order of prefixes: why seen_reuse is null


class AdmissionReport(BaseModel):
    """What bounded the requests in flight in the last session."""

    model_config = ConfigDict(strict=True, extra="forbid")

    policy: Literal["worst_case", "learned"]  # how a request's blocks are counted
    num_kv_blocks: int | None  # of all servers together; null: the servers did not tell
    max_blocks_held: int  # of the fullest server, as counted
    output_share: float  # of its max_tokens that an answer is counted with; learned, else 1
    num_full: int  # times a server refused a request for want of room
    min_bound: int  # the least requests in flight that a server was held to by that
    last_bound: int


class RunReport(BaseModel):
    """`report.json`, and what `trtb run --json` prints."""

    model_config = ConfigDict(strict=True, extra="forbid")

    schema_version: Literal[1] = SCHEMA_VERSION
    run_id: str
    state: Literal["finished", "interrupted"]
    output: str
    input_sha256: str
    engine: str
    engine_id: str
    total: int
    completed: int
    failed: int
    remaining: int  # without a result yet; 0 in a finished run
    resumed: int  # results that were there when the last session began
    truncated: int  # answers that max_tokens cut
    finish_reasons: dict[str, int]
    failures: list[FailureGroup]
    attempts: int  # requests sent, over all sessions, for the lines that have a result
    server_restarts: int  # in the last session
    prompt_tokens: int
    completion_tokens: int
    # of the last session, from its first request to its last answer
    duration_s: float
    requests_per_s: float  # completed ones; a failure may take no time at all
    output_tokens_per_s: float
    max_in_flight: int
    concurrency: int
    request_latency: Durations
    ttft: Durations
    # greedy and seeded answers do not depend on what else was in flight; null: the server did not tell
    is_exact: bool | None
    reused: int = 0  # of the completed: answered by an equal request's answer
    schedule: ScheduleReport | None = None
    admission: AdmissionReport | None = None
    warnings: list[str]


def durations(histogram: Histogram) -> Durations:
    """Return a histogram's percentiles."""

    def ms(value_ns: int | None) -> float | None:
        return None if value_ns is None else round(value_ns / 1e6, 3)

    return Durations(
        p50_ms=ms(histogram.percentile(0.5)),
        p90_ms=ms(histogram.percentile(0.9)),
        p99_ms=ms(histogram.percentile(0.99)),
        max_ms=ms(histogram.max_value if histogram.count else None),
    )


@dataclass(slots=True)
class SessionFigures:
    """What only the process that ran the requests knows."""

    num_resumed: int
    concurrency: int
    num_completed: int = 0  # of this session
    num_tokens: int = 0  # output tokens of this session
    num_restarts: int = 0
    duration_s: float = 0.0
    max_in_flight: int = 0
    is_exact: bool | None = None
    schedule: ScheduleReport | None = None
    admission: AdmissionReport | None = None


def make_report(
    record: RunRecord,
    paths: RunPaths,
    totals: RunTotals,
    session: SessionFigures,
    warnings: list[str],
    state: Literal["finished", "interrupted"],
) -> RunReport:
    """Put a report together."""
    failures = [
        FailureGroup(code=code, count=count, samples=totals.samples[code])
        for code, count in totals.codes.most_common()
    ]
    truncated = totals.finish_reasons.get("length", 0)
    notes = list(warnings)
    if truncated:
        notes.append(f"{counted(truncated, 'answer')} cut by max_tokens (finish_reason length)")
    if session.is_exact is False:
        notes.append(
            "greedy and seeded answers may depend on what else was in flight: this CPU computes in low "
            "precision (--deterministic: in f32, more slowly)"
        )
    seconds = max(session.duration_s, 1e-9)
    return RunReport(
        run_id=record.run_id,
        state=state,
        output=str(paths.output),
        input_sha256=record.input_sha256,
        engine=record.engine,
        engine_id=record.engine_id,
        total=record.total,
        completed=totals.completed,
        failed=totals.failed,
        remaining=record.total - totals.total,
        resumed=session.num_resumed,
        truncated=truncated,
        finish_reasons=dict(totals.finish_reasons),
        failures=failures,
        attempts=totals.attempts,
        server_restarts=session.num_restarts,
        prompt_tokens=totals.prompt_tokens,
        completion_tokens=totals.completion_tokens,
        duration_s=round(session.duration_s, 3),
        requests_per_s=round(session.num_completed / seconds, 3),
        output_tokens_per_s=round(session.num_tokens / seconds, 3),
        max_in_flight=session.max_in_flight,
        concurrency=session.concurrency,
        request_latency=durations(totals.latency),
        ttft=durations(totals.ttft),
        is_exact=session.is_exact,
        reused=totals.reused,
        schedule=session.schedule,
        admission=session.admission,
        warnings=notes,
    )


def write_report(paths: RunPaths, report: RunReport) -> None:
    """Write report.json; it is durable when this returns."""
    files.write_atomic(paths.report, report.model_dump_json(indent=2).encode() + b"\n")


def read_report(paths: RunPaths) -> RunReport:
    """Read a run's report.

    Raises:
        ConfigError: There is none, or it is another version's.
    """
    try:
        return RunReport.model_validate_json(paths.report.read_bytes())
    except FileNotFoundError as exc:
        raise ConfigError(
            f"{paths.folder}: no report; expected the folder of a run that has ended (OUTPUT.run)",
            "give the run's folder, or its output file",
        ) from exc
    except ValueError as exc:
        raise ConfigError(f"{paths.report}: not a report of schema version {SCHEMA_VERSION}") from exc
