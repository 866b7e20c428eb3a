"""The programs of a toolchain: put beside them the libraries that they need, prove that they start.

A wheel's own copy of a library has a name of the wheel's, which no other program asks for; it is copied
under the name that the program asks for, into a folder of its own in the environment.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from trtb.build.child_process import run_program
from trtb.build.compatibility import ToolchainSpec
from trtb.build.errors import ToolchainError

LIBRARY_FOLDER = "program-libraries"
START_LIMIT_S = 60.0


def program_of(path: Path, name: str) -> Path:
    """Return where a program of an environment is."""
    return path / "bin" / name


def program_environment(path: Path) -> dict[str, str]:
    """Return our environment with what the programs of an environment need."""
    folders = [str(path / LIBRARY_FOLDER), os.environ.get("LD_LIBRARY_PATH", "")]
    return {**os.environ, "LD_LIBRARY_PATH": os.pathsep.join(filter(None, folders))}


def copy_libraries(spec: ToolchainSpec, path: Path) -> None:
    """Copy the libraries of a toolchain's programs into the environment at `path`.

    Raises:
        ToolchainError: The distribution that has them is not installed here, or has not got one.
    """
    if not spec.libraries:
        return
    found = importlib.util.find_spec("pytriton")
    if found is None or not found.submodule_search_locations:
        raise ToolchainError(
            f"{spec.name}: nvidia-pytriton is not installed; expected beside trtb, for its libraries",
            "install trtb again: pip install --force-reinstall trtb",
        )
    source = Path(next(iter(found.submodule_search_locations))).parent / "nvidia_pytriton.libs"
    target = path / LIBRARY_FOLDER
    target.mkdir(exist_ok=True)
    for name, pattern in spec.libraries:
        copies = sorted(source.glob(pattern))
        if not copies:
            raise ToolchainError(
                f"{spec.name}: {source} has no {pattern}; expected the program's {name}",
                "install nvidia-pytriton again, at the version that trtb asks for",
            )
        shutil.copyfile(copies[-1], target / name)


def check_programs(spec: ToolchainSpec, path: Path, work: Path, log: IO[str]) -> None:
    """Start each program of an environment, for its version.

    Raises:
        ToolchainError: One is missing, or does not start; the message has its last lines.
    """
    for name in spec.programs:
        program = program_of(path, name)
        if not program.is_file():
            raise ToolchainError(f"{spec.name}: {program}: not found", _again(spec.name))
        status, lines = _version(program, path, work)
        log.write(f"$ {program} --version\n" + "".join(f"{line}\n" for line in lines))
        if status != 0:
            last = "\n".join(f"  {line}" for line in lines[-5:])
            raise ToolchainError(
                f"{spec.name}: {program} does not start (status {status}):\n{last}", _again(spec.name)
            )


def _version(program: Path, path: Path, work: Path) -> tuple[int, Sequence[str]]:
    ended = run_program(
        [str(program), "--version"],
        work_dir=work,
        on_line=lambda _: None,
        environment=program_environment(path),
        silence_limit_s=START_LIMIT_S,
    )
    return ended.status, ended.tail


def _again(name: str) -> str:
    return f"trtb toolchain remove {name}, then: trtb toolchain install {name}"
