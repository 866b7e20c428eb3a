"""`trtb run` and `trtb retry`: the main job, and its failures once more."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trtb.tools.console import JsonFlag, command, put, put_json, say
from trtb.tools.deploy_options import (
    MAX_SECONDS,
    DeviceIdsOption,
    KvCacheDtypeOption,
    KvCacheGbOption,
    KvHostCacheGbOption,
    KvReuseOption,
    LaunchOption,
    NumKvBlocksOption,
    StartTimeoutOption,
    TrtllmParameterOption,
)
from trtb.tools.report import RunArgument, output_of, show_report
from trtb.tools.validate import AliasOption, EngineOption, MaxLineOption, StrictOption, show

if TYPE_CHECKING:
    from trtb.build.manifest import EngineManifest
    from trtb.runner.errors import InputRefusedError
    from trtb.runner.options import RunOptions

EndpointOption = Annotated[
    list[str] | None,
    typer.Option("--endpoint", help="host:port of a server that is there already; repeatable."),
]


# flags whose name is not that of their field in RunOptions
FIELDS = {
    "endpoint": "endpoints",
    "request_timeout": "request_timeout_s",
    "model_alias": "model_aliases",
    "trtllm_parameter": "trtllm_parameters",
    "grace": "grace_s",
    "cache_sync_interval": "cache_sync_interval_s",
    "server_wait": "server_wait_s",
    "start_timeout": "start_timeout_s",
}


@command
def run(
    ctx: typer.Context,
    input_path: Annotated[
        Path | None, typer.Argument(help="The JSONL file of requests; a job file may name it.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Output file; default: INPUT with .out before .jsonl."),
    ] = None,
    engine: EngineOption = None,
    endpoint: EndpointOption = None,
    concurrency: Annotated[int, typer.Option(min=1, max=4096, help="Most requests in flight.")] = 64,
    request_timeout: Annotated[
        float,
        typer.Option(
            min=0.001, max=MAX_SECONDS, help="Seconds from sending a request to its complete answer."
        ),
    ] = 600.0,
    max_attempts: Annotated[
        int, typer.Option(min=1, help="Times a request is sent where its error can heal.")
    ] = 3,
    on_invalid: Annotated[
        str, typer.Option(help="refuse: run nothing where a line is invalid; fail: fail it, run the rest.")
    ] = "refuse",
    model_alias: AliasOption = None,
    strict_params: StrictOption = False,
    default_max_tokens: Annotated[
        int, typer.Option(min=1, help="Bound of answers whose request names none.")
    ] = 1024,
    max_line_bytes: MaxLineOption = 16 << 20,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first so many requests.")] = None,
    follow: Annotated[
        Path | None, typer.Option(help="Append results to this file as they come, in the order they end.")
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Begin anew; replace the output and the run that are there.")
    ] = False,
    deterministic: Annotated[
        bool, typer.Option("--deterministic", help="Greedy and seeded answers do not depend on company.")
    ] = False,
    kv_cache_dtype: KvCacheDtypeOption = "auto",
    num_kv_blocks: NumKvBlocksOption = None,
    kv_cache_gb: KvCacheGbOption = None,
    kv_host_cache_gb: KvHostCacheGbOption = None,
    kv_reuse: KvReuseOption = None,
    kv_retention: Annotated[
        bool,
        typer.Option(
            "--kv-retention/--no-kv-retention",
            help="Have TensorRT-LLM keep shared prefixes longer than what only one request needs.",
        ),
    ] = True,
    device_ids: DeviceIdsOption = None,
    launch: LaunchOption = "auto",
    trtllm_parameter: TrtllmParameterOption = None,
    order: Annotated[
        str,
        typer.Option(
            help="prefix: what begins alike together; length: longest first; input; auto: by the file."
        ),
    ] = "auto",
    queue_size: Annotated[
        int, typer.Option(min=1, help="Most requests that wait, ready to be sent, beside those in flight.")
    ] = 256,
    dedup: Annotated[
        bool | None,
        typer.Option(
            "--dedup/--no-dedup",
            help="Compute equal greedy or seeded requests once; default: where answers are exact.",
        ),
    ] = None,
    canary: Annotated[
        int,
        typer.Option(min=0, help="Requests that go first and alone; where all fail, the run stops. 0: none."),
    ] = 8,
    max_failure_rate: Annotated[
        float | None,
        typer.Option(
            min=0, max=1, help="Stop the run where more than this share of its requests fails, 0 to 1."
        ),
    ] = None,
    cache: Annotated[
        bool,
        typer.Option(
            "--cache/--no-cache", help="Use answers of earlier runs to equal requests, and keep this run's."
        ),
    ] = False,
    cache_capacity_gb: Annotated[
        float, typer.Option(min=0.001, max=4000, help="Disk that the result cache may take, in GB.")
    ] = 10.0,
    cache_ttl_hours: Annotated[
        float | None,
        typer.Option(min=0.001, max=1_000_000, help="Compute again what was kept longer ago than this."),
    ] = None,
    cache_sync_interval: Annotated[
        float,
        typer.Option(min=0, max=3600, help="Seconds that a new answer may wait to be durable in the cache."),
    ] = 1.0,
    grace: Annotated[
        float, typer.Option(min=0, max=MAX_SECONDS, help="Seconds to drain after the first Ctrl-C.")
    ] = 30.0,
    server_wait: Annotated[
        float,
        typer.Option(min=0, max=MAX_SECONDS, help="Seconds to wait for a server of others to come back."),
    ] = 60.0,
    start_timeout: StartTimeoutOption = None,
    config: Annotated[
        Path | None, typer.Option(help="A job file (YAML) of these options; what is typed here wins over it.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check the file, print the plan, and start nothing.")
    ] = False,
    as_json: JsonFlag = False,
) -> int:
    """Answer every line of a file; the same command resumes a run that was stopped.

    Example: trtb run input.jsonl -o out.jsonl
    """
    from trtb.build.files import trtb_home
    from trtb.build.store import EngineStore
    from trtb.runner.launching.devices import read_devices
    from trtb.tools.run_options import Typed, choose_options

    values = {
        "input_path": input_path,
        "output": output,
        "engine": engine,
        "endpoints": tuple(endpoint or ()),
        "concurrency": concurrency,
        "request_timeout_s": request_timeout,
        "max_attempts": max_attempts,
        "server_wait_s": server_wait,
        "start_timeout_s": start_timeout,
        "grace_s": grace,
        "on_invalid": on_invalid,
        "model_aliases": tuple(model_alias or ()),
        "strict_params": strict_params,
        "default_max_tokens": default_max_tokens,
        "max_line_bytes": max_line_bytes,
        "limit": limit,
        "overwrite": overwrite,
        "follow": follow,
        "deterministic": deterministic,
        "kv_cache_dtype": kv_cache_dtype,
        "num_kv_blocks": num_kv_blocks,
        "kv_cache_gb": kv_cache_gb,
        "kv_host_cache_gb": kv_host_cache_gb,
        "kv_reuse": kv_reuse,
        "kv_retention": kv_retention,
        "device_ids": read_devices(device_ids or ""),
        "launch": launch,
        "trtllm_parameters": tuple(trtllm_parameter or ()),
        "order": order,
        "queue_size": queue_size,
        "dedup": dedup,
        "canary": canary,
        "max_failure_rate": max_failure_rate,
        "cache": cache,
        "cache_capacity_gb": cache_capacity_gb,
        "cache_ttl_hours": cache_ttl_hours,
        "cache_sync_interval_s": cache_sync_interval,
    }
    sources = {name: ctx.get_parameter_source(name) for name in ctx.params}
    typed = frozenset(
        FIELDS.get(name, name) for name, source in sources.items() if source and source.name == "COMMANDLINE"
    )
    options = choose_options(Typed(values, typed), config, EngineStore(trtb_home()))
    return _plan(options, as_json) if dry_run else _run(options, as_json)


@command
def retry(
    run_path: RunArgument,
    endpoint: EndpointOption = None,
    request_timeout: Annotated[
        float | None, typer.Option(min=0.001, max=MAX_SECONDS, help="Another timeout, in seconds.")
    ] = None,
    code: Annotated[list[str] | None, typer.Option(help="Only failures of this code; repeatable.")] = None,
    as_json: JsonFlag = False,
) -> int:
    """Run again only what failed; the output is published anew, complete.

    Example: trtb retry out.jsonl.run
    """
    from trtb.build.files import trtb_home
    from trtb.build.store import EngineStore
    from trtb.runner.reopen import NothingToRetry, reopen
    from trtb.runner.wording import counted

    def find_engine(engine_id: str) -> tuple[Path, EngineManifest]:
        stored = EngineStore(trtb_home()).resolve(engine_id)
        return stored.path, stored.manifest

    output = output_of(run_path)
    found = reopen(
        output,
        find_engine,
        codes=frozenset(code) if code else None,
        endpoints=tuple(endpoint or ()),
        request_timeout_s=request_timeout,
    )
    if isinstance(found, NothingToRetry):
        others = f"; {counted(found.num_failed, 'failure')} of other codes" if found.num_failed else ""
        if as_json:
            put_json({"output": str(output), "num_retried": 0, "num_failed": found.num_failed})
        else:
            put(f"{output}: nothing to run again{others}")
        return 1 if found.num_failed else 0
    options, num_reopened = found
    say(f"{counted(num_reopened, 'failed request')} to run again")
    return _run(options, as_json)


def _plan(options: RunOptions, as_json: bool) -> int:
    from trtb.runner.errors import InputRefusedError
    from trtb.runner.launching.dry_run import plan_run
    from trtb.runner.wording import counted

    try:
        sentence, figures = plan_run(options)
    except InputRefusedError as exc:
        return _refuse(exc, as_json)
    if as_json:
        put_json(figures)
    else:
        put(f"{counted(figures['total'], 'request')}; {sentence}")
    return 0


def _refuse(exc: InputRefusedError, as_json: bool) -> int:
    """Print every fault of a refused file; raises the error again where people read it."""
    if as_json:
        from trtb.runner.validate import to_json

        error = {"code": exc.code, "message": exc.message, "hint": exc.hint}
        put_json({"error": error, "validation": to_json(exc.report)})
        return exc.exit_code
    show(exc.report, to=say)
    raise exc


def _run(options: RunOptions, as_json: bool) -> int:
    from trtb.runner.errors import InputRefusedError
    from trtb.runner.run import run_batch
    from trtb.tools.progress import shown_progress

    try:
        with shown_progress() as observer:
            made = run_batch(options, observer)
    except InputRefusedError as exc:
        return _refuse(exc, as_json)
    if as_json:
        put(made.model_dump_json(indent=2))
    else:
        show_report(made)
    return 1 if made.failed else 0
