"""Servers of TensorRT-LLM engines without GPUs: what is started is NVIDIA's image as far as it can be had.

mpirun, docker, the image's layout and the NVIDIA driver are fakes; the server behind them is a real
tritonserver with a no-op model, so that health, restarts, drains and what is left behind are real.
"""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import commands
import psutil
import pytest
import request_lines
from fakes.gpu_image import IMAGE, GpuImage, install
from fakes.nvml_library import Machine
from fakes.trtllm_engine import fake_trtllm_manifest, write_trtllm_engine
from request_lines import chat

from trtb.build.manifest import file_entries
from trtb.build.store import EngineStore, StoredEngine
from trtb.model_repo.render import DeployConfig
from trtb.runner import deploy
from trtb.runner.endpoint import Endpoint, EndpointConfig
from trtb.runner.errors import ServerStartError
from trtb.runner.launching.launch import ServerConfig
from trtb.runner.launching.launch_docker import DockerLaunch, sweep_containers
from trtb.runner.launching.launch_image import Image, ImageLaunch
from trtb.runner.server import TritonServer
from trtb.runner.triton_client import TritonTransport

pytestmark = [pytest.mark.triton, pytest.mark.slow]

MISMATCH = (
    "The engine plan file is not compatible with this version of TensorRT, expecting library version "
    "10.14.1.48 got 10.11.0.33, please rebuild."
)


@pytest.fixture
def image(tmp_path: Path) -> GpuImage:
    return install(tmp_path / "fake")


@pytest.fixture
def home(engine_home: Path, tmp_path: Path) -> Path:
    """A home with an engine of two ranks, with the tokenizer of the real one."""
    real = EngineStore(engine_home).resolve()
    manifest = fake_trtllm_manifest(
        tp_size=2, name="tiny-fp8", model="llama-3.1-8b", tokens=real.manifest.tokens
    ).model_copy(update={"model": real.manifest.model})
    store = EngineStore(tmp_path / "home")
    with store.stage() as staged:
        write_trtllm_engine(staged, manifest)
        shutil.copytree(real.path / "tokenizer", staged / "tokenizer", dirs_exist_ok=True)
        store.commit(staged, manifest.model_copy(update={"files": file_entries(staged)}))
    return tmp_path / "home"


@pytest.fixture
def stored(home: Path) -> StoredEngine:
    return EngineStore(home).resolve()


@pytest.fixture
def machine(
    image: GpuImage, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., None]:
    """Set this process's environment, which its commands inherit; settings say what goes wrong."""
    driver = Machine(("h100",) * 4).environment(tmp_path_factory.getbasetemp() / "nvml", tmp_path)

    def set_up(**settings: Any) -> None:
        for name, value in {**driver, **image.environment(**settings)}.items():
            monkeypatch.setenv(name, value)

    set_up()
    return set_up


@pytest.fixture
def no_trace() -> Iterator[None]:
    """No process and no shared memory is left behind."""
    before = set(psutil.Process().children(recursive=True))
    yield
    _, alive = psutil.wait_procs(
        [each for each in psutil.Process().children(recursive=True) if each not in before], timeout=10
    )
    assert alive == []
    assert not list(Path("/dev/shm").glob(f"trtb_{os.getpid()}_*"))


def make_server(stored: StoredEngine, image: GpuImage, folder: Path, kind: str) -> TritonServer:
    launch = (
        ImageLaunch(Image(image.root, {}), 2, ("2", "3"))
        if kind == "image"
        else DockerLaunch(IMAGE, stored.path, 2, ("2", "3"))
    )
    config = ServerConfig(folder / "repository", folder, folder / "server.log", exit_timeout_s=10)
    return deploy.prepare(stored.path, stored.manifest, config, DeployConfig(), launch)


def make_endpoint(server: TritonServer) -> Endpoint:
    return Endpoint(EndpointConfig(start_timeout_s=60), TritonTransport(server.endpoint), server)


