"""What the result cache is worth: a file of greedy requests run for the first time, and for the second.

Both are whole commands, from the shell to the published output, in a home whose cache is empty at first; the
first one starts its server, the second has nothing to start one for.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from trtb.build.store import StoredEngine
from trtb.tools.bench.children import TAIL_LINES, TIMEOUT_S, BenchmarkError
from trtb.tools.bench.request_file import write_requests

COMMAND = (sys.executable, "-c", "from trtb.tools.cli import main; main()")
MAX_TOKENS = 32


@dataclass(frozen=True, slots=True)
class SecondRun:
    """The seconds of both runs, and how much of the first was the answering alone."""

    first_s: float
    answering_s: float
    second_s: float

    @property
    def ratio(self) -> float:
        """Return how many times faster the second one is.

        >>> SecondRun(30.0, 24.0, 1.0).ratio
        30.0
        """
        return self.first_s / self.second_s


def measure_second_run(folder: Path, engine: StoredEngine, num_requests: int, number: int) -> SecondRun:
    """Run a new file twice.

    Raises:
        BenchmarkError: A run failed, or the second one is not answered from the cache, byte for byte.
    """
    home = folder / f"home-{number}"
    home.mkdir()
    (home / "engines").symlink_to(engine.path.parents[1])
    path = folder / f"second-run-{number}.jsonl"
    write_requests(
        path,
        num_requests,
        model=engine.manifest.name,
        seed=4000 + number,
        max_tokens=MAX_TOKENS,
        num_words=40,
    )
    outputs = [folder / f"second-run-{number}-{name}.jsonl" for name in ("first", "second")]
    times, reports = [], []
    for output in outputs:
        started = time.perf_counter()
        reports.append(_run(home, path, output, engine))
        times.append(time.perf_counter() - started)
    if reports[1]["cached"] != num_requests:
        raise BenchmarkError(f"second run: {reports[1]['cached']} of {num_requests} from the cache")
    if outputs[0].read_bytes() != outputs[1].read_bytes():
        raise BenchmarkError(f"second run: {outputs[1]} is not {outputs[0]}, byte for byte")
    return SecondRun(times[0], float(reports[0]["duration_s"]), times[1])


def _run(home: Path, path: Path, output: Path, engine: StoredEngine) -> dict[str, Any]:
    arguments = ("run", path, "-o", output, "--engine", engine.manifest.reference, "--cache", "--json")
    done = subprocess.run(
        [*COMMAND, *map(str, arguments)],
        env={**os.environ, "TRTB_HOME": str(home)},
        cwd=home,
        capture_output=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    if done.returncode:
        words = done.stderr.decode(errors="replace").splitlines()[-TAIL_LINES:]
        raise BenchmarkError(f"trtb run: ended with status {done.returncode}\n" + "\n".join(words))
    report: dict[str, Any] = orjson.loads(done.stdout)
    return report
