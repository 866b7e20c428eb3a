"""Whether this process is in a container, and whether this machine can start one with GPUs."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from trtb.build.probe.cgroups import read_text
from trtb.build.probe.hardware_info import DockerInfo, Problem

_DOCKER_TIMEOUT_S: Final = 5.0
# what a path in /proc/self/cgroup holds -> who made the group
_GROUP_MARKS: Final = (
    ("/kubepods", "kubernetes"),
    ("/docker", "docker"),
    ("/libpod", "podman"),
    ("/lxc", "lxc"),
    ("/containerd", "containerd"),
    ("/slurm", ""),  # a batch system's group on the bare machine
)


def find_container(root: Path, environ: Mapping[str, str]) -> str | None:
    """Return what kind of container this process is in; None on the machine itself."""
    if "KUBERNETES_SERVICE_HOST" in environ:
        return "kubernetes"
    if (root / ".singularity.d").is_dir():
        return "apptainer"
    if (root / "run/.containerenv").exists():
        return "podman"
    if (root / ".dockerenv").exists():
        return "docker"
    told = read_text(root / "run/systemd/container")
    if told:
        return told
    groups = read_text(root / "proc/self/cgroup")
    return next((kind for mark, kind in _GROUP_MARKS if mark in groups), "") or None


def probe_docker(problems: list[Problem]) -> DockerInfo:
    """Return the versions and runtimes of Docker; what does not answer is added to `problems`."""
    try:
        ended = subprocess.run(
            ["docker", "info", "--format", "{{json .}}"],
            check=False,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_DOCKER_TIMEOUT_S,
        )
    except FileNotFoundError:
        return _nothing(problems, "docker: no such command on the PATH", "missing")
    except OSError as exc:
        return _nothing(problems, f"docker: {exc.strerror}", "failed")
    except subprocess.TimeoutExpired:
        return _nothing(problems, f"docker info: no answer within {_DOCKER_TIMEOUT_S:g} s", "timeout")
    return read_docker_info(ended.stdout, ended.stderr.decode(errors="replace").strip(), problems)


def read_docker_info(told: bytes, error: str, problems: list[Problem]) -> DockerInfo:
    """Return what `docker info` says; without a server it describes the client alone."""
    try:
        info = json.loads(told)
    except ValueError:
        info = {}
    client = (info.get("ClientInfo") or {}).get("Version")
    server = info.get("ServerVersion") or None
    if server is None:
        is_refused = "permission denied" in error.lower()
        why = (error.splitlines() or ["no answer"])[-1]
        problems.append(
            Problem(what="docker server", why=why, kind="no_permission" if is_refused else "missing")
        )
    return DockerInfo(
        client_version=client, server_version=server, runtimes=tuple(sorted(info.get("Runtimes") or ()))
    )


def _nothing(problems: list[Problem], why: str, kind: str) -> DockerInfo:
    problems.append(Problem.model_validate({"what": "docker", "why": why, "kind": kind}))
    return DockerInfo(client_version=None, server_version=None, runtimes=())
