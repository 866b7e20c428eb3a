"""TensorRT-LLM's servers in a container of NVIDIA's image, started from the host.

The container has the GPUs that it is given, the engine and the repository to read, and a folder for the
ranks' logs to write; the rest of its file system is read-only but for a temporary one. It has a network,
since ports cannot be published without one, and they are published on the address that we are told.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import subprocess
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath, PurePosixPath
from typing import Final

import psutil

from trtb.build.trtllm.trtllm_container import QUIET, SHM_SIZE, STACK_BYTES, Mount
from trtb.model_repo.render import ENGINE_MOUNT
from trtb.runner.errors import ServerStartError
from trtb.runner.launching.launch import (
    Listening,
    ServerConfig,
    StartPlan,
    drain_command,
    mpi_command,
    rank_logs,
)
from trtb.runner.launching.launch_image import BINARY, make_ranks_dir

REPOSITORY_MOUNT: Final = PurePosixPath("/trtb/repository")
RANKS_MOUNT: Final = PurePosixPath("/trtb/ranks")
HOME: Final = PurePosixPath("/tmp")
TIMEOUT_S: Final = 30.0
_PID_LABEL: Final = "trtb.pid"
_HOST_LABEL: Final = "trtb.host"


@dataclass(frozen=True, slots=True)
class DockerLaunch:
    """Runs an engine's ranks in one container, which ends with us."""

    image: str  # by digest where docker knows it
    engine_dir: Path
    world_size: int
    devices: tuple[str, ...] = ()  # the GPUs that the container gets, by the driver's numbers; (): all
    owner: int = field(default_factory=os.getpid)

    @property
    def engine_root(self) -> PurePath | None:
        """Return the engine's folder as the container sees it."""
        return ENGINE_MOUNT

    def plan(self, config: ServerConfig, listening: Listening) -> StartPlan:
        """Return what would be executed."""
        name = f"trtb-serve-{self.owner}-{secrets.token_hex(4)}"
        inner = mpi_command(
            PurePosixPath("/") / BINARY,
            REPOSITORY_MOUNT,
            RANKS_MOUNT,
            replace(listening, host="0.0.0.0"),
            config.exit_timeout_s,
            self.world_size,
        )
        argv = [*self._run_options(name, config), *_publish(listening), self.image, *inner]
        return StartPlan(
            tuple(argv),
            logs=rank_logs(config, self.world_size),
            drain=("docker", "exec", name, *drain_command(RANKS_MOUNT)),
            end_also=("docker", "kill", name),
        )

    def lay_out(self, config: ServerConfig) -> None:
        """Make the folder of the ranks' logs, and end the containers of those who are gone."""
        make_ranks_dir(config)
        sweep_containers()

    def _run_options(self, name: str, config: ServerConfig) -> list[str]:
        # The value is read as CSV: without quotes a second device would be another option.
        gpus = f'"device={",".join(self.devices)}"' if self.devices else "all"
        mounts = (
            Mount(self.engine_dir, ENGINE_MOUNT),
            Mount(config.repository, REPOSITORY_MOUNT),
            Mount(config.ranks_dir, RANKS_MOUNT, is_writable=True),
        )
        argv = ["docker", "run", "--rm", "--init", "--pull", "never", "--name", name]
        argv += ["--label", f"{_PID_LABEL}={self.owner}", "--label", f"{_HOST_LABEL}={socket.gethostname()}"]
        argv += ["--gpus", gpus, "--shm-size", SHM_SIZE]
        argv += ["--ulimit", "memlock=-1", "--ulimit", f"stack={STACK_BYTES}"]
        argv += ["--read-only", "--tmpfs", f"{HOME}:mode=1777"]
        argv += ["--security-opt", "no-new-privileges", "--cap-drop", "ALL"]
        argv += ["--user", f"{os.getuid()}:{os.getgid()}"]
        for mount in mounts:
            argv += ["--mount", mount.render()]
        for variable, value in self._environment().items():
            argv += ["--env", f"{variable}={value}"]
        return [*argv, "--workdir", str(HOME)]

    def _environment(self) -> dict[str, str]:
        """Return the container's variables over those of its image."""
        shown = "CUDA_VISIBLE_DEVICES"
        devices = {shown: os.environ[shown]} if not self.devices and shown in os.environ else {}
        return {
            **QUIET,
            "HOME": str(HOME),
            "USER": "trtb",  # our number may be no user of the image's, and some libraries ask for the name
            "TMPDIR": str(HOME),
            # ranks may not read each other's memory there, and MPI would complain of each try
            "OMPI_MCA_btl_vader_single_copy_mechanism": "none",
            **devices,
        }


def sweep_containers() -> None:
    """End the servers' containers whose starter, a process of this machine, is gone.

    Raises:
        ServerStartError: Docker does not answer.
    """
    shown = f'{{{{.Names}}}}\t{{{{.Label "{_PID_LABEL}"}}}}'
    filters = ["--filter", f"label={_PID_LABEL}", "--filter", f"label={_HOST_LABEL}={socket.gethostname()}"]
    for line in docker("ps", *filters, "--format", shown).splitlines():
        name, _, owner = line.partition("\t")
        if owner.isdigit() and not psutil.pid_exists(int(owner)):
            with contextlib.suppress(ServerStartError):  # it has just ended by itself
                docker("kill", name)


def docker(*arguments: str) -> str:
    """Return what docker prints.

    Raises:
        ServerStartError: There is no docker, its engine does not answer, or it refuses.
    """
    try:
        ended = subprocess.run(
            ["docker", *arguments],
            check=False,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )
    except FileNotFoundError as exc:
        raise ServerStartError("docker: no such command on the PATH") from exc
    except subprocess.TimeoutExpired as exc:
        raise ServerStartError(f"docker {arguments[0]}: no answer within {TIMEOUT_S:g} s") from exc
    if ended.returncode != 0:
        told = ended.stderr.strip().splitlines() or [f"ended with status {ended.returncode}"]
        raise ServerStartError(f"docker {arguments[0]}: {told[-1]}")
    return ended.stdout


def _publish(listening: Listening) -> list[str]:
    host = f"[{listening.host}]" if ":" in listening.host else listening.host
    ports = [listening.grpc_port, listening.metrics_port]
    if listening.http_port is not None:
        ports.append(listening.http_port)
    return [text for port in ports for text in ("--publish", f"{host}:{port}:{port}")]
