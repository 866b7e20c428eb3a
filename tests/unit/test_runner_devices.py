"""GPUs as a person types them, cut into servers; and which are taken where none are typed."""

from __future__ import annotations

import pytest
from fakes.machine import GIB, fake_gpu, fake_hardware, fake_host
from fakes.manifest import fake_manifest
from fakes.trtllm_engine import fake_trtllm_manifest

from trtb.build.errors import ConfigError
from trtb.runner.launching.devices import choose_devices, group_devices, parse_groups, read_devices, visible


def grouped(text: str, tp_size: int = 1) -> list[str]:
    manifest = fake_trtllm_manifest(tp_size=tp_size)
    return [",".join(group) for group in group_devices(parse_groups(read_devices(text)), manifest)]


@pytest.mark.parametrize(
    ("text", "tp_size", "groups"),
    [
        ("", 1, []),
        ("3", 1, ["3"]),
        ("0,1", 1, ["0", "1"]),
        ("0;1", 1, ["0", "1"]),
        ("0,1", 2, ["0,1"]),
        ("0, 1, 2, 3", 2, ["0,1", "2,3"]),
        ("0,1;2,3", 2, ["0,1", "2,3"]),
        ("3,1", 2, ["3,1"]),
    ],
)
def test_a_list_is_cut_into_one_group_for_each_server(text: str, tp_size: int, groups: list[str]) -> None:
    assert grouped(text, tp_size) == groups


@pytest.mark.parametrize(
    ("text", "tp_size", "said"),
    [
        ("0,1,2", 2, "has 2 ranks: expected 2 GPUs for each server"),
        ("0;1", 2, "has 2 ranks"),
        ("0,1;2", 1, "has 1 rank"),
        ("0,0", 1, "GPU 0 twice"),
        ("0;0", 1, "GPU 0 twice"),
        ("0,", 1, "''"),
        ("GPU-1", 1, "'GPU-1'"),
    ],
)
def test_what_makes_no_servers_is_refused(text: str, tp_size: int, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        grouped(text, tp_size)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("given", [{"a": 1}, [[0, [1]]], 1.5, [True]])
def test_what_a_job_file_may_not_hold_is_refused(given: object) -> None:
    with pytest.raises(ConfigError, match="expected numbers of GPUs"):
        read_devices(given)


def test_an_engine_of_the_cpu_takes_no_gpus() -> None:
    with pytest.raises(ConfigError, match="runs on the CPU"):
        group_devices((("0",),), fake_manifest())
    assert group_devices((), fake_manifest()) == ()


def test_where_none_are_asked_for_the_emptiest_of_the_engines_kind_are_taken() -> None:
    gpus = (
        fake_gpu("A100-80GB", 0),
        fake_gpu("H100", 1, memory_free_bytes=20 * GIB),
        fake_gpu("H100", 2),
        fake_gpu("H100", 3, compute_mode="prohibited"),
        fake_gpu("H100", 4, memory_free_bytes=70 * GIB),
        fake_gpu("H100", 5, mig_mode="enabled"),
    )
    machine = fake_hardware(*gpus)
    assert choose_devices(machine, fake_trtllm_manifest()) == ("2",)
    assert choose_devices(machine, fake_trtllm_manifest(tp_size=2)) == ("2", "4")
    assert choose_devices(machine, fake_trtllm_manifest(tp_size=4)) == ()
    assert choose_devices(machine, fake_trtllm_manifest(compute_capability="sm_80")) == ("0",)
    assert choose_devices(machine, fake_trtllm_manifest(compute_capability="sm_89")) == ()


@pytest.mark.parametrize(
    ("told", "indices"),
    [(None, [0, 1, 2]), ("", [0, 1, 2]), ("2,0", [0, 2]), ("GPU-1", [1]), ("MIG-7", [0, 1, 2]), ("7", [])],
)
def test_gpus_that_cuda_is_not_shown_are_not_counted(told: str | None, indices: list[int]) -> None:
    gpus = (fake_gpu(index=index) for index in range(3))
    machine = fake_hardware(*gpus, host=fake_host(cuda_visible_devices=told))
    assert [gpu.index for gpu in visible(machine).gpus] == indices
