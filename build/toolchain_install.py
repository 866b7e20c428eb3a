"""Fill the folder of a toolchain: a virtual environment, the pinned distributions, and the proof of both.

pip works with the user's own configuration: its index, proxy and credentials. What could put the packages
elsewhere, or bring others in, is taken from its environment.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO

from trtb.build.child_process import ProcessEnd, run_program
from trtb.build.compatibility import ToolchainSpec
from trtb.build.errors import ToolchainError, TrtbError
from trtb.build.toolchain_pins import differences, normalise, read_pins
from trtb.build.toolchain_programs import check_programs, copy_libraries
from trtb.build.worker import WORKERS, WorkerReply, run_worker

Progress = Callable[[str, str], None]

SILENCE_LIMIT_S = 2 * 3600.0  # pip says nothing while it downloads
NUM_TAIL_LINES = 8

_DROPPED = ("PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_USER", "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
_TOLD = re.compile(r"\s*(Downloading .*(?:MB|GB)\)|Installing collected packages)")
_UNMET = re.compile(r"(\S+) \S+ requires (\S+), which is not installed\.")
_FAULTS = (
    ("No space left on device", "the disk is full", "free some space"),
    ("No module named ensurepip", "this Python has no ensurepip", "Debian, Ubuntu: apt-get install {venv}"),
    ("ensurepip is not available", "this Python has no ensurepip", "Debian, Ubuntu: apt-get install {venv}"),
    (
        "No matching distribution found",
        "the package index has no such version for this Python",
        "see which index pip uses (pip config list), or take Python 3.10, 3.11 or 3.12",
    ),
    (
        "Temporary failure in name resolution",
        "the package index cannot be reached",
        "see which index pip uses (pip config list)",
    ),
    (
        "Connection refused",
        "the package index cannot be reached",
        "see which index pip uses (pip config list)",
    ),
)


def fill(spec: ToolchainSpec, path: Path, log: IO[str], progress: Progress) -> WorkerReply:
    """Make the environment at `path`, its final place: an environment cannot be moved.

    Returns:
        The reply of the worker that loaded its libraries.

    Raises:
        ToolchainError: A step failed; its message ends with the last lines of it.
    """
    pins = read_pins(spec.pins)
    progress("environment", f"Python {sys.version_info.major}.{sys.version_info.minor} in {path}")
    _run(spec, [sys.executable, "-I", "-m", "venv", str(path)], path.parent, log, None)
    temporary = path / "tmp"
    temporary.mkdir()
    pip = [*pip_command(path), "install", "--no-input", "--only-binary=:all:"]
    if first := [f"{name}=={pins[name]}" for name in spec.resolved]:
        progress("resolve", ", ".join(first))
        _run(spec, [*pip, "--constraint", str(spec.pins), *first], temporary, log, progress)
    progress("packages", f"{len(pins)} pinned distributions")
    _run(spec, [*pip, "--no-deps", "--requirement", str(spec.pins)], temporary, log, progress)
    copy_libraries(spec, path)
    return check(spec, path, temporary, log, progress)


def check(spec: ToolchainSpec, path: Path, work: Path, log: IO[str], progress: Progress) -> WorkerReply:
    """Check that an environment is what its pins say and that its libraries load; `work` is a scratch folder.

    Raises:
        ToolchainError: It is not, or they do not.
    """
    progress("check", "requirements")
    found: list[str] = []
    _run_for_lines([*pip_command(path), "check"], work, log, found.append)
    if faults := unexplained(found, spec):
        raise ToolchainError(f"{spec.name}: {'; '.join(faults)}", _again(spec))
    try:
        reply = run_worker(
            python_of(path),
            WORKERS / "import_check.py",
            {"imports": list(spec.imports)},
            log=log,
            on_progress=lambda _, detail: progress("check", f"import {detail}"),
            work=work,
        )
    except TrtbError as exc:
        raise ToolchainError(f"{spec.name}: {exc.message}", _again(spec)) from exc
    if faults := differences(read_pins(spec.pins), reply["versions"]):
        raise ToolchainError(f"{spec.name}: {'; '.join(faults)}", _again(spec))
    check_programs(spec, path, work, log)
    return reply


def unexplained(lines: Sequence[str], spec: ToolchainSpec) -> list[str]:
    """Return what `pip check` finds wrong, without what the toolchain leaves out on purpose."""
    faults = []
    for line in lines:
        unmet = _UNMET.fullmatch(line)
        if unmet and (normalise(unmet[1]), normalise(unmet[2])) in spec.left_out:
            continue
        if line != "No broken requirements found." and not line.startswith("WARNING: "):
            faults.append(line)
    return faults


def python_of(path: Path) -> Path:
    """Return the interpreter of an environment."""
    return path / "bin" / "python"


def pip_command(path: Path) -> list[str]:
    """Return the command of an environment's own pip; -I: not what the current folder calls pip."""
    return [str(python_of(path)), "-I", "-m", "pip", "--disable-pip-version-check"]


def pip_environment(temporary: Path) -> dict[str, str]:
    """Return the environment of pip: the user's, less what would lead the packages elsewhere."""
    kept = {key: value for key, value in os.environ.items() if key not in _DROPPED}
    return {**kept, "TMPDIR": str(temporary)}


def _run(
    spec: ToolchainSpec, command: list[str], work_dir: Path, log: IO[str], progress: Progress | None
) -> None:
    def on_line(line: str) -> None:
        if progress is not None and (told := _TOLD.match(line)):
            progress("pip", told[1])

    ended = _run_for_lines(command, work_dir, log, on_line)
    if ended.status != 0 or ended.is_silenced:
        raise _translate(spec, ended)


def _run_for_lines(
    command: list[str], work_dir: Path, log: IO[str], on_line: Callable[[str], None]
) -> ProcessEnd:
    def hear(line: str) -> None:
        log.write(f"{line}\n")
        on_line(line)

    log.write(f"$ {' '.join(command)}\n")
    try:
        return run_program(
            command,
            work_dir=work_dir,
            on_line=hear,
            environment=pip_environment(work_dir),
            silence_limit_s=SILENCE_LIMIT_S,
        )
    finally:
        log.flush()


def _translate(spec: ToolchainSpec, ended: ProcessEnd) -> ToolchainError:
    text = "\n".join(ended.tail)
    last = "\n".join(f"  {line[:300]}" for line in ended.tail[-NUM_TAIL_LINES:])
    venv = f"python{sys.version_info.major}.{sys.version_info.minor}-venv"
    for sign, cause, step in _FAULTS:
        if sign in text:
            hint = f"{step.format(venv=venv)}; then: trtb toolchain install {spec.name}"
            return ToolchainError(f"{spec.name}: {cause}; the last lines:\n{last}", hint)
    return ToolchainError(
        f"{spec.name}: the install {ended.how}; the last lines:\n{last}",
        f"read the log, then: trtb toolchain install {spec.name}",
    )


def _again(spec: ToolchainSpec) -> str:
    return f"trtb toolchain remove {spec.name}, then: trtb toolchain install {spec.name}"
