"""One server of an engine, for a few requests past the run: a running one, or our own for that long."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from trtb.build.manifest import EngineManifest
from trtb.runner import deploy
from trtb.runner.deploy import Agreement, Deployment
from trtb.runner.endpoint import Endpoint, EndpointConfig
from trtb.runner.errors import RequestError, ServerError
from trtb.runner.launching.launch import ServerConfig
from trtb.runner.options import default_start_timeout_s
from trtb.runner.triton_client import TritonTransport

SERVER_WAIT_S = 30.0


@contextlib.asynccontextmanager
async def engine_server(
    engine_dir: Path,
    manifest: EngineManifest,
    address: str | None,
    work_dir: Path,
    tell: Callable[[str], None],
) -> AsyncIterator[tuple[Endpoint, Agreement]]:
    """Yield a server that generates, and what it tells of itself; one of our own is ended afterwards.

    Args:
        engine_dir: The stored engine.
        manifest: Its manifest.
        address: host:port of a server that is there; None starts one.
        work_dir: Where that works.
        tell: Hears what speaks against starting one here, without forbidding it.

    Raises:
        HardwareError: This machine does not fit the engine.
        ServerError: It did not start or answer, serves another engine, or failed a request.
    """
    config = EndpointConfig(
        start_timeout_s=default_start_timeout_s(manifest),
        server_wait_s=SERVER_WAIT_S,
        probe_token_id=manifest.tokens.end,
    )
    if address is None:
        where = ServerConfig(
            repository=work_dir / "repository", work_dir=work_dir, log_path=work_dir / "server.log"
        )
        server = deploy.prepare_all(engine_dir, manifest, Deployment(), where, tell)[0]
        server.start()
        endpoint = Endpoint(config, TritonTransport(server.endpoint), server)
    else:
        endpoint = Endpoint(config, TritonTransport(address))
    try:
        await endpoint.wait_ready()
        yield endpoint, await deploy.agree([endpoint], manifest)
    except RequestError as exc:
        raise ServerError(
            f"{endpoint.transport.endpoint}: {exc.code}: {exc.message}", "see the server's log"
        ) from exc
    finally:
        await endpoint.close()
