"""The server that a sweep measures: one of its own for some settings, or one that is there already."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from trtb.build.backends.base import BuildHost
from trtb.build.manifest import EngineManifest
from trtb.build.pipeline import build_prepared
from trtb.build.prepare import prepare_build
from trtb.build.store import StoredEngine
from trtb.model_repo.render import render_into_engine
from trtb.runner import deploy
from trtb.runner.deploy import Deployment
from trtb.runner.endpoint import Endpoint, EndpointConfig
from trtb.runner.errors import ServerLostError
from trtb.runner.launching.devices import Group
from trtb.runner.launching.launch import Choice, ServerConfig
from trtb.runner.options import default_start_timeout_s
from trtb.runner.server import TritonServer
from trtb.runner.triton_client import TritonTransport
from trtb.tools.sweeping.settings import Settings, build_config, deploy_config, is_of_build

LOOK_PERIOD_S = 2.0
LOOK_TIMEOUT_S = 1.0
Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class TargetOptions:
    """Where a sweep's servers run, and how they serve what its settings leave open."""

    home: Path
    launch: Choice = "auto"
    devices: Group = ()
    num_kv_blocks: int | None = None
    deterministic: bool = False
    start_timeout_s: float | None = None
    server_wait_s: float = 60.0


class Target:
    """A server that answers; `close` ends it where it is our own."""

    def __init__(
        self, endpoint: str, stored: StoredEngine, server: TritonServer | None, config: EndpointConfig
    ) -> None:
        self.endpoint = endpoint
        self.stored = stored
        self.server = server
        self._config = config
        self._next_look = 0.0

    @property
    def servers(self) -> list[TritonServer]:
        """Return the servers of our own."""
        return [self.server] if self.server is not None else []

    def fault(self) -> str | None:
        """Say what became of the server, if something did; of one that was there, whether it listens."""
        if self.server is not None:
            return self.server.fault()
        if self.endpoint.startswith("unix:") or time.monotonic() < self._next_look:
            return None
        self._next_look = time.monotonic() + LOOK_PERIOD_S
        host, _, port = self.endpoint.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), LOOK_TIMEOUT_S).close()
        except ConnectionRefusedError:
            return f"the server at {self.endpoint} is gone: nobody listens there"
        except OSError:  # slow is not gone
            return None
        return None

    def wait_ready(self) -> None:
        """Return when the server has generated a token, and serves the engine that is meant.

        Raises:
            ServerError: It did not start, does not answer, or serves another engine.
        """

        async def wait() -> None:
            transport = TritonTransport(self.endpoint)
            endpoint = Endpoint(self._config, transport, self.server)
            try:
                await endpoint.wait_ready()
                await deploy.agree([endpoint], self.stored.manifest)
            finally:
                await transport.close()

        asyncio.run(wait())

    def ensure_alive(self, tell: Tell) -> None:
        """Return when the server generates tokens; one of our own that does not is started again.

        Raises:
            ServerError: It does not come back.
        """
        if self.server is None:
            self.wait_ready()
            return
        if self.server.fault() is None and self._answers():
            return
        tell("starting the server again")
        asyncio.run(self.server.stop(graceful=False))
        self.server.start()
        self.wait_ready()

    def close(self) -> None:
        """End a server of our own."""
        if self.server is not None:
            asyncio.run(self.server.stop(graceful=False))

    def _answers(self) -> bool:
        """Say whether the server generates a token now."""

        async def ask() -> None:
            transport = TritonTransport(self.endpoint)
            try:
                config = EndpointConfig(
                    server_wait_s=self._config.server_wait_s, probe_token_id=self._config.probe_token_id
                )
                await Endpoint(config, transport).wait_ready()
            finally:
                await transport.close()

        try:
            asyncio.run(ask())
        except ServerLostError:
            return False
        return True


def engine_of(settings: Settings, stored: StoredEngine, home: Path, tell: Tell) -> StoredEngine:
    """Return the engine of some settings: the sweep's own, or one built for them, or built before.

    Raises:
        TrtbError: It cannot be built.
    """
    if not any(is_of_build(name) for name in settings):
        return stored
    manifest = stored.manifest
    pin = manifest.checkpoint
    prepared = prepare_build(
        f"{pin.name}@{pin.revision}",
        build_config(settings, manifest),
        BuildHost(home),
        name=None if "quant" in settings else manifest.name,
        backend=manifest.backend,
        progress=lambda step, detail: tell(f"{step}: {detail}"),
    )
    return build_prepared(prepared, deploy=render_into_engine)


@contextlib.contextmanager
def own_target(
    stored: StoredEngine, settings: Settings, options: TargetOptions, work_dir: Path, tell: Tell
) -> Iterator[Target]:
    """Start a server of our own for some settings; it has generated a token when this yields.

    Raises:
        HardwareError: This machine does not fit the engine.
        ServerError: It did not start.
    """
    manifest = stored.manifest
    config = deploy_config(settings, options.num_kv_blocks, deterministic=options.deterministic)
    server_dir = work_dir / "server"
    servers = deploy.prepare_all(
        stored.path,
        manifest,
        Deployment(options.launch, (options.devices,) if options.devices else (), config),
        ServerConfig(
            repository=server_dir / "repository", work_dir=server_dir, log_path=work_dir / "server.log"
        ),
        tell,
    )
    server = servers[0]
    server.start()
    target = Target(server.endpoint, stored, server, _config(manifest, options))
    try:
        target.wait_ready()
        yield target
    finally:
        target.close()


@contextlib.contextmanager
def named_target(endpoint: str, stored: StoredEngine, options: TargetOptions) -> Iterator[Target]:
    """Use a server that is there.

    Raises:
        ServerError: It does not answer, or serves another engine.
    """
    target = Target(endpoint, stored, None, _config(stored.manifest, options))
    target.wait_ready()
    yield target


def _config(manifest: EngineManifest, options: TargetOptions) -> EndpointConfig:
    return EndpointConfig(
        start_timeout_s=options.start_timeout_s or default_start_timeout_s(manifest),
        server_wait_s=options.server_wait_s,
        probe_token_id=manifest.tokens.end,
    )
