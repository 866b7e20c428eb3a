"""Whole files against `vllm run-batch`, where it is installed: the same requests, checkpoint and cores.

Three files: short prompts that share nothing (A), a few long shared prefixes, shuffled (B), long prompts with
longer answers (C). Each side is a command of its own. What it takes to start is measured with a file of one
request and taken off, on both sides alike, so the ratio is of steady speed; the whole commands' ratio stands
beside it. Every answer has exactly max_tokens tokens, by min_tokens, so both sides make the same number.

vLLM is told with `--vllm PATH_OF_COMMAND` and `--vllm-model FOLDER`, a Hugging Face folder of the engine's
checkpoint (`trtb models fetch NAME --format hf`). It is ended with its whole process group: its workers
outlive it otherwise.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import orjson

from trtb.build.store import StoredEngine
from trtb.tools.bench.children import TAIL_LINES, BenchmarkError
from trtb.tools.bench.request_file import WORDS
from trtb.tools.bench.targets import Outcome, Target, interleave

SERVED_NAME = "peer"
TIMEOUT_S = 1800
KV_CACHE_GB = 2
MAX_MODEL_LEN = 1024


@dataclass(frozen=True, slots=True)
class Shape:
    """What one file holds; lengths in words, about as many tokens."""

    num_requests: int
    num_prefixes: int
    prefix_words: int
    own_words: int
    max_tokens: int
    hold: float
    reach: float


FULL = {
    "A": Shape(256, 0, 0, 60, 64, 1.3, 1.5),
    "B": Shape(128, 4, 460, 45, 64, 1.4, 2.0),
    "C": Shape(64, 0, 0, 440, 128, 1.3, 1.5),
}
QUICK = {
    "A": Shape(64, 0, 0, 60, 64, 1.3, 1.5),
    "B": Shape(48, 4, 460, 45, 64, 1.4, 2.0),
    "C": Shape(16, 0, 0, 440, 64, 1.3, 1.5),
}


@dataclass(frozen=True, slots=True)
class Peer:
    """An installed vLLM."""

    command: Path
    model: Path
    dtype: str = "auto"

    def argv(self, path: Path, output: Path) -> list[str]:
        """Return the command that answers a file."""
        return [
            *(str(self.command), "run-batch", "-i", str(path), "-o", str(output)),
            *("--model", str(self.model), "--served-model-name", SERVED_NAME, "--dtype", self.dtype),
            # its compiler takes minutes to start on a CPU
            *("--enforce-eager", "--enable-prefix-caching"),
            *("--max-num-seqs", "64", "--max-model-len", str(MAX_MODEL_LEN)),
        ]


class PeerBench:
    """Both sides over one engine's checkpoint."""

    def __init__(self, folder: Path, engine: StoredEngine, peer: Peer) -> None:
        self._folder = folder
        self._engine = engine
        self._peer = peer
        self._cores = len(os.sched_getaffinity(0))

    def ours(self, name: str, shape: Shape, _round: int) -> dict[str, float]:
        """Return the seconds and tokens of a `trtb run` with a server of its own."""
        output = self._folder / "ours.jsonl"
        argv = [sys.executable, "-c", "from trtb.tools.cli import main; main()", "run"]
        argv += [str(self._file(name, shape)), "-o", str(output), "--overwrite"]
        argv += ["--engine", self._engine.manifest.engine_id, "--model-alias", SERVED_NAME]
        return self._timed(argv, output, shape)

    def theirs(self, name: str, shape: Shape, _round: int) -> dict[str, float]:
        """Return the seconds and tokens of `vllm run-batch`."""
        output = self._folder / "theirs.jsonl"
        return self._timed(self._peer.argv(self._file(name, shape), output), output, shape)

    def _timed(self, argv: list[str], output: Path, shape: Shape) -> dict[str, float]:
        output.unlink(missing_ok=True)
        environment = os.environ | {
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_CPU_KVCACHE_SPACE": str(KV_CACHE_GB),
            "VLLM_CPU_OMP_THREADS_BIND": f"0-{self._cores - 1}",  # by itself it leaves one core out
        }
        started = time.monotonic()
        with (self._folder / "log").open("wb") as log:
            process = subprocess.Popen(
                argv,
                stdout=log,
                stderr=log,
                cwd=self._folder,
                env=environment,
                start_new_session=True,
            )
            try:
                status = process.wait(TIMEOUT_S)
            finally:
                seconds = time.monotonic() - started
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
        if status:
            words = (self._folder / "log").read_text(errors="replace").splitlines()[-TAIL_LINES:]
            raise BenchmarkError(f"{argv[0]}: ended with status {status}\n" + "\n".join(words))
        usages = [_usage_of(line) for line in output.read_bytes().splitlines()]
        num_tokens = sum(usage["completion_tokens"] for usage in usages)
        if num_tokens != shape.num_requests * shape.max_tokens:
            raise BenchmarkError(
                f"{output.name}: {num_tokens} tokens in {len(usages)} answers; "
                f"expected {shape.num_requests * shape.max_tokens} in {shape.num_requests}"
            )
        return {"wall_s": seconds, "num_tokens": num_tokens}

    def _file(self, name: str, shape: Shape) -> Path:
        path = self._folder / f"{name}-{shape.num_requests}.jsonl"
        if not path.exists():
            write_shape(path, shape)
        return path


