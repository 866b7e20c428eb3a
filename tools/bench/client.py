"""What a whole run costs its client, over bare gRPC streams of the same requests; and its memory.

CPU seconds, not time: the server shares the machine. A run's fixed cost (loading the tokenizer, two
probes, the report) is that of a file of a few lines, and is taken off; importing is not counted at all.
"""

from __future__ import annotations

import statistics
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtb.build.store import StoredEngine
from trtb.tools.bench.children import run_child
from trtb.tools.bench.noop import noop_server
from trtb.tools.bench.request_file import write_requests
from trtb.tools.bench.targets import Outcome, Target, interleave, median_ratio

CONCURRENCY = 64
NUM_FEW = 200
RUN = "trtb.tools.bench.client_run"
BARE = "trtb.tools.bench.bare_streams"


@dataclass(frozen=True, slots=True)
class Size:
    """How much is run."""

    num_lines: int
    num_rounds: int
    num_lines_rss: int
    num_lines_growth: int


FULL = Size(60_000, 5, 200_000, 1_000_000)
QUICK = Size(20_000, 3, 20_000, 100_000)


class ClientBench:
    """Both sides over one server."""

    def __init__(self, folder: Path, engine: StoredEngine, endpoint: str) -> None:
        self._folder = folder
        self._engine = engine
        self._endpoint = endpoint

    def request_file(self, num_lines: int) -> Path:
        """Return a file of so many requests, written once."""
        path = self._folder / f"requests-{num_lines}.jsonl"
        if not path.exists():
            write_requests(path, num_lines, model=self._engine.manifest.name, seed=num_lines)
        return path

    def side(self, module: str, num_lines: int) -> dict[str, Any]:
        """Run one side and return what it tells."""
        task = {
            "engine_dir": str(self._engine.path),
            "input": str(self.request_file(num_lines)),
            "output": str(self._folder / "out.jsonl"),
            "endpoints": [self._endpoint],
            "concurrency": CONCURRENCY,
        }
        return run_child(module, task, self._folder)

    def compare(self, size: Size) -> dict[str, Any]:
        """Return the CPU seconds per 1,000 requests of both sides and their ratio."""
        self.side(BARE, NUM_FEW)  # warms the server
        fixed_s = statistics.median(self.side(RUN, NUM_FEW)["cpu_s"] for _ in range(3))
        found = interleave(
            {
                "run": lambda _: self.side(RUN, size.num_lines),
                "bare": lambda _: self.side(BARE, size.num_lines),
            },
            size.num_rounds,
        )
        num_thousands = (size.num_lines - NUM_FEW) / 1000
        run = [(side["cpu_s"] - fixed_s) / num_thousands for side in found["run"]]
        bare = [side["cpu_s"] / size.num_lines * 1000 for side in found["bare"]]
        rates = [side["report"]["requests_per_s"] for side in found["run"]]
        return {
            "ratio": median_ratio(run, bare),
            "run_cpu_s_per_1000": run,
            "bare_cpu_s_per_1000": bare,
            "fixed_cpu_s": fixed_s,
            "run_requests_per_s": statistics.median(rates),
            "bare_requests_per_s": statistics.median(side["requests_per_s"] for side in found["bare"]),
        }


def measure(quick: bool, engine: StoredEngine) -> Outcome:
    """Return the ratio of CPU costs, the peak RSS and its growth."""
    size = QUICK if quick else FULL
    with tempfile.TemporaryDirectory(prefix="trtb-bench-") as name, noop_server(Path(name, "server")) as at:
        bench = ClientBench(Path(name), engine, at)
        costs = bench.compare(size)
        small, large = (
            bench.side(RUN, num_lines)["peak_rss_bytes"] / 1e6
            for num_lines in (size.num_lines_rss, size.num_lines_growth)
        )
    few, many = (f"{number:,} lines" for number in (size.num_lines_rss, size.num_lines_growth))
    targets = [
        Target("CPU of a run / bare streams", costs.pop("ratio"), hold=2.0, reach=1.4, is_bound=True),
        Target(f"peak RSS, {few}", small, hold=300, reach=200, is_bound=True, unit="MB"),
        # the kernel's own granularity is a few hundred kB: growth below 1 MB is none
        Target(f"RSS growth to {many}", large - small, hold=30, reach=1, is_bound=True, unit="MB"),
    ]
    figures = {"quick": quick, "num_lines": size.num_lines, "concurrency": CONCURRENCY, **costs}
    return Outcome("client", targets, figures)
