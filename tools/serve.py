"""`trtb serve`: run the inference server on this machine, until it is stopped."""

from __future__ import annotations

from typing import Annotated

import typer

from trtb.tools.console import JsonFlag, command, put, put_json, say
from trtb.tools.validate import EngineOption


@command
def serve(
    engine: EngineOption = None,
    host: Annotated[str, typer.Option(help="Address; loopback only unless told.")] = "127.0.0.1",
    grpc_port: Annotated[int, typer.Option(min=0, max=65535, help="gRPC port; 0 takes a free one.")] = 8001,
    metrics_port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port of /metrics; 0 takes a free one.")
    ] = 8002,
    num_kv_blocks: Annotated[
        int | None, typer.Option(min=2, help="KV cache, in blocks; default: a share of the free memory.")
    ] = None,
    max_queue_size: Annotated[int, typer.Option(min=0, help="Requests that may wait; 0 is unlimited.")] = 0,
    deterministic: Annotated[
        bool, typer.Option(help="f32 arithmetic: greedy and seeded answers do not depend on company.")
    ] = False,
    start_timeout: Annotated[float, typer.Option(help="Seconds to wait for the engine.")] = 300.0,
    as_json: JsonFlag = False,
) -> int:
    """Serve an engine on this machine; Ctrl-C or SIGTERM drains and ends it.

    Example: trtb serve --engine smollm2-135m-instruct-int8_wo
    """
    import asyncio

    from trtb.build.files import trtb_home
    from trtb.build.store import EngineStore
    from trtb.model_repo.render import DeployConfig
    from trtb.runner.serving import ServeOptions, serve_engine

    stored = EngineStore(trtb_home()).resolve(engine)

    def on_ready(endpoint: str, metrics_url: str) -> None:
        if as_json:
            put_json({"endpoint": endpoint, "metrics": metrics_url, "engine_id": stored.manifest.engine_id})
        else:
            put(f"{stored.manifest.reference} at {endpoint}, metrics at {metrics_url}")

    options = ServeOptions(
        engine_dir=stored.path,
        manifest=stored.manifest,
        work_root=trtb_home() / "cache" / "serve",
        host=host,
        grpc_port=grpc_port,
        metrics_port=metrics_port,
        start_timeout_s=start_timeout,
        deploy=DeployConfig(
            num_kv_blocks=num_kv_blocks, max_queue_size=max_queue_size, deterministic=deterministic
        ),
    )
    asyncio.run(serve_engine(options, on_ready, say))
    return 0
