"""`trtb preflight`: does this machine fit, and if not, why; before hours of work."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import typer

from trtb.tools.console import JsonFlag, command, put, put_json, put_table
from trtb.tools.plan import (
    GpuOption,
    ModelOption,
    NumGpusOption,
    PlanBackendOption,
    PlanQuantOption,
    gib,
    show_findings,
    to_json,
)

if TYPE_CHECKING:
    from trtb.build.planning.findings import Finding
    from trtb.build.planning.plan import Plan
    from trtb.build.probe.hardware_info import HardwareInfo
    from trtb.build.store import StoredEngine
    from trtb.tools.plan_subject import Subject, Target

SERVE_PORTS = (8001, 8002)


@command
def preflight(
    engine: Annotated[
        str | None, typer.Option("--engine", help="Check that this engine can be served here.")
    ] = None,
    model: ModelOption = None,
    quant: PlanQuantOption = "int8_wo",
    backend: PlanBackendOption = "auto",
    gpu: GpuOption = None,
    num_gpus: NumGpusOption = 8,
    purpose: Annotated[str, typer.Option("--for", help="What is to be done: build, serve or run.")] = "run",
    deep: Annotated[
        bool, typer.Option("--deep", help="Also generate, write to the disk and compute, for a minute or so.")
    ] = False,
    as_json: JsonFlag = False,
) -> int:
    """Check this machine for the engine, the model, or the default backend; nothing is changed.

    Exit code 4 where something blocks.

    Example: trtb preflight --model ./config.json --quant int4_awq
    """
    from trtb.build.errors import ConfigError
    from trtb.build.files import trtb_home
    from trtb.build.hardware import probe
    from trtb.build.planning.findings import is_blocked, ordered
    from trtb.build.planning.preflight import check_machine
    from trtb.build.store import EngineStore
    from trtb.tools.plan_subject import Subject, Target

    if purpose not in ("build", "serve", "run"):
        raise ConfigError(f"for: {purpose!r}; expected build, serve or run")
    if model is not None and engine is not None:
        raise ConfigError("model, engine: both given; expected one of them", "leave out --model or --engine")
    if gpu is not None and model is None:
        raise ConfigError(
            f"gpu: {gpu!r} without a model; expected --model too", "trtb preflight --model M --gpu G"
        )
    work = cast("Literal['build', 'serve', 'run']", purpose)
    stored = EngineStore(trtb_home()).resolve(engine) if engine else None
    subject = Subject.choose(model, None) if model else None
    hardware = probe((trtb_home(), Path.cwd()), SERVE_PORTS if purpose == "serve" else ())
    target = Target.choose(hardware, backend, gpu, num_gpus, stored)
    found = [] if target.is_elsewhere else check_machine(hardware, target.backend, work)
    made = None
    if stored is not None:
        found += engine_findings(hardware, stored)
    elif subject is not None:
        made, of_model = model_findings(subject, target, quant)
        found += of_model
    found = ordered(found)
    measured = None
    if deep and not is_blocked(found):
        from trtb.tools.deep_test import run_deep_test

        measured = run_deep_test(target.backend, stored)
    report = {
        "schema_version": 1,
        "ok": not is_blocked(found),
        "backend": target.backend,
        "why": target.why,
        "purpose": purpose,
        "findings": found,
        "plan": made,
        "engines": [] if subject or stored else engines_here(hardware),
        "measured": measured,
        "hardware": hardware,
    }
    if as_json:
        put_json(_plain(report))
    else:
        _show(report, subject.build_spec if subject else "")
    return 4 if is_blocked(found) else 0


def engine_findings(hardware: HardwareInfo, stored: StoredEngine) -> list[Finding]:
    """Return what speaks against serving an engine here."""
    from trtb.build.compatibility import installed_versions
    from trtb.build.planning.preflight import check_engine
    from trtb.build.planning.preflight_engine import OPENVINO_RUNTIME, TRTLLM_RUNTIME, runtime_of
    from trtb.model_repo.render import num_blocks_for_machine

    manifest = stored.manifest
    installed = installed_versions((*OPENVINO_RUNTIME, *TRTLLM_RUNTIME))
    is_cpu = manifest.backend == "openvino"
    return check_engine(
        hardware,
        manifest,
        runtime_of(manifest, hardware.host, installed),
        num_blocks_for_machine(manifest.limits) if is_cpu else None,
    )


def model_findings(subject: Subject, target: Target, quant: str) -> tuple[Plan, list[Finding]]:
    """Return the plan of a model and what speaks against building it."""
    from trtb.build.planning.plan import PlanOptions
    from trtb.build.planning.plan_gpu import needs_of
    from trtb.build.planning.preflight_build import check_host_for_build
    from trtb.build.quantization import get_scheme

    made = subject.make_plan(PlanOptions(), None, target, quant)
    found = list(made.findings)
    if not target.is_elsewhere:
        host = target.hardware.host
        needs = needs_of(subject.sizes, get_scheme(target.backend, quant), made.settings)
        found += check_host_for_build(needs, host.memory, host.disks)
    return made, found


def engines_here(hardware: HardwareInfo) -> list[dict[str, Any]]:
    """Return which engines of the store can run on which devices."""
    from trtb.build.files import trtb_home
    from trtb.build.planning.preflight_engine import runnable_on
    from trtb.build.store import EngineStore

    home = trtb_home()
    if not home.is_dir():  # not there yet; or a file, of which a finding tells
        return []
    return [
        {"reference": stored.manifest.reference, "runs_on": runnable_on(stored.manifest, hardware)}
        for stored in EngineStore(home).list(None)
    ]


def _plain(report: dict[str, Any]) -> dict[str, Any]:
    from dataclasses import asdict

    plan = report["plan"]
    return {
        **report,
        "findings": [asdict(finding) for finding in report["findings"]],
        "plan": to_json(plan) if plan else None,
        "hardware": report["hardware"].model_dump(mode="json"),
    }


def _show(report: dict[str, Any], build_spec: str) -> None:
    hardware: HardwareInfo = report["hardware"]
    host = hardware.host
    put(f"backend  {report['backend']}: {report['why']}")
    put(f"host     {host.cpu.model}, {host.cpu.num_usable_threads} threads, {', '.join(host.cpu.flags)}")
    put(f"memory   {gib(host.memory.available_bytes)} free of {gib(host.memory.usable_bytes)}")
    for disk in host.disks:
        put(f"disk     {gib(disk.free_bytes)} free at {disk.path} ({disk.file_system})")
    if hardware.driver.driver_version:
        put(f"driver   {hardware.driver.driver_version}, CUDA {hardware.driver.cuda_version}")
    for gpu in hardware.gpus:
        free, total = gpu.memory_free_bytes, gpu.memory_total_bytes
        told = "" if total is None else f", {gib(total if free is None else free)} free of {gib(total)}"
        put(f"GPU {gpu.index}    {gpu.name}, compute capability {gpu.compute_capability}{told}")
    if report["engines"]:
        rows = [[row["reference"], ", ".join(row["runs_on"]) or "nothing here"] for row in report["engines"]]
        put_table(["engine", "runs on"], rows)
    plan: Plan | None = report["plan"]
    if plan is not None:
        from trtb.tools.plan import show

        show(plan, [], build_spec)
    show_findings([found for found in report["findings"] if plan is None or found not in plan.findings])
    for line in report["measured"] or []:
        put("measured {what}: {text}".format(**line))
    put("fits" if report["ok"] else "does not fit")
