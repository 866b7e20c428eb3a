"""Sweeps on disk, as pages and plots show them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from trtb.build import files
from trtb.build.store import EngineStore
from trtb.tools.pages.page import write_page
from trtb.tools.pages.sweep_page import render_sweeps
from trtb.tools.pages.sweep_view import SweepView
from trtb.tools.sweeping.best import MEANING, Rule, choose_best
from trtb.tools.sweeping.plan import SweepPlan
from trtb.tools.sweeping.point import SweepPoint
from trtb.tools.sweeping.store import CSV_FILE, PLAN_FILE, SweepFolder


def write_sweep_page(folders: Sequence[Path], path: Path, *, rule: Rule = "throughput") -> None:
    """Write the page of one sweep, or of several over one another; it is durable when this returns.

    Raises:
        ConfigError: A folder holds no sweep.
    """
    write_page(path, render_sweeps([view_of(folder, rule=rule) for folder in folders]))


def view_of(folder: Path, *, rule: Rule = "throughput") -> SweepView:
    """Return a sweep as it is shown, its best point chosen by a rule.

    Raises:
        ConfigError: The folder holds no sweep.
    """
    found = SweepFolder(folder)
    plan, points = found.read_plan(), found.points()
    limit_ms = plan.latency_limit_ms
    # a rule that needs a limit chooses nothing where the sweep had none
    best = None if rule != "throughput" and limit_ms is None else choose_best(points, rule, limit_ms)
    limit = "" if limit_ms is None or rule == "throughput" else f" of {limit_ms:g} ms"
    return SweepView(
        name=plan.engine or plan.endpoint or folder.name,
        points=points,
        identity=_identity(plan, points),
        files=[str(folder / PLAN_FILE), str(folder / CSV_FILE), str(folder / "points")],
        best=best.name if best else None,
        rule=f"{MEANING[rule]}{limit}",
        latency_limit_ms=limit_ms,
    )


def _engines(points: Sequence[SweepPoint]) -> list[tuple[str, str]]:
    """Return what the engines are that answered, as far as they are in the store still."""
    store = EngineStore(files.trtb_home())
    found = [store.find(engine_id) for engine_id in dict.fromkeys(point.engine_id for point in points)]
    held = [stored.manifest for stored in found if stored is not None]
    return [
        (name, ", ".join(dict.fromkeys(values)))
        for name, values in (
            ("quantisation", [manifest.quant for manifest in held]),
            ("built for", [f"{manifest.backend} on {manifest.compute_capability}" for manifest in held]),
            ("checkpoint", [str(manifest.checkpoint.source) for manifest in held]),
        )
        if values
    ]


def _identity(plan: SweepPlan, points: Sequence[SweepPoint]) -> list[tuple[str, str]]:
    starts = sorted(run.started_at for point in points for run in point.runs)
    settings = {**{name: [value] for name, value in plan.server_settings.items()}, **plan.axes}
    told = ", ".join(f"{name} {', '.join(map(str, values))}" for name, values in settings.items())
    loads = ", ".join(f"{value:g}" for value in plan.values)
    asked = plan.num_requests or "as the load needs"
    warm_up = "as many as are in flight" if plan.num_warmup is None else plan.num_warmup
    return [
        ("engine", plan.engine or "of the server that was there"),
        ("engine_id", plan.engine_id),
        *_engines(points),
        ("server", plan.endpoint or "started for the sweep"),
        ("settings", told or "of the engine"),
        ("prompts", f"{plan.input_name} (sha256 {plan.input_sha256})" if plan.input_name else "synthetic"),
        ("concurrency" if plan.mode == "concurrency" else "requests/s sent", loads),
        ("requests of a run", f"{asked}, after {warm_up} to warm up"),
        ("runs of a point", f"up to {plan.repeats}, until their spread is {plan.max_spread:.1%} at most"),
        ("measured", f"{starts[0]} to {starts[-1]}" if starts else "nothing"),
        ("machine", plan.machine),
        ("perf_analyzer", plan.perf_analyzer_version),
        ("trtb", plan.trtb_version),
        ("seed", f"{plan.seed}"),
    ]
