"""The one base of every error that leaves trtb, and the family of the build stage.

An error says what was found, where, what was expected, and, as its hint, the next step. Its `code` is
stable and documented; its message may change. All context goes to `Exception.__init__` positionally, so
that an error survives pickling between processes.
"""

from __future__ import annotations

from typing import ClassVar


class TrtbError(Exception):
    """An error for a person to read; anything else that escapes is a bug of ours."""

    code: ClassVar[str] = "internal"
    exit_code: ClassVar[int] = 70

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message, hint)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return self.message


class ConfigError(TrtbError):
    """The options contradict each other, the engine, or what is on disk."""

    code = "config_invalid"
    exit_code = 2


class HardwareError(TrtbError):
    """This machine cannot do what was asked."""

    code = "machine_does_not_fit"
    exit_code = 4


class InsufficientMemoryError(HardwareError):
    """The memory that the work needs is not there."""

    code = "insufficient_memory"


class CheckpointError(TrtbError):
    """A checkpoint cannot be used."""

    code = "checkpoint_invalid"
    exit_code = 5


class CheckpointNotFoundError(CheckpointError):
    """There is no such checkpoint, in the catalogue, on disk or in the store."""

    code = "checkpoint_not_found"


class CheckpointUnsafeError(CheckpointError):
    """The checkpoint would run code of its own: a pickle, or remote code."""

    code = "checkpoint_unsafe"


class CheckpointChangedError(CheckpointError):
    """A file differs from its pin."""

    code = "checkpoint_changed"


class CheckpointUnsupportedError(CheckpointError):
    """The checkpoint is sound, and this backend or version cannot build it."""

    code = "checkpoint_unsupported"


class BuildError(TrtbError):
    """A build step failed; nothing reached the store."""

    code = "build_failed"
    exit_code = 5


class QuantizationError(BuildError):
    """The weights cannot be quantised so, or came out worse than the scheme explains."""

    code = "quantization_failed"


class ToolchainError(BuildError):
    """A toolchain could not be installed, or is not what its pins say."""

    code = "toolchain_failed"


class ToolchainMissingError(BuildError):
    """The environment that this build needs is not installed."""

    code = "toolchain_missing"


class CompileError(BuildError):
    """A program of TensorRT-LLM failed, or made another engine than was asked for."""

    code = "compile_failed"


class StoreError(TrtbError):
    """The engine store refused."""

    code = "store_error"
    exit_code = 5


class EngineNotFoundError(StoreError):
    """No engine has that name, version or id."""

    code = "engine_not_found"


class EngineCorruptError(StoreError):
    """An engine's files differ from its manifest."""

    code = "engine_corrupt"


class StoreLockedError(StoreError):
    """Another process is changing the store."""

    code = "store_locked"
