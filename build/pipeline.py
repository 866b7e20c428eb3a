"""build_engine(): a checkpoint becomes a verified engine in the store, or nothing does.

The id of an engine is a hash over every input of its build, so the same request is answered from the
store, and an engine cannot be mistaken for one that was built otherwise.
"""

from __future__ import annotations

import datetime
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from trtb.build import __version__, checkpoint, files
from trtb.build.backends import choose_backend, get_backend
from trtb.build.backends.base import BuildPlan, BuiltEngine, EngineBackend
from trtb.build.checkpoint import PinnedCheckpoint
from trtb.build.config import BuildConfig
from trtb.build.errors import BuildError, InsufficientMemoryError
from trtb.build.hardware import available_host_bytes
from trtb.build.manifest import EngineManifest, write_record
from trtb.build.store import MANIFEST_FILE, EngineStore, StoredEngine, check_engine_name

# Part of every engine_id: raise it when the steps, the quality text or the calibration texts change.
BUILD_SCHEMA = 1

LOG_FILE = "build.log"

Progress = Callable[[str, str], None]


def build_engine(
    spec: str,
    config: BuildConfig,
    home: Path,
    *,
    name: str | None = None,
    backend: str = "auto",
    progress: Progress | None = None,
    check_memory: bool = True,
    allow_remote_code: bool = False,
    deploy: Callable[[Path, EngineManifest], None] | None = None,
) -> StoredEngine:
    """Build an engine, or return the one that the same inputs built before, verified.

    Args:
        spec: What `checkpoint.resolve` accepts.
        config: The options of the build.
        home: TRTB_HOME.
        name: A new engine's name; by default `<checkpoint>-<quant>`. One that is there keeps its own.
        backend: A backend's name, or "auto".
        progress: Called with (step, detail) as the build goes on.
        check_memory: Refuse before any work when the estimated peak exceeds what is free.
        allow_remote_code: Accept a Hugging Face folder that brings code.
        deploy: Called with the staged engine and its manifest (its version not set yet) before the commit;
            renders the engine's Triton model repository, which is no business of this stage.

    Raises:
        CheckpointError: The checkpoint is missing, changed, unsafe or unsupported.
        ConfigError: The options do not fit the checkpoint or the backend.
        InsufficientMemoryError: The build would not fit.
        BuildError: A step failed; its message holds the path of the log.
        StoreError: The store refused.
    """
    tell = progress or (lambda _step, _detail: None)
    chosen, why = choose_backend(backend)
    tell("backend", f"{chosen}: {why}")
    pinned = checkpoint.resolve(spec, home, allow_remote_code=allow_remote_code)
    tell("checkpoint", f"{pinned.pin.name} {pinned.pin.revision}")
    engine_name = check_engine_name(name or f"{pinned.pin.name}-{config.quant}")
    checkpoint.verify(pinned)
    engine_backend = get_backend(chosen)
    plan = engine_backend.check(pinned, config)
    engine_id = make_engine_id(pinned, plan, chosen)
    store = EngineStore(home)
    if (stored := store.find(engine_id)) is not None:
        store.verify(stored)
        tell("done", f"{stored.manifest.reference} is this engine already")
        return stored
    if check_memory:
        check_host_memory(plan.peak_host_bytes, available_host_bytes())
    started_ns = time.monotonic_ns()
    with store.stage() as staged:
        kept_log = store.root / ".logs" / f"{engine_name}.log"
        built = _build_logged(engine_backend, pinned, plan, staged, tell=tell, kept_log=kept_log)
        manifest = EngineManifest(
            engine_id=engine_id,
            name=engine_name,
            version=0,  # the store gives the number
            backend=engine_backend.name,
            quant=plan.config.quant,
            checkpoint=pinned.pin,
            model=built.model,
            tokens=built.tokens,
            limits=built.limits,
            build_config=plan.config.model_dump(),
            compute_capability=plan.compute_capability,
            toolchain=plan.toolchain,
            trtb_version=__version__,
            quality=built.quality,
            files=[],
            built_at=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="microseconds"),
            build_duration_s=(time.monotonic_ns() - started_ns) / 1e9,
        )
        if deploy is not None:
            tell("deploy", "rendering the Triton model repository")
            write_record(staged / MANIFEST_FILE, manifest)
            deploy(staged, manifest)
        stored = store.commit(staged, manifest)
    tell("done", stored.manifest.reference)
    return stored


def make_engine_id(pinned: PinnedCheckpoint, plan: BuildPlan, backend: str) -> str:
    """Return the sha256 over everything that shapes the engine's files and limits."""
    inputs = {
        "build_schema": BUILD_SCHEMA,
        "checkpoint": [[entry.path, entry.size_bytes, entry.sha256] for entry in pinned.pin.files],
        "config": plan.config.model_dump(),
        "backend": backend,
        "toolchain": plan.toolchain,
        "compute_capability": plan.compute_capability,
    }
    return files.sha256_bytes(json.dumps(inputs, sort_keys=True, separators=(",", ":")).encode())


def check_host_memory(peak_bytes: int, available_bytes: int) -> None:
    """Refuse a build whose estimated peak is more than what is free.

    Raises:
        InsufficientMemoryError: It is.
    """
    if peak_bytes > available_bytes:
        gib = 1 << 30
        raise InsufficientMemoryError(
            f"host memory: the build needs about {peak_bytes / gib:.1f} GiB at its peak; "
            f"{available_bytes / gib:.1f} GiB are available",
            "stop other work, raise the container's memory limit, or choose a smaller model; "
            "the check can be switched off",
        )


@dataclass(slots=True)
class _BuildLog:
    """Writes build.log and passes each step on."""

    file: IO[str]
    tell: Progress
    step: str = "start"
    started_ns: int = field(default_factory=time.monotonic_ns)

    def __call__(self, step: str, detail: str) -> None:
        self.step = step
        elapsed_s = (time.monotonic_ns() - self.started_ns) / 1e9
        self.file.write(f"{elapsed_s:9.3f} s  {step}: {detail}\n")
        self.file.flush()
        self.tell(step, detail)


def _build_logged(
    backend: EngineBackend,
    pinned: PinnedCheckpoint,
    plan: BuildPlan,
    staged: Path,
    *,
    tell: Progress,
    kept_log: Path,
) -> BuiltEngine:
    with (staged / LOG_FILE).open("w", encoding="utf-8") as file:
        log = _BuildLog(file, tell)
        log("start", f"{pinned.pin.name} {pinned.pin.revision}, {plan.config.model_dump_json()}")
        for distribution, version in plan.toolchain.items():
            log("toolchain", f"{distribution} {version}")
        try:
            built = backend.build(pinned, plan, staged, log)
        except (MemoryError, RuntimeError, OSError, ValueError) as exc:
            # the libraries raise these; our own errors pass as they are
            file.write(f"failed: {type(exc).__name__}: {exc}\n")
            file.flush()
            files.write_atomic(kept_log, (staged / LOG_FILE).read_bytes())
            detail = str(exc).strip().splitlines()
            raise BuildError(
                f"{log.step}: {type(exc).__name__}: {detail[0] if detail else 'no message'}",
                f"read {kept_log}",
            ) from exc
        if built.quality:
            log("quality", built.quality.model_dump_json())
    return built
