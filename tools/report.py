"""`trtb report`: what a run did, from its folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trtb.tools.console import JsonFlag, command, put

if TYPE_CHECKING:
    from trtb.runner.report import RunReport, ScheduleReport

RunArgument = Annotated[Path, typer.Argument(help="The run's folder (OUTPUT.run), or its output file.")]


@command
def report(run_path: RunArgument, as_json: JsonFlag = False) -> int:
    """Print a run's report: reconciliation, tokens, latency, failures.

    Example: trtb report out.jsonl.run
    """
    from trtb.runner.report import read_report
    from trtb.runner.run_folder import RunPaths

    found = read_report(RunPaths(output_of(run_path)))
    if as_json:
        put(found.model_dump_json(indent=2))
    else:
        show_report(found)
    return 0


def output_of(path: Path) -> Path:
    """Return a run's output file, from that or from its folder."""
    return path.with_name(path.name.removesuffix(".run")) if path.name.endswith(".run") else path


def show_report(found: RunReport) -> None:
    """Print a report as people read it."""
    from trtb.runner.wording import counted
    from trtb.tools.console import duration

    put(f"{found.output}: {found.state}, engine {found.engine} ({found.engine_id[:12]})")
    put(
        f"requests   {found.total} = {found.completed} completed + {found.failed} failed"
        + (f" + {found.remaining} to do" if found.remaining else "")
        + (f"; {found.resumed} were there from before" if found.resumed else "")
    )
    put(f"tokens     {found.prompt_tokens} in, {found.completion_tokens} out")
    put(
        f"speed      {found.output_tokens_per_s:.1f} output tokens/s, "
        f"{found.requests_per_s:.2f} completed requests/s over {duration(found.duration_s)}, "
        f"up to {found.max_in_flight} of {found.concurrency} in flight"
    )
    for name, times in (("latency", found.request_latency), ("ttft", found.ttft)):
        if times.p50_ms is not None and times.p90_ms is not None and times.p99_ms is not None:
            put(
                f"{name:<10} p50 {times.p50_ms / 1e3:.2f} s, p90 {times.p90_ms / 1e3:.2f} s, "
                f"p99 {times.p99_ms / 1e3:.2f} s"
            )
    if found.schedule:
        put(f"order      {_describe_schedule(found.schedule)}")
    if found.admission and found.admission.num_full:
        put(
            f"admission  refused {counted(found.admission.num_full, 'time')} for want of room; "
            f"held to {found.admission.min_bound} in flight at the least"
        )
    if found.reused:
        put(f"reused     {counted(found.reused, 'answer')} of equal requests")
    if found.server_restarts:
        put(f"server     started again {counted(found.server_restarts, 'time')}")
    for failure in found.failures:
        put(f"failed     {failure.count} {failure.code}, such as {', '.join(map(repr, failure.samples))}")
    for warning in found.warnings:
        put(f"warning    {warning}")


def _describe_schedule(schedule: ScheduleReport) -> str:
    from trtb.runner.wording import counted

    text = f"{schedule.order}: {schedule.why}"
    if schedule.order == "prefix":
        grouped = counted(schedule.num_grouped, "request")
        text += f"; {grouped} in {counted(schedule.num_prefixes, 'prefix', 'prefixes')}"
    if schedule.expected_reuse is not None:
        text += f"; reuse of prompt tokens {schedule.expected_reuse:.1%} expected"
    if schedule.seen_reuse is not None:
        text += f", {schedule.seen_reuse:.1%} seen ({schedule.seen_by})"
    elif schedule.unseen_why is not None:
        text += f", not told what was seen: {schedule.unseen_why}"
    return text
