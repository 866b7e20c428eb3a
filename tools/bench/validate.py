"""Lines a second of `trtb validate` over bare `orjson.loads` of the same file, on one core.

Both sides run by turns in one process and are charged with its CPU time, so that a neighbour's load counts
for neither; `ratio` is taken of medians. `seeds_ratio` is the same of a file whose lines have each a seed
of their own, which repeat fewer bytes.
"""

from __future__ import annotations

import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import psutil

from trtb.runner.reader import BUFFER_BYTES
from trtb.runner.validate import validate_file

MODEL = "bench"
NUM_LINES = 200_000
NUM_ROUNDS = 5
HOLD = 0.40
REACH = 0.60


def measure(quick: bool) -> dict[str, Any]:
    """Return the medians of both sides, their ratio, and how much memory the validation took."""
    num_lines = NUM_LINES // 5 if quick else NUM_LINES
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "requests.jsonl")
        write_requests(path, num_lines, own_seeds=True)
        seeds = _compare(path, num_lines)
        write_requests(path, num_lines, own_seeds=False)
        plain = _compare(path, num_lines)
        return {
            "name": "validate",
            "ratio": plain["ratio"],
            "hold": HOLD,
            "reach": REACH,
            "num_lines": num_lines,
            "mean_line_bytes": path.stat().st_size / num_lines,
            "validate_lines_per_s": plain["validate"],
            "orjson_lines_per_s": plain["orjson"],
            "seeds_ratio": seeds["ratio"],
            "rss_growth_mb": _rss_growth_bytes(path) / 1e6,
        }


def write_requests(path: Path, num_lines: int, *, own_seeds: bool) -> None:
    """Write requests of about 540 bytes: two messages, some forty words, four parameters."""
    rng = random.Random(7)
    words = ["".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(3, 9))) for _ in range(2000)]
    system = {"role": "system", "content": "You are a helpful assistant."}
    with path.open("wb") as file:
        for i in range(num_lines):
            user = {"role": "user", "content": " ".join(rng.choices(words, k=40))}
            body: dict[str, Any] = {"model": MODEL, "messages": [system, user]}
            body |= {"max_tokens": 64, "temperature": 0.7, "top_p": 0.9, "seed": i if own_seeds else 42}
            line = {"custom_id": f"request-{i:08d}", "method": "POST", "url": "/v1/chat/completions"}
            file.write(orjson.dumps(line | {"body": body}) + b"\n")


def _compare(path: Path, num_lines: int) -> dict[str, float]:
    sides: dict[str, Callable[[], None]] = {
        "orjson": lambda: _parse_only(path),
        "validate": lambda: _validate(path, num_lines),
    }
    for side in sides.values():
        side()  # warm the page cache and the allocator
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(NUM_ROUNDS):
        for name, side in sides.items():
            seconds[name].append(_cpu_s(side))
    rates = {name: num_lines / statistics.median(values) for name, values in seconds.items()}
    return rates | {"ratio": rates["validate"] / rates["orjson"]}


def _cpu_s(work: Callable[[], None]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def _parse_only(path: Path) -> None:
    loads = orjson.loads
    with path.open("rb", buffering=BUFFER_BYTES) as file:
        for line in file:
            loads(line)


def _validate(path: Path, num_lines: int, on_progress: Callable[[int], None] | None = None) -> None:
    report = validate_file(path, model_names=frozenset({MODEL}), strict_params=False, on_progress=on_progress)
    assert report.valid == num_lines, "the benchmark's own requests are valid"


def _rss_growth_bytes(path: Path) -> int:
    process = psutil.Process()
    before = process.memory_info().rss
    largest = before

    def sample(_num_bytes: int) -> None:
        nonlocal largest
        largest = max(largest, process.memory_info().rss)

    validate_file(path, model_names=None, strict_params=False, on_progress=sample)
    return largest - before
