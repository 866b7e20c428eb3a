"""Several servers of one engine stand apart, and an engine's size gives it time to start."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

import pytest
from fakes.manifest import fake_manifest
from fakes.trtllm_engine import fake_trtllm_manifest, write_trtllm_engine

from trtb.build.errors import ConfigError, HardwareError
from trtb.build.manifest import FileEntry
from trtb.model_repo import contract, pbtxt
from trtb.model_repo.render import DeployConfig
from trtb.runner import deploy
from trtb.runner.deploy import configs_of
from trtb.runner.launching.launch import ServerConfig
from trtb.runner.launching.launch_docker import DockerLaunch
from trtb.runner.launching.launch_image import Image, ImageLaunch
from trtb.runner.options import RunOptions, default_start_timeout_s
from trtb.runner.triton_client import ServedModel

CONFIG = ServerConfig(
    Path("/w/repository"), Path("/w"), Path("/r/server.log"), grpc_port=8001, metrics_port=8002
)


def test_one_server_is_left_as_it_is() -> None:
    assert configs_of(CONFIG, 1) == [CONFIG]


def test_several_servers_share_no_folder_no_log_and_no_port() -> None:
    configs = configs_of(CONFIG, 3)
    assert [(each.grpc_port, each.metrics_port) for each in configs] == [
        (8001, 8002),
        (8003, 8004),
        (8005, 8006),
    ]
    for name in ("repository", "work_dir", "log_path", "ranks_dir"):
        assert len({getattr(each, name) for each in configs}) == 3
    assert configs[1].repository == Path("/w/1/repository")
    assert configs[1].log_path == Path("/r/server.1.log")
    assert configs[1].ranks_dir == Path("/r/server.1.ranks")


def test_ports_that_are_to_be_free_ones_stay_so() -> None:
    free = ServerConfig(Path("/w/repository"), Path("/w"), Path("/r/server.log"))
    assert {each.grpc_port for each in configs_of(free, 2)} == {0}


@pytest.mark.parametrize(
    ("size_bytes", "timeout_s"), [(0, 300), (100_000_000, 301), (70_000_000_000, 1000), (40_000, 300)]
)
def test_a_larger_engine_has_longer_to_start(size_bytes: int, timeout_s: float) -> None:
    files = [FileEntry(path="engine/rank0.engine", size_bytes=size_bytes, sha256="0" * 64)]
    assert default_start_timeout_s(fake_trtllm_manifest(files=files)) == timeout_s


@pytest.mark.parametrize("in_container", [False, True])
def test_a_repository_names_the_engine_as_its_server_sees_it(tmp_path: Path, in_container) -> None:
    manifest = fake_trtllm_manifest(tp_size=2)
    engine = write_trtllm_engine(tmp_path / "engine", manifest)
    launch = DockerLaunch("i", engine, 2) if in_container else ImageLaunch(Image(tmp_path, {}), 2)
    config = ServerConfig(tmp_path / "work" / "repository", tmp_path / "work", tmp_path / "server.log")
    for _ in range(2):  # a folder that is there already is made anew
        deploy.prepare(engine, manifest, config, DeployConfig(), launch)
    model = pbtxt.read(config.repository / "tensorrt_llm" / "config.pbtxt")
    seen = "/engine/engine" if in_container else str(engine / "engine")
    assert model.parameters["gpt_model_path"].string_value == seen


def options(tmp_path: Path, **fields: object) -> RunOptions:
    return RunOptions(tmp_path / "in", tmp_path / "out", tmp_path, fake_manifest(), **fields)  # type: ignore[arg-type]


def test_a_run_is_refused_where_its_own_server_could_not_start(tmp_path: Path, monkeypatch) -> None:
    with pytest.raises(HardwareError):
        deploy.check(options(tmp_path, num_kv_blocks=1 << 40))
    with pytest.raises(ConfigError, match="expected auto or embedded"):
        deploy.check(options(tmp_path, launch="docker"))
    monkeypatch.setattr(deploy, "fit_of", lambda *_: pytest.fail("this machine was asked"))
    deploy.check(options(tmp_path, num_kv_blocks=1 << 40, endpoints=("127.0.0.1:1",)))


@dataclass
class FakeEndpoint:
    """A server as far as agreement looks at it."""

    parameters: dict[str, str]
    inputs: frozenset[str] = frozenset()
    metrics_url: str | None = None  # of a server of our own

    @property
    def transport(self) -> FakeEndpoint:
        return self

    @property
    def server(self) -> FakeEndpoint | None:
        return None if self.metrics_url is None else self

    async def served_model(self, timeout_s: float) -> ServedModel:
        return ServedModel(self.parameters, self.inputs)


RETAINING = frozenset(spec.name for spec in contract.RETENTION_INPUTS)
POOLS = {"http://a": 800, "http://b": None, "http://c": 500}


@pytest.mark.parametrize(
    ("servers", "pool", "is_reusing", "can_retain"),
    [
        ([FakeEndpoint({"num_kv_blocks": "40"})], 40, True, False),
        ([FakeEndpoint({"num_kv_blocks": "40"}, metrics_url="http://a")], 40, True, False),
        ([FakeEndpoint({}, RETAINING, "http://a"), FakeEndpoint({}, RETAINING, "http://c")], 500, True, True),
        ([FakeEndpoint({}, RETAINING)], None, True, True),  # of others: its metrics are not ours to look for
        ([FakeEndpoint({}, RETAINING, "http://b")], None, True, True),
        ([FakeEndpoint({}, RETAINING), FakeEndpoint({})], None, True, False),
        (
            [
                FakeEndpoint({"enable_kv_cache_reuse": "true"}),
                FakeEndpoint({"enable_kv_cache_reuse": "false"}),
            ],
            None,
            False,
            False,
        ),
    ],
)
def test_servers_agree_on_the_least_that_each_of_them_can(
    monkeypatch: pytest.MonkeyPatch, servers, pool, is_reusing, can_retain
) -> None:
    async def wait_for_pool(url: str) -> int | None:
        return POOLS[url]

    monkeypatch.setattr(deploy, "wait_for_pool", wait_for_pool)
    agreed = asyncio.run(deploy.agree(servers, fake_manifest()))
    assert (agreed.num_kv_blocks, agreed.is_reusing, agreed.can_retain) == (pool, is_reusing, can_retain)


@pytest.mark.parametrize(
    ("parameters", "is_exact"),
    [
        ({"deterministic": "true"}, True),
        ({"deterministic": "false", "kv_cache_dtype": "int8"}, False),
        ({"deterministic": "false", "kv_cache_dtype": "auto"}, None),
    ],
)
def test_a_cache_of_eight_bits_is_never_exact(parameters, is_exact) -> None:
    assert asyncio.run(deploy.agree([FakeEndpoint(parameters)], fake_manifest())).is_exact is is_exact
