"""The servers of a run: those of our own, one for each group of GPUs, or those that are there already."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from trtb.build import hardware
from trtb.build.manifest import EngineManifest
from trtb.model_repo import contract, render
from trtb.model_repo.trtllm_parameters import parse_pairs, parse_parameters
from trtb.runner.endpoint import Endpoint, EndpointConfig
from trtb.runner.errors import ContractMismatchError
from trtb.runner.exactness import weakest
from trtb.runner.launching.devices import Group, parse_groups
from trtb.runner.launching.fit import Fit, require_fit
from trtb.runner.launching.kv_options import with_kv_cache
from trtb.runner.launching.launch import Choice, Launch, ServerConfig
from trtb.runner.launching.launch_embedded import Embedded
from trtb.runner.launching.place import Place, choose_place
from trtb.runner.options import RunOptions
from trtb.runner.run_folder import RunPaths
from trtb.runner.server import TritonServer
from trtb.runner.server_metrics import wait_for_pool
from trtb.runner.triton_client import TritonTransport

log = logging.getLogger(__name__)

PORTS_PER_SERVER = 2  # the ports of a second server are those after the first's


async def launch(options: RunOptions, paths: RunPaths) -> list[Endpoint]:
    """Start the servers for this run alone, working in the run's folder; they are not ready yet.

    Raises:
        HardwareError: This machine does not fit the engine.
        ServerStartError: Something that a server needs is missing.
    """
    servers = prepare_all(
        options.engine_dir,
        options.manifest,
        Deployment(options.launch, parse_groups(options.device_ids), deploy_config(options)),
        ServerConfig(
            repository=paths.server_dir / "repository",
            work_dir=paths.server_dir,
            log_path=paths.server_log,
        ),
        log.warning,
    )
    try:
        for server in servers:
            server.start()
    except BaseException:
        for server in servers:
            await server.stop(graceful=False)
        raise
    return [Endpoint(_config(options), TritonTransport(server.endpoint), server) for server in servers]


def deploy_config(options: RunOptions) -> render.DeployConfig:
    """Return how a run's own servers serve the engine.

    Raises:
        ConfigError: What is asked of the KV cache is no choice of the engine's backend.
    """
    config = render.DeployConfig(
        deterministic=options.deterministic,
        trtllm=parse_parameters(parse_pairs(options.trtllm_parameters)),
    )
    return with_kv_cache(config, options.kv_options, options.manifest)


def check(options: RunOptions) -> None:
    """Check that a run's own servers could start here; nothing is done where the run names servers.

    Raises:
        HardwareError: This machine does not fit the engine.
        EngineCorruptError: The engine's files are not what its manifest says.
    """
    if not options.endpoints:
        deployment = Deployment(options.launch, parse_groups(options.device_ids), deploy_config(options))
        fit_of(options.engine_dir, options.manifest, deployment)


@dataclass(frozen=True, slots=True)
class Deployment:
    """Where an engine's servers are to run, on which GPUs, and how they serve it."""

    launch: Choice = "auto"
    groups: tuple[Group, ...] = ()  # the GPUs of each server; (): one server, on those that suit best
    config: render.DeployConfig = field(default_factory=render.DeployConfig)


def fit_of(engine_dir: Path, manifest: EngineManifest, deployment: Deployment) -> tuple[Place, Fit]:
    """Return where an engine is served, and on what; this machine was asked.

    Raises:
        HardwareError: This machine does not fit the engine.
        EngineCorruptError: The engine's files are not what its manifest says.
    """
    place = choose_place(deployment.launch, manifest)
    return place, require_fit(engine_dir, manifest, place, deployment.groups, deployment.config)


def prepare_all(
    engine_dir: Path,
    manifest: EngineManifest,
    deployment: Deployment,
    config: ServerConfig,
    tell: Callable[[str], None],
) -> list[TritonServer]:
    """Render a repository for each server of an engine, where the machine fits; none is started.

    Args:
        engine_dir: The stored engine.
        manifest: Its manifest.
        deployment: Where, on which GPUs, and how.
        config: Of the first server; the others get folders, logs and ports beside.
        tell: Hears what speaks against it, without forbidding it.

    Raises:
        HardwareError: This machine does not fit the engine.
    """
    place, fit = fit_of(engine_dir, manifest, deployment)
    for finding in fit.findings:
        if finding.severity == "warns":
            tell(f"{finding.message} ({finding.hint})")
    return [
        prepare(
            engine_dir,
            manifest,
            each,
            deployment.config,
            place.launch(engine_dir, manifest, fit.groups[index]),
        )
        for index, each in enumerate(configs_of(config, len(fit.groups)))
    ]


