"""Size, speed and quality of the CPU engine's quantisations, each over f16 of the same checkpoint.

Engines that the store has are taken from there; the others are built in a folder that is thrown away, as
building one in the store would make it the default. Speed is that of the pipeline driven directly on the
same prompts: every round runs all engines, each in a process of its own, and only ratios within a round
count.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtb.build import files
from trtb.build.config import make_config
from trtb.build.pipeline import build_engine
from trtb.build.quantization import get_scheme
from trtb.build.store import EngineStore, StoredEngine
from trtb.tools.bench.bare_streams import read_prompts
from trtb.tools.bench.children import run_child
from trtb.tools.bench.engine_ceiling import DIRECT, NUM_WARM_UP, NUM_WORDS
from trtb.tools.bench.request_file import write_requests
from trtb.tools.bench.targets import Outcome, Target, interleave, median_ratio

BASE = "f16"
QUANTS = (BASE, "int8_wo", "fp8", "int4_awq")
NUM_KV_BLOCKS = 512


@dataclass(frozen=True, slots=True)
class Size:
    """How much is generated."""

    num_requests: int
    max_tokens: int
    num_rounds: int


FULL = Size(64, 64, 5)
QUICK = Size(24, 24, 3)


def measure(quick: bool, engine: StoredEngine) -> Outcome:
    """Return a row for each quantisation of the engine's checkpoint."""
    size = QUICK if quick else FULL
    with tempfile.TemporaryDirectory(prefix="trtb-bench-") as name:
        folder = Path(name)
        engines = {quant: _find_or_build(engine, quant, folder / "home") for quant in QUANTS}
        speeds = measure_speeds(engines, folder, size)
        rows = [_row(engines[quant], engines[BASE], speeds[quant], speeds[BASE]) for quant in QUANTS]
    targets = [
        # a bound of what is acceptable, and of what would cost nothing
        Target(
            f"{row['quant']} perplexity / {BASE}",
            row["perplexity_ratio"],
            hold=get_scheme("openvino", row["quant"]).max_perplexity_ratio,
            reach=1.0,
            is_bound=True,
        )
        for row in rows[1:]
    ]
    figures = {
        "quick": quick,
        "checkpoint": f"{engine.manifest.checkpoint.name} {engine.manifest.checkpoint.revision}",
        "num_requests": size.num_requests,
        "max_tokens": size.max_tokens,
        "engines": rows,
    }
    return Outcome("quantization", targets, figures)


def measure_speeds(engines: Mapping[str, StoredEngine], folder: Path, size: Size) -> dict[str, list[float]]:
    """Return the tokens a second of each engine in each round."""

    def side(engine: StoredEngine) -> Callable[[int], float]:
        return lambda number: _tokens_per_s(engine, folder, size, number)

    return interleave({quant: side(engine) for quant, engine in engines.items()}, size.num_rounds)


def _find_or_build(engine: StoredEngine, quant: str, home: Path) -> StoredEngine:
    pin = engine.manifest.checkpoint
    store_home = files.trtb_home()
    for stored in reversed(EngineStore(store_home).list()):
        manifest = stored.manifest
        if (manifest.backend, manifest.quant, manifest.checkpoint.files) == ("openvino", quant, pin.files):
            return stored
    home.mkdir(exist_ok=True)
    for part in ("models", "toolchains"):
        if (store_home / part).is_dir() and not (home / part).exists():
            (home / part).symlink_to(store_home / part)
    return build_engine(pin.name, make_config(quant=quant), home, backend="openvino", keep_steps=True)


def _tokens_per_s(engine: StoredEngine, folder: Path, size: Size, number: int) -> float:
    """Return the speed on the prompts of a round: the same for each engine, others in each round."""
    manifest = engine.manifest
    prompts = []
    for num_requests, seed in ((NUM_WARM_UP, 2 * number), (size.num_requests, 2 * number + 1)):
        path = folder / f"requests-{seed}.jsonl"
        write_requests(
            path, num_requests, model="any", seed=seed, max_tokens=size.max_tokens, num_words=NUM_WORDS
        )
        prompts.append(read_prompts(path, engine.path))
    task: dict[str, Any] = {
        "engine_dir": str(engine.path),
        "warm_up": prompts[0],
        "prompts": prompts[1],
        "num_kv_blocks": NUM_KV_BLOCKS,
        "max_num_tokens": manifest.limits.max_num_tokens,
        "max_batch_size": manifest.limits.max_batch_size,
        "eos": manifest.tokens.eos,
    }
    answer = run_child(DIRECT, task, folder)
    return float(answer["num_tokens"] / answer["duration_s"])


def _row(
    engine: StoredEngine, base: StoredEngine, speeds: list[float], base_speeds: list[float]
) -> dict[str, Any]:
    manifest, quality = engine.manifest, engine.manifest.quality
    assert quality is not None  # every CPU engine is measured
    size_bytes, base_bytes = ((each.path / "openvino_model.bin").stat().st_size for each in (engine, base))
    return {
        "quant": manifest.quant,
        "size_mb": round(size_bytes / 1e6, 1),
        "size_ratio": round(size_bytes / base_bytes, 3),
        "tokens_per_s": round(statistics.median(speeds), 1),
        "speed_ratio": round(median_ratio(speeds, base_speeds), 3),
        "perplexity": round(quality.perplexity, 3),
        "perplexity_ratio": round(quality.perplexity / quality.base_perplexity, 4),
        "top1_agreement": round(quality.top1_agreement, 3),
        "greedy_agreement": round(quality.greedy_agreement or 0.0, 3),
    }
