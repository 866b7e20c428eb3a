"""What servers leave behind when they end: processes, shared memory, containers. Nothing is expected."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import psutil

from trtb.build import hardware
from trtb.runner import server
from trtb.runner.acceptance.accept_build import gpu_free_bytes
from trtb.runner.acceptance.accept_state import AcceptState
from trtb.runner.acceptance.accept_step import Figures, StepFailedError
from trtb.runner.launching.launch import SHM_PREFIX
from trtb.runner.launching.launch_docker import docker

GONE_TIMEOUT_S: Final = 30.0
POLL_S: Final = 0.1


def clean_up(state: AcceptState, figures: Figures) -> None:
    """End what is left of ours, and look for what is left behind.

    Raises:
        StepFailedError: Something is.
        ServerStartError: Servers were started through docker, which does not answer.
    """
    state.commands.close()
    state.served = None
    pids = state.commands.pids
    left = wait_gone(folders_of(state), GONE_TIMEOUT_S)
    segments = find_segments(pids)
    # docker may be installed, and its engine not run: it is nobody's fault where nothing went through it
    containers = find_containers(pids) if state.has_used_docker else []
    figures.update(
        num_commands=len(pids),
        num_processes_left=len(left),
        num_shared_memory_left=len(segments),
        num_containers_left=len(containers),
    )
    if state.machine and state.machine.gpus:
        figures["gpu_free_bytes_before"] = gpu_free_bytes(state.machine.gpus)
        figures["gpu_free_bytes_after"] = gpu_free_bytes(hardware.probe_gpus().gpus)
    if found := [*left, *segments, *containers]:
        raise StepFailedError(f"left behind: {', '.join(found)}; expected nothing")


def folders_of(state: AcceptState) -> tuple[Path, ...]:
    """Return the folders that servers of this acceptance work in."""
    served = state.options.home / "cache" / "serve"
    return (state.work_dir, *(served / str(pid) for pid in state.commands.pids))


def wait_gone(folders: Sequence[Path], timeout_s: float) -> list[str]:
    """Return the processes that name one of the folders, once there are none or the time is up."""
    deadline = time.monotonic() + timeout_s
    while (left := list(_processes_of(folders))) and time.monotonic() < deadline:
        time.sleep(POLL_S)
    return left


def find_segments(pids: Sequence[int]) -> list[str]:
    """Return the shared memory of servers that these processes started."""
    return sorted(path.name for pid in pids for path in server.SHM.glob(f"{SHM_PREFIX}{pid}_*"))


def find_containers(pids: Sequence[int]) -> list[str]:
    """Return the containers that these processes started.

    Raises:
        ServerStartError: Docker does not answer.
    """
    names = docker("ps", "--all", "--filter", "label=trtb.pid", "--format", "{{.Names}}").split()
    return [name for name in names if any(name.startswith(f"trtb-serve-{pid}-") for pid in pids)]


def _processes_of(folders: Sequence[Path]) -> Iterator[str]:
    marks = [f"{folder}/" for folder in folders]
    for process in psutil.process_iter(["name", "cmdline", "status", "pid"]):
        info = process.info
        words = " ".join(info["cmdline"] or []) + "/"
        is_gone = info["status"] == psutil.STATUS_ZOMBIE or info["pid"] == os.getpid()
        if not is_gone and any(mark in words for mark in marks):
            yield f"{info['name']} {info['pid']}"
