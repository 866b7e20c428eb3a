"""build_engine(): a checkpoint becomes a verified engine in the store, or nothing does.

What was finished before a failure or a kill is kept, and the same command goes on after it.
"""

from __future__ import annotations

import contextlib
import datetime
import math
import resource
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, TypeVar

from trtb.build import __version__, files
from trtb.build.backends.base import BuildHost, BuiltCheckpoint, BuiltEngine
from trtb.build.config import BuildConfig
from trtb.build.errors import BuildError, ConfigError, QuantizationError
from trtb.build.manifest import EngineManifest, QualityReport, write_record
from trtb.build.prepare import PreparedBuild, check_fit, prepare_build
from trtb.build.steps import BuildSteps, Progress, acquire, steps_root
from trtb.build.store import MANIFEST_FILE, EngineStore, StoredEngine

LOG_FILE = "build.log"

T = TypeVar("T")


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
    max_quality_loss: float | None = None,
    keep_steps: bool = False,
    deploy: Callable[[Path, EngineManifest], None] | None = None,
) -> StoredEngine:
    """Build an engine, or return the one that the same inputs built before, verified.

    `prepare_build` and `build_prepared` in one; their arguments are described there.

    Raises:
        CheckpointError: The checkpoint is missing, changed, unsafe or unsupported.
        ConfigError: The options do not fit the checkpoint or the backend.
        HardwareError: The build would not fit.
        QuantizationError: The engine is worse than `max_quality_loss` or its scheme allows.
        BuildError: A step failed; its message holds the path of the log.
        StoreError: The store refused.
    """
    prepared = prepare_build(
        spec,
        config,
        BuildHost(home),
        name=name,
        backend=backend,
        progress=progress,
        allow_remote_code=allow_remote_code,
    )
    return build_prepared(
        prepared,
        check_memory=check_memory,
        max_quality_loss=max_quality_loss,
        keep_steps=keep_steps,
        deploy=deploy,
    )


def build_prepared(
    prepared: PreparedBuild,
    *,
    check_memory: bool = True,
    max_quality_loss: float | None = None,
    keep_steps: bool = False,
    deploy: Callable[[Path, EngineManifest], None] | None = None,
) -> StoredEngine:
    """Build what `prepare_build` checked, or return the engine of that id.

    Args:
        prepared: What to build.
        check_memory: Refuse before any work when memory, disk or GPU are not enough.
        max_quality_loss: The most that perplexity may rise over the base's: 0.05 is 5 %.
        keep_steps: Leave the finished steps for other builds of the same checkpoint.
        deploy: Called with the staged engine and its manifest (its version not set yet) before the commit;
            renders the engine's Triton model repository, which is no business of this stage.

    Raises:
        HardwareError: The build would not fit.
        QuantizationError: The engine is worse than `max_quality_loss` or its scheme allows.
        BuildError: A step failed; its message holds the path of the log.
        StoreError: The store refused.
    """
    store = EngineStore(prepared.host.home)
    if (stored := _find_built(prepared, store, max_quality_loss)) is not None:
        return stored
    if check_memory:
        check_fit(prepared)
    with _alone(prepared) as has_waited:
        if has_waited and (stored := _find_built(prepared, store, max_quality_loss)) is not None:
            return stored
        with (
            store.stage() as staged,
            _logged_steps(prepared, staged / LOG_FILE, keep_steps=keep_steps) as steps,
        ):

            def build() -> StoredEngine:
                manifest = _build_staged(prepared, staged, steps, max_quality_loss)
                if deploy is not None:
                    steps.say("deploy", "rendering the Triton model repository")
                    write_record(staged / MANIFEST_FILE, manifest)
                    deploy(staged, manifest)
                return store.commit(staged, manifest)

            stored = _guarded(prepared, steps, build)
    prepared.tell("done", stored.manifest.reference)
    return stored


def build_checkpoint(
    prepared: PreparedBuild, *, check_memory: bool = True, max_quality_loss: float | None = None
) -> BuiltCheckpoint:
    """Quantise and verify, do not compile; the same build without a stop goes on from there.

    Raises:
        ConfigError: The backend has no such stage.
        QuantizationError: The checkpoint is worse than `max_quality_loss` or its scheme allows.
        BuildError: A step failed.
    """
    make = getattr(prepared.backend, "build_checkpoint", None)
    if make is None:
        raise ConfigError(
            f"stop-after checkpoint: the {prepared.backend.name} backend has no checkpoint of its own",
            "leave it out, or use --backend tensorrt_llm",
        )
    if check_memory:
        check_fit(prepared, is_checkpoint_only=True)
    with _logged_steps(prepared, _kept_log(prepared), keep_steps=True) as steps:
        built: BuiltCheckpoint = _guarded(
            prepared, steps, lambda: make(prepared.pinned, prepared.plan, steps)
        )
        check_quality_loss(built.quality, max_quality_loss)
    return built


def check_quality_bound(max_loss: float | None) -> None:
    """Refuse a bound that bounds nothing.

    Raises:
        ConfigError: It is negative, infinite or no number.
    """
    if max_loss is not None and not 0 <= max_loss < math.inf:
        raise ConfigError(
            f"max-quality-loss: {max_loss}; expected a share of 0 or more, as 0.05 for 5 %",
            "leave it out to hold the engine to its scheme's own bound",
        )


