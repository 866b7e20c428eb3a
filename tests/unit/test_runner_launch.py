"""What is started in each place: the whole command, option by option."""

from __future__ import annotations

import os
import shlex
import socket
from dataclasses import replace
from pathlib import Path, PurePosixPath

import pytest

from trtb.build.errors import ConfigError
from trtb.runner.launching.launch import (
    DRAIN_SCRIPT,
    RANK_SCRIPT,
    Listening,
    ServerConfig,
    check_choice,
    device_environment,
    misleading_variables,
    shm_prefix_of,
)
from trtb.runner.launching.launch_docker import DockerLaunch
from trtb.runner.launching.launch_embedded import Embedded
from trtb.runner.launching.launch_image import Image, ImageLaunch

LISTENING = Listening("127.0.0.1", 8001, 8002, None, "trtb_7_abc_", admin_key="k")
CONFIG = ServerConfig(Path("/w/repository"), Path("/w"), Path("/w/server.log"))
MODEL = [
    "--model-control-mode=explicit",
    "--load-model=tensorrt_llm",
    "--disable-auto-complete-config",
    "--exit-timeout-secs=30",
    "--log-format=ISO8601",
]
GUARDED = "--grpc-restricted-protocol=model-repository,shared-memory,trace,logging:admin-key=k"
CLOSED = ["--allow-grpc=false", "--allow-http=false", "--allow-metrics=false"]


def sockets(host: str) -> list[str]:
    return [
        f"--grpc-address={host}",
        "--grpc-port=8001",
        f"--metrics-address={host}",
        "--metrics-port=8002",
        GUARDED,
        "--allow-http=false",
    ]


def rank(number: int, binary: str, repository: str, ranks: str, *options: str) -> list[str]:
    prefix = f"--backend-config=python,shm-region-prefix-name=trtb_7_abc_{number}_"
    start = ["-n", "1", "sh", "-c", RANK_SCRIPT, f"{ranks}/rank{number}", binary]
    return [*start, f"--model-repository={repository}", *MODEL, prefix, *options]


def mpi(binary: str, repository: str, ranks: str, host: str, world_size: int) -> list[str]:
    command = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none"]
    command += rank(0, binary, repository, ranks, *sockets(host))
    for number in range(1, world_size):
        command += [":", *rank(number, binary, repository, ranks, *CLOSED)]
    return command


def test_the_embedded_server_gets_its_own_backend_and_listens_on_loopback() -> None:
    plan = Embedded().plan(CONFIG, LISTENING)
    assert plan.argv[0].endswith("pytriton/tritonserver/bin/tritonserver")
    assert list(plan.argv[1:]) == [
        "--backend-directory=/w/backends",
        "--allow-gpu-metrics=false",
        "--pinned-memory-pool-byte-size=0",
        "--model-repository=/w/repository",
        *MODEL,
        "--backend-config=python,shm-region-prefix-name=trtb_7_abc_",
        *sockets("127.0.0.1"),
    ]
    assert plan.environment["HF_HUB_OFFLINE"] == "1"
    assert (plan.drain, plan.end_also, plan.logs) == ((), (), ())


