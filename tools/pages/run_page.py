"""The page of a run: whether every request is accounted for, then what it gave, took and was made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from trtb.build.manifest import EngineManifest
from trtb.runner.report import CacheReport
from trtb.runner.reporting.current_report import RunView
from trtb.runner.reporting.diagnosis import NAMES, Diagnosis
from trtb.runner.reporting.run_figures import RequestName, RunFigures
from trtb.runner.reporting.run_sample import SampledRequest
from trtb.runner.reporting.samples import Sample
from trtb.runner.wording import counted
from trtb.tools.pages import run_charts, run_identity
from trtb.tools.pages.page import render
from trtb.tools.pages.printable import shown_count, shown_id, shown_seconds, shown_share, shown_text

NS_PER_S = 1e9
MAX_WARNINGS = 50
MAX_WARNING_CHARS = 600
S_PER_HOUR = 3600


@dataclass(frozen=True, slots=True)
class PageOptions:
    """What a page is made with beside the run."""

    made_at: str  # UTC, ISO 8601
    trtb_version: str
    cost_per_hour: float | None = None  # of all that the run used, in any currency
    sample_seed: int = 0
    has_texts: bool = False  # prompts, answers and error messages


def run_page(
    view: RunView, engine: EngineManifest | None, samples: Sequence[Sample], options: PageOptions
) -> str:
    """Return the page as HTML; no text of a prompt or an answer is in it unless `options.has_texts`."""
    figures, report = view.figures, view.report
    context: dict[str, Any] = {
        "name": shown_text(report.output),
        "state": report.state,
        "engine": f"{report.engine} ({report.engine_id[:12]})",
        "options": options,
        "headlines": _headlines(view, options),
        "reconciliation": _reconciliation(view),
        "warnings": [shown_id(warning, MAX_WARNING_CHARS) for warning in report.warnings[:MAX_WARNINGS]],
        "num_more_warnings": max(0, len(report.warnings) - MAX_WARNINGS),
        "failures": _failure_rows(figures),
        "messages": [(code, shown_text(text)) for code, text in view.messages.items()],
        "facts": _facts(view),
        "work": run_charts.work_figures(figures, report.concurrency, is_over=report.state != "running"),
        "distributions": run_charts.distribution_figures(figures),
        "causes": _cause_rows(report.diagnosis),
        "slowest": _slowest_rows(figures),
        "reuse": _reuse_rows(view, engine),
        "machine": run_charts.sample_figures(samples, figures.spans) if figures.spans else [],
        "has_samples": bool(samples),
        "cost": _cost_rows(figures, options),
        "sample": [_sampled(each) for each in view.sample],
        "run_rows": run_identity.run_rows(view.record),
        "engine_rows": run_identity.engine_rows(view.record, engine),
        "setting_rows": run_identity.setting_rows(view.record),
        "version_rows": run_identity.version_rows(view.record),
    }
    return render("run.html", context)


def _headlines(view: RunView, options: PageOptions) -> list[tuple[str, str, str]]:
    """Return what a reader came for."""
    figures, total = view.figures, view.record.total
    speed = figures.own_completion_tokens / figures.active_s if figures.active_s else 0.0
    rate = figures.num_own / figures.active_s if figures.active_s else 0.0
    found = [
        (
            "completed",
            shown_count(figures.num_completed),
            f"of {shown_count(total)}: {shown_share(figures.num_completed, total)}",
        ),
        ("failed", shown_count(figures.num_failed), shown_share(figures.num_failed, total)),
        ("output tokens/s", shown_count(speed), f"{shown_count(figures.completion_tokens)} in all"),
        ("answers/s", shown_count(rate), f"over {shown_seconds(figures.active_s)} at work"),
    ]
    if figures.latency is not None:
        p50, p99 = (shown_seconds(value / NS_PER_S) for value in (figures.latency.p50, figures.latency.p99))
        found.append(("request latency", p50, f"p50; p99 {p99}"))
    if options.cost_per_hour is not None:
        found.append(
            ("cost", f"{_cost(figures, options.cost_per_hour):,.4g}", f"{options.cost_per_hour:g} an hour")
        )
    return found


def _reconciliation(view: RunView) -> dict[str, Any]:
    """Return whether input = completed + failed + to do, by the ledger, and by the report that was left."""
    figures, total = view.figures, view.record.total
    left = total - figures.num_rows
    sums = (
        f"{shown_count(total)} requests = {shown_count(figures.num_completed)} completed "
        f"+ {shown_count(figures.num_failed)} failed + {shown_count(left)} to do"
    )
    faults = []
    if left < 0:
        faults.append(f"the ledger has {counted(-left, 'result')} more than the input has requests")
    if view.record.state == "finished" and left > 0:
        faults.append(f"the run is finished, and {counted(left, 'request')} have no result in the ledger")
    told = (view.report.completed, view.report.failed)
    if told != (figures.num_completed, figures.num_failed):
        faults.append(f"the run's own report says {told[0]} completed and {told[1]} failed")
    note = {
        "running": "The run goes on: this is its state when the page was made.",
        "interrupted": "The run was interrupted; the command that began it goes on where it stopped.",
        "finished": "The output has one line for each of them, in the order of the input.",
    }[view.report.state]
    return {"sums": sums, "faults": faults, "note": note, "is_complete": not left}


def _failure_rows(figures: RunFigures) -> list[list[str]]:
    return [
        [
            each.code,
            shown_count(each.count),
            shown_share(each.count, figures.num_rows),
            ", ".join(map(_name, each.examples)),
        ]
        for each in figures.failures
    ]


def _facts(view: RunView) -> list[tuple[str, str | list[str]]]:
    figures, report = view.figures, view.report
    reasons = [
        f"{reason}: {shown_count(count)} ({shown_share(count, figures.num_completed)})"
        for reason, count in figures.finish_reasons.items()
    ]
    resent = sum(count for times, count in figures.attempts.items() if times > 1)
    tokens = f"{shown_count(figures.prompt_tokens)} in, {shown_count(figures.completion_tokens)} out"
    peak = f"up to {shown_count(round(figures.peak_in_flight, 1))} as the mean of a step"
    rows: list[tuple[str, str | list[str]]] = [
        ("tokens", f"{tokens}, of what completed"),
        ("answers ended by", reasons or "none"),
        ("requests sent", f"{shown_count(figures.num_attempts)}; {counted(resent, 'line')} more than once"),
        ("time at work", _spans(figures)),
        ("in flight", f"{peak}, with a bound of {shown_count(report.concurrency)}"),
    ]
    is_told = report.diagnosis is not None  # by its own measure, which is finer
    if figures.spans and report.state == "finished" and not is_told:  # else the last have not ended
        rows.append(("long tail", _tail(figures)))
    if figures.num_superseded:
        rows.append(("replaced", f"{counted(figures.num_superseded, 'failure')}, by trtb retry"))
    if report.server_restarts:
        rows.append(("servers", f"started again {counted(report.server_restarts, 'time')}"))
    if report.schedule is not None:
        rows.append(("order", f"{report.schedule.order}: {report.schedule.why}"))
    if report.is_exact is not None:
        exact = "do not depend" if report.is_exact else "may depend"
        rows.append(("greedy and seeded answers", f"{exact} on what else was in flight"))
    if report.admission is not None:
        held = report.admission
        pool = "an unknown number" if held.num_kv_blocks is None else shown_count(held.num_kv_blocks)
        most = f"at most {shown_count(held.max_blocks_held)} of {pool} of KV blocks held"
        refused = f"servers refused {counted(held.num_full, 'time')} for want of room"
        rows.append(("admission", f"{most}; {refused}"))
    return rows


def _spans(figures: RunFigures) -> str:
    if not figures.spans:
        return "none: the engine answered nothing"
    whole = shown_seconds(figures.active_s)
    pauses = len(figures.spans) - 1
    return f"{whole}, and {counted(pauses, 'pause')} between" if pauses else whole


def _tail(figures: RunFigures) -> str:
    """Return how long the run waited for its last answers."""
    tail = figures.tail
    if tail is None:
        return "none"
    share = shown_share(tail.duration_s, figures.spans[-1].duration_s)
    return (
        f"the last {shown_seconds(tail.duration_s)} ({share} of the last stretch), with under a quarter of "
        f"the peak in flight; {counted(tail.num_finished, 'answer')} ended in them"
    )


def _cause_rows(diagnosis: Diagnosis | None) -> list[list[str]]:
    """Return what the last session's time went into, the greatest share first."""
    if diagnosis is None:
        return []
    rows = [
        [NAMES[each.kind], f"{each.share:.0%}", "; ".join(each.evidence), each.setting]
        for each in diagnosis.bottlenecks
    ]
    if diagnosis.unknown_why is not None:
        rows.append(["cannot tell", f"{diagnosis.unknown_share:.0%}", diagnosis.unknown_why, ""])
    return rows


