"""TensorRT-LLM's servers started here, because here is NVIDIA's image: its tritonserver, backend and MPI."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Final

from trtb.build import compatibility
from trtb.build.trtllm.trtllm_container import QUIET
from trtb.runner.launching.launch import (
    Listening,
    ServerConfig,
    StartPlan,
    device_environment,
    drain_command,
    misleading_variables,
    mpi_command,
    rank_logs,
)

# below the root of an image
BINARY: Final = "opt/tritonserver/bin/tritonserver"
BACKEND: Final = "opt/tritonserver/backends/tensorrtllm/libtriton_tensorrtllm.so"
# the first that has tensorrt_llm is the image's own; ours may come first on the PATH
_PYTHONS: Final = ("opt/venv-tritonserver/bin/python3", "usr/bin/python3", "usr/local/bin/python3")
RELEASE_VARIABLE: Final = "NVIDIA_TRITON_SERVER_VERSION"  # "26.07", set by the image
_QUESTION: Final = (
    "from importlib import metadata\n"
    "for name in ('tensorrt_llm', 'tensorrt'):\n"
    "    try: print(name, metadata.version(name))\n"
    "    except metadata.PackageNotFoundError: pass\n"
)
_QUESTION_TIMEOUT_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Image:
    """NVIDIA's image around this process."""

    root: Path
    versions: Mapping[str, str]  # tensorrt_llm, tensorrt; as far as they could be found out

    @property
    def binary(self) -> Path:
        """Return its tritonserver."""
        return self.root / BINARY


@dataclass(frozen=True, slots=True)
class ImageLaunch:
    """Runs an engine's ranks with the image's tritonserver."""

    image: Image
    world_size: int
    devices: tuple[str, ...] = ()  # the GPUs that the ranks see, by the driver's numbers; (): all

    @property
    def engine_root(self) -> PurePath | None:
        """Return None: the server sees what we see."""
        return None

    def plan(self, config: ServerConfig, listening: Listening) -> StartPlan:
        """Return what would be executed."""
        ranks_dir = config.ranks_dir.absolute()
        argv = mpi_command(
            self.image.binary,
            config.repository.absolute(),
            ranks_dir,
            listening,
            config.exit_timeout_s,
            self.world_size,
        )
        environment = {
            **QUIET,
            **device_environment(self.devices),
            "TMPDIR": str(config.work_dir.absolute() / "tmp"),
        }
        return StartPlan(
            tuple(argv),
            environment,
            unset=misleading_variables(),
            logs=rank_logs(config, self.world_size),
            drain=tuple(drain_command(ranks_dir)),
        )

    def lay_out(self, config: ServerConfig) -> None:
        """Make the folders of the ranks' logs and of temporary files."""
        make_ranks_dir(config)
        (config.work_dir / "tmp").mkdir(parents=True, exist_ok=True)


def make_ranks_dir(config: ServerConfig) -> None:
    """Make the folder of the ranks' logs; what an earlier start said of its processes goes."""
    config.ranks_dir.mkdir(parents=True, exist_ok=True)
    for path in config.ranks_dir.glob("rank*.pid"):
        path.unlink()


def read_image(root: Path = Path("/"), environment: Mapping[str, str] = os.environ) -> Image:
    """Return the image that we are in, asked for its versions; `BINARY` and `BACKEND` must be there."""
    versions: dict[str, str] = {}
    for python in (root / name for name in _PYTHONS):
        if python.is_file() and "tensorrt_llm" in (versions := _ask(python)):
            break
    if "tensorrt_llm" not in versions:
        return Image(root, versions_of_release(environment.get(RELEASE_VARIABLE, "")))
    # the image has TensorRT itself, and not always its package
    release = compatibility.get_release(versions["tensorrt_llm"])
    return Image(root, ({"tensorrt": release.tensorrt} if release else {}) | versions)


def versions_of_release(container: str) -> dict[str, str]:
    """Return what an image of that release, such as "26.07", has; nothing for one that is not known."""
    row = next((row for row in compatibility.TRTLLM_RELEASES if container in row.containers), None)
    return {"tensorrt_llm": row.version, "tensorrt": row.tensorrt} if row else {}


def _ask(python: Path) -> dict[str, str]:
    try:
        told = subprocess.run(
            [str(python), "-I", "-c", _QUESTION],
            check=False,
            capture_output=True,
            text=True,
            timeout=_QUESTION_TIMEOUT_S,
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return {}
    versions = dict(line.split(" ", 1) for line in told.splitlines() if " " in line)
    # a package may be built again for the same library: what an engine asks for is the library
    return {name: version.partition(".post")[0] for name, version in versions.items()}
