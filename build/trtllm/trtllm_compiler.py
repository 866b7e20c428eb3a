"""Where trtllm-build runs: on the PATH of this machine, or in NVIDIA's container; and whether it may be used.

An engine loads only in the TensorRT that compiled it, down to the fourth digit, and on the same compute
capability. So a compiler is asked what it really loads and sees before it is given hours of work, and one
whose engines the container that serves them would refuse is refused here.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from trtb.build.child_process import ProcessEnd, run_program
from trtb.build.compatibility import PRIMARY_TRTLLM, TrtllmRelease, get_release, get_release_of_image
from trtb.build.errors import ConfigError, HardwareError, ToolchainMissingError
from trtb.build.manifest import GpuRecord, Record
from trtb.build.trtllm.trtllm_container import QUIET, Container, Mount, new_container_name
from trtb.build.trtllm.trtllm_log import explain, last_lines
from trtb.build.worker import WORKERS

PROGRAM = "trtllm-build"
PROBE = WORKERS / "trtllm_probe.py"
PROBE_MARK = "trtb-probe: "
PROBE_SILENCE_S = 300.0  # loading TensorRT-LLM from a cold disk takes minutes
DOCKER_TIMEOUT_S = 60.0
# what another environment leaves behind would be loaded by the compiler's python, or believed by its MPI
_DROPPED_PREFIXES = ("PMI_", "PMIX_", "OMPI_", "SLURM_MPI", "VIRTUAL_ENV")


class _Gpu(Record):
    name: str
    compute_capability: str


class _Answer(Record):
    versions: dict[str, str]
    gpus: list[_Gpu]
    driver_version: str | None


@dataclass(frozen=True, slots=True)
class Compiler:
    """A trtllm-build that may be used: where it is, and what it loads and sees there."""

    program: Path | None  # None: in the container
    image: str | None  # by digest where docker knows it
    versions: dict[str, str] = field(default_factory=dict)  # tensorrt_llm, tensorrt, torch
    gpus: tuple[GpuRecord, ...] = ()

    @property
    def sm(self) -> int | None:
        """Return the compute capability it compiles for, 90 for 9.0; None where it was not asked."""
        return int(self.gpus[0].compute_capability.removeprefix("sm_")) if self.gpus else None

    def command(self, argv: Sequence[str], mounts: Sequence[Mount], container: Container | None) -> list[str]:
        """Return the command that runs trtllm-build with these arguments."""
        if container is None:
            return [str(self.program or PROGRAM), *argv]
        return container.run_command([PROGRAM, *argv], mounts)


def find_compiler(
    choice: Literal["auto", "path", "docker"] = "auto", *, image: str = PRIMARY_TRTLLM.image
) -> Compiler:
    """Return the trtllm-build to use; "auto" takes the one on the PATH, else the one in the container.

    Raises:
        ToolchainMissingError: There is none, it does not load, or its engines could not be served.
        HardwareError: It is there and sees no GPU.
    """
    if choice == "docker":
        return _find_in_container(image)
    try:
        return _find_on_path()
    except (ToolchainMissingError, HardwareError) as exc:
        if choice == "path":
            raise
        on_path = exc
    try:
        return _find_in_container(image)
    except (ToolchainMissingError, HardwareError) as exc:
        in_container = exc
    failed = (on_path, in_container)
    if blocked := next((exc for exc in failed if isinstance(exc, HardwareError)), None):
        raise blocked
    raise ToolchainMissingError(
        "; and ".join(exc.message for exc in failed), "; or ".join(exc.hint for exc in failed)
    )


def compiler_environment() -> dict[str, str]:
    """Return the environment of a compiler on this machine: ours, without what would mislead it."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(_DROPPED_PREFIXES)}
    return {**kept, **QUIET}


def check_release(versions: dict[str, str], where: str) -> TrtllmRelease:
    """Refuse a compiler whose engines no container would load; return its release.

    Raises:
        ToolchainMissingError: Its TensorRT-LLM or its TensorRT is not one that Triton's containers have.
    """
    found = versions.get("tensorrt_llm", "none")
    release = get_release(found)
    if release is None:
        raise ToolchainMissingError(
            f"{where}: tensorrt_llm {found}; expected a release that a container serves: "
            f"{PRIMARY_TRTLLM.version}",
            f"use the container {PRIMARY_TRTLLM.image}",
        )
    if (tensorrt := versions.get("tensorrt", "none")) != release.tensorrt:
        raise ToolchainMissingError(
            f"{where}: tensorrt {tensorrt} with tensorrt_llm {found}; the container that serves its engines "
            f"has {release.tensorrt}, and would refuse them",
            f"compile in the container {release.image}",
        )
    return release


def _find_on_path() -> Compiler:
    program = shutil.which(PROGRAM)
    if program is None:
        raise ToolchainMissingError(
            f"{PROGRAM}: not on the PATH", f"run trtb inside the container {PRIMARY_TRTLLM.image}"
        )
    where = f"{PROGRAM} ({program})"
    python = _python_of(Path(program))
    answer = _ask([str(python), "-c", PROBE.read_text(encoding="utf-8")], where, compiler_environment())
    return _accept(Compiler(program=Path(program), image=None), answer, where)


