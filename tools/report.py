"""`trtb report`: what a run did, from its folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from trtb.tools.console import JsonFlag, command, put, say

if TYPE_CHECKING:
    from trtb.build.manifest import EngineManifest
    from trtb.runner.report import RunReport, ScheduleReport
    from trtb.runner.run_folder import RunPaths

RunArgument = Annotated[Path, typer.Argument(help="The run's folder (OUTPUT.run), or its output file.")]
RunsArgument = Annotated[
    list[Path],
    typer.Argument(
        metavar="RUN",
        help="The run's folder (OUTPUT.run), or its output file; with two runs, they are compared.",
    ),
]
PAGE_NAME = "report.html"
COMPARISON_NAME = "comparison.html"
HTML = "--html"
MAX_SAMPLE = 200  # a page of more is no page


class ReportCommand(TyperCommand):
    """`report`, whose --html may stand without a file."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # typer's own copy of click's Context
        """Give --html an empty value where no file follows it, but an option or a run's folder."""
        followers = [*args[1:], "--"]
        filled = [
            f"{HTML}=" if arg == HTML and _is_no_page(follower) else arg
            for arg, follower in zip(args, followers, strict=True)
        ]
        return super().parse_args(ctx, filled)


def _is_no_page(argument: str) -> bool:
    return argument.startswith("-") or argument.rstrip("/").endswith(".run")


@command
def report(
    runs: RunsArgument,
    html: Annotated[
        str | None,
        typer.Option(
            HTML,
            metavar="[FILE]",
            help=f"Write the report as a page, too; default: {PAGE_NAME} in the run's folder, "
            f"or {COMPARISON_NAME} in the second one's.",
        ),
    ] = None,
    include_text: Annotated[
        bool, typer.Option("--include-text", help="Show prompts, answers and error messages in the page.")
    ] = False,
    sample: Annotated[
        int, typer.Option(min=0, max=MAX_SAMPLE, help="Requests, chosen at random, that the page shows.")
    ] = 0,
    sample_seed: Annotated[
        int, typer.Option(min=0, help="Seed of --sample; the same one chooses the same requests.")
    ] = 0,
    cost_per_hour: Annotated[
        float | None,
        typer.Option(min=0, max=1e9, help="Price of an hour of all that the run uses, for the page."),
    ] = None,
    min_agreement: Annotated[
        float | None,
        typer.Option(
            min=0, max=1, help="Of two runs: end with 1 where a smaller share of the answers is the same."
        ),
    ] = None,
    as_json: JsonFlag = False,
) -> int:
    """Print a run's report, or what two runs have in common. --html makes a page of it.

    Example: trtb report out.jsonl.run --html

    Example: trtb report before.jsonl after.jsonl --min-agreement 0.95
    """
    from trtb.runner.reporting.current_report import current_report
    from trtb.runner.run_folder import RunPaths

    price = None if cost_per_hour is None else abs(cost_per_hour)  # -0.0 is not less than 0
    wanted = Wanted(sample, sample_seed, include_text, price)
    check_runs(runs, min_agreement, wanted, has_page=html is not None)
    paths = RunPaths(output_of(runs[0]))
    if len(runs) > 1:
        from trtb.tools.compare import report_comparison

        other = RunPaths(output_of(runs[1]))
        return report_comparison(
            paths,
            other,
            page=None if html is None else Path(html) if html else other.folder / COMPARISON_NAME,
            include_text=include_text,
            min_agreement=min_agreement,
            as_json=as_json,
        )
    if html is None:
        found = current_report(paths)
    else:
        page = Path(html) if html else paths.folder / PAGE_NAME
        found = write_run_page(paths, page, wanted)
    if as_json:
        put(found.model_dump_json(indent=2))
    else:
        show_report(found)
    return 0