def ranks_of(image: GpuImage) -> dict[int, psutil.Process]:
    """Return the processes of the latest start, by rank."""
    calls = image.calls("tritonserver")[-2:]
    return {int(call["environment"]["OMPI_COMM_WORLD_RANK"]): psutil.Process(call["pid"]) for call in calls}


def ranks_log(folder: Path, rank: int) -> str:
    return (folder / "server.ranks" / f"rank{rank}.log").read_text()


@pytest.mark.usefixtures("machine", "no_trace")
@pytest.mark.parametrize("kind", ["image", "docker"])
def test_a_rank_that_dies_ends_all_and_all_come_back_where_they_were(stored, image, tmp_path, kind) -> None:
    folder = tmp_path / "work"

    async def live() -> None:
        server = make_server(stored, image, folder, kind)
        server.start()
        endpoint = make_endpoint(server)
        try:
            await endpoint.wait_ready()
            address, first = server.endpoint, ranks_of(image)
            first[1].kill()
            watch = asyncio.ensure_future(endpoint.supervise())
            try:
                while endpoint.num_restarts == 0 or not endpoint.is_up.is_set():
                    assert not watch.done() or watch.result()
                    await asyncio.sleep(0.05)
            finally:
                watch.cancel()
                await asyncio.gather(watch, return_exceptions=True)
            assert server.endpoint == address
            second = ranks_of(image)
            assert not {each.pid for each in second.values()} & {each.pid for each in first.values()}
            assert psutil.wait_procs(list(first.values()), timeout=5)[1] == []
            assert await endpoint.is_alive(0.0)
        finally:
            await endpoint.close(drain=True)
        assert psutil.wait_procs(list(second.values()), timeout=5)[1] == []

    asyncio.run(asyncio.wait_for(live(), 120))
    assert image.containers() == []
    last_start = ranks_log(folder, 0).rpartition("Started GRPCInferenceService")[2]
    assert "All models are stopped" in last_start, "the leader was not let finish"
    assert "rank is ready" in ranks_log(folder, 1)
    assert "asked to end before the leader" not in ranks_log(folder, 1)
    assert "rank is ready" not in ranks_log(folder, 0)
    if kind == "image":
        calls = image.calls("tritonserver")
        assert {call["environment"]["CUDA_VISIBLE_DEVICES"] for call in calls} == {"2,3"}
        assert {call["environment"]["CUDA_DEVICE_ORDER"] for call in calls} == {"PCI_BUS_ID"}


