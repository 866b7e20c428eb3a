"""What a sweep recommends for an engine: beside the engine, whose own folder never changes."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal

from trtb.build import __version__
from trtb.build.errors import StoreError
from trtb.build.manifest import EngineManifest, Record, read_record, write_record
from trtb.build.store import StoredEngine
from trtb.tools.sweeping.best import Rule
from trtb.tools.sweeping.point import SCHEMA_VERSION, Figures, Mode, SettingValue, SweepPoint


class Recommendation(Record):
    """The best point of the last sweep of an engine: `engines/<name>/recommended-<version>.json`."""

    schema_version: Literal[1] = SCHEMA_VERSION
    engine_id: str
    rule: Rule
    latency_limit_ms: float | None
    mode: Mode
    value: float
    settings: dict[str, SettingValue]
    figures: Figures
    sweep: str  # the folder that it comes from
    measured_at: str  # UTC, ISO 8601
    trtb_version: str

    def describe(self) -> str:
        """Return it as a person reads it."""
        load = f"{self.mode.replace('_', ' ')} {self.value:g}"
        settings = "".join(f", {name} {value}" for name, value in sorted(self.settings.items()))
        return f"{load}{settings}: {self.figures.output_tokens_per_s:.1f} output tokens/s ({self.rule})"


def recommendation_path(stored: StoredEngine) -> Path:
    """Return where an engine's recommendation is or would be."""
    return stored.path.parent / f"{_PREFIX}{stored.manifest.version}.json"


_PREFIX: Final = "recommended-"


def recommend(
    stored: StoredEngine, best: SweepPoint, rule: Rule, latency_limit_ms: float | None, sweep: Path
) -> Path:
    """Keep a sweep's best point as an engine's recommended settings; returns where."""
    assert best.median is not None
    path = recommendation_path(stored)
    write_record(
        path,
        Recommendation(
            engine_id=stored.manifest.engine_id,
            rule=rule,
            latency_limit_ms=latency_limit_ms,
            mode=best.mode,
            value=best.value,
            settings=best.settings,
            figures=best.median,
            sweep=str(sweep.resolve()),
            measured_at=best.runs[-1].started_at,
            trtb_version=__version__,
        ),
    )
    return path


def read_recommendation(engine_path: Path, manifest: EngineManifest) -> Recommendation | None:
    """Return an engine's recommended settings; None where no sweep has made any for it."""
    path = recommendation_path(StoredEngine(engine_path, manifest))
    if not path.is_file():
        return None
    try:
        found = read_record(path, Recommendation)
    except StoreError:  # of another version of trtb: a new sweep replaces it
        return None
    return found if found.engine_id == manifest.engine_id else None
