"""The build steps of both images, carried out below a folder: what a build would do, without a container."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import dockerfiles
import pytest
from dockerfiles import PrefixBuild

from trtb.build import __version__

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (dockerfiles.ROOT / ".dockerignore").is_file(), reason="this is no checkout"),
    pytest.mark.skipif(shutil.which("useradd") is None, reason="useradd is not on the PATH"),
]
ACCOUNT = {"TRTB_UID": str(os.getuid()), "TRTB_GID": str(os.getgid())}


def build_cpu(prefix: Path) -> PrefixBuild:
    build = PrefixBuild(dockerfiles.read(dockerfiles.DOCKER / "cpu.Dockerfile"), prefix, dict(ACCOUNT))
    for step in build.dockerfile.steps():
        build.do(step)
    return build


def gpu_image(prefix: Path, backend: str) -> PrefixBuild:
    """Stand in for NVIDIA's image: a Python of its own, first on the PATH, that holds pip to its versions."""
    python = prefix / "opt" / "venv-tritonserver"
    constraints = prefix / "image-constraints.txt"
    build = PrefixBuild(
        dockerfiles.read(dockerfiles.DOCKER / "Dockerfile"),
        prefix,
        {**ACCOUNT, "PIP_CONSTRAINT": str(constraints)},
        [python / "bin"],
    )
    constraints.write_text("numpy==2.4.0\n", encoding="utf-8")
    library = prefix / "opt" / "tritonserver" / "backends" / backend / f"libtriton_{backend}.so"
    library.parent.mkdir(parents=True)
    library.touch()
    base = sys._base_executable  # type: ignore[attr-defined]
    subprocess.run([base, "-m", "venv", "--without-pip", str(python)], check=True)
    return build


def put_package(build: PrefixBuild, name: str) -> Path:
    """Install a package without content into the image's own Python, behind pip's back."""
    (packages,) = (build.prefix / "opt" / "venv-tritonserver").glob("lib/python3*/site-packages")
    folder = packages / f"{name}-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n", encoding="utf-8")
    return folder


def check_image(build: PrefixBuild) -> None:
    """Check what both images have in the end."""
    python = build.prefix / "opt" / "trtb" / "bin" / "python"
    told = subprocess.run(
        [str(build.prefix / "usr" / "local" / "bin" / "trtb"), "--version"],
        check=True,
        capture_output=True,
        text=True,
        env=build.environment,
        cwd=build.prefix,
    )
    assert told.stdout.strip() == f"trtb {__version__}"
    code = "import trtb.model_repo.render as module; print(module.__file__)"
    place = Path(
        subprocess.run(
            [python, "-c", code],
            check=True,
            capture_output=True,
            text=True,
            env=build.environment,
            cwd=build.prefix,
        ).stdout.strip()
    )
    assert place.is_relative_to(build.prefix / "opt" / "trtb")
    assert (place.parent / "templates").is_dir()
    user = f"trtb:x:{ACCOUNT['TRTB_UID']}:{ACCOUNT['TRTB_GID']}:"
    assert user in (build.prefix / "etc" / "passwd").read_text(encoding="utf-8")
    assert (build.prefix / "data").stat().st_uid == os.getuid()
    closed = subprocess.run(
        [python, build.prefix / "opt" / "trtb" / "healthcheck.py", "127.0.0.1:9"],
        check=False,
        capture_output=True,
        text=True,
        env=build.environment,
        cwd=build.prefix,
    )
    assert closed.returncode == 1, closed.stderr
    assert closed.stdout.startswith("127.0.0.1:9: ")


def test_the_steps_of_the_cpu_image_work(tmp_path: Path) -> None:
    build = build_cpu(tmp_path / "root")
    check_image(build)


def test_the_steps_of_the_gpu_image_work_and_notice_a_changed_image(tmp_path: Path) -> None:
    build = gpu_image(tmp_path / "root", "tensorrtllm")
    steps = list(build.dockerfile.steps())
    (last_of_builder,) = [step for step in steps if "after.txt" in step.value]
    for step in steps[: steps.index(last_of_builder)]:
        build.do(step)
    intruder = put_package(build, "intruder")
    with pytest.raises(AssertionError, match=r"intruder==1\.0[\s\S]*the image's own packages were changed"):
        build.do(last_of_builder)
    shutil.rmtree(intruder)
    for step in steps[steps.index(last_of_builder) :]:
        build.do(step)
    check_image(build)


def test_an_image_without_tensorrt_llm_is_refused(tmp_path: Path) -> None:
    build = gpu_image(tmp_path / "root", "vllm")
    steps = [step for step in build.dockerfile.stages[0].steps if step.instruction != "RUN"]
    for step in steps:
        build.do(step)
    refusal = build.run(build.dockerfile.stages[0].values("RUN")[0])
    assert refusal.returncode == 1
    assert "no tensorrtllm backend" in refusal.stderr
    assert "not pinned by a digest" in refusal.stderr


def test_an_image_that_is_pinned_by_its_digest_is_not_warned_of(tmp_path: Path) -> None:
    build = gpu_image(tmp_path / "root", "tensorrtllm")
    stage = build.dockerfile.stages[0]
    build.environment["TRITON_DIGEST"] = f"sha256:{'0' * 64}"
    accepted = build.run(stage.values("RUN")[0])
    assert (accepted.returncode, accepted.stderr) == (0, "")