def check_runs(runs: list[Path], min_agreement: float | None, wanted: Wanted, *, has_page: bool) -> None:
    """Refuse options that do not go with the number of runs, or do nothing without a page.

    Raises:
        ConfigError: There are more than two, or an option is for one run, for two, or for a page.
    """
    from trtb.build.errors import ConfigError

    if len(runs) > 2:
        raise ConfigError(f"{len(runs)} runs; expected one, or two to compare", "compare them in pairs")
    if len(runs) == 1 and min_agreement is not None:
        raise ConfigError("--min-agreement with one run; expected two", "name the other run, too")
    of_one_run = wanted.sample or wanted.sample_seed or wanted.cost_per_hour is not None
    if len(runs) == 2 and of_one_run:
        raise ConfigError(
            "--sample, --sample-seed and --cost-per-hour are of one run's page; found two runs",
            "make each run's own page: trtb report RUN --html",
        )
    if len(runs) == 1 and not has_page and (of_one_run or wanted.include_text):
        raise ConfigError(
            "--sample, --sample-seed, --include-text and --cost-per-hour are of the page; found no --html",
            "add --html, or leave them out",
        )


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a page is to hold beside the figures."""

    sample: int = 0
    sample_seed: int = 0
    include_text: bool = False
    cost_per_hour: float | None = None


def write_run_page(paths: RunPaths, page: Path, wanted: Wanted) -> RunReport:
    """Write a run's page; returns the report that it was made of.

    Raises:
        ConfigError: No run was begun here, or the page cannot be written, or not there.
    """
    from trtb.runner.reporting.current_report import view_run
    from trtb.runner.reporting.samples import read_samples
    from trtb.runner.run_folder import now_iso, versions
    from trtb.tools.pages.page import check_page, write_page
    from trtb.tools.pages.run_page import PageOptions, run_page

    check_page(page)
    view = view_run(paths, num_sampled=wanted.sample, seed=wanted.sample_seed, with_texts=wanted.include_text)
    options = PageOptions(
        made_at=now_iso(),
        trtb_version=versions()["trtb"],
        cost_per_hour=wanted.cost_per_hour,
        sample_seed=wanted.sample_seed,
        has_texts=wanted.include_text,
    )
    html = run_page(view, _engine_of(view.record.engine_id), read_samples(paths.folder), options)
    write_page(page, html)
    say(f"page: {page}")
    return view.report


def _engine_of(engine_id: str) -> EngineManifest | None:
    """Return an engine's manifest, or None where it is not in this machine's store."""
    from trtb.build.errors import StoreError
    from trtb.build.files import trtb_home
    from trtb.build.store import EngineStore

    try:
        return EngineStore(trtb_home()).resolve(engine_id).manifest
    except StoreError:
        return None


def output_of(path: Path) -> Path:
    """Return a run's output file, from that or from its folder, which may be `.` or end in `..`.

    Raises:
        ConfigError: It has no name that a run's could be.
    """
    from trtb.build.errors import ConfigError

    found = path if path.name not in {"", ".."} else path.resolve()
    name = found.name.removesuffix(".run")
    if not name:
        raise ConfigError(
            f"{path}: is no run's; expected its folder (OUTPUT.run), or its output file", "name one of them"
        )
    return found.with_name(name)


def show_report(found: RunReport) -> None:
    """Print a report as people read it."""
    from trtb.runner.wording import counted

    put(f"{found.output}: {found.state}, engine {found.engine} ({found.engine_id[:12]})")
    put(
        f"requests   {found.total} = {found.completed} completed + {found.failed} failed"
        + (f" + {found.remaining} to do" if found.remaining else "")
        + (f"; {found.resumed} were there from before" if found.resumed else "")
        + (f"; stopped: {found.canary.why}" if found.canary and found.canary.why and found.remaining else "")
    )
    put(f"tokens     {found.prompt_tokens} in, {found.completion_tokens} out")
    if found.completed and not found.duration_s:
        put("speed      nothing was left to compute")
    else:
        _show_speed(found)
    for name, times in (("latency", found.request_latency), ("ttft", found.ttft)):
        if times.p50_ms is not None and times.p90_ms is not None and times.p99_ms is not None:
            put(
                f"{name:<10} p50 {times.p50_ms / 1e3:.2f} s, p90 {times.p90_ms / 1e3:.2f} s, "
                f"p99 {times.p99_ms / 1e3:.2f} s"
            )
    if found.schedule:
        put(f"order      {_describe_schedule(found.schedule)}")
    if found.kv_cache:
        put(
            f"kv cache   {counted(found.kv_cache.reused_blocks, 'block')} reused over "
            f"{counted(found.kv_cache.num_requests, 'request')}, by the engine's own count"
        )
    if found.admission and found.admission.num_full:
        put(
            f"admission  refused {counted(found.admission.num_full, 'time')} for want of room; "
            f"held to {found.admission.min_bound} in flight at the least"
        )
    if found.reused:
        put(f"reused     {counted(found.reused, 'answer')} of equal requests")
    if found.cache or found.cached:
        put(f"cache      {_describe_cache(found)}")
    if found.server_restarts:
        put(f"server     started again {counted(found.server_restarts, 'time')}")
    _show_what_to_mend(found)


def _show_what_to_mend(found: RunReport) -> None:
    from trtb.runner.reporting.diagnosis import describe

    for failure in found.failures:
        put(f"failed     {failure.count} {failure.code}, such as {', '.join(map(repr, failure.samples))}")
    if found.diagnosis:
        for line in describe(found.diagnosis):
            put(f"{'' if line.startswith(' ') else 'bottleneck':<10} {line}")
    for warning in found.warnings:
        put(f"warning    {warning}")


def _show_speed(found: RunReport) -> None:
    from trtb.tools.console import duration

    put(
        f"speed      {found.output_tokens_per_s:.1f} output tokens/s, "
        f"{found.requests_per_s:.2f} completed requests/s over {duration(found.duration_s)}, "
        f"up to {found.max_in_flight} of {found.concurrency} in flight"
    )


def _describe_cache(found: RunReport) -> str:
    from trtb.runner.wording import counted
    from trtb.tools.console import size

    text = f"{counted(found.cached, 'answer')} of the result cache"
    if (cache := found.cache) is None:
        return text
    text += f"; last looked up {cache.hits + cache.misses}, not there {cache.misses}, kept {cache.stored}"
    for count, what in (
        (cache.expired, "too old"),
        (cache.corrupted, "damaged"),
        (cache.not_stored, "not kept"),
        (cache.evicted, "evicted"),
    ):
        text += f", {what} {count}" if count else ""
    if cache.size_bytes is not None:
        text += f"; {size(cache.size_bytes)} of {size(cache.capacity_bytes)}"
    return text


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
