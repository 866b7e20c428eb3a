"""A Dockerfile as its stages and steps, and the build steps carried out below a folder.

No container is needed for that: each RUN is a shell command, and the paths it names, of the image, are
rewritten to lie below a prefix. All stages share that one root. What a real image has and the prefix does
not is stood in for: the accounts' files are those below the prefix, and apt-get is refused.
"""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from dockerfile_parse import DockerfileParser

ROOT = Path(__file__).parents[1]
DOCKER = ROOT / "docker"
# a path of the image: what begins a word, or follows = or a quotation mark
IMAGE_PATH = re.compile(r"(?<![\w.$}/-])/(?=(?:opt|src|data|etc|usr|tmp|var)(?:/|\b))")
_NOT_OF_AN_IMAGE = ("PYTHON", "VIRTUAL_ENV", "TRTB_", "COV_", "COVERAGE_")
MOUNT_FLAG = re.compile(r"^(?:--mount=\S+\s+)+")


@dataclass(frozen=True)
class Step:
    instruction: str
    value: str
    line: int  # from 1


@dataclass(frozen=True)
class Stage:
    base: str
    name: str
    steps: list[Step] = field(default_factory=list)

    def values(self, instruction: str) -> list[str]:
        return [step.value for step in self.steps if step.instruction == instruction]


@dataclass(frozen=True)
class Dockerfile:
    arguments: dict[str, str]  # before the first stage
    stages: list[Stage]

    @property
    def last(self) -> Stage:
        return self.stages[-1]

    def steps(self) -> Iterator[Step]:
        for stage in self.stages:
            yield from stage.steps


def read(path: Path) -> Dockerfile:
    with io.BytesIO(path.read_bytes()) as file:
        structure = DockerfileParser(fileobj=file).structure
    arguments: dict[str, str] = {}
    stages: list[Stage] = []
    for part in structure:
        step = Step(part["instruction"], part["value"], part["startline"] + 1)
        if step.instruction == "COMMENT":
            continue
        if step.instruction == "FROM":
            base, _, name = step.value.partition(" AS ")
            stages.append(Stage(base, name))
        elif stages:
            stages[-1].steps.append(step)
        else:
            arguments |= assignments(step.value)
    return Dockerfile(arguments, stages)


def assignments(value: str) -> dict[str, str]:
    """Return what ARG, ENV or LABEL sets; an ARG without a value is not there."""
    pairs = [word.partition("=") for word in shlex.split(value)]
    return {name: text for name, is_given, text in pairs if is_given}


def copied(value: str) -> tuple[str | None, list[str], str]:
    """Return a COPY's stage, sources and target."""
    words = value.split()
    stage = next((word.partition("=")[2] for word in words if word.startswith("--from=")), None)
    *sources, target = (word for word in words if not word.startswith("--"))
    return stage, sources, target


def is_sent(name: str, patterns: list[str]) -> bool:
    """Return whether a .dockerignore lets a file of the checkout be sent to the builder.

    As docker decides: the last pattern that names the file or a folder above it.
    """
    parts = Path(name).parts
    chain = ["/".join(parts[: count + 1]) for count in range(len(parts))]
    is_ignored = False
    for pattern in patterns:
        is_exception = pattern.startswith("!")
        regex = _pattern_regex(pattern.removeprefix("!").strip("/"))
        if any(regex.fullmatch(each) for each in chain):
            is_ignored = not is_exception
    return not is_ignored


def ignore_patterns() -> list[str]:
    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line.strip() and not line.startswith("#")]


def _pattern_regex(pattern: str) -> re.Pattern[str]:
    regex = ""
    for part in re.split(r"(\*\*/|\*\*|\*|\?|\[[^\]]+\])", pattern):
        wild = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
        regex += wild.get(part, part if part.startswith("[") else re.escape(part))
    return re.compile(regex)


@dataclass
class PrefixBuild:
    """The steps of one Dockerfile, carried out below `prefix`.

    Packages that this test's environment has count as installed, so that pip resolves and checks all of
    them and fetches none.
    """

    dockerfile: Dockerfile
    prefix: Path
    environment: dict[str, str] = field(default_factory=dict)  # of the base image
    path: list[Path] = field(default_factory=list)  # of the base image, below the prefix

    def __post_init__(self) -> None:
        self._shell = ["/bin/sh", "-c"]
        shims = self.prefix / "shims"
        shims.mkdir(parents=True)
        for folder in ("etc", "tmp", "usr/local/bin"):
            (self.prefix / folder).mkdir(parents=True)
        for name in ("passwd", "group", "shadow", "gshadow"):
            (self.prefix / "etc" / name).touch()
        for name in ("useradd", "groupadd"):
            program = shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
            _write_script(shims / name, f'exec {program} --prefix "{self.prefix}" "$@"')
        _write_script(shims / "apt-get", "echo apt-get: not below a prefix >&2; exit 97")
        (shims / "python3").symlink_to(sys._base_executable)  # type: ignore[attr-defined]
        packages = next(each for each in sys.path if each.endswith("site-packages"))
        self.environment = {
            # pip's own settings among them: the wheel is built with a setuptools from the index
            **{name: value for name, value in os.environ.items() if not name.startswith(_NOT_OF_AN_IMAGE)},
            **self.environment,
            **self.dockerfile.arguments,
            "PATH": ":".join([*map(str, self.path), str(shims), "/usr/bin", "/bin"]),
            "PYTHONPATH": packages,
            "PIP_NO_INDEX": "0",
        }

    def do(self, step: Step) -> None:
        """Carry out one step.

        Raises:
            AssertionError: It failed; its output tells why.
        """
        if step.instruction == "ARG":  # what the build is given wins
            given = assignments(step.value).items()
            self.environment |= {name: value for name, value in given if name not in self.environment}
        elif step.instruction == "ENV":
            self.environment |= assignments(step.value)
        elif step.instruction == "SHELL":
            self._shell = json.loads(step.value)
        elif step.instruction == "COPY":
            self._copy(*copied(step.value))
        elif step.instruction == "RUN":
            ended = self.run(step.value)
            assert ended.returncode == 0, f"line {step.line}: {ended.stdout}{ended.stderr}"

    def run(self, command: str) -> subprocess.CompletedProcess[str]:
        command = self.rewrite(MOUNT_FLAG.sub("", command))
        return subprocess.run(
            [*self._shell, command],
            check=False,
            capture_output=True,
            text=True,
            env=self.environment,
            cwd=self.prefix,
        )

    def rewrite(self, command: str) -> str:
        return IMAGE_PATH.sub(f"{self.prefix}/", command)

    def _copy(self, stage: str | None, sources: list[str], target: str) -> None:
        place = Path(self.rewrite(target))
        for source in sources:
            if stage is not None:  # of the same root
                assert Path(self.rewrite(source)) == place
                assert place.exists()
                continue
            is_file = (ROOT / source).is_file()
            into = place / Path(source).name if target.endswith("/") and is_file else place
            into.parent.mkdir(parents=True, exist_ok=True)
            if is_file:
                shutil.copyfile(ROOT / source, into)
            else:
                shutil.copytree(ROOT / source, into, ignore=shutil.ignore_patterns("__pycache__"))


def _write_script(path: Path, command: str) -> None:
    path.write_text(f"#!/bin/sh\n{command}\n", encoding="utf-8")
    path.chmod(0o755)
