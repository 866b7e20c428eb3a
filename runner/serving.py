"""Serve an engine until a signal comes: start, watch, start again, stop."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import shutil
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from trtb.build.manifest import EngineManifest
from trtb.build.planning.findings import Finding
from trtb.runner import deploy
from trtb.runner.deploy import Deployment
from trtb.runner.endpoint import Endpoint, EndpointConfig
from trtb.runner.launching.fit import find_fit
from trtb.runner.launching.launch import ServerConfig, StartPlan
from trtb.runner.launching.place import Place, choose_place
from trtb.runner.server import TritonServer
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
    deployment: Deployment

    def server_config(self) -> ServerConfig:
        """Return where the first server works and listens."""
        work_dir = self.work_root / str(os.getpid())
        return ServerConfig(
            repository=work_dir / "repository",
            work_dir=work_dir,
            log_path=work_dir / "server.log",
            host=self.host,
            grpc_port=self.grpc_port,
            metrics_port=self.metrics_port,
        )


async def serve_engine(
    options: ServeOptions,
    on_ready: Callable[[Sequence[TritonServer]], None],
    tell: Callable[[str], None],
) -> None:
    """Serve until SIGINT or SIGTERM, then drain.

    Raises:
        HardwareError: This machine does not fit the engine; nothing was started.
        ServerError: A server did not start, or kept dying.
    """
    _sweep(options.work_root)
    config = options.server_config()
    config.work_dir.mkdir(parents=True, exist_ok=True)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    with _removed_where_nothing_started(config.work_dir):
        servers = deploy.prepare_all(options.engine_dir, options.manifest, options.deployment, config, tell)
    tell(f"log: {config.log_path if len(servers) == 1 else config.log_path.parent}")
    endpoints: list[Endpoint] = []
    stopped = asyncio.ensure_future(stop.wait())
    watch = None
    try:
        for server in servers:
            server.start()
            endpoints.append(_endpoint(options, server))
        watch = asyncio.ensure_future(_watch(endpoints, lambda: on_ready(servers)))
        done, _ = await asyncio.wait({stopped, watch}, return_when=asyncio.FIRST_COMPLETED)
        if watch in done:
            watch.result()
        tell("stopping: waiting for requests in flight")
    finally:
        tasks = [stopped, *([watch] if watch else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(endpoint.close(drain=True) for endpoint in endpoints))
    shutil.rmtree(config.work_dir, ignore_errors=True)  # kept with its log where the server failed


@dataclass(frozen=True, slots=True)
class DryRun:
    """What a start would execute, and what speaks against it here."""

    plans: tuple[StartPlan, ...]
    findings: tuple[Finding, ...]


def plan_start(options: ServeOptions) -> DryRun:
    """Return what `serve_engine` would execute; nothing is started, and nothing is written.

    Raises:
        HardwareError: There is no place here where the engine could be served.
    """
    deployment = options.deployment
    place: Place = choose_place(deployment.launch, options.manifest)
    fit = find_fit(options.engine_dir, options.manifest, place, deployment.groups, deployment.config)
    configs = deploy.configs_of(options.server_config(), len(fit.groups))
    launches = [place.launch(options.engine_dir, options.manifest, group) for group in fit.groups]
    plans = [TritonServer(config, launch).plan() for config, launch in zip(configs, launches, strict=True)]
    return DryRun(tuple(plans), fit.findings)


def command_line(plan: StartPlan) -> str:
    """Return a start as a shell would be given it."""
    unset = [text for name in plan.unset for text in ("-u", name)]
    variables = [f"{name}={value}" for name, value in plan.environment.items()]
    prefix = ["env", *unset, *variables] if unset or variables else []
    return shlex.join([*prefix, *plan.argv])


def _endpoint(options: ServeOptions, server: TritonServer) -> Endpoint:
    config = EndpointConfig(
        start_timeout_s=options.start_timeout_s, probe_token_id=options.manifest.tokens.end
    )
    return Endpoint(config, TritonTransport(server.endpoint), server)


@contextlib.contextmanager
def _removed_where_nothing_started(work_dir: Path) -> Iterator[None]:
    try:
        yield
    except BaseException:
        shutil.rmtree(work_dir, ignore_errors=True)
        raise


def _sweep(work_root: Path) -> None:
    """Remove the folders of servers that were killed."""
    for folder in work_root.glob("[0-9]*"):
        if not psutil.pid_exists(int(folder.name)):
            shutil.rmtree(folder, ignore_errors=True)


async def _watch(endpoints: Sequence[Endpoint], on_ready: Callable[[], None]) -> None:
    """Wait until every server is ready, then watch them all; returns only with an error."""
    for endpoint in endpoints:
        await endpoint.wait_ready()
    on_ready()
    watches = [asyncio.ensure_future(endpoint.supervise()) for endpoint in endpoints]
    try:
        await asyncio.gather(*watches)
    finally:
        for watch in watches:
            watch.cancel()
        await asyncio.gather(*watches, return_exceptions=True)
