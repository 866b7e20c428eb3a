"""What a toolchain consists of: the pins that hold for this Python, and what an environment differs in."""

from __future__ import annotations

import platform
import re
import sys
from collections.abc import Mapping
from pathlib import Path

from trtb.build import files

DIGEST_DIGITS = 12

_COMMENT = re.compile(r"(^|\s)#.*$")


def read_pins(path: Path) -> dict[str, str]:
    """Return the version of each distribution that the file pins for this Python, by normalised name."""
    from packaging.requirements import Requirement

    pins = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        if not (text := _COMMENT.sub("", line).strip()):
            continue
        requirement = Requirement(text)
        (specifier,) = requirement.specifier
        assert specifier.operator == "==", f"{path.name}: {text}: not a pin"
        if requirement.marker is None or requirement.marker.evaluate():
            pins[normalise(requirement.name)] = specifier.version
    return pins


def pins_digest(pins: Mapping[str, str]) -> str:
    """Return the name of the folder that holds an environment of these pins for this Python and machine."""
    lines = [f"python {sys.version_info.major}.{sys.version_info.minor} {platform.machine()}"]
    lines += [f"{name}=={version}" for name, version in sorted(pins.items())]
    return files.sha256_bytes("\n".join(lines).encode())[:DIGEST_DIGITS]


def differences(pins: Mapping[str, str], versions: Mapping[str, str]) -> list[str]:
    """Return what an environment lacks or has in another version; what it has beside the pins is not asked.

    A local label does not count: 2.13.0+cpu and 2.13.0+cu130 are both 2.13.0.

    >>> differences({"torch": "2.13.0", "numpy": "2.4.6"}, {"torch": "2.13.0+cpu", "numpy": "1.26.4"})
    ['numpy 1.26.4; expected 2.4.6']
    """
    found = {normalise(name): version for name, version in versions.items()}
    return [
        f"{name} {found.get(name, 'is missing')}; expected {version}"
        for name, version in sorted(pins.items())
        if found.get(name, "").partition("+")[0] != version
    ]


def normalise(name: str) -> str:
    """Return a distribution's name as an index compares it.

    >>> normalise("Typing_Extensions")
    'typing-extensions'
    """
    return re.sub(r"[-_.]+", "-", name).lower()
