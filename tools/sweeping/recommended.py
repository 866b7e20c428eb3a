"""What a sweep recommends for an engine: beside the engine, whose own folder never changes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal

from trtb.build import __version__
from trtb.build.errors import StoreError
from trtb.build.manifest import EngineManifest, Record, read_record, write_record
from trtb.build.store import StoredEngine
from trtb.tools.sweeping.best import Rule
from trtb.tools.sweeping.plan import SweepPlan
from trtb.tools.sweeping.point import SCHEMA_VERSION, Figures, Mode, SettingValue, SweepPoint


class Recommendation(Record):
    """The best point of the last sweep of an engine: `engines/<name>/recommended-<version>.json`."""

    schema_version: Literal[1] = SCHEMA_VERSION
    engine_id: str
    rule: Rule
    latency_limit_ms: float | None
    mode: Mode
    value: float
    settings: dict[str, SettingValue]  # all that the measured server was given
    figures: Figures
    note: str = ""  # what they cannot do that the engine can
    sweep: str  # the folder that it comes from
    measured_at: str  # UTC, ISO 8601
    trtb_version: str

    def describe(self) -> str:
        """Return it as a person reads it."""
        load = f"{self.mode.replace('_', ' ')} {self.value:g}"
        settings = "".join(f", {name} {value}" for name, value in sorted(self.settings.items()))
        note = f"; {self.note}" if self.note else ""
        return f"{load}{settings}: {self.figures.output_tokens_per_s:.1f} output tokens/s ({self.rule}){note}"


def recommendation_path(stored: StoredEngine) -> Path:
    """Return where an engine's recommendation is or would be."""
    return stored.path.parent / f"{_PREFIX}{stored.manifest.version}.json"


_PREFIX: Final = "recommended-"


def why_not(best: SweepPoint) -> str | None:
    """Return why a sweep's best point is not recommended; None where it is."""
    if best.spread is None:
        return f"{best.name} was measured once, and may be the best by chance; --repeats 3 or more tells"
    return None


def recommend(stored: StoredEngine, best: SweepPoint, rule: Rule, plan: SweepPlan, sweep: Path) -> Path:
    """Keep a sweep's best point as an engine's recommended settings; returns where."""
    assert best.median is not None
    path = recommendation_path(stored)
    settings = {**plan.server_settings, **best.settings}
    write_record(
        path,
        Recommendation(
            engine_id=stored.manifest.engine_id,
            rule=rule,
            latency_limit_ms=plan.latency_limit_ms,
            mode=best.mode,
            value=best.value,
            settings=settings,
            figures=best.median,
            note=_note_on(settings, stored.manifest),
            sweep=str(sweep.resolve()),
            measured_at=best.runs[-1].started_at,
            trtb_version=__version__,
        ),
    )
    return path


def _note_on(settings: Mapping[str, SettingValue], manifest: EngineManifest) -> str:
    """Say that a KV pool has no room for the longest request that the engine takes, if so."""
    limits = manifest.limits
    num_blocks = settings.get("num_kv_blocks")
    if num_blocks is None:
        return ""
    room = (int(num_blocks) - 1) * limits.tokens_per_block  # one block is nobody's
    if room >= limits.max_seq_len:
        return ""
    return f"its KV pool takes requests of {room} tokens at most, the engine {limits.max_seq_len}"


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