def check_quality_loss(report: QualityReport | None, max_loss: float | None) -> None:
    """Refuse an engine whose perplexity rose by more than was allowed.

    Raises:
        QuantizationError: It did, or it was not measured.
    """
    if max_loss is None:
        return
    if report is None:
        raise QuantizationError(
            "quality: not measured for this engine; expected a figure, as a bound was given"
        )
    loss = report.perplexity / report.base_perplexity - 1
    if not loss <= max_loss:  # also refuses nan
        raise QuantizationError(
            f"quality: perplexity {report.perplexity:.3f} against {report.base_perplexity:.3f} of "
            f"{report.base}, a loss of {loss:.1%}; expected at most {max_loss:.1%}",
            "choose a scheme with more bits, a smaller group size, or calibrate on your own requests",
        )


def _find_built(
    prepared: PreparedBuild, store: EngineStore, max_quality_loss: float | None
) -> StoredEngine | None:
    if (stored := store.find(prepared.engine_id)) is None:
        return None
    store.verify(stored)
    check_quality_loss(stored.manifest.quality, max_quality_loss)
    other = (
        "" if stored.manifest.name == prepared.name else f"; it keeps its name, {prepared.name} is not used"
    )
    prepared.tell("done", f"{stored.manifest.reference} is this engine already{other}")
    return stored


@contextlib.contextmanager
def _alone(prepared: PreparedBuild) -> Iterator[bool]:
    """Keep an equal build waiting until this one is in the store; yields whether this one had to wait."""
    waited = []

    def tell() -> None:
        waited.append(True)
        prepared.tell("build", "another build makes this very engine; waiting for it")

    lock = acquire(steps_root(prepared.host.home) / f"engine-{prepared.engine_id[:16]}.lock", tell)
    try:
        yield bool(waited)
    finally:
        lock.release()


def _build_staged(
    prepared: PreparedBuild, staged: Path, steps: BuildSteps, max_quality_loss: float | None
) -> EngineManifest:
    started_ns = time.monotonic_ns()
    make_checkpoint = getattr(prepared.backend, "build_checkpoint", None)
    if max_quality_loss is not None and make_checkpoint is not None:  # known before hours of compiling
        checkpoint = make_checkpoint(prepared.pinned, prepared.plan, steps)
        check_quality_loss(checkpoint.quality, max_quality_loss)
    built = prepared.backend.build(prepared.pinned, prepared.plan, staged, steps)
    if built.quality:
        steps.say("quality", built.quality.model_dump_json())
    check_quality_loss(built.quality, max_quality_loss)
    return _make_manifest(prepared, built, steps, (time.monotonic_ns() - started_ns) / 1e9)


def _make_manifest(
    prepared: PreparedBuild, built: BuiltEngine, steps: BuildSteps, duration_s: float
) -> EngineManifest:
    plan = prepared.plan
    return EngineManifest(
        engine_id=prepared.engine_id,
        name=prepared.name,
        version=0,  # the store gives the number
        backend=prepared.backend.name,
        quant=plan.config.quant,
        checkpoint=prepared.pinned.pin,
        model=built.model,
        tokens=built.tokens,
        limits=built.limits,
        build_config={**plan.config.model_dump(mode="json"), "backend_options": plan.backend_options},
        compute_capability=plan.compute_capability,
        toolchain=plan.toolchain,
        trtb_version=__version__,
        quality=built.quality,
        files=[],
        built_at=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="microseconds"),
        build_duration_s=duration_s,
        calibration=plan.calibration.record() if plan.calibration else None,
        gpu=plan.gpu,
        container=plan.container,
        checkpoint_report=built.checkpoint_report,
        steps=steps.records,
        peak_host_bytes=max(_peak_host_bytes(), built.peak_host_bytes),
    )


def _peak_host_bytes() -> int:
    kib = max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return kib * 1024


def _kept_log(prepared: PreparedBuild) -> Path:
    return EngineStore(prepared.host.home).root / ".logs" / f"{prepared.name}.log"


@contextlib.contextmanager
def _logged_steps(prepared: PreparedBuild, log_path: Path, *, keep_steps: bool) -> Iterator[BuildSteps]:
    """Give the build's steps with their log; a failed build's log is kept, and so are its finished steps."""
    log_path.parent.mkdir(parents=True, exist_ok=True)
    log = log_path.open("w", encoding="utf-8")
    steps = BuildSteps(prepared.host.home, log, prepared.tell)
    try:
        plan, pin = prepared.plan, prepared.pinned.pin
        steps.say("start", f"{pin.name} {pin.revision}, {plan.config.model_dump_json()}")
        for distribution, version in plan.toolchain.items():
            steps.say("toolchain", f"{distribution} {version}")
        for note in plan.notes:
            log.write(f"chosen: {note}\n")
        yield steps
    except BaseException as exc:
        _keep_log(log, log_path, _kept_log(prepared), exc)
        steps.release(keep=True)
        raise
    finally:
        with contextlib.suppress(OSError):  # a full disk: what is not written yet cannot be
            log.close()
    steps.release(keep=keep_steps)


def _keep_log(log: IO[str], log_path: Path, kept: Path, exc: BaseException) -> None:
    with contextlib.suppress(OSError):  # the disk may be full: that error must not hide the first
        log.write(f"failed: {type(exc).__name__}: {exc}\n")
        log.flush()
        if log_path != kept:
            files.write_atomic(kept, log_path.read_bytes())


def _guarded(prepared: PreparedBuild, steps: BuildSteps, work: Callable[[], T]) -> T:
    try:
        return work()
    except (MemoryError, RuntimeError, OSError, ValueError) as exc:
        # the libraries raise these; our own errors pass as they are
        detail = str(exc).strip().splitlines()
        raise BuildError(
            f"{steps.step}: {type(exc).__name__}: {detail[0] if detail else 'no message'}",
            f"read {_kept_log(prepared)}; the same command goes on after the steps that were finished",
        ) from exc
