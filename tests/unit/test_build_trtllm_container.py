"""What a container may see, and the commands that are run in one."""

from __future__ import annotations

import os
from pathlib import Path, PurePosixPath

import pytest

from trtb.build.trtllm.trtllm_container import (
    CHECKPOINT_DIR,
    OUTPUT_DIR,
    WORK_DIR,
    Container,
    Mount,
    new_container_name,
)

CONTAINER = Container("image@sha256:abc", "trtb-build-1")


def options_of(command: list[str], name: str) -> list[str]:
    return [command[at + 1] for at, part in enumerate(command) if part == f"--{name}"]


def test_a_container_gets_its_gpus_and_folders_and_nothing_else(tmp_path: Path) -> None:
    mounts = [Mount(tmp_path, CHECKPOINT_DIR), Mount(tmp_path, OUTPUT_DIR, is_writable=True)]
    command = CONTAINER.run_command(["trtllm-build", "--workers", "1"], mounts)
    assert command[:3] == ["docker", "run", "--rm"]
    assert command[-4:] == ["image@sha256:abc", "trtllm-build", "--workers", "1"]
    expected = {
        "name": ["trtb-build-1"],
        "gpus": ["all"],
        "shm-size": ["2g"],
        "ulimit": ["memlock=-1", "stack=67108864"],
        "network": ["none"],
        "security-opt": ["no-new-privileges"],
        "cap-drop": ["ALL"],
        "user": [f"{os.getuid()}:{os.getgid()}"],
    }
    assert {name: options_of(command, name) for name in expected} == expected
    checkpoint, output = options_of(command, "mount")
    assert checkpoint == f"type=bind,source={tmp_path},target=/trtb/checkpoint,readonly"
    assert output == f"type=bind,source={tmp_path},target=/trtb/output"
    assert not {"--privileged", "-v", "--volume", "--ipc", "--pid"} & set(command)


def test_its_home_and_caches_lie_in_its_work_folder(tmp_path: Path) -> None:
    command = CONTAINER.run_command(["x"], [Mount(tmp_path, WORK_DIR, is_writable=True)])
    environment = dict(each.partition("=")[::2] for each in options_of(command, "env"))
    assert environment["HF_HUB_OFFLINE"] == "1"
    places = {name: value for name, value in environment.items() if "/" in value}
    assert {"HOME", "TMPDIR", "XDG_CACHE_HOME", "HF_HOME"} <= places.keys()
    assert all(PurePosixPath(value).is_relative_to(WORK_DIR) for value in places.values())
    assert options_of(command, "workdir") == [str(WORK_DIR)]


def test_a_choice_of_gpus_goes_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert not any("CUDA_VISIBLE" in each for each in CONTAINER.run_command(["x"], ()))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    assert "CUDA_VISIBLE_DEVICES=2,3" in options_of(CONTAINER.run_command(["x"], ()), "env")


@pytest.mark.parametrize(
    ("source", "rendered"),
    [
        ("/a/plain", "type=bind,source=/a/plain,target=/t,readonly"),
        ("/a,b/c", 'type=bind,"source=/a,b/c",target=/t,readonly'),
        ('/a"b', 'type=bind,"source=/a""b",target=/t,readonly'),
        ("/a:b", "type=bind,source=/a:b,target=/t,readonly"),
    ],
)
def test_any_path_can_be_mounted(source: str, rendered: str) -> None:
    assert Mount(Path(source), PurePosixPath("/t")).render() == rendered


def test_a_container_is_ended_by_its_name_and_no_two_share_one() -> None:
    assert CONTAINER.kill_command() == ["docker", "kill", "trtb-build-1"]
    assert new_container_name() != new_container_name()
