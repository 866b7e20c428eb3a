"""A real tritonserver with the no-op model: what it answers costs nothing, so the client's cost is left."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

from trtb.model_repo import contract, render
from trtb.runner.endpoint import Endpoint, EndpointConfig
from trtb.runner.server import ServerConfig, TritonServer
from trtb.runner.triton_client import TritonTransport

START_TIMEOUT_S = 60.0


@contextlib.contextmanager
def noop_server(folder: Path, model: Path | None = None) -> Iterator[str]:
    """Start the server, working below `folder`; yields its host:port. `model` stands in for the no-op one.

    Raises:
        ServerStartError: It did not start.
    """
    repository = folder / "repository"
    render.render_noop(repository)
    if model is not None:
        shutil.copyfile(model, repository / contract.MODEL_NAME / contract.MODEL_VERSION / "model.py")
    server = TritonServer(ServerConfig(repository, folder, folder / "server.log", exit_timeout_s=5))
    server.start()
    try:
        asyncio.run(wait_ready(server))
        yield server.endpoint
    finally:
        asyncio.run(server.stop())


async def wait_ready(server: TritonServer) -> None:
    """Return when a server that was started has generated a token."""
    transport = TritonTransport(server.endpoint)
    try:
        await Endpoint(EndpointConfig(start_timeout_s=START_TIMEOUT_S), transport, server).wait_ready()
    finally:
        await transport.close()
