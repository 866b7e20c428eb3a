"""What the order of requests and their admission are worth, on the CPU engine with a small KV pool.

Three questions: `--order prefix` over `--order input` where shuffled requests share a few long prefixes and
the pool holds only some of them; the same where nothing is shared; and a run that asks for far more in
flight than the pool holds, over the best fixed bound that a sweep of bare streams finds. Each side has a
server of its own, started cold and warmed up with other prompts; starting is not counted. And what a second
run of a file takes with the result cache, as whole commands (`second_run`).
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import statistics
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import psutil

from trtb.build.store import StoredEngine
from trtb.model_repo.render import DeployConfig
from trtb.runner.deploy import prepare
from trtb.runner.server import ServerConfig
from trtb.tools.bench.children import BenchmarkError, run_child
from trtb.tools.bench.client import BARE, RUN
from trtb.tools.bench.noop import wait_ready
from trtb.tools.bench.request_file import WORDS, write_requests
from trtb.tools.bench.second_run import measure_second_run
from trtb.tools.bench.targets import Outcome, Target, interleave, median_ratio

NUM_WARM_UP = 4
NUM_OWN_WORDS = 20  # of a request, after the words that it shares
CONCURRENCY = 64


@dataclass(frozen=True, slots=True)
class Size:
    """How much is run."""

    num_requests: int
    num_prefixes: int
    prefix_words: int  # about as many tokens
    max_tokens: int
    num_kv_blocks: int  # some 4 prefixes
    num_unshared: int
    num_small_pool: int
    num_second_run: int
    num_rounds: int
    num_short_rounds: int  # of what takes seconds, and is troubled the more by others on the machine
    bounds: tuple[int, ...]


FULL = Size(512, 16, 600, 16, 80, 128, 96, 512, 3, 5, (2, 4, 6, 8, 12, 16, 24, 32))
QUICK = Size(128, 8, 400, 16, 56, 64, 64, 256, 1, 3, (4, 8, 12, 16))
SMALL_POOL_BLOCKS = 40
SMALL_POOL_TOKENS = 32  # of an answer


class CacheBench:
    """All sides over one engine."""

    def __init__(self, folder: Path, engine: StoredEngine, size: Size) -> None:
        self._folder = folder
        self._engine = engine
        self._size = size
        self._num_files = 0

    def shared(self, order: str, number: int) -> dict[str, Any]:
        """Return the report of a run whose requests share prefixes; both orders get the same file."""
        path = self._folder / f"shared-{number}.jsonl"
        if not path.exists():
            write_sharing(path, self._size, model=self._engine.manifest.name, seed=number)
        return self._run(path, self._size.num_kv_blocks, order=order)

    def unshared(self, order: str, number: int) -> dict[str, Any]:
        """Return the report of a run whose requests share nothing."""
        path = self._folder / f"unshared-{number}.jsonl"
        self._write(path, self._size.num_unshared, self._size.max_tokens, seed=1000 + number, num_words=80)
        return self._run(path, self._size.num_kv_blocks, order=order)

    def small_pool(self, _round: int) -> float:
        """Return the output tokens a second of a run that asks for more in flight than the pool holds."""
        return _speed(self._run(self._small_pool_file(), SMALL_POOL_BLOCKS, order="input"))

    def bounded(self, bound: int) -> float:
        """Return the output tokens a second of so many bare streams in that pool."""
        with self._server(SMALL_POOL_BLOCKS) as endpoint:
            task = self._task(self._small_pool_file(), endpoint) | {"concurrency": bound}
            answer = run_child(BARE, task, self._folder)
        return float(answer["num_tokens"] / self._size.num_small_pool * answer["requests_per_s"])

    def _small_pool_file(self) -> Path:
        path = self._folder / "small-pool.jsonl"
        self._write(path, self._size.num_small_pool, SMALL_POOL_TOKENS, seed=2000, num_words=40)
        return path

    def _write(self, path: Path, num_lines: int, max_tokens: int, *, seed: int, num_words: int) -> None:
        if not path.exists():
            name = self._engine.manifest.name
            write_requests(path, num_lines, model=name, seed=seed, max_tokens=max_tokens, num_words=num_words)

    def _run(self, path: Path, num_kv_blocks: int, *, order: str) -> dict[str, Any]:
        with self._server(num_kv_blocks) as endpoint:
            task = self._task(path, endpoint) | {"concurrency": CONCURRENCY, "options": {"order": order}}
            before_s = _engine_cpu_s()
            report: dict[str, Any] = run_child(RUN, task, self._folder)["report"]
            report["engine_cpu_s"] = _engine_cpu_s() - before_s
        if report["failed"]:
            raise BenchmarkError(f"{path.name}, order {order}: {report['failed']} requests failed")
        return report

    def _task(self, path: Path, endpoint: str) -> dict[str, Any]:
        return {
            "engine_dir": str(self._engine.path),
            "input": str(path),
            "output": str(self._folder / "out.jsonl"),
            "endpoints": [endpoint],
        }

    @contextlib.contextmanager
    def _server(self, num_kv_blocks: int) -> Iterator[str]:
        """Start a server with a pool of that size, warmed up; yields its host:port."""
        work_dir = self._folder / "server"
        config = ServerConfig(work_dir / "repository", work_dir, work_dir / "server.log", exit_timeout_s=5)
        server = prepare(
            self._engine.path, self._engine.manifest, config, DeployConfig(num_kv_blocks=num_kv_blocks)
        )
        server.start()
        try:
            asyncio.run(wait_ready(server))
            warm_up = self._folder / "warm-up.jsonl"
            self._write(warm_up, NUM_WARM_UP, 8, seed=3000, num_words=40)
            run_child(BARE, self._task(warm_up, server.endpoint) | {"concurrency": NUM_WARM_UP}, self._folder)
            yield server.endpoint
        finally:
            asyncio.run(server.stop())


def write_sharing(path: Path, size: Size, *, model: str, seed: int) -> None:
    """Write greedy requests over a few long system prompts, shuffled."""
    rng = random.Random(seed)
    systems = [" ".join(rng.choices(WORDS, k=size.prefix_words)) for _ in range(size.num_prefixes)]
    numbers = list(range(size.num_requests))
    rng.shuffle(numbers)
    with path.open("wb") as file:
        for i in numbers:
            system = f"You are assistant {seed}-{i % size.num_prefixes}. {systems[i % size.num_prefixes]}"
            own = f"{i} " + " ".join(rng.choices(WORDS, k=NUM_OWN_WORDS))
            messages = [{"role": "system", "content": system}, {"role": "user", "content": own}]
            body: dict[str, Any] = {"model": model, "messages": messages, "max_tokens": size.max_tokens}
            line = {"custom_id": f"request-{i:08d}", "method": "POST", "url": "/v1/chat/completions"}
            file.write(orjson.dumps(line | {"body": body | {"temperature": 0}}) + b"\n")


def measure(quick: bool, engine: StoredEngine) -> Outcome:
    """Return the ratios, and how far the expected reuse is from what was seen."""
    size = QUICK if quick else FULL
    with tempfile.TemporaryDirectory(prefix="trtb-bench-") as name:
        bench = CacheBench(Path(name), engine, size)
        orders = ("prefix", "input")
        shared = interleave({order: partial(bench.shared, order) for order in orders}, size.num_rounds)
        unshared = interleave(
            {order: partial(bench.unshared, order) for order in orders}, size.num_short_rounds
        )
        sweep = {bound: bench.bounded(bound) for bound in size.bounds}
        best = max(sweep, key=sweep.__getitem__)
        second_runs = [
            measure_second_run(Path(name), engine, size.num_second_run, number)
            for number in range(size.num_rounds)
        ]
        small = interleave(
            {"run": bench.small_pool, "best": lambda _: bench.bounded(best)}, size.num_short_rounds
        )
    schedules = [report["schedule"] for report in shared["prefix"]]
    told = [each for each in schedules if each["seen_reuse"] is not None]
    if not told:
        raise BenchmarkError(f"no run told its reuse: {schedules[0]['unseen_why']}")
    gap = statistics.median(abs(each["expected_reuse"] - each["seen_reuse"]) for each in told)
    targets = [
        Target("shared: prefix / input", _ratio(shared), hold=2.0, reach=3.0),
        Target("unshared: prefix / input", _ratio(unshared), hold=0.97, reach=1.0),
        Target(
            "small pool / best fixed bound", median_ratio(small["run"], small["best"]), hold=0.9, reach=1.0
        ),
        Target("reuse: expected - seen", gap, hold=0.10, reach=0.05, is_bound=True),
        Target(
            "result cache: first run / second",
            statistics.median(each.ratio for each in second_runs),
            hold=20,
            reach=50,
        ),
    ]
    figures = {
        "quick": quick,
        "engine": engine.manifest.reference,
        "num_requests": size.num_requests,
        "num_kv_blocks": size.num_kv_blocks,
        "shared_ratio": targets[0].measured,
        "unshared_ratio": targets[1].measured,
        "prefix_tokens_per_s": [_speed(report) for report in shared["prefix"]],
        "input_tokens_per_s": [_speed(report) for report in shared["input"]],
        # what others on the machine do not change: the engine's own work
        "shared_engine_cpu_ratio": _cpu_ratio(shared),
        "unshared_engine_cpu_ratio": _cpu_ratio(unshared),
        "expected_reuse": [each["expected_reuse"] for each in schedules],
        "seen_reuse": [each["seen_reuse"] for each in schedules],
        "seen_by": told[0]["seen_by"],
        "bound_tokens_per_s": [f"{bound}: {speed:.1f}" for bound, speed in sweep.items()],
        "second_run_requests": size.num_second_run,
        "first_run_s": [round(each.first_s, 2) for each in second_runs],
        "first_run_answering_s": [round(each.answering_s, 2) for each in second_runs],
        "second_run_s": [round(each.second_s, 3) for each in second_runs],
        "small_pool_tokens_per_s": small["run"],
        "best_bound_tokens_per_s": small["best"],
    }
    return Outcome("cache", targets, figures)


def _cpu_ratio(found: dict[str, list[dict[str, Any]]]) -> float:
    return median_ratio(*([report["engine_cpu_s"] for report in found[side]] for side in ("input", "prefix")))


def _engine_cpu_s() -> float:
    """Return the CPU seconds of the server's processes so far."""
    seconds = 0.0
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            seconds += times.user + times.system
    return seconds


def _ratio(found: dict[str, list[dict[str, Any]]]) -> float:
    return median_ratio(*([_speed(report) for report in found[side]] for side in ("prefix", "input")))


def _speed(report: dict[str, Any]) -> float:
    """Return output tokens a second, the time that the plan took counted."""
    seconds = report["duration_s"] + report["schedule"]["planning_s"]
    return float(report["completion_tokens"] / seconds)
