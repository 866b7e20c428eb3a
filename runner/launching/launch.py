"""What a server is started with: one command for each place that it can run in. Pure.

tritonserver is told the same everywhere: explicit models, sockets, the drain's bound, a key for what
nobody may call. Around it stand the places: this Python's own copy, NVIDIA's image that we are in, or a
container of it. TensorRT-LLM's servers are started as NVIDIA's own launcher does it, one for each rank
under one mpirun, of which the first alone listens.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Final, Literal, Protocol

from trtb.build.errors import ConfigError
from trtb.model_repo import contract

Choice = Literal["auto", "embedded", "image", "docker"]
CHOICES: Final[tuple[Choice, ...]] = ("auto", "embedded", "image", "docker")

RESTRICTED: Final = "model-repository,shared-memory,trace,logging"
SHM_PREFIX: Final = "trtb_"
# Each rank writes a log of its own, whatever the version of MPI, and says which process it is.
RANK_SCRIPT: Final = 'echo $$ > "$0.pid"; exec "$@" >> "$0.log" 2>&1'
# The leader finishes what is in flight while the other ranks still compute for it; they end after it.
DRAIN_SCRIPT: Final = (
    'read -r pid < "$0" && kill -TERM "$pid" && while kill -0 "$pid" 2> /dev/null; do sleep 0.1; done'
)


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """Where a server works and listens. Ports of 0 are chosen among the free ones."""

    repository: Path
    work_dir: Path  # what a start lays out; made anew each time
    log_path: Path
    host: str = "127.0.0.1"
    grpc_port: int = 0
    metrics_port: int = 0
    http_port: int | None = None  # None: no HTTP
    exit_timeout_s: int = 30

    @property
    def ranks_dir(self) -> Path:
        """Return the folder of the ranks' logs, beside the server's; unused where there is one process."""
        return self.log_path.with_name(f"{self.log_path.stem}.ranks")


@dataclass(frozen=True, slots=True)
class Listening:
    """The sockets of one start, and what its python models' shared memory begins with."""

    host: str
    grpc_port: int
    metrics_port: int
    http_port: int | None
    shm_prefix: str
    admin_key: str = field(default_factory=lambda: secrets.token_hex(16))


@dataclass(frozen=True, slots=True)
class StartPlan:
    """One start: what is executed, and how what it started is ended."""

    argv: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)  # over ours
    unset: tuple[str, ...] = ()  # of ours
    logs: tuple[Path, ...] = ()  # of the ranks
    # lets requests in flight finish, and returns when they have; (): a SIGTERM to the process does
    drain: tuple[str, ...] = ()
    end_also: tuple[str, ...] = ()  # ends what is no child of ours


class Launch(Protocol):
    """A place where a server can run."""

    @property
    def engine_root(self) -> PurePath | None:
        """Return the engine's folder as the server sees it; None where that is where it lies."""

    def plan(self, config: ServerConfig, listening: Listening) -> StartPlan:
        """Return what would be executed; nothing is changed.

        Raises:
            ServerStartError: Something that the server needs is missing.
        """

    def lay_out(self, config: ServerConfig) -> None:
        """Make the folders that the plan names, and end what an earlier start left behind."""


def check_choice(text: str) -> Choice:
    """Return a person's choice of where to serve.

    Raises:
        ConfigError: It is none.
    """
    for known in CHOICES:
        if text == known:
            return known
    raise ConfigError(f"launch: {text!r}; expected {', '.join(CHOICES[:-1])} or {CHOICES[-1]}")