def test_http_is_there_only_where_it_is_asked_for() -> None:
    argv = Embedded().plan(CONFIG, replace(LISTENING, http_port=8000)).argv
    assert "--allow-http=false" not in argv
    assert {"--http-address=127.0.0.1", "--http-port=8000"} <= set(argv)


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_in_the_image_one_mpirun_starts_a_server_for_each_rank_of_which_the_first_listens(world_size) -> None:
    devices = tuple(map(str, range(2, 2 + world_size)))
    launch = ImageLaunch(Image(Path("/"), {}), world_size, devices)
    plan = launch.plan(CONFIG, LISTENING)
    binary = "/opt/tritonserver/bin/tritonserver"
    assert list(plan.argv) == mpi(binary, "/w/repository", "/w/server.ranks", "127.0.0.1", world_size)
    assert plan.environment["CUDA_VISIBLE_DEVICES"] == ",".join(devices)
    assert plan.environment["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert plan.logs == tuple(Path(f"/w/server.ranks/rank{number}.log") for number in range(world_size))
    assert plan.drain == ("sh", "-c", DRAIN_SCRIPT, "/w/server.ranks/rank0.pid")
    assert plan.end_also == ()
    assert launch.engine_root is None


def test_docker_gives_the_container_what_it_needs_and_nothing_else() -> None:
    image = "nvcr.io/nvidia/tritonserver:26.07-trtllm-python-py3"
    launch = DockerLaunch(image, Path("/e"), 2, ("2", "3"), owner=7)
    plan = launch.plan(CONFIG, LISTENING)
    name = plan.end_also[2]
    assert name.startswith("trtb-serve-7-")
    inner = mpi(
        "/opt/tritonserver/bin/tritonserver", "/trtb/repository", "/trtb/ranks", "0.0.0.0", world_size=2
    )
    expected = f"""docker run --rm --init --pull never --name {name}
        --label trtb.pid=7 --label trtb.host={socket.gethostname()}
        --gpus '"device=2,3"' --shm-size 2g --ulimit memlock=-1 --ulimit stack=67108864
        --read-only --tmpfs /tmp:mode=1777 --security-opt no-new-privileges --cap-drop ALL
        --user {os.getuid()}:{os.getgid()}
        --mount type=bind,source=/e,target=/engine,readonly
        --mount type=bind,source=/w/repository,target=/trtb/repository,readonly
        --mount type=bind,source=/w/server.ranks,target=/trtb/ranks
        --env HF_HUB_OFFLINE=1 --env HF_DATASETS_OFFLINE=1 --env TRANSFORMERS_OFFLINE=1
        --env HF_HUB_DISABLE_TELEMETRY=1 --env DO_NOT_TRACK=1
        --env HOME=/tmp --env USER=trtb --env TMPDIR=/tmp
        --env OMPI_MCA_btl_vader_single_copy_mechanism=none
        --workdir /tmp --publish 127.0.0.1:8001:8001 --publish 127.0.0.1:8002:8002 {image}"""
    assert list(plan.argv) == [*shlex.split(expected), *inner]
    assert plan.end_also == ("docker", "kill", name)
    assert plan.drain == ("docker", "exec", name, "sh", "-c", DRAIN_SCRIPT, "/trtb/ranks/rank0.pid")
    assert launch.engine_root == PurePosixPath("/engine")
    assert launch.plan(CONFIG, LISTENING).end_also != plan.end_also, "a container that hangs keeps its name"


def test_docker_without_devices_keeps_to_those_that_cuda_shows(monkeypatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-1")
    argv = DockerLaunch("image", Path("/e"), 1).plan(CONFIG, LISTENING).argv
    assert argv[argv.index("--gpus") + 1] == "all"
    assert "CUDA_VISIBLE_DEVICES=MIG-1" in argv
    argv = DockerLaunch("image", Path("/e"), 1, ("0",)).plan(CONFIG, LISTENING).argv
    assert "CUDA_VISIBLE_DEVICES=MIG-1" not in argv


def test_docker_publishes_ipv6_addresses_and_http_as_docker_reads_them() -> None:
    listening = replace(LISTENING, host="::1", http_port=8000)
    argv = DockerLaunch("image", Path("/e"), 1).plan(CONFIG, listening).argv
    published = [argv[index + 1] for index, text in enumerate(argv) if text == "--publish"]
    assert published == ["[::1]:8001:8001", "[::1]:8002:8002", "[::1]:8000:8000"]


def test_no_rank_believes_what_another_launch_left_in_the_environment() -> None:
    environment = {
        "PMIX_RANK": "1", "OMPI_COMM_WORLD_SIZE": "8", "SLURM_JOB_ID": "1", "VIRTUAL_ENV": "/v",
        "OMPI_MCA_coll_hcoll_enable": "0", "PATH": "/bin",
    }  # fmt: skip
    kept = environment.keys() - set(misleading_variables(environment))
    assert kept == {"PATH", "OMPI_MCA_coll_hcoll_enable"}


def test_without_devices_cuda_is_left_alone() -> None:
    assert device_environment(()) == {}


def test_two_servers_of_one_process_share_no_memory_by_name() -> None:
    first, second = shm_prefix_of(7), shm_prefix_of(7)
    assert first != second
    assert first.startswith("trtb_7_")


def test_a_choice_that_is_none_is_refused() -> None:
    assert check_choice("docker") == "docker"
    with pytest.raises(ConfigError, match="expected auto, embedded, image or docker"):
        check_choice("podman")
