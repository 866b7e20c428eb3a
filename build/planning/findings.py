"""What a preflight check found: a stable code, how grave it is, found, expected, and what to do."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal

from trtb.build.errors import HardwareError, InsufficientMemoryError

Severity = Literal["blocks", "warns", "informs"]
_ORDER: Final[dict[Severity, int]] = {"blocks": 0, "warns": 1, "informs": 2}

# documents that findings refer to, by their public titles
README: Final = "README: Before you start"
CUDA_COMPATIBILITY: Final = "NVIDIA CUDA Compatibility: minor version compatibility"
SUPPORT_MATRIX: Final = "TensorRT-LLM: Support Matrix; Numerical Precision"
MEMORY_REFERENCE: Final = "TensorRT-LLM: Memory Usage of TensorRT-LLM"
TRITON_PYTHON: Final = "Triton Inference Server: Python Backend, shared memory"
CONTAINER_TOOLKIT: Final = "NVIDIA Container Toolkit: Installation Guide"
MIG_GUIDE: Final = "NVIDIA Multi-Instance GPU User Guide"
NVML_REFERENCE: Final = "NVIDIA Management Library (NVML) API Reference"

# of these, the work would end in the kernel's or the driver's refusal of memory
MEMORY_CODES: Final = frozenset({"host_memory_small", "gpu_memory_small", "kv_pool_small"})


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that a person should know before work begins."""

    code: str  # stable and documented; the words may change
    severity: Severity
    found: str  # with its place: "GPU 0: compute capability 7.5"
    expected: str
    hint: str  # what to do
    reference: str = README

    @property
    def message(self) -> str:
        """Return found and expected on one line."""
        return f"{self.found}; expected {self.expected}" if self.expected else self.found


def ordered(findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings, the gravest first, else as they were found."""
    return sorted(findings, key=lambda finding: _ORDER[finding.severity])


def is_blocked(findings: Iterable[Finding]) -> bool:
    """Return whether any of them blocks."""
    return any(finding.severity == "blocks" for finding in findings)


def raise_if_blocked(findings: Iterable[Finding]) -> None:
    """Do nothing where nothing blocks.

    Raises:
        InsufficientMemoryError: The first that blocks is about memory.
        HardwareError: Another blocks; both tell how many more there are.
    """
    blocking = [finding for finding in findings if finding.severity == "blocks"]
    if not blocking:
        return
    first = blocking[0]
    more = f" (and {len(blocking) - 1} more: trtb preflight lists them)" if len(blocking) > 1 else ""
    kind = InsufficientMemoryError if first.code in MEMORY_CODES else HardwareError
    raise kind(first.message + more, first.hint)
