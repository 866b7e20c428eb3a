"""Sweeps as they would be measured: throughput that flattens with concurrency, latency that then rises."""

from __future__ import annotations

from typing import Any

from trtb.tools.pages.sweep_view import SweepView
from trtb.tools.sweeping.plan import SweepPlan
from trtb.tools.sweeping.point import (
    Percentiles,
    PointRun,
    SettingValue,
    State,
    SweepPoint,
    median_of,
    spread_of,
)


def fake_run(concurrency: float, *, speed: float = 1.0, noise: float = 0.0) -> PointRun:
    """Return one run of a point of an engine that computes `speed` * 400 tokens/s at most."""
    tokens_per_s = speed * 400 * concurrency / (concurrency + 8) * (1 + noise)
    latency_ms = concurrency * 32 / tokens_per_s * 1000
    return PointRun(
        command=["perf_analyzer", "-m", "an engine", "--concurrency-range", f"{concurrency:g}"],
        perf_analyzer_version="2.59.1",
        started_at="2026-01-01T00:00:00Z",
        export=f"exports/c{concurrency:g}-1.json",
        duration_s=20.0,
        num_requests=64,
        requests_per_s=tokens_per_s / 32,
        output_tokens_per_s=tokens_per_s,
        ttft=Percentiles(p50_ms=latency_ms / 10, p90_ms=latency_ms / 6, p99_ms=latency_ms / 4),
        itl=Percentiles(p50_ms=latency_ms / 40, p90_ms=latency_ms / 36, p99_ms=latency_ms / 20),
        latency=Percentiles(p50_ms=latency_ms, p90_ms=latency_ms * 1.2, p99_ms=latency_ms * 1.9),
        goodput_per_s=tokens_per_s / 40,
        input_tokens_mean=128.0,
        output_tokens_mean=32.0,
        asked_tokens_mean=32.0,
        metrics={"kv_use_max": min(1.0, concurrency / 70)},
    )


def fake_point(
    concurrency: float,
    *,
    speed: float = 1.0,
    state: State = "ok",
    why: str = "",
    settings: dict[str, SettingValue] | None = None,
) -> SweepPoint:
    """Return a point of three runs; a failed one has none."""
    runs = [fake_run(concurrency, speed=speed, noise=noise) for noise in (-0.02, 0.0, 0.03)]
    runs = [] if state == "failed" else runs
    return SweepPoint(
        name=f"c{concurrency:g}" + "".join(f"-{value}" for value in (settings or {}).values()),
        settings=settings or {"input_tokens": 128, "output_tokens": 32},
        mode="concurrency",
        value=concurrency,
        state=state,
        why=why,
        runs=runs,
        median=median_of(runs),
        spread=spread_of([run.output_tokens_per_s for run in runs]),
        engine="smollm2/1",
        engine_id="0123456789abcdef" * 4,
    )


def fake_view(name: str = "smollm2/1", *, speed: float = 1.0, best: str | None = "c16") -> SweepView:
    """Return a sweep of concurrency 1 to 256 with an unstable and a failed point."""
    points = [fake_point(concurrency, speed=speed) for concurrency in (1, 4, 16, 64)]
    points += [
        fake_point(
            128, speed=speed, state="unstable", why="spread 14.0% after 5 runs; expected 5.0% at most"
        ),
        fake_point(256, speed=speed, state="failed", why="the server ended with code -9; see server.log"),
    ]
    return SweepView(
        name=name,
        points=points,
        identity=[
            ("engine", f"{name} (0123456789ab)"),
            ("quantisation", "int8_wo"),
            ("perf_analyzer", "2.59.1"),
            ("machine", "8 cores of an x86-64 CPU, 31 GiB"),
            ("when", "2026-01-01 00:00 to 00:12 UTC"),
            ("command", "trtb sweep --engine smollm2 --concurrency 1,4,16,64,128,256"),
        ],
        files=[f"sweep-{name.replace('/', '-')}/sweep.csv", f"sweep-{name.replace('/', '-')}/sweep.json"],
        best=best,
        rule="the most output tokens/s with latency p90 of 2000 ms at most",
        latency_limit_ms=2000.0,
    )


def fake_plan(*, values: list[float], **changes: Any) -> SweepPlan:
    """Return the plan of a sweep over concurrency; `changes` replace its own fields."""
    plan = SweepPlan(
        trtb_version="0.1.0",
        perf_analyzer_version="2.59.1",
        machine="8 threads of a processor",
        engine="smollm2@1",
        engine_id="0123456789abcdef" * 4,
        endpoint=None,
        mode="concurrency",
        values=values,
        axes={"input_tokens": [128], "output_tokens": [32]},
        input_name=None,
        input_sha256=None,
        num_requests=None,
        num_warmup=0,
        repeats=3,
        max_spread=0.05,
        point_timeout_s=600.0,
        latency_limit_ms=None,
        num_kv_blocks=None,
        deterministic=False,
        seed=0,
    )
    return plan.model_copy(update=changes)
