"""The report of a run: what it did, in figures, from its ledger and its record."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict

from trtb.build import files
from trtb.build.errors import ConfigError
from trtb.runner.metrics import Histogram, RunTotals
from trtb.runner.reporting import warnings as remarks
from trtb.runner.reporting.diagnosis import Diagnosis
from trtb.runner.run_folder import RunPaths, RunRecord

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


class KvCacheReport(BaseModel):
    """What the engine told of its KV cache, over all sessions."""

    model_config = ConfigDict(strict=True, extra="forbid")

    num_requests: int  # that it told of: those that it answered itself
    prompt_tokens: int  # of them
    reused_blocks: int  # of these prompts, which were there already; one reused in part counts whole


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


class CacheReport(BaseModel):
    """What the last session had of the result cache."""

    model_config = ConfigDict(strict=True, extra="forbid")

    hits: int
    inexact_hits: int = 0  # of the hits: where they were computed, answers depend on company
    misses: int  # of requests that are greedy or name a seed; others are not looked up
    expired: int  # of the misses: there, but too old
    corrupted: int  # of the misses: there, but not as stored; dropped
    stored: int
    not_stored: int  # too large, too many at once, or after an error
    evicted: int  # by this session, to make room
    size_bytes: int | None  # of the cache's files; null where they cannot be read
    capacity_bytes: int
    look_up_s: float


class CanaryReport(BaseModel):
    """What the last session's watch over failures saw; only those count that speak of the system."""

    model_config = ConfigDict(strict=True, extra="forbid")

    size: int  # requests that went alone
    held_s: float  # how long the others waited for the first token of one of them
    max_failure_rate: float | None  # null: a run is stopped only where the first `size` all fail
    window: int | None  # of how many requests, the last that ended, the rate is
    codes: dict[str, int]  # of the failures that counted
    stopped_by: Literal["canary", "rate"] | None
    why: str | None
    set_aside: int  # failures that are to do again, because the run was stopped


class RunReport(BaseModel):
    """`report.json`, and what `trtb run --json` prints."""

    model_config = ConfigDict(strict=True, extra="forbid")

    schema_version: Literal[1] = SCHEMA_VERSION
    run_id: str
    state: Literal["running", "finished", "interrupted"]  # a report on disk is not of a running one
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
    # greedy and seeded answers of the last session do not depend on what else was in flight, where they
    # were computed; null: a server did not tell
    is_exact: bool | None
    reused: int = 0  # of the completed: answered by an equal request's answer
    cached: int = 0  # of the completed: answered by the result cache
    cache: CacheReport | None = None  # null: the last session did not use it
    kv_cache: KvCacheReport | None = None  # null: the engine does not count
    schedule: ScheduleReport | None = None
    admission: AdmissionReport | None = None
    diagnosis: Diagnosis | None = None  # of the last session
    canary: CanaryReport | None = None  # null: the last session sent nothing
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
    cache: CacheReport | None = None
    diagnosis: Diagnosis | None = None
    canary: CanaryReport | None = None
    sample_fault: str | None = None  # why the samples are not all on disk


def make_report(
    record: RunRecord,
    paths: RunPaths,
    totals: RunTotals,
    session: SessionFigures,
    warnings: list[str],
    state: Literal["running", "finished", "interrupted"],
) -> RunReport:
    """Put a report together."""
    failures = [
        FailureGroup(code=code, count=count, samples=totals.samples[code])
        for code, count in totals.codes.most_common()
    ]
    truncated = totals.finish_reasons.get("length", 0)
    notes = [*warnings, *_remarks(totals, session)]
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
        cached=totals.cached,
        cache=session.cache,
        kv_cache=_kv_cache(totals),
        schedule=session.schedule,
        admission=session.admission,
        diagnosis=session.diagnosis,
        canary=session.canary,
        warnings=notes,
    )


def _kv_cache(totals: RunTotals) -> KvCacheReport | None:
    if not totals.told:
        return None
    return KvCacheReport(
        num_requests=totals.told,
        prompt_tokens=totals.told_prompt_tokens,
        reused_blocks=totals.reused_blocks,
    )


def _remarks(totals: RunTotals, session: SessionFigures) -> list[str]:
    """Return what another setting would have done better."""
    admission = session.admission
    held = None if admission is None or not admission.num_kv_blocks else admission.max_blocks_held
    num_ended = totals.total - session.num_resumed - totals.reused - totals.cached
    return [
        *remarks.cut_answers(totals.finish_reasons.get("length", 0), totals.completed),
        *remarks.company(session.is_exact, session.cache.inexact_hits if session.cache else 0),
        *remarks.unused_places(
            session.max_in_flight,
            session.concurrency,
            num_ended,
            None if held is None or admission is None else held / (admission.num_kv_blocks or 1),
        ),
        *remarks.from_diagnosis(session.diagnosis, session.duration_s),
        *remarks.lost_samples(session.sample_fault),
    ]


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
    except OSError as exc:
        raise ConfigError(
            f"{paths.report}: {exc.strerror}; expected the report of a run",
            "move it away: it is made again from the ledger",
        ) from exc
    except ValueError as exc:
        raise ConfigError(f"{paths.report}: not a report of schema version {SCHEMA_VERSION}") from exc