def _python_of(program: Path) -> Path:
    """Return the python that runs a program: its first line names it, or it lies beside."""
    with program.open("rb") as file:
        first = file.readline(1024)
    named = first[2:].decode(errors="replace").strip().split(" ")[0] if first.startswith(b"#!") else ""
    beside = program.resolve().with_name("python3")
    if Path(named).name.startswith("python") and Path(named).is_file():
        return Path(named)
    return beside if beside.is_file() else Path(shutil.which("python3") or "python3")


def _find_in_container(image: str) -> Compiler:
    _check_docker()
    pinned = _pinned_image(image)
    where = f"{PROGRAM} (container {image})"
    container = Container(pinned, new_container_name())
    command = container.run_command(["python3", "-c", PROBE.read_text(encoding="utf-8")], ())
    answer = _ask(command, where, dict(os.environ), end_also=container.kill_command())
    expected = get_release_of_image(image)
    found = answer.versions.get("tensorrt_llm", "none")
    if expected is not None and found != expected.version:
        raise ToolchainMissingError(
            f"{where}: tensorrt_llm {found}; expected {expected.version}: the container was changed",
            f"docker pull {image}",
        )
    return _accept(Compiler(program=None, image=pinned), answer, where)


def _check_docker() -> None:
    if shutil.which("docker") is None:
        raise ToolchainMissingError(
            "docker: no such command on the PATH", "install docker and the NVIDIA Container Toolkit"
        )
    ended = _docker("version", "--format", "{{.Server.Version}}")
    if ended.returncode != 0:
        told = ended.stderr.strip().splitlines() or ["it said nothing"]
        raise ToolchainMissingError(
            f"docker: the command is here, its engine does not answer: {told[-1]}",
            "start the docker engine, or let this user reach it",
        )


def _pinned_image(image: str) -> str:
    """Return the image by digest; one that was never pulled or pushed has none, and is named as it is."""
    ended = _docker("image", "inspect", "--format", "{{json .RepoDigests}}", image)
    if ended.returncode != 0:
        raise ToolchainMissingError(
            f"docker: the image {image} is not on this machine", f"docker pull {image}"
        )
    try:
        digests = json.loads(ended.stdout)
    except ValueError:
        digests = []
    repository = image.partition("@")[0].rpartition(":")[0]
    return next((str(each) for each in digests or [] if str(each).startswith(f"{repository}@")), image)


def _docker(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = ["docker", *arguments]
    try:
        return subprocess.run(command, check=False, capture_output=True, text=True, timeout=DOCKER_TIMEOUT_S)
    except subprocess.TimeoutExpired as exc:
        raise ToolchainMissingError(
            f"docker {arguments[0]}: no answer within {DOCKER_TIMEOUT_S:g} s", "restart the docker engine"
        ) from exc


def _ask(
    command: list[str], where: str, environment: dict[str, str], end_also: Sequence[str] = ()
) -> _Answer:
    answers: list[str] = []

    def on_line(line: str) -> None:
        if line.startswith(PROBE_MARK):
            answers.append(line.removeprefix(PROBE_MARK))

    with tempfile.TemporaryDirectory(prefix="trtb-probe-") as folder:  # no source tree is imported from here
        end = run_program(
            command,
            work_dir=Path(folder),
            on_line=on_line,
            environment=environment,
            silence_limit_s=PROBE_SILENCE_S,
            end_also=end_also,
        )
    try:
        return _Answer.model_validate_json(answers[-1])
    except (IndexError, ValidationError) as exc:
        raise _unusable(end, where) from exc


def _unusable(end: ProcessEnd, where: str) -> ToolchainMissingError | HardwareError:
    cause = explain(end)
    what = cause.what if cause else f"it does not load: the probe {end.how}"
    kind = HardwareError if cause and cause.name in {"gpu", "driver", "docker_gpu"} else ToolchainMissingError
    hint = cause.next_step if cause else "repair that installation, or compile in the container"
    return kind(f"{where}: {what}; its last lines:\n{last_lines(end.tail)}", hint)


def _accept(compiler: Compiler, answer: _Answer, where: str) -> Compiler:
    release = check_release(answer.versions, where)
    if not answer.gpus:
        raise HardwareError(
            f"{where}: no GPU is visible to it; expected the kind of GPU that the engine will run on",
            "check nvidia-smi and CUDA_VISIBLE_DEVICES",
        )
    driver = answer.driver_version
    if driver is not None and int(driver.partition(".")[0]) < release.min_driver:
        raise HardwareError(
            f"driver: {driver}; TensorRT-LLM {release.version} needs {release.min_driver} or newer",
            "update the driver, or use the container for older drivers (README, TensorRT-LLM)",
        )
    gpus = tuple(
        GpuRecord(name=gpu.name, compute_capability=gpu.compute_capability, driver_version=driver)
        for gpu in answer.gpus
    )
    return Compiler(compiler.program, compiler.image, answer.versions, gpus)


def check_choice(choice: str) -> Literal["auto", "path", "docker"]:
    """Return a person's choice of where to compile.

    Raises:
        ConfigError: It is none.
    """
    for known in ("auto", "path", "docker"):
        if choice == known:
            return known
    raise ConfigError(f"compiler: {choice!r}; expected auto, path or docker")
