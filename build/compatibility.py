"""The one table of versions that work together; preflight, build, deploy and the containers read it.

Facts, not wishes: each row was installed and run as a whole.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import metadata


@dataclass(frozen=True, slots=True)
class Pin:
    """One distribution of a toolchain and the version it was tried with."""

    distribution: str
    version: str
    why: str = ""


OPENVINO_TOOLCHAIN = (
    Pin("openvino", "2026.4.1"),
    Pin("openvino-genai", "2026.4.1.0"),
    Pin("openvino-tokenizers", "2026.4.1.0"),
    Pin("nncf", "3.4.0"),
    Pin("gguf", "0.19.0"),
    Pin("tokenizers", "0.23.3"),
    Pin("numpy", "1.26.4", "Triton 2.51's python stub breaks with numpy 2"),
)

PYTRITON = Pin("nvidia-pytriton", "0.7.0", "carries tritonserver 2.51 and its python backend")
TRITON_VERSION = "2.51.0"


def installed_versions(distributions: tuple[str, ...]) -> dict[str, str]:
    """Return the installed version of each distribution; one that is absent is left out."""
    found = {name: _version(name) for name in distributions}
    return {name: version for name, version in found.items() if version is not None}


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None