def _slowest_rows(figures: RunFigures) -> list[list[str]]:
    return [
        [
            _name(each.name),
            shown_count(each.name.line),
            shown_seconds(each.latency_ns / NS_PER_S),
            shown_seconds(each.ttft_ns / NS_PER_S) if each.ttft_ns else "not told",
            shown_count(each.prompt_tokens),
            shown_count(each.completion_tokens),
        ]
        for each in figures.slowest
    ]


def _reuse_rows(view: RunView, engine: EngineManifest | None) -> list[tuple[str, str]]:
    """Return what needed not be computed, of answers and of prompts."""
    figures, schedule = view.figures, view.report.schedule
    completed = figures.num_completed
    rows = [
        ("of equal requests", f"{counted(figures.num_equal, 'answer')} {_of(figures.num_equal, completed)}"),
        (
            "of the result cache",
            f"{counted(figures.num_cached, 'answer')} {_of(figures.num_cached, completed)}",
        ),
    ]
    if view.report.cache is not None:
        rows.append(("result cache, last start", _cache(view.report.cache)))
    if figures.kv is not None:
        kv = figures.kv
        text = f"{shown_count(kv.num_blocks)} over {shown_count(kv.num_requests)} requests"
        if engine is not None:
            tokens = kv.num_blocks * engine.limits.tokens_per_block
            text += f": {shown_share(tokens, kv.prompt_tokens)} of their prompt tokens"
        rows.append(("KV blocks reused", text))
    if schedule is not None and schedule.expected_reuse is not None:
        rows.append(("prompt tokens, expected", f"{schedule.expected_reuse:.1%} need not be computed"))
    if schedule is not None and schedule.seen_reuse is not None:
        rows.append(("prompt tokens, seen", f"{schedule.seen_reuse:.1%} ({schedule.seen_by})"))
    elif schedule is not None and schedule.unseen_why is not None:
        rows.append(("prompt tokens, seen", f"not told: {schedule.unseen_why}"))
    return rows


