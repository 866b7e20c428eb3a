"""The fake NVIDIA driver: compile its library, lay out the machine it tells of, point a child process at it.

The child loads the real nvidia-ml-py, which finds the library as it finds the driver's, by its name.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).parent / "nvml" / "fake_nvml.c"
LIBRARY = "libnvidia-ml.so.1"
NEWEST = 580
SYSTEM = ("driver 580.95.05", "nvml 13.580.95.05", "cuda 13000")


@dataclass(frozen=True)
class Machine:
    """The GPUs that the library tells of, and what it does differently."""

    gpus: Sequence[str] = ()  # names of files in nvml/gpus
    changes: Sequence[str] = ()  # further lines of the scenario; a later line overrides
    system: Sequence[str] = SYSTEM
    driver: int = NEWEST  # which functions the library has

    def text(self) -> str:
        """Return the scenario as the library reads it."""
        lines = [*self.system, f"count {len(self.gpus)}"]
        for index, name in enumerate(self.gpus):
            gpu = (SOURCE.parent / "gpus" / f"{name}.txt").read_text()
            lines += [f"{index}.{line}" for line in gpu.splitlines()]
        return "\n".join((*lines, *self.changes)) + "\n"

    def environment(self, libraries: Path, folder: Path) -> dict[str, str]:
        """Return what a process needs in its environment to meet this machine."""
        scenario = folder / "nvml.txt"
        scenario.write_text(self.text())
        return {
            "LD_LIBRARY_PATH": str(compile_library(libraries, self.driver)),
            "TRTB_FAKE_NVML": str(scenario),
        }


def compile_library(libraries: Path, driver: int = NEWEST) -> Path:
    """Return the folder of the library with the functions of `driver`, compiled at its first use."""
    folder = libraries / str(driver)
    if not (folder / LIBRARY).exists():
        compiler = shutil.which("cc") or shutil.which("gcc")
        assert compiler, "no C compiler (cc) on the PATH; the fake NVIDIA library needs one: install gcc"
        folder.mkdir(parents=True)
        options = ["-std=gnu11", "-O1", "-fPIC", "-shared", f"-DFAKE_DRIVER={driver}"]
        target = folder / LIBRARY
        command = [compiler, *options, f"-Wl,-soname,{LIBRARY}", "-o", str(target), str(SOURCE)]
        subprocess.run(command, check=True)
    return folder


def no_library(folder: Path) -> dict[str, str]:
    """Return the environment of a machine without a driver, even where this one has one."""
    (folder / LIBRARY).write_text("not a library\n")  # found first, and no search goes on behind it
    return {"LD_LIBRARY_PATH": str(folder)}
