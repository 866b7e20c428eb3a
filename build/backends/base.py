"""The interface between the build pipeline and what compiles an engine."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

from pydantic import JsonValue

from trtb.build.checkpoint import PinnedCheckpoint
from trtb.build.config import BuildConfig
from trtb.build.manifest import EngineLimits, GpuRecord, ModelShape, QualityReport, TokenIds
from trtb.build.steps import BuildSteps

if TYPE_CHECKING:
    from trtb.build.calibration import CalibrationSet


@dataclass(frozen=True, slots=True)
class BuildHost:
    """Where a build happens and how far it goes; nothing here shapes the engine's files."""

    home: Path  # TRTB_HOME
    compile_with: Literal["auto", "path", "docker"] = "auto"  # where trtllm-build runs
    stop_after: Literal["checkpoint"] | None = None
    is_dry_run: bool = False  # what is missing to work is no fault


@dataclass(frozen=True, slots=True)
class BuildPlan:
    """A build that was checked: what it will make, and what it needs of this machine."""

    config: BuildConfig  # every default resolved
    model: ModelShape
    toolchain: dict[str, str]  # distribution name -> version, of all that shapes the engine's files
    compute_capability: str  # "cpu" or "sm_90"
    peak_host_bytes: int
    calibration: CalibrationSet | None = None
    gpu: GpuRecord | None = None
    container: str | None = None  # the image that compiles
    backend_options: dict[str, JsonValue] = field(default_factory=dict)  # the compiler's, every one resolved
    commands: tuple[tuple[str, ...], ...] = ()  # what would be run outside this process
    notes: tuple[str, ...] = ()  # why trtb chose what it chose; for the log
    warnings: tuple[str, ...] = ()  # what a person should know before the work


@dataclass(frozen=True, slots=True)
class BuiltEngine:
    """What a build left in its staging folder."""

    model: ModelShape
    tokens: TokenIds
    limits: EngineLimits
    quality: QualityReport | None
    checkpoint_report: dict[str, JsonValue] | None = None
    peak_host_bytes: int = 0  # of the processes that the build started, where it knows


@dataclass(frozen=True, slots=True)
class BuiltCheckpoint:
    """A quantised checkpoint, verified, before it is compiled."""

    path: Path  # a finished step's: read it, never change it
    quality: QualityReport | None
    report: dict[str, JsonValue]


class EngineBackend(Protocol):
    """Turns a pinned checkpoint into the files of one engine."""

    name: Literal["openvino", "tensorrt_llm"]

    def check(self, pinned: PinnedCheckpoint, config: BuildConfig, host: BuildHost) -> BuildPlan:
        """Refuse what cannot be built, in seconds and before any work; else return the plan.

        Writes nothing but temporary files. The same inputs on the same machine give the same plan.

        Raises:
            CheckpointUnsupportedError: The checkpoint is sound, and this backend cannot build it.
            CheckpointError: The checkpoint is damaged.
            ConfigError: The options contradict each other or the checkpoint.
            HardwareError: No GPU here can run such an engine.
            ToolchainMissingError: What quantises or compiles is not installed.
        """
        ...

    def build(
        self, pinned: PinnedCheckpoint, plan: BuildPlan, staging: Path, steps: BuildSteps
    ) -> BuiltEngine:
        """Fill `staging`, an empty folder, with the engine's files and return what they are.

        On return the folder holds nothing but the engine, no file of it is open or mapped, and the
        engine has answered a prompt where it can run here. On an error the folder's content is undefined.

        Raises:
            QuantizationError: The engine came out worse than its scheme explains.
            BuildError: A step failed.
        """
        ...