def _cache(cache: CacheReport) -> str:
    looked_up = cache.hits + cache.misses
    hits = f"{shown_count(cache.hits)} of {counted(looked_up, 'look-up')} found"
    return f"{hits}, {shown_count(cache.stored)} stored, {shown_count(cache.evicted)} evicted"


def _of(part: int, whole: int) -> str:
    share = shown_share(part, whole)
    return f"({share})" if part and share else ""


def _cost_rows(figures: RunFigures, options: PageOptions) -> list[tuple[str, str]]:
    if options.cost_per_hour is None:
        return []
    cost = _cost(figures, options.cost_per_hour)
    hours = f"{figures.active_s / S_PER_HOUR:.4g} hours at work"
    rows = [("cost", f"{cost:,.4g} = {options.cost_per_hour:g} an hour x {hours}")]
    if figures.completion_tokens:
        rows.append(("a million output tokens", f"{cost / figures.completion_tokens * 1e6:,.4g}"))
    if figures.num_completed:
        rows.append(("a thousand completed requests", f"{cost / figures.num_completed * 1e3:,.4g}"))
    return rows


def _cost(figures: RunFigures, cost_per_hour: float) -> float:
    return cost_per_hour * figures.active_s / S_PER_HOUR


def _sampled(sampled: SampledRequest) -> dict[str, Any]:
    row = sampled.row
    name = _name(RequestName(row.line, row.custom_id))
    if row.status == "failed":
        outcome = f"failed: {row.code}, sent {counted(row.attempts, 'time')}"
    else:
        outcome = (
            f"{row.finish_reason}; {row.prompt_tokens} tokens in, {row.completion_tokens} out; "
            f"{shown_seconds(row.latency_ns / NS_PER_S) if row.reused_from is None else 'reused'}"
        )
    texts = sampled.texts
    return {
        "name": name,
        "line": row.line,
        "outcome": outcome,
        "request": None if texts is None or texts.request is None else shown_text(texts.request),
        "answer": None if texts is None else shown_text(texts.answer),
    }


def _name(name: RequestName) -> str:
    return f"line {name.line}" if name.custom_id is None else shown_id(name.custom_id)
