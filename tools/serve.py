"""`trtb serve`: run the inference server on this machine, until it is stopped."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from trtb.tools.console import JsonFlag, command, put, put_json, say
from trtb.tools.deploy_options import (
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
from trtb.tools.validate import EngineOption

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtb.runner.server import TritonServer
    from trtb.runner.serving import ServeOptions


@command
def serve(
    engine: EngineOption = None,
    host: Annotated[str, typer.Option(help="Address; loopback only unless told.")] = "127.0.0.1",
    grpc_port: Annotated[int, typer.Option(min=0, max=65535, help="gRPC port; 0 takes a free one.")] = 8001,
    metrics_port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port of /metrics; 0 takes a free one.")
    ] = 8002,
    kv_cache_dtype: KvCacheDtypeOption = "auto",
    num_kv_blocks: NumKvBlocksOption = None,
    kv_cache_gb: KvCacheGbOption = None,
    kv_host_cache_gb: KvHostCacheGbOption = None,
    kv_reuse: KvReuseOption = None,
    max_queue_size: Annotated[int, typer.Option(min=0, help="Requests that may wait; 0 is unlimited.")] = 0,
    deterministic: Annotated[
        bool, typer.Option(help="f32 arithmetic: greedy and seeded answers do not depend on company.")
    ] = False,
    device_ids: DeviceIdsOption = None,
    launch: LaunchOption = "auto",
    trtllm_parameter: TrtllmParameterOption = None,
    start_timeout: StartTimeoutOption = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the commands that would be started, and end.")
    ] = False,
    as_json: JsonFlag = False,
) -> int:
    """Serve an engine on this machine; Ctrl-C or SIGTERM drains and ends it.

    A machine that does not fit the engine is refused before anything starts, with exit code 4.

    Example: trtb serve --engine smollm2-135m-instruct-int8_wo
    """
    import asyncio

    from trtb.build.files import trtb_home
    from trtb.build.store import EngineStore
    from trtb.model_repo.render import DeployConfig
    from trtb.model_repo.trtllm_parameters import parse_pairs, parse_parameters
    from trtb.runner.deploy import Deployment
    from trtb.runner.launching.devices import group_devices, parse_groups, read_devices
    from trtb.runner.launching.kv_options import KvOptions, read_dtype, with_kv_cache
    from trtb.runner.launching.launch import check_choice
    from trtb.runner.options import default_start_timeout_s
    from trtb.runner.serving import ServeOptions, serve_engine

    stored = EngineStore(trtb_home()).resolve(engine)

    options = ServeOptions(
        engine_dir=stored.path,
        manifest=stored.manifest,
        work_root=trtb_home() / "cache" / "serve",
        host=host,
        grpc_port=grpc_port,
        metrics_port=metrics_port,
        start_timeout_s=start_timeout or default_start_timeout_s(stored.manifest),
        deployment=Deployment(
            check_choice(launch),
            group_devices(parse_groups(read_devices(device_ids or "")), stored.manifest),
            with_kv_cache(
                DeployConfig(
                    max_queue_size=max_queue_size,
                    deterministic=deterministic,
                    trtllm=parse_parameters(parse_pairs(trtllm_parameter or [])),
                ),
                KvOptions(read_dtype(kv_cache_dtype), num_kv_blocks, kv_cache_gb, kv_host_cache_gb, kv_reuse),
                stored.manifest,
            ),
        ),
    )
    if dry_run:
        return _show_start(options, as_json)

    def on_ready(servers: Sequence[TritonServer]) -> None:
        reference = stored.manifest.reference
        if as_json:
            told = [{"endpoint": server.endpoint, "metrics": server.metrics_url} for server in servers]
            put_json({**told[0], "engine_id": stored.manifest.engine_id, "servers": told})
        else:
            for server in servers:
                put(f"{reference} at {server.endpoint}, metrics at {server.metrics_url}")

    asyncio.run(serve_engine(options, on_ready, say))
    return 0


def _show_start(options: ServeOptions, as_json: bool) -> int:
    """Print what would be started, and say what speaks against it; return the exit code."""
    from dataclasses import asdict

    from trtb.build.planning.findings import is_blocked
    from trtb.runner.serving import command_line, plan_start

    planned = plan_start(options)
    if as_json:
        put_json(
            {
                "schema_version": 1,
                "ok": not is_blocked(planned.findings),
                "servers": [
                    {"argv": plan.argv, "environment": dict(plan.environment), "unset": plan.unset}
                    for plan in planned.plans
                ],
                "findings": [asdict(finding) for finding in planned.findings],
            }
        )
    else:
        for plan in planned.plans:
            put(command_line(plan))
        for finding in planned.findings:
            say(f"{finding.severity}: {finding.message} ({finding.hint})")
    return 4 if is_blocked(planned.findings) else 0
