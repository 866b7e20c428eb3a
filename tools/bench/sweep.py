"""perf_analyzer's figures beside our own client's, over one server: requests of a kind, as many in flight.

perf_analyzer has each token sent for itself, to time it. A run does so only where it must look for stop
strings, so the requests have one that never comes; what a run without it makes stands beside. Each side gets
prompts of its own in each round: the second to send the same ones would find them in the engine's cache.
"""

from __future__ import annotations

import statistics
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtb.build.files import trtb_home
from trtb.build.store import StoredEngine
from trtb.runner.options import RunOptions
from trtb.tools.bench.children import BenchmarkError, run_child
from trtb.tools.bench.request_file import write_requests
from trtb.tools.bench.targets import Outcome, Target, interleave, median_ratio
from trtb.tools.sweeping import workload
from trtb.tools.sweeping.export import figures_of, read_export
from trtb.tools.sweeping.perf_analyzer import Load, PerfAnalyzer, command_of, find_perf_analyzer, run_command
from trtb.tools.sweeping.target import Target as Server
from trtb.tools.sweeping.target import TargetOptions, own_target

RUN = "trtb.tools.bench.client_run"
TIMEOUT_S = 1800.0
NEVER = ("\u2603\u2603",)  # a stop string that no answer has


@dataclass(frozen=True, slots=True)
class Size:
    """How much is sent at each point."""

    concurrencies: tuple[int, ...]
    waves: int
    num_rounds: int
    max_tokens: int


FULL = Size((1, 4, 16, 64), waves=4, num_rounds=5, max_tokens=32)
QUICK = Size((1, 16), waves=4, num_rounds=3, max_tokens=16)


class SweepBench:
    """Both sides over one server."""

    def __init__(self, folder: Path, engine: StoredEngine, server: Server, analyzer: PerfAnalyzer) -> None:
        self._folder = folder
        self._engine = engine
        self._server = server
        self._analyzer = analyzer
        self._num_files = 0

    def compare(self, concurrency: int, size: Size) -> dict[str, Any]:
        """Return both sides' medians at one concurrency, and by how much they differ."""
        num_requests = max(16, size.waves * concurrency)
        found = interleave(
            {
                "perf_analyzer": lambda _: self._by_perf_analyzer(concurrency, num_requests, size.max_tokens),
                "run": lambda _: self._by_run(concurrency, num_requests, size.max_tokens),
                "whole": lambda _: self._by_run(
                    concurrency, num_requests, size.max_tokens, is_streamed=False
                ),
            },
            size.num_rounds,
        )
        told: dict[str, Any] = {"concurrency": concurrency, "num_requests": num_requests}
        for figure in ("output_tokens_per_s", "requests_per_s", "latency_p50_ms"):
            medians = {name: statistics.median(side[figure] for side in found[name]) for name in found}
            told |= {f"{name}_{figure}": round(value, 2) for name, value in medians.items()}
        told["ratio"] = median_ratio(
            *([side["output_tokens_per_s"] for side in found[name]] for name in ("perf_analyzer", "run"))
        )
        return told

    def _by_perf_analyzer(self, concurrency: int, num_requests: int, max_tokens: int) -> dict[str, float]:
        options = RunOptions(
            input_path=self._requests(num_requests, max_tokens),
            output=self._folder / "unused",
            engine_dir=self._engine.path,
            manifest=self._engine.manifest,
        )
        data, export = self._folder / "input.json", self._folder / "export.json"
        workload.write_input_data(data, workload.file_entries(options, num_requests))
        load = Load(self._server.endpoint, "concurrency", concurrency, num_requests, data)
        command = command_of(self._analyzer, load, export)
        if failure := run_command(self._analyzer, command, export, TIMEOUT_S, self._server.fault):
            raise BenchmarkError(f"perf_analyzer at {concurrency}: {failure.why}")
        figures = figures_of(read_export(export), num_warmup=0, is_streamed=True, latency_limit_ms=None)
        assert figures.latency.p50_ms is not None
        return {
            "output_tokens_per_s": figures.output_tokens_per_s,
            "requests_per_s": figures.requests_per_s,
            "latency_p50_ms": figures.latency.p50_ms,
        }

    def _by_run(
        self, concurrency: int, num_requests: int, max_tokens: int, *, is_streamed: bool = True
    ) -> dict[str, float]:
        task = {
            "engine_dir": str(self._engine.path),
            "input": str(self._requests(num_requests, max_tokens, is_streamed=is_streamed)),
            "output": str(self._folder / "out.jsonl"),
            "endpoints": [self._server.endpoint],
            "concurrency": concurrency,
            "options": {"order": "input"},
        }
        report = run_child(RUN, task, self._folder)["report"]
        return {
            "output_tokens_per_s": report["output_tokens_per_s"],
            "requests_per_s": report["requests_per_s"],
            "latency_p50_ms": report["request_latency"]["p50_ms"],
        }

    def _requests(self, num_requests: int, max_tokens: int, *, is_streamed: bool = True) -> Path:
        """Write a file that shares no prompt with those before it."""
        self._num_files += 1
        path = self._folder / f"requests-{self._num_files}.jsonl"
        write_requests(
            path,
            num_requests,
            model=self._engine.manifest.name,
            seed=self._num_files,
            max_tokens=max_tokens,
            stop=NEVER if is_streamed else (),
        )
        return path


def measure(quick: bool, engine: StoredEngine) -> Outcome:
    """Return how far perf_analyzer's throughput is from a run's, at the worst point.

    Raises:
        BenchmarkError: A side did not run to its end.
        ToolchainMissingError: There is no perf_analyzer.
    """
    size = QUICK if quick else FULL
    analyzer = find_perf_analyzer(None, trtb_home())
    with tempfile.TemporaryDirectory(prefix="trtb-bench-") as name:
        folder = Path(name)
        options = TargetOptions(home=trtb_home())
        with own_target(engine, {}, options, folder / "server", lambda _: None) as server:
            bench = SweepBench(folder, engine, server, analyzer)
            points = [bench.compare(concurrency, size) for concurrency in size.concurrencies]
    worst = max(abs(point["ratio"] - 1) for point in points)
    targets = [Target("perf_analyzer's tokens/s from a run's, at most", worst, 0.10, 0.05, is_bound=True)]
    return Outcome("sweep", targets, {"quick": quick, "perf_analyzer": analyzer.version, "points": points})
