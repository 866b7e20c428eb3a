"""Run one side of a benchmark in a process of its own, so that neither side pays for the other."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson

from trtb.build.errors import TrtbError

TIMEOUT_S = 3600
TAIL_LINES = 15


class BenchmarkError(TrtbError):
    """A side of a benchmark did not run to its end."""

    code = "benchmark_failed"


def run_child(module: str, task: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Give `task` to a module's `main` in a new interpreter, and return what it answers.

    `folder` is the process's working folder: the checkout's own would put its `build` before others.

    Raises:
        BenchmarkError: The process failed; its last words are in the message.
    """
    done = subprocess.run(
        [sys.executable, "-m", module],
        input=orjson.dumps(task),
        capture_output=True,
        cwd=folder,
        timeout=TIMEOUT_S,
        check=False,
    )
    if done.returncode:
        words = done.stderr.decode(errors="replace").splitlines()[-TAIL_LINES:]
        raise BenchmarkError(f"{module}: ended with status {done.returncode}\n" + "\n".join(words))
    answer: dict[str, Any] = orjson.loads(done.stdout.splitlines()[-1])
    return answer


def serve_task(work: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Be the child: read the task, do the work, answer."""
    answer = work(orjson.loads(sys.stdin.buffer.read()))
    sys.stdout.buffer.write(orjson.dumps(answer) + b"\n")


def cpu_s_of(work: Callable[[], Any]) -> float:
    """Return the CPU seconds that this process, all its threads, spends on some work."""
    start = time.process_time()
    work()
    return time.process_time() - start


def peak_rss_bytes() -> int:
    """Return the most memory this program has had; the kernel's rusage would include its parent's."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise BenchmarkError("/proc/self/status: no VmHWM; expected Linux")
