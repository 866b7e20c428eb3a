"""`trtb sweep`: measure an engine over load and settings, and choose."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trtb.tools.console import JsonFlag, command, put, put_json, put_table, say
from trtb.tools.deploy_options import MAX_SECONDS, DeviceIdsOption, LaunchOption, StartTimeoutOption
from trtb.tools.validate import EngineOption

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtb.tools.sweeping.best import Rule
    from trtb.tools.sweeping.point import SweepPoint
    from trtb.tools.sweeping.sweep import SweepJob

_LOAD = "Load"
_BOUNDS = "Bounds"
_SERVER = "Server"
_OUTPUT = "Output"
_OF_SHOW = frozenset({"folders", "show", "best", "html", "as_json"})  # what --show heeds


@command
def sweep(
    ctx: typer.Context,
    folders: Annotated[
        list[Path] | None, typer.Argument(help="With --show: the folders of sweeps, one or several.")
    ] = None,
    engine: EngineOption = None,
    endpoint: Annotated[
        str | None,
        typer.Option(help="host:port of a server that is there; default: servers of our own."),
    ] = None,
    concurrency: Annotated[
        str | None,
        typer.Option(help="Requests in flight at a point; default 1,4,16,64.", rich_help_panel=_LOAD),
    ] = None,
    request_rate: Annotated[
        str | None,
        typer.Option(help="Instead: requests/s sent, evenly spaced, as in 0.5,1,2.", rich_help_panel=_LOAD),
    ] = None,
    input_tokens: Annotated[
        str | None,
        typer.Option(
            help="Tokens of a random prompt; several make an axis; default 128.", rich_help_panel=_LOAD
        ),
    ] = None,
    output_tokens: Annotated[
        str | None,
        typer.Option(help="Tokens of its answer; several make an axis; default 32.", rich_help_panel=_LOAD),
    ] = None,
    input_path: Annotated[
        Path | None,
        typer.Option("--input", help="Prompts and lengths of your own JSONL file.", rich_help_panel=_LOAD),
    ] = None,
    request_count: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Requests that a run counts; default: 4 for each in flight, 16 at least.",
            rich_help_panel=_LOAD,
        ),
    ] = None,
    warmup_request_count: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Requests before them that do not count; default: as many as are in flight.",
            rich_help_panel=_LOAD,
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the random prompts.", rich_help_panel=_LOAD)] = 1234,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="NAME=V1,V2: a setting of the server or of the build as one more axis; repeatable.",
            rich_help_panel=_LOAD,
        ),
    ] = None,
    repeats: Annotated[
        int, typer.Option(min=1, help="Runs of a point, at the most.", rich_help_panel=_BOUNDS)
    ] = 5,
    max_spread: Annotated[
        float,
        typer.Option(
            min=0,
            max=1000,
            help="Runs agree when their tokens/s vary by no more: 0.1 is 10 %.",
            rich_help_panel=_BOUNDS,
        ),
    ] = 0.1,
    point_timeout: Annotated[
        float,
        typer.Option(
            min=1, max=MAX_SECONDS, help="Seconds for all runs of a point.", rich_help_panel=_BOUNDS
        ),
    ] = 600,
    latency_limit: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=MAX_SECONDS * 1000,
            help="Milliseconds that a request may take, for goodput and --best.",
            rich_help_panel=_BOUNDS,
        ),
    ] = None,
    best: Annotated[
        str,
        typer.Option(help="The best point is by: throughput, goodput or latency.", rich_help_panel=_BOUNDS),
    ] = "throughput",
    num_kv_blocks: Annotated[
        int | None, typer.Option(min=2, help="KV cache of our servers, in blocks.", rich_help_panel=_SERVER)
    ] = None,
    deterministic: Annotated[
        bool, typer.Option("--deterministic", help="f32 arithmetic in our servers.", rich_help_panel=_SERVER)
    ] = False,
    device_ids: DeviceIdsOption = None,
    launch: LaunchOption = "auto",
    start_timeout: StartTimeoutOption = None,
    perf_analyzer: Annotated[
        Path | None,
        typer.Option(
            help="The program; default: the toolchain perf_analyzer, else that of the PATH.",
            rich_help_panel=_SERVER,
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="The folder; default sweep-NAME-VERSION.", rich_help_panel=_OUTPUT
        ),
    ] = None,
    retry_failed: Annotated[
        bool,
        typer.Option("--retry-failed", help="Measure again what is not ok.", rich_help_panel=_OUTPUT),
    ] = False,
    show: Annotated[
        bool,
        typer.Option("--show", help="Measure nothing: show the sweeps in FOLDERS.", rich_help_panel=_OUTPUT),
    ] = False,
    html: Annotated[
        Path | None,
        typer.Option(help="The page; default sweep.html in the folder.", rich_help_panel=_OUTPUT),
    ] = None,
    as_json: JsonFlag = False,
) -> int:
    """Measure an engine with perf_analyzer over load and settings; the same command resumes.

    Example: trtb sweep --concurrency 1,4,16,64 --input-tokens 128 --output-tokens 32

    Example: trtb sweep --set quant=bf16,int8_wo --best latency --latency-limit 2000

    Example: trtb sweep --show sweep-a-1 sweep-b-1 --html both.html
    """
    from trtb.build.errors import ConfigError
    from trtb.build.files import trtb_home
    from trtb.tools.sweeping.job import SweepRequest, make_job

    request = SweepRequest(
        engine=engine,
        endpoint=endpoint,
        concurrency=concurrency,
        request_rate=request_rate,
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        input_path=input_path,
        request_count=request_count,
        warmup_request_count=warmup_request_count,
        repeats=repeats,
        max_spread=max_spread,
        point_timeout_s=point_timeout,
        latency_limit_ms=latency_limit,
        best=best,
        settings=tuple(set_ or ()),
        output=output,
        perf_analyzer=perf_analyzer,
        num_kv_blocks=num_kv_blocks,
        deterministic=deterministic,
        device_ids=device_ids,
        launch=launch,
        start_timeout_s=start_timeout,
        seed=seed,
    )
    if show:
        if not folders:
            raise ConfigError("--show: no folder; expected one or several", "trtb sweep --show FOLDER")
        _check_shown(ctx)
        return _show(folders, html, best, as_json=as_json)
    if folders:
        raise ConfigError(
            f"{folders[0]}: a folder without --show; expected options alone",
            f"to show it: trtb sweep --show {folders[0]}; to choose where to write: -o",
        )
    job = make_job(request, trtb_home(), say)
    return _measure(job, request.rule, html, retry_failed=retry_failed, as_json=as_json)


def _check_shown(ctx: typer.Context) -> None:
    """Refuse options of a measurement where nothing is measured."""
    from trtb.build.errors import ConfigError

    sources = {param: ctx.get_parameter_source(param.name or "") for param in ctx.command.params}
    typed = [param for param, source in sources.items() if source and source.name == "COMMANDLINE"]
    if named := [param.opts[0] for param in typed if param.name not in _OF_SHOW]:
        raise ConfigError(
            f"{', '.join(named)}: with --show, which measures nothing; expected --best, --html or --json",
            "leave it out, or measure: the same without --show and FOLDERS",
        )


def _measure(job: SweepJob, rule: Rule, html: Path | None, *, retry_failed: bool, as_json: bool) -> int:
    from trtb.build.disk_errors import tell_disk_errors
    from trtb.build.errors import StoreError
    from trtb.tools.pages.page import check_page
    from trtb.tools.pages.sweep_source import write_sweep_page
    from trtb.tools.sweeping.best import choose_best
    from trtb.tools.sweeping.store import CSV_FILE, PAGE_FILE
    from trtb.tools.sweeping.sweep import run_sweep
    from trtb.tools.sweeping.table import write_csv

    folder = job.folder
    page = html or folder.path / PAGE_FILE
    hint = "the same command then goes on"
    if html is not None:
        check_page(html)
    with folder.locked(), tell_disk_errors(StoreError, folder.path, hint, is_disk_alone=True):
        folder.begin(job.plan)
        check_page(page)
        for path in folder.set_aside_damaged():
            say(f"{path}: damaged; its point is measured again")
        if retry_failed:
            folder.remove_failed()
        points = run_sweep(job)
        best = choose_best(points, rule, job.plan.latency_limit_ms)
        write_csv(folder.path / CSV_FILE, points)
        write_sweep_page([folder.path], page, rule=rule)
        if best is not None:
            _recommend(job, best, rule)
    _put([folder.path], rule, as_json=as_json)
    say(f"page: {page}")
    if all(point.is_ok for point in points):
        return 0
    say("what is not ok is measured again by the same command with --retry-failed")
    return 1


def _recommend(job: SweepJob, best: SweepPoint, rule: Rule) -> None:
    from trtb.tools.sweeping.recommended import recommend, why_not
    from trtb.tools.sweeping.sweep import engine_that_answered

    stored = engine_that_answered(job, best)
    if stored is None:
        return
    if reason := why_not(best):
        say(f"recommended settings: none: {reason}")
        return
    say(f"recommended settings: {recommend(stored, best, rule, job.plan, job.folder.path)}")


def _show(folders: Sequence[Path], html: Path | None, best: str, *, as_json: bool) -> int:
    from trtb.tools.pages.page import check_page
    from trtb.tools.pages.sweep_source import write_sweep_page
    from trtb.tools.sweeping.best import check_rule
    from trtb.tools.sweeping.store import SweepFolder

    if html is not None:
        check_page(html)
    limits = [SweepFolder(folder).read_plan().latency_limit_ms for folder in folders]
    rule = check_rule(best, next(iter(limits)))
    if html is not None:
        write_sweep_page(folders, html, rule=rule)
        say(f"page: {html}")
    _put(folders, rule, as_json=as_json)
    return 0


def _put(folders: Sequence[Path], rule: Rule, *, as_json: bool) -> None:
    """Print sweeps: the table of each, then one plot of all."""
    from trtb.tools.sweeping.best import MEANING, choose_best
    from trtb.tools.sweeping.store import SweepFolder
    from trtb.tools.sweeping.table import COLUMNS, rows_of

    told = []
    for path in folders:
        folder = SweepFolder(path)
        plan, points = folder.read_plan(), folder.points()
        best = choose_best(points, rule, plan.latency_limit_ms)
        told.append(_as_json(path, points, best, rule, plan.model_dump()))
        if not as_json:
            put_table(COLUMNS, rows_of(points, best), title=f"{path}: {plan.engine}")
            for point in points:
                if not point.is_ok:
                    say(f"{point.state:<10} {point.name}: {point.why}")
            chosen = f"{best.name}: {MEANING[rule]}" if best else f"none: no stable point has {MEANING[rule]}"
            say(f"best       {chosen}")
    if as_json:
        put_json({"schema_version": 1, "sweeps": told} if len(told) > 1 else told[0])
    else:
        _plot(folders, rule)


def _plot(folders: Sequence[Path], rule: Rule) -> None:
    """Draw on a terminal; what a pipe reads stays a table."""
    import os
    import shutil
    import sys

    from trtb.tools.pages.sweep_plot import terminal_plot
    from trtb.tools.pages.sweep_source import view_of

    if sys.stdout.isatty():
        views = [view_of(folder, rule=rule) for folder in folders]
        width = shutil.get_terminal_size().columns
        put(terminal_plot(views, width=width, has_colour="NO_COLOR" not in os.environ))


def _as_json(
    path: Path, points: Sequence[SweepPoint], best: SweepPoint | None, rule: Rule, plan: dict[str, object]
) -> dict[str, object]:
    return {
        "schema_version": 1,
        "folder": path,
        "plan": plan,
        "rule": rule,
        "best": best.name if best else None,
        "points": [point.model_dump() for point in points],
    }