def write_shape(path: Path, shape: Shape) -> None:
    """Write one of the files, the same in every run of the benchmark."""
    rng = random.Random(path.name)
    prefixes = [" ".join(rng.choices(WORDS, k=shape.prefix_words)) for _ in range(shape.num_prefixes)]
    numbers = list(range(shape.num_requests))
    rng.shuffle(numbers)
    with path.open("wb") as file:
        for i in numbers:
            system = "You are a helpful assistant."
            if prefixes:
                system = f"You are assistant number {i % len(prefixes)}. {prefixes[i % len(prefixes)]}"
            own = f"Item {i}. Go on with this text: " + " ".join(rng.choices(WORDS, k=shape.own_words))
            messages = [{"role": "system", "content": system}, {"role": "user", "content": own}]
            body = {"model": SERVED_NAME, "messages": messages, "temperature": 0}
            body |= {"max_tokens": shape.max_tokens, "min_tokens": shape.max_tokens}
            line = {"custom_id": f"request-{i:05d}", "method": "POST", "url": "/v1/chat/completions"}
            file.write(orjson.dumps(line | {"body": body}) + b"\n")


def measure(quick: bool, engine: StoredEngine, peer: Peer) -> Outcome:
    """Return the ratio of steady tokens a second, ours over vLLM's, of each file."""
    shapes = QUICK if quick else FULL
    num_rounds = 1 if quick else 3
    targets, figures = [], {"quick": quick, "engine": engine.manifest.reference, "vllm_dtype": peer.dtype}
    with tempfile.TemporaryDirectory(prefix="trtb-bench-") as folder:
        bench = PeerBench(Path(folder), engine, peer)
        one = Shape(1, 0, 0, 20, 1, 0, 0)
        starts = _medians(_sides(bench, "one", one), num_rounds=3)
        figures |= {f"{side}_start_s": seconds for side, seconds in starts.items()}
        for name, shape in shapes.items():
            walls = _medians(_sides(bench, name, shape), num_rounds)
            steady = {side: max(walls[side] - starts[side], 1e-3) for side in walls}
            targets.append(
                Target(f"{name}: ours / vllm", steady["theirs"] / steady["ours"], shape.hold, shape.reach)
            )
            num_tokens = shape.num_requests * shape.max_tokens
            figures |= {f"{name}_{side}_tokens_per_s": num_tokens / steady[side] for side in steady}
            figures[f"{name}_whole_command_ratio"] = walls["theirs"] / walls["ours"]
    return Outcome("peers", targets, figures)


def _sides(bench: PeerBench, name: str, shape: Shape) -> dict[str, Callable[[int], dict[str, float]]]:
    return {"ours": partial(bench.ours, name, shape), "theirs": partial(bench.theirs, name, shape)}


def _medians(sides: dict[str, Callable[[int], Any]], num_rounds: int) -> dict[str, float]:
    found = interleave(sides, num_rounds)
    return {side: statistics.median(each["wall_s"] for each in runs) for side, runs in found.items()}


def _usage_of(line: bytes) -> dict[str, int]:
    usage: dict[str, int] = orjson.loads(line)["response"]["body"]["usage"]
    return usage
