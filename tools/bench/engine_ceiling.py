"""Tokens a second of a run through Triton, over the engine's pipeline driven directly.

Each round has prompts of its own for each side, so that the prefix cache helps neither; both sides are
loaded anew, warmed up with other prompts, and alone on the machine. Loading and starting are not counted.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtb.build.store import StoredEngine
from trtb.model_repo.render import DeployConfig
from trtb.runner.deploy import prepare
from trtb.runner.server import ServerConfig
from trtb.tools.bench.bare_streams import read_prompts
from trtb.tools.bench.children import run_child
from trtb.tools.bench.client import RUN
from trtb.tools.bench.noop import wait_ready
from trtb.tools.bench.request_file import write_requests
from trtb.tools.bench.targets import Outcome, Target, interleave, median_ratio

DIRECT = "trtb.build.backends.direct"
NUM_WORDS = 80  # about 110 tokens with the chat's own
NUM_WARM_UP = 8
NUM_KV_BLOCKS = 1024


@dataclass(frozen=True, slots=True)
class Size:
    """How much is generated."""

    num_requests: int
    max_tokens: int
    num_rounds: int


FULL = Size(128, 64, 5)
QUICK = Size(64, 48, 3)


class CeilingBench:
    """Both sides over one engine."""

    def __init__(self, folder: Path, engine: StoredEngine, size: Size) -> None:
        self._folder = folder
        self._engine = engine
        self._size = size
        self._num_files = 0

    def run(self, _round: int) -> float:
        """Return the tokens a second of a run over a server of its own, warmed up by another run."""
        warm_up, requests = self._request_files()
        work_dir = self._folder / "server"
        config = ServerConfig(work_dir / "repository", work_dir, work_dir / "server.log", exit_timeout_s=5)
        manifest = self._engine.manifest
        server = prepare(self._engine.path, manifest, config, DeployConfig(num_kv_blocks=NUM_KV_BLOCKS))
        server.start()
        try:
            asyncio.run(wait_ready(server))
            task = {
                "engine_dir": str(self._engine.path),
                "output": str(self._folder / "out.jsonl"),
                "endpoints": [server.endpoint],
                "concurrency": manifest.limits.max_batch_size,
            }
            run_child(RUN, task | {"input": str(warm_up)}, self._folder)
            report = run_child(RUN, task | {"input": str(requests)}, self._folder)["report"]
        finally:
            asyncio.run(server.stop())
        return float(report["completion_tokens"] / report["duration_s"])

    def direct(self, _round: int) -> float:
        """Return the tokens a second of the pipeline in a process of its own."""
        warm_up, requests = self._request_files()
        manifest = self._engine.manifest
        task: dict[str, Any] = {
            "engine_dir": str(self._engine.path),
            "prompts": read_prompts(requests, self._engine.path),
            "warm_up": read_prompts(warm_up, self._engine.path),
            "num_kv_blocks": NUM_KV_BLOCKS,
            "max_num_tokens": manifest.limits.max_num_tokens,
            "max_batch_size": manifest.limits.max_batch_size,
            "eos": manifest.tokens.eos,
        }
        answer = run_child(DIRECT, task, self._folder)
        return float(answer["num_tokens"] / answer["duration_s"])

    def _request_files(self) -> tuple[Path, Path]:
        """Write a warm-up and a request file that share no prompt with any other."""
        paths = []
        for num_requests in (NUM_WARM_UP, self._size.num_requests):
            self._num_files += 1
            paths.append(self._folder / f"requests-{self._num_files}.jsonl")
            write_requests(
                paths[-1],
                num_requests,
                model=self._engine.manifest.name,
                seed=self._num_files,
                max_tokens=self._size.max_tokens,
                num_words=NUM_WORDS,
            )
        return paths[0], paths[1]


def measure(quick: bool, engine: StoredEngine) -> Outcome:
    """Return the median of the rounds' ratios."""
    size = QUICK if quick else FULL
    with tempfile.TemporaryDirectory(prefix="trtb-bench-") as name:
        bench = CeilingBench(Path(name), engine, size)
        found = interleave({"run": bench.run, "direct": bench.direct}, size.num_rounds)
    ratio = median_ratio(found["run"], found["direct"])
    figures = {
        "quick": quick,
        "engine": engine.manifest.reference,
        "num_requests": size.num_requests,
        "max_tokens": size.max_tokens,
        "run_tokens_per_s": statistics.median(found["run"]),
        "direct_tokens_per_s": statistics.median(found["direct"]),
        "round_ratios": [run / direct for run, direct in zip(found["run"], found["direct"], strict=True)],
    }
    return Outcome(
        "engine_ceiling", [Target("run / pipeline directly", ratio, hold=0.95, reach=0.98)], figures
    )
