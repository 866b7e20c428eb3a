"""A toolchain of three empty packages, so that a real install of one takes seconds and no network."""

from __future__ import annotations

import zipfile
from pathlib import Path

from trtb.build import compatibility, toolchain

PINS = "tiny-torch==1.0\ntiny-helper==0.5\ntiny-lib==2.0.1  # the reason\n"


def make_wheel(folder: Path, name: str, version: str, *requires: str) -> None:
    """Write the wheel of a package with one empty module."""
    module = name.replace("-", "_")
    info = f"{module}-{version}.dist-info"
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    contents = {
        f"{module}.py": "",
        f"{info}/METADATA": "\n".join([*lines, *(f"Requires-Dist: {each}" for each in requires)]) + "\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    contents[f"{info}/RECORD"] = "".join(f"{path},,\n" for path in [*contents, f"{info}/RECORD"])
    with zipfile.ZipFile(folder / f"{module}-{version}-py3-none-any.whl", "w") as wheel:
        for path, text in contents.items():
            wheel.writestr(path, text)


def use_tiny(folder: Path, **changes: object) -> compatibility.ToolchainSpec:
    """Make a small toolchain the only one that trtb knows."""
    values = {
        "name": "tiny",
        "purpose": "a test",
        "pins": folder / "tiny.txt",
        "resolved": ("tiny-torch",),
        "decisive": ("tiny-lib",),
        "imports": ("tiny_torch", "tiny_lib"),
        "free_bytes": 1,
        "left_out": frozenset({("tiny-lib", "tiny-vision")}),
    }
    spec = compatibility.ToolchainSpec(**{**values, **changes})  # type: ignore[arg-type]
    toolchain.TOOLCHAINS.clear()
    toolchain.TOOLCHAINS["tiny"] = spec
    return spec
