"""The container files as others read them: hadolint with its ShellCheck, and the schema of compose files."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import dockerfiles
import pytest

BIN = Path(sys.executable).parent
DOCKERFILES = sorted(dockerfiles.DOCKER.glob("*Dockerfile"))
COMPOSE = dockerfiles.DOCKER / "compose.yaml"

pytestmark = pytest.mark.skipif(
    not (dockerfiles.ROOT / ".dockerignore").is_file(), reason="this is no checkout"
)


def lint(*command: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(BIN / str(command[0])), *map(str, command[1:])], check=False, capture_output=True, text=True
    )


def hadolint(path: Path) -> subprocess.CompletedProcess[str]:
    return lint("hadolint", "--no-color", "--failure-threshold", "style", path)


def check_compose(path: Path) -> subprocess.CompletedProcess[str]:
    return lint("check-jsonschema", "--builtin-schema", "vendor.compose-spec", path)


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_hadolint_has_nothing_to_say(path: Path) -> None:
    told = hadolint(path)
    assert (told.returncode, told.stdout) == (0, ""), told.stdout + told.stderr


def test_hadolint_would_notice_a_fault_of_the_file_and_of_its_shell(tmp_path: Path) -> None:
    broken = tmp_path / "Dockerfile"
    text = (dockerfiles.DOCKER / "cpu.Dockerfile").read_text(encoding="utf-8")
    broken.write_text(f"{text}RUN cd /src && if [ a == b ]; then true; fi\n", encoding="utf-8")
    told = hadolint(broken).stdout
    assert "DL3003" in told
    assert "SC3014" in told


def test_the_compose_file_obeys_its_schema() -> None:
    told = check_compose(COMPOSE)
    assert told.returncode == 0, told.stdout + told.stderr


def test_a_wrong_compose_key_would_be_noticed(tmp_path: Path) -> None:
    broken = tmp_path / "compose.yaml"
    broken.write_text(
        COMPOSE.read_text(encoding="utf-8").replace("cap_drop:", "cap_drops:"), encoding="utf-8"
    )
    told = check_compose(broken)
    assert told.returncode == 1
    assert "cap_drops" in told.stdout


@pytest.mark.parametrize("path", sorted(dockerfiles.DOCKER.glob("*.sh")), ids=lambda path: path.name)
def test_a_shell_script_parses(path: Path) -> None:
    assert subprocess.run(["sh", "-n", path], check=False).returncode == 0
