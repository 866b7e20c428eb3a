"""The sizes of public models, from configurations written for the tests: no weights, no names of files."""

from __future__ import annotations

from pathlib import Path

from trtb.build.planning.plan_memory import Sizes
from trtb.build.planning.plan_sources import read_sizes

CONFIGS = Path(__file__).parents[1] / "data" / "model_configs"
NAMES = tuple(sorted(path.stem for path in CONFIGS.glob("*.json")))


def model_sizes(name: str) -> Sizes:
    """Return the sizes of one of NAMES."""
    return read_sizes(str(CONFIGS / f"{name}.json"), Path("no home"))
