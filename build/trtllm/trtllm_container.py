"""How a command runs in NVIDIA's container: what it may see, what it may write, and how it is ended.

It gets the GPUs, the folders it is given, and nothing else: no network, no other user's rights, no way to
gain any. Its caches and its home lie in the folder that it works in, which goes when it is done.
"""

from __future__ import annotations

import csv
import io
import os
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath, PurePosixPath

CHECKPOINT_DIR = PurePosixPath("/trtb/checkpoint")
OUTPUT_DIR = PurePosixPath("/trtb/output")
WORK_DIR = PurePosixPath("/trtb/work")
EXTRA_DIR = PurePosixPath("/trtb/extra")
WORK_FOLDER = ".work"  # ours, in the output folder, so that a killed build's goes with it

SHM_SIZE = "2g"  # docker's 64 MiB are too few for NCCL and Open MPI
STACK_BYTES = 67108864
# No library phones home or asks a hub; docker's --network none would only make it wait.
QUIET = {
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "DO_NOT_TRACK": "1",
}
_DEVICES = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True, slots=True)
class Mount:
    """One of our files or folders as the container sees it."""

    source: Path
    target: PurePath
    is_writable: bool = False

    def render(self) -> str:
        """Return the value of docker's --mount, in which a comma in a path is quoted."""
        fields = ["type=bind", f"source={self.source.absolute()}", f"target={self.target}"]
        text = io.StringIO()
        csv.writer(text, lineterminator="").writerow(fields if self.is_writable else [*fields, "readonly"])
        return text.getvalue()


@dataclass(frozen=True, slots=True)
class Container:
    """A container to be: an image and a name by which it can be ended."""

    image: str
    name: str

    def run_command(self, command: Sequence[str], mounts: Sequence[Mount]) -> list[str]:
        """Return the docker command that runs a command in it, in `WORK_DIR` if that is mounted."""
        has_work_dir = any(mount.target == WORK_DIR for mount in mounts)
        home = WORK_DIR if has_work_dir else PurePosixPath("/tmp")
        argv = ["docker", "run", "--rm", "--name", self.name, "--gpus", "all"]
        argv += ["--shm-size", SHM_SIZE, "--ulimit", "memlock=-1", "--ulimit", f"stack={STACK_BYTES}"]
        argv += ["--network", "none", "--security-opt", "no-new-privileges", "--cap-drop", "ALL"]
        argv += ["--user", f"{os.getuid()}:{os.getgid()}"]
        for mount in mounts:
            argv += ["--mount", mount.render()]
        for name, value in _environment(home).items():
            argv += ["--env", f"{name}={value}"]
        return [*argv, "--workdir", str(home), self.image, *command]

    def kill_command(self) -> list[str]:
        """Return the command that ends it; its client's end alone does not."""
        return ["docker", "kill", self.name]


def new_container_name() -> str:
    """Return a name that no container has."""
    return f"trtb-build-{secrets.token_hex(6)}"


def _environment(home: PurePosixPath) -> dict[str, str]:
    devices = {_DEVICES: os.environ[_DEVICES]} if _DEVICES in os.environ else {}
    return {
        **QUIET,
        "HOME": str(home),
        "USER": "trtb",  # our number may be no user of the container's, and some libraries ask for the name
        "TMPDIR": str(home),
        "XDG_CACHE_HOME": str(home / "cache"),
        "HF_HOME": str(home / "cache" / "huggingface"),
        "TRITON_CACHE_DIR": str(home / "cache" / "triton"),
        "TORCHINDUCTOR_CACHE_DIR": str(home / "cache" / "inductor"),
        **devices,
    }
