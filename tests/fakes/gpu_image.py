"""NVIDIA's image without GPUs: its layout, and programs that do what the real ones do around a real server.

`install` makes a root with tritonserver, the TensorRT-LLM backend's library and a python, and a folder for
the PATH with mpirun and docker. That tritonserver checks a model as TensorRT-LLM's backend would (engine,
ranks, MPI), then becomes the embedded one with the no-op model on the same sockets, so that health, restart
and drain are real. docker runs "containers" as sessions of their own, which outlive their clients. FAKE_GPU,
a JSON object, says where the root is, where calls are written, and what goes wrong.
"""

from __future__ import annotations

import json
import os
import stat
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

VARIABLE = "FAKE_GPU"
IMAGE = "nvcr.io/nvidia/tritonserver:26.07-trtllm-python-py3"
SHOWN = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")
PROGRAMS = Path(__file__).parent / "gpu_programs"


@dataclass
class GpuImage:
    """The installed fake."""

    folder: Path
    root: Path
    bin: Path
    settings: dict[str, Any] = field(default_factory=dict)

    def environment(self, **settings: Any) -> dict[str, str]:
        """Return the variables of a process that is to meet it; `settings` say what goes wrong."""
        told = {"root": str(self.root), "folder": str(self.folder), **self.settings, **settings}
        return {VARIABLE: json.dumps(told), "PATH": f"{self.bin}{os.pathsep}{os.environ['PATH']}"}

    def calls(self, program: str) -> list[dict[str, Any]]:
        """Return what a program was called with so far: its `argv` and `environment`."""
        path = self.folder / f"{program}.calls"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def containers(self) -> list[str]:
        """Return the names of the containers that run."""
        return sorted(path.stem for path in (self.folder / "containers").glob("*.json"))


def install(folder: Path, versions: dict[str, str] | None = None) -> GpuImage:
    """Lay the image out below `folder`; `versions` are those of its python's packages."""
    root, programs = folder / "image", folder / "bin"
    server = root / "opt/tritonserver"
    (server / "backends/tensorrtllm").mkdir(parents=True)
    (server / "backends/tensorrtllm/libtriton_tensorrtllm.so").touch()
    (folder / "containers").mkdir()
    _write_program(server / "bin/tritonserver", "tritonserver")
    for name in ("mpirun", "docker"):
        _write_program(programs / name, name)
    told = {"tensorrt_llm": "1.2.1", "tensorrt": "10.14.1.48"} if versions is None else versions
    lines = "".join(f"echo {name} {version}\n" for name, version in told.items())
    python = root / "opt/venv-tritonserver/bin/python3"
    python.parent.mkdir(parents=True)
    python.write_text(f"#!/bin/sh\n{lines}")
    _make_executable(python)
    return GpuImage(folder, root, programs)


def _write_program(path: Path, name: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    source = PROGRAMS / f"{name}.py"
    path.write_text(
        f"#!{sys.executable} -I\nimport runpy\nrunpy.run_path({str(source)!r}, run_name='__main__')\n"
    )
    _make_executable(path)


def _make_executable(path: Path) -> None:
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def record(program: str, argv: list[str]) -> dict[str, Any]:
    """Write a call down, and return the settings; for the programs."""
    settings: dict[str, Any] = json.loads(os.environ[VARIABLE])
    environment = {name: os.environ[name] for name in SHOWN if name in os.environ}
    line = json.dumps({"argv": argv, "environment": environment, "pid": os.getpid()})
    with (Path(settings["folder"]) / f"{program}.calls").open("a") as file:
        file.write(line + "\n")
    return settings
