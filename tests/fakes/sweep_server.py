"""A real tritonserver with the model that misbehaves under load."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

from trtb.model_repo import contract, render
from trtb.runner.server import ServerConfig, TritonServer
from trtb.tools.bench.noop import wait_ready

MODEL = Path(__file__).parent / "sweep_model" / "model.py"


@contextlib.contextmanager
def sweep_server(folder: Path) -> Iterator[TritonServer]:
    """Start the server, working below `folder`."""
    repository = folder / "repository"
    render.render_noop(repository)
    shutil.copyfile(MODEL, repository / contract.MODEL_NAME / contract.MODEL_VERSION / "model.py")
    server = TritonServer(ServerConfig(repository, folder, folder / "server.log", exit_timeout_s=5))
    server.start()
    try:
        asyncio.run(wait_ready(server))
        yield server
    finally:
        asyncio.run(server.stop(graceful=False))