def configs_of(config: ServerConfig, count: int) -> list[ServerConfig]:
    """Return the configuration of each of several servers of one engine: apart on disk and in ports."""
    if count == 1:
        return [config]
    suffix = config.log_path.suffix
    return [
        replace(
            config,
            repository=config.work_dir / str(index) / config.repository.name,
            work_dir=config.work_dir / str(index),
            log_path=config.log_path.with_name(f"{config.log_path.stem}.{index}{suffix}"),
            grpc_port=config.grpc_port and config.grpc_port + PORTS_PER_SERVER * index,
            metrics_port=config.metrics_port and config.metrics_port + PORTS_PER_SERVER * index,
        )
        for index in range(count)
    ]


def attach(options: RunOptions) -> list[Endpoint]:
    """Return the endpoints that the user named."""
    return [Endpoint(_config(options), TritonTransport(address)) for address in options.endpoints]


def prepare(
    engine_dir: Path,
    manifest: EngineManifest,
    config: ServerConfig,
    deploy: render.DeployConfig,
    launch: Launch | None = None,
) -> TritonServer:
    """Render an engine's repository into the server's working folder; embedded unless told otherwise."""
    launch = Embedded() if launch is None else launch
    shutil.rmtree(config.repository, ignore_errors=True)
    render.render(engine_dir, manifest, config.repository, deploy, launch.engine_root)
    return TritonServer(config, launch)


@dataclass(frozen=True, slots=True)
class Agreement:
    """What all servers of a run have in common; None where a server does not tell."""

    num_kv_blocks: int | None  # the smallest pool
    is_exact: bool | None  # greedy and seeded answers do not depend on what else is in flight
    is_reusing: bool = True  # shared prefixes are computed once; where it is not told, they are
    can_retain: bool = False  # requests may say which of their blocks the engine should keep


async def agree(endpoints: list[Endpoint], manifest: EngineManifest) -> Agreement:
    """Check that every server serves the engine, and ask each for its settings.

    Raises:
        ContractMismatchError: A server serves another engine, or another contract.
    """
    pools: list[int] = []
    exact: list[bool | None] = []
    is_reusing = can_retain = True
    for endpoint in endpoints:
        model = await endpoint.transport.served_model(timeout_s=30)
        parameters = model.parameters
        served = parameters.get("engine_id", manifest.engine_id)
        if served != manifest.engine_id:
            raise ContractMismatchError(
                f"{endpoint.transport.endpoint}: serves engine {served[:12]}; the run wants "
                f"{manifest.reference} ({manifest.engine_id[:12]})",
                "name the served engine with --engine",
            )
        if (pool := await _pool_of(endpoint, parameters)) is not None:
            pools.append(pool)
        is_reusing &= parameters.get(contract.KV_REUSE_PARAMETER) != "false"
        can_retain &= model.can_retain
        exact.append(_is_exact(parameters, manifest, is_own=endpoint.server is not None))
    return Agreement(min(pools) if pools else None, weakest(exact), is_reusing, can_retain)


async def _pool_of(endpoint: Endpoint, parameters: dict[str, str]) -> int | None:
    """Return a server's KV blocks: as its model's parameters say, else as a server of our own measures."""
    if "num_kv_blocks" in parameters:
        return int(parameters["num_kv_blocks"])
    return None if endpoint.server is None else await wait_for_pool(endpoint.server.metrics_url)


def _is_exact(parameters: dict[str, str], manifest: EngineManifest, *, is_own: bool) -> bool | None:
    if parameters.get("deterministic") == "true":
        return True
    if parameters.get(contract.KV_DTYPE_PARAMETER, "auto") != "auto":
        return False
    if manifest.backend == "tensorrt_llm":
        return False  # its kernels are chosen by the size of the batch
    return not hardware.low_precision_flags() if is_own else None


def _config(options: RunOptions) -> EndpointConfig:
    return EndpointConfig(
        start_timeout_s=options.start_timeout_s,
        server_wait_s=options.server_wait_s,
        probe_token_id=options.manifest.tokens.end,
    )
