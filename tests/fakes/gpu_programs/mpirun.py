"""An mpirun on one machine: it starts each part of its line, and ends them all when one ends badly."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType

sys.path.insert(0, str(Path(__file__).parents[2]))
from fakes.gpu_image import record

KILL_AFTER_S = 1.0  # Open MPI's own default
FLAGS = {"--allow-run-as-root": 0, "--oversubscribe": 0, "--bind-to": 1}


def main(arguments: list[str]) -> int:
    record("mpirun", arguments)
    parts = read(arguments)
    processes = [
        subprocess.Popen(
            part,
            env={
                **os.environ,
                "OMPI_COMM_WORLD_RANK": str(rank),
                "OMPI_COMM_WORLD_SIZE": str(len(parts)),
            },
        )
        for rank, part in enumerate(parts)
    ]

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        end(processes)
        sys.exit(1)

    signal.signal(signal.SIGTERM, on_signal)
    signal.signal(signal.SIGINT, on_signal)
    while any(process.poll() is None for process in processes):
        for rank, process in enumerate(processes):
            if status := process.poll():
                print(f"mpirun noticed that process rank {rank} exited with status {status}.", flush=True)
                end(processes)
                return 1 if status < 0 else status
        time.sleep(0.02)
    return 0


def read(arguments: list[str]) -> list[list[str]]:
    """Return the command of each rank."""
    rest = list(arguments)
    while rest and rest[0] in FLAGS:
        del rest[: 1 + FLAGS[rest[0]]]
    parts: list[list[str]] = [[]]
    for argument in rest:
        if argument == ":":
            parts.append([])
        else:
            parts[-1].append(argument)
    for part in parts:
        if part[:2] != ["-n", "1"]:
            sys.exit(f"mpirun: {part[:2]}: one process for each part is all that is known here")
    return [part[2:] for part in parts]


def end(processes: list[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        if process.poll() is None:
            process.terminate()
    deadline = time.monotonic() + KILL_AFTER_S
    for process in processes:
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
