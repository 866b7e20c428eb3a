"""prepare_build(): everything about a build that can be known before its work, checked and named.

The id of an engine is a hash over every input of its build, so the same request is answered from the
store, and an engine cannot be mistaken for one that was built otherwise.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from trtb.build import checkpoint, files
from trtb.build.backends import choose_backend, get_backend
from trtb.build.backends.base import BuildHost, BuildPlan, EngineBackend
from trtb.build.checkpoint import PinnedCheckpoint
from trtb.build.config import BuildConfig
from trtb.build.hardware import probe
from trtb.build.planning.findings import raise_if_blocked
from trtb.build.planning.plan_sources import read_sizes
from trtb.build.planning.preflight import check_build
from trtb.build.planning.preflight_build import check_host_for_build, needs_of_config
from trtb.build.quantization import get_scheme
from trtb.build.steps import Progress
from trtb.build.store import check_engine_name

# Part of every engine_id: raise it when the steps, the quality text or the calibration texts change.
BUILD_SCHEMA = 2


@dataclass(frozen=True, slots=True)
class PreparedBuild:
    """A build that was checked and not begun; nothing of it is on disk."""

    name: str
    backend: EngineBackend
    pinned: PinnedCheckpoint
    plan: BuildPlan
    engine_id: str
    host: BuildHost
    tell: Progress


def prepare_build(
    spec: str,
    config: BuildConfig,
    host: BuildHost,
    *,
    name: str | None = None,
    backend: str = "auto",
    progress: Progress | None = None,
    allow_remote_code: bool = False,
) -> PreparedBuild:
    """Pin and verify the checkpoint, and check the build against it and this machine.

    Args:
        spec: What `checkpoint.resolve` accepts.
        config: The options of the build.
        host: Where it happens and how far it goes.
        name: A new engine's name; by default `<checkpoint>-<quant>`. One that is there keeps its own.
        backend: A backend's name, or "auto".
        progress: Called with (step, detail) as the build goes on.
        allow_remote_code: Accept a Hugging Face folder that brings code.

    Raises:
        CheckpointError: The checkpoint is missing, changed, unsafe or unsupported.
        ConfigError: The options do not fit the checkpoint or the backend.
        HardwareError: No GPU here can run such an engine.
    """
    tell = progress or (lambda _step, _detail: None)
    if name is not None:
        check_engine_name(name)
    chosen, why = choose_backend(backend)
    tell("backend", f"{chosen}: {why}")
    pinned = checkpoint.resolve(spec, host.home, tell, allow_remote_code=allow_remote_code)
    tell("checkpoint", f"{pinned.pin.name} {pinned.pin.revision}")
    engine_name = name or check_engine_name(f"{pinned.pin.name}-{config.quant}")
    checkpoint.verify(pinned, tell)
    engine_backend = get_backend(chosen)
    plan = engine_backend.check(pinned, config, host)
    if config.calibration.source and plan.calibration is None:
        tell("warning", f"calibration: {config.quant} needs none; {config.calibration.source} is not read")
    for warning in plan.warnings:
        tell("warning", warning)
    return PreparedBuild(
        name=engine_name,
        backend=engine_backend,
        pinned=pinned,
        plan=plan,
        engine_id=make_engine_id(pinned, plan, chosen),
        host=host,
        tell=tell,
    )


def make_engine_id(pinned: PinnedCheckpoint, plan: BuildPlan, backend: str) -> str:
    """Return the sha256 over everything that shapes the engine's files and limits."""
    inputs = {
        "build_schema": BUILD_SCHEMA,
        "checkpoint": [[entry.path, entry.size_bytes, entry.sha256] for entry in pinned.pin.files],
        # where the calibration texts lie does not matter, only what they are
        # and options of the compiler count as they were resolved, however they were given
        "config": plan.config.model_dump(exclude={"calibration", "trtllm"}),
        "calibration": plan.calibration.sha256 if plan.calibration else None,
        "backend": backend,
        "backend_options": plan.backend_options,
        "toolchain": plan.toolchain,
        "compute_capability": plan.compute_capability,
    }
    return files.sha256_bytes(json.dumps(inputs, sort_keys=True, separators=(",", ":")).encode())


def check_fit(prepared: PreparedBuild, *, is_checkpoint_only: bool = False) -> None:
    """Refuse a build that this machine cannot do, and tell of what is doubtful.

    Raises:
        InsufficientMemoryError: Its peak is more than the memory that is free.
        HardwareError: The disk is too small, or no GPU here can run the engine.
    """
    pin, plan, home = prepared.pinned.pin, prepared.plan, prepared.host.home
    sizes = read_sizes(f"{pin.name}@{pin.revision}", home)
    scheme = get_scheme(prepared.backend.name, plan.config.quant)
    needs = needs_of_config(sizes, scheme, plan.config, plan.peak_host_bytes)
    found = probe((home,))
    if is_checkpoint_only:  # no GPU and no kernel has to do with it
        findings = list(check_host_for_build(needs, found.host.memory, found.host.disks))
    else:
        findings = check_build(found, needs)
    raise_if_blocked(findings)
    for finding in findings:
        if finding.severity == "warns":
            prepared.tell("warning", finding.message)
