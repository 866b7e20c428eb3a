"""Serve an engine until a signal comes: start, watch, start again, stop."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil

from trtb.build.manifest import EngineManifest
from trtb.model_repo.render import DeployConfig
from trtb.runner import deploy
from trtb.runner.endpoint import Endpoint, EndpointConfig
from trtb.runner.server import ServerConfig
from trtb.runner.triton_client import TritonTransport


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """What is served, and where."""

    engine_dir: Path
    manifest: EngineManifest
    work_root: Path
    host: str
    grpc_port: int
    metrics_port: int
    start_timeout_s: float
    deploy: DeployConfig


async def serve_engine(
    options: ServeOptions, on_ready: Callable[[str, str], None], tell: Callable[[str], None]
) -> None:
    """Serve until SIGINT or SIGTERM, then drain.

    Raises:
        ServerError: The server did not start, or kept dying.
    """
    _sweep(options.work_root)
    work_dir = options.work_root / str(os.getpid())
    work_dir.mkdir(parents=True, exist_ok=True)
    config = ServerConfig(
        repository=work_dir / "repository",
        work_dir=work_dir,
        log_path=work_dir / "server.log",
        host=options.host,
        grpc_port=options.grpc_port,
        metrics_port=options.metrics_port,
    )
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    server = deploy.prepare(options.engine_dir, options.manifest, config, options.deploy)
    tell(f"log: {config.log_path}")
    server.start()
    endpoint = Endpoint(
        EndpointConfig(start_timeout_s=options.start_timeout_s, probe_token_id=options.manifest.tokens.end),
        TritonTransport(server.endpoint),
        server,
    )
    stopped = asyncio.ensure_future(stop.wait())
    watch = asyncio.ensure_future(_watch(endpoint, on_ready))
    try:
        done, _ = await asyncio.wait({stopped, watch}, return_when=asyncio.FIRST_COMPLETED)
        if watch in done:
            watch.result()
        tell("stopping: waiting for requests in flight")
    finally:
        watch.cancel()
        stopped.cancel()
        await asyncio.gather(watch, stopped, return_exceptions=True)
        await endpoint.close(drain=True)
    shutil.rmtree(work_dir, ignore_errors=True)  # kept with its log where the server failed


def _sweep(work_root: Path) -> None:
    """Remove the folders of servers that were killed."""
    for folder in work_root.glob("[0-9]*"):
        if not psutil.pid_exists(int(folder.name)):
            shutil.rmtree(folder, ignore_errors=True)


async def _watch(endpoint: Endpoint, on_ready: Callable[[str, str], None]) -> None:
    await endpoint.wait_ready()
    assert endpoint.server
    on_ready(endpoint.server.endpoint, endpoint.server.metrics_url)
    await endpoint.supervise()