@pytest.mark.usefixtures("no_trace")
@pytest.mark.parametrize(
    ("settings", "said", "hint"),
    [
        ({"fail": {"1": MISMATCH}}, "expecting library version 10.14.1.48 got 10.11.0.33", "build it again"),
        ({"fail": {"0": "maxTokensInPagedKvCache must be large enough to process at least 1 sequence"}},
         "does not hold one sequence", "--max-seq-len"),
        ({"fail": {"1": "nothing that is known"}}, "nothing that is known", "server.ranks"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("kind", ["image", "docker"])
def test_a_start_that_fails_says_why(stored, image, machine, tmp_path, kind, settings, said, hint) -> None:
    machine(**settings)

    async def fail() -> ServerStartError:
        server = make_server(stored, image, tmp_path / "work", kind)
        server.start()
        endpoint = make_endpoint(server)
        try:
            with pytest.raises(ServerStartError) as caught:
                await endpoint.wait_ready()
            return caught.value
        finally:
            await endpoint.close()

    error = asyncio.run(asyncio.wait_for(fail(), 60))
    assert said in error.message
    assert hint in error.hint
    assert ("\n" in error.message) == ("nothing" in said), "a known cause is one line"
    assert image.containers() == []


def test_docker_that_cannot_give_gpus_is_told_of(stored, image, machine, tmp_path) -> None:
    machine(gpus="none")

    async def fail() -> None:
        server = make_server(stored, image, tmp_path / "work", "docker")
        server.start()
        endpoint = make_endpoint(server)
        try:
            await endpoint.wait_ready()
        finally:
            await endpoint.close()

    with pytest.raises(ServerStartError, match="docker cannot hand its containers those GPUs") as caught:
        asyncio.run(asyncio.wait_for(fail(), 60))
    assert "NVIDIA Container Toolkit" in caught.value.hint


@pytest.mark.usefixtures("machine")
def test_a_containers_starter_that_is_killed_takes_it_along(stored, image, tmp_path) -> None:
    code = (
        "import sys, time\nfrom pathlib import Path\nfrom trtb.build.store import EngineStore\n"
        "from trtb.model_repo.render import DeployConfig\nfrom trtb.runner import deploy\n"
        "from trtb.runner.launching.launch import ServerConfig\n"
        "from trtb.runner.launching.launch_docker import DockerLaunch\n"
        "stored = EngineStore(Path(sys.argv[1])).resolve()\nfolder = Path(sys.argv[2])\n"
        "config = ServerConfig(folder / 'repository', folder, folder / 'server.log')\n"
        "launch = DockerLaunch(sys.argv[3], stored.path, 2)\n"
        "deploy.prepare(stored.path, stored.manifest, config, DeployConfig(), launch).start()\n"
        "time.sleep(600)\n"
    )
    home = stored.path.parents[2]
    starter = subprocess.Popen(
        [sys.executable, "-c", code, home, tmp_path / "work", IMAGE], cwd=sys.prefix, env={**os.environ}
    )
    commands.wait_until(lambda: len(image.containers()) == 1, 30, "the container runs")
    commands.wait_until(lambda: len(image.calls("tritonserver")) == 2, 30, "its ranks run")
    ranks = ranks_of(image)
    starter.kill()
    starter.wait()
    commands.wait_until(lambda: image.containers() == [], 20, "the container is gone")
    assert psutil.wait_procs(list(ranks.values()), timeout=10)[1] == []


@pytest.mark.usefixtures("machine")
def test_what_a_dead_starter_and_its_guard_left_is_ended_by_the_next_start(image) -> None:
    def container(owner: int, name: str, host: str = os.uname().nodename) -> subprocess.Popen[bytes]:
        labels = ("--label", f"trtb.pid={owner}", "--label", f"trtb.host={host}")
        return subprocess.Popen(
            ["docker", "run", "--name", name, *labels, "--gpus", "all", IMAGE, "sleep", "99"]
        )

    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    clients = [container(gone.pid, "a"), container(os.getpid(), "b"), container(gone.pid, "c", "elsewhere")]
    commands.wait_until(lambda: len(image.containers()) == 3, 30, "three containers run")
    sweep_containers()
    assert image.containers() == ["b", "c"]
    for name in ("b", "c"):
        subprocess.run(["docker", "kill", name], check=True)
    for client in clients:
        client.wait(10)


def serve_command(home: Path, *arguments: object) -> subprocess.Popen[str]:
    return commands.start(home, "serve", "--json", "--grpc-port", 0, "--metrics-port", 0, *arguments)


def told_by(process: subprocess.Popen[str]) -> dict[str, Any]:
    lines: list[str] = []
    while not (lines and lines[-1] == "}\n") and (line := process.stdout.readline()):  # type: ignore[union-attr]
        lines.append(line)
    assert lines, process.stderr.read()  # type: ignore[union-attr]
    told: dict[str, Any] = json.loads("".join(lines))
    return told


@pytest.mark.usefixtures("machine")
def test_two_servers_on_four_gpus_answer_a_file_together(home, image, tmp_path) -> None:
    process = serve_command(home, "--device-ids", "0,1;2,3")
    try:
        told = told_by(process)
        assert len(told["servers"]) == 2
        assert told["endpoint"] == told["servers"][0]["endpoint"]
        given = [call["argv"] for call in image.calls("docker") if call["argv"][0] == "run"]
        assert [argv[argv.index("--gpus") + 1] for argv in given] == ['"device=0,1"', '"device=2,3"']
        assert len(image.containers()) == 2
        lines = [chat(str(number), max_tokens=4, temperature=0) for number in range(8)]
        endpoints = [text for server in told["servers"] for text in ("--endpoint", server["endpoint"])]
        path = request_lines.write(tmp_path / "in.jsonl", lines)
        done = commands.trtb(
            home, "run", path, "--model-alias", "*", *endpoints, "-o", tmp_path / "out.jsonl", "--json"
        )
        assert done.code == 0, done.stderr
        assert done.json["completed"] == 8
    finally:
        process.send_signal(signal.SIGTERM)
        _, stderr = process.communicate(timeout=90)
    assert process.returncode == 0, stderr
    assert image.containers() == []
    assert not list((home / "cache" / "serve").iterdir())


@pytest.mark.usefixtures("machine")
def test_a_run_starts_its_own_servers_on_the_gpus_that_it_is_given(home, image, tmp_path) -> None:
    lines = [chat(str(number), max_tokens=4, temperature=0) for number in range(4)]
    path = request_lines.write(tmp_path / "in.jsonl", lines)
    output = tmp_path / "out.jsonl"
    done = commands.trtb(
        home,
        "run",
        path,
        "--model-alias",
        "*",
        "--device-ids",
        "3,1",
        "--launch",
        "docker",
        "-o",
        output,
        "--json",
    )
    assert done.code == 0, done.stderr
    assert done.json["completed"] == 4
    (argv,) = [call["argv"] for call in image.calls("docker") if call["argv"][0] == "run"]
    assert argv[argv.index("--gpus") + 1] == '"device=3,1"'
    assert image.containers() == []
    assert "device_ids:\n  - 3,1\n  launch: docker" in (tmp_path / "out.jsonl.run" / "job.yaml").read_text()
    assert "rank is ready" in (tmp_path / "out.jsonl.run" / "server.ranks" / "rank1.log").read_text()


def test_a_dry_run_prints_what_would_be_started_and_starts_nothing(home, image, machine) -> None:
    done = commands.trtb(home, "serve", "--dry-run", "--device-ids", "0,1")
    assert done.code == 0, done.stderr
    (line,) = done.stdout.splitlines()
    words = shlex.split(line)
    assert words[:2] == ["docker", "run"]
    assert words[words.index("--gpus") + 1] == '"device=0,1"'
    assert words.count("/opt/tritonserver/bin/tritonserver") == 2
    assert not any(call["argv"][0] == "run" for call in image.calls("docker"))
    assert not (home / "cache").exists()
    machine(image_environment=["NVIDIA_TRITON_SERVER_VERSION=25.10"])
    refused = commands.trtb(home, "serve", "--dry-run", "--json")
    assert refused.code == 4
    assert not refused.json["ok"]
    assert refused.json["servers"][0]["argv"][:2] == ["docker", "run"]
    assert refused.json["findings"][0]["code"] == "runtime_differs"


def test_what_does_not_fit_is_refused_before_anything_starts(home, image, machine, tmp_path) -> None:
    path = request_lines.write(tmp_path / "in.jsonl", [chat("a")])
    for command in (("serve",), ("run", path, "--model-alias", "*", "-o", tmp_path / "out.jsonl")):
        machine(image_environment=["NVIDIA_TRITON_SERVER_VERSION=25.10"])
        done = commands.trtb(home, *command)
        assert done.code == 4
        told, hint = done.stderr.splitlines()[-2:]
        for text in (
            "TensorRT-LLM 1.2.1",
            "TensorRT 10.14.1.48",
            "sm_90",
            "TensorRT-LLM 1.0.0",
            "10.11.0.33",
        ):
            assert text in told
        assert "26.07-trtllm-python-py3" in hint
        machine(docker="down")
        done = commands.trtb(home, *command)
        assert done.code == 4
        assert "/opt/tritonserver/bin/tritonserver: not found" in done.stderr
        assert "Cannot connect to the Docker daemon" in done.stderr
    assert not (tmp_path / "out.jsonl.run").exists()
    assert not any(call["argv"][0] == "run" for call in image.calls("docker"))
    assert not list((home / "cache" / "serve").iterdir())
