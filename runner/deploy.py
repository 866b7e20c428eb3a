"""The servers of a run: one of our own, or those that are there already."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from trtb.build import hardware
from trtb.build.manifest import EngineManifest
from trtb.model_repo import render
from trtb.runner.endpoint import Endpoint, EndpointConfig
from trtb.runner.errors import ContractMismatchError
from trtb.runner.options import RunOptions
from trtb.runner.run_folder import RunPaths
from trtb.runner.server import ServerConfig, TritonServer
from trtb.runner.triton_client import TritonTransport


def launch(options: RunOptions, paths: RunPaths) -> Endpoint:
    """Start a server for this run alone, working in the run's folder; it is not ready yet."""
    deploy = render.DeployConfig(num_kv_blocks=options.num_kv_blocks, deterministic=options.deterministic)
    config = ServerConfig(
        repository=paths.server_dir / "repository",
        work_dir=paths.server_dir,
        log_path=paths.server_log,
    )
    server = prepare(options.engine_dir, options.manifest, config, deploy)
    server.start()
    return Endpoint(_config(options), TritonTransport(server.endpoint), server)


def attach(options: RunOptions) -> list[Endpoint]:
    """Return the endpoints that the user named."""
    return [Endpoint(_config(options), TritonTransport(address)) for address in options.endpoints]


def prepare(
    engine_dir: Path, manifest: EngineManifest, config: ServerConfig, deploy: render.DeployConfig
) -> TritonServer:
    """Render an engine's repository into the server's working folder."""
    shutil.rmtree(config.repository, ignore_errors=True)
    render.render(engine_dir, manifest, config.repository, deploy)
    return TritonServer(config)


@dataclass(frozen=True, slots=True)
class Agreement:
    """What all servers of a run have in common; None where a server does not tell."""

    num_kv_blocks: int | None  # the smallest pool
    is_exact: bool | None  # greedy and seeded answers do not depend on what else is in flight


async def agree(endpoints: list[Endpoint], manifest: EngineManifest) -> Agreement:
    """Check that every server serves the engine, and ask each for its settings.

    Raises:
        ContractMismatchError: A server serves another engine, or another contract.
    """
    pools: list[int] = []
    exact: list[bool | None] = []
    for endpoint in endpoints:
        parameters = await endpoint.transport.model_parameters(timeout_s=30)
        served = parameters.get("engine_id", manifest.engine_id)
        if served != manifest.engine_id:
            raise ContractMismatchError(
                f"{endpoint.transport.endpoint}: serves engine {served[:12]}; the run wants "
                f"{manifest.reference} ({manifest.engine_id[:12]})",
                "name the served engine with --engine",
            )
        if "num_kv_blocks" in parameters:
            pools.append(int(parameters["num_kv_blocks"]))
        exact.append(_is_exact(parameters, is_own=endpoint.server is not None))
    is_exact = False if False in exact else None if None in exact else True
    return Agreement(min(pools) if pools else None, is_exact)


def _is_exact(parameters: dict[str, str], *, is_own: bool) -> bool | None:
    if parameters.get("deterministic") == "true":
        return True
    return not hardware.low_precision_flags() if is_own else None


def _config(options: RunOptions) -> EndpointConfig:
    return EndpointConfig(
        start_timeout_s=options.start_timeout_s,
        server_wait_s=options.server_wait_s,
        probe_token_id=options.manifest.tokens.end,
    )