def server_options(
    repository: PurePath, listening: Listening, exit_timeout_s: int, *, shm_prefix: str | None = None
) -> list[str]:
    """Return tritonserver's options that are the same everywhere."""
    options = [
        *_model_options(repository, exit_timeout_s, shm_prefix or listening.shm_prefix),
        f"--grpc-address={listening.host}",
        f"--grpc-port={listening.grpc_port}",
        f"--metrics-address={listening.host}",
        f"--metrics-port={listening.metrics_port}",
        # nobody may load models or read logs through this server: the key is told to no one
        f"--grpc-restricted-protocol={RESTRICTED}:admin-key={listening.admin_key}",
    ]
    if listening.http_port is None:
        return [*options, "--allow-http=false"]
    return [*options, f"--http-address={listening.host}", f"--http-port={listening.http_port}"]


def follower_options(repository: PurePath, exit_timeout_s: int, shm_prefix: str) -> list[str]:
    """Return the options of a rank that computes and does not listen."""
    closed = ["--allow-grpc=false", "--allow-http=false", "--allow-metrics=false"]
    return [*_model_options(repository, exit_timeout_s, shm_prefix), *closed]


def _model_options(repository: PurePath, exit_timeout_s: int, shm_prefix: str) -> list[str]:
    return [
        f"--model-repository={repository}",
        "--model-control-mode=explicit",
        f"--load-model={contract.MODEL_NAME}",
        "--disable-auto-complete-config",
        f"--exit-timeout-secs={exit_timeout_s}",
        "--log-format=ISO8601",
        f"--backend-config=python,shm-region-prefix-name={shm_prefix}",
    ]


def mpi_command(
    binary: PurePath,
    repository: PurePath,
    ranks_dir: PurePath,
    listening: Listening,
    exit_timeout_s: int,
    world_size: int,
    *,
    mpirun: PurePath | str = "mpirun",
) -> list[str]:
    """Return the command that starts an engine's ranks; each writes `rank{r}.log` and `rank{r}.pid`.

    The first rank is the leader: requests go to it, and the other ranks follow it from within the model.
    """
    # Root is usual in containers. MPI counts cores as slots, and would bind each server to one of them.
    command = [str(mpirun), "--allow-run-as-root", "--oversubscribe", "--bind-to", "none"]
    for rank in range(world_size):
        prefix = f"{listening.shm_prefix}{rank}_"
        options = (
            server_options(repository, listening, exit_timeout_s, shm_prefix=prefix)
            if rank == 0
            else follower_options(repository, exit_timeout_s, prefix)
        )
        command += [":"] if rank else []
        command += ["-n", "1", "sh", "-c", RANK_SCRIPT, str(ranks_dir / f"rank{rank}"), str(binary), *options]
    return command


def drain_command(ranks_dir: PurePath) -> list[str]:
    """Return the command that drains the leader of `mpi_command`'s ranks and returns when it has ended."""
    return ["sh", "-c", DRAIN_SCRIPT, str(ranks_dir / "rank0.pid")]


def rank_logs(config: ServerConfig, world_size: int) -> tuple[Path, ...]:
    """Return the ranks' logs on this machine."""
    return tuple(config.ranks_dir / f"rank{rank}.log" for rank in range(world_size))


def shm_prefix_of(pid: int) -> str:
    """Return a new name that the shared memory of a server of process `pid` begins with."""
    return f"{SHM_PREFIX}{pid}_{secrets.token_hex(3)}_"


# what another launch leaves in the environment would be believed by mpirun: that it is a rank of a job,
# and that a batch system starts its processes
_MISLEADING: Final = ("PMI_", "PMIX_", "OMPI_COMM_", "OMPI_UNIVERSE_", "SLURM_", "VIRTUAL_ENV")


def misleading_variables(environment: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Return the variables of ours that mpirun and its servers must not see."""
    return tuple(sorted(name for name in environment if name.startswith(_MISLEADING)))


def device_environment(devices: Sequence[str]) -> dict[str, str]:
    """Return what makes CUDA see those GPUs alone, by the driver's numbers; nothing where all are meant."""
    if not devices:
        return {}
    # by default CUDA counts the fastest GPU first, not as the driver does
    return {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": ",".join(devices)}
