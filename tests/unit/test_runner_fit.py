"""An engine against this machine: what does not fit is refused before anything starts, on one line."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from fakes.machine import GIB, fake_disk, fake_gpu, fake_hardware, fake_host, fake_memory
from fakes.manifest import fake_manifest
from fakes.trtllm_engine import fake_trtllm_manifest, write_trtllm_engine

from trtb.build.errors import ConfigError, EngineCorruptError, HardwareError, InsufficientMemoryError
from trtb.build.manifest import EngineManifest, FileEntry
from trtb.build.planning.findings import raise_if_blocked
from trtb.build.probe.hardware_info import HardwareInfo
from trtb.model_repo.deploy_config import DeployConfig
from trtb.model_repo.trtllm_parameters import TrtllmDeployConfig
from trtb.runner.launching import fit as fit_module
from trtb.runner.launching.fit import Fit, check_embedded, check_release_of_files, find_fit, fit_gpus
from trtb.runner.launching.launch_image import Image
from trtb.runner.launching.place import DockerPlace, EmbeddedPlace, ImagePlace, Place

VERSIONS = {"tensorrt_llm": "1.2.1", "tensorrt": "10.14.1.48"}
DOCKER = DockerPlace("image", VERSIONS)
HERE = ImagePlace(Image(Path("/"), VERSIONS))


def engine(tp_size: int = 1, gib_each: float = 9, **fields: object) -> EngineManifest:
    files = [
        FileEntry(path=f"engine/rank{rank}.engine", size_bytes=int(gib_each * GIB), sha256="0" * 64)
        for rank in range(tp_size)
    ]
    return fake_trtllm_manifest(tp_size=tp_size, files=files, **fields)


def fit(
    machine: HardwareInfo,
    manifest: EngineManifest,
    place: Place = HERE,
    groups: tuple[tuple[str, ...], ...] = (),
    **deploy: object,
) -> Fit:
    return fit_gpus(machine, manifest, place, groups, DeployConfig(**deploy))


def refusal(*args: object, **options: object) -> HardwareError:
    with pytest.raises(HardwareError) as caught:
        raise_if_blocked(fit(*args, **options).findings)  # type: ignore[arg-type]
    assert caught.value.exit_code == 4
    assert "\n" not in caught.value.message
    assert caught.value.hint
    return caught.value


def test_a_machine_that_fits_gets_its_gpus() -> None:
    pair = fake_hardware(fake_gpu(), fake_gpu(index=1))
    assert fit(pair, engine()) == Fit((("0",),), ())
    assert fit(pair, engine(tp_size=2)) == Fit((("0", "1"),), ())
    assert fit(pair, engine(), DOCKER, (("0",), ("1",))) == Fit((("0",), ("1",)), ())


@pytest.mark.parametrize(
    "here",
    [
        {"tensorrt_llm": "1.0.0", "tensorrt": "10.11.0.33"},
        {"tensorrt_llm": "1.2.1", "tensorrt": "10.14.1.47"},
        {"tensorrt_llm": "1.2.0", "tensorrt": "10.14.1.48"},
    ],
)
def test_another_release_is_refused_with_what_was_built_for_what(here: dict[str, str]) -> None:
    for place in (ImagePlace(Image(Path("/"), here)), DockerPlace("image", here)):
        error = refusal(fake_hardware(fake_gpu()), engine(), place)
        for told in (*VERSIONS.values(), "sm_90", *here.values()):
            assert told in error.message
        assert "26.07-trtllm-python-py3" in error.hint
        assert "trtb build" in error.hint


def test_an_image_that_does_not_say_what_it_has_is_refused() -> None:
    assert "none of it is here" in refusal(fake_hardware(fake_gpu()), engine(), DockerPlace("i", {})).message


def test_another_gpu_is_refused_by_name() -> None:
    error = refusal(fake_hardware(fake_gpu("L40S")), engine())
    assert "NVIDIA L40S, sm_89" in error.message
    assert "sm_90" in error.message


def test_too_few_gpus_of_one_kind_are_refused() -> None:
    machine = fake_hardware(fake_gpu(), fake_gpu("A100-80GB", 1))
    assert "2 equal GPUs of sm_90" in refusal(machine, engine(tp_size=2)).message
    missing = refusal(fake_hardware(fake_gpu(), fake_gpu(index=1)), engine(), groups=(("0",), ("5",)))
    assert missing.message == "GPU 5: not there, or hidden by CUDA_VISIBLE_DEVICES; expected of 0, 1"


def test_each_servers_gpus_are_looked_at_and_no_others() -> None:
    busy = fake_gpu(index=1, memory_free_bytes=4 * GIB)
    machine = fake_hardware(fake_gpu(), busy)
    assert fit(machine, engine(), groups=(("0",),)).findings == ()
    with pytest.raises(InsufficientMemoryError, match=r"4\.0 GiB of GPU memory free"):
        raise_if_blocked(fit(machine, engine(), groups=(("0",), ("1",))).findings)


def test_a_driver_too_old_for_the_engines_cuda_is_refused() -> None:
    machine = fake_hardware(fake_gpu(), driver="550.54.15")
    error = refusal(machine, engine())
    assert "driver is 550.54.15; expected 580 or newer" in error.message
    older = engine(tensorrt_llm="1.0.0", toolchain={"tensorrt_llm": "1.0.0", "tensorrt": "10.11.0.33"})
    place = DockerPlace("image", {"tensorrt_llm": "1.0.0", "tensorrt": "10.11.0.33"})
    assert fit(machine, older, place).findings == ()


def test_a_machine_without_gpus_is_refused() -> None:
    error = refusal(fake_hardware(), engine())
    assert "no GPU" in error.message
    assert "more: trtb preflight lists them" in error.message


def test_the_memory_must_hold_the_files_the_pool_that_is_asked_for_and_the_runtime() -> None:
    manifest = engine()
    room = fake_hardware(fake_gpu(memory_free_bytes=20 * GIB))
    assert fit(room, manifest).findings == ()
    per_block = manifest.limits.kv_bytes_per_token * manifest.limits.tokens_per_block
    blocks = 12 * GIB // per_block
    assert "KV cache of" in refusal(room, manifest, num_kv_blocks=blocks).message
    capped = TrtllmDeployConfig(max_tokens_in_paged_kv_cache=blocks * 32)
    assert "KV cache of" in refusal(room, manifest, trtllm=capped).message
    assert fit(room, manifest, num_kv_blocks=blocks // 2).findings == ()
    # the files and one sequence alone would fit; what CUDA and the runtime keep does not
    tight = manifest.limits.max_seq_len * manifest.limits.kv_bytes_per_token + 9 * GIB + (100 << 20)
    assert "for the runtime" in refusal(fake_hardware(fake_gpu(memory_free_bytes=tight)), manifest).message


def test_blocks_on_the_host_need_its_memory_for_each_rank_of_each_server() -> None:
    pair = fake_hardware(fake_gpu(), fake_gpu(index=1))
    available = pair.host.memory.available_bytes
    assert fit(pair, engine(), kv_host_cache_bytes=available).findings == ()
    error = refusal(pair, engine(), HERE, (("0",), ("1",)), kv_host_cache_bytes=available // 2 + 1)
    assert "for KV blocks on the host" in error.message
    assert "--kv-host-cache-gb" in error.hint
    own = TrtllmDeployConfig(kv_cache_host_memory_bytes=available // 2 + 1)
    assert "for KV blocks on the host" in refusal(pair, engine(tp_size=2), trtllm=own).message


def test_ranks_need_shared_memory_and_a_container_gets_its_own() -> None:
    host = fake_host(shared_memory=fake_disk("/dev/shm", free_bytes=128 << 20))
    pair = fake_hardware(fake_gpu(), fake_gpu(index=1), host=host)
    assert "--shm-size 2g" in refusal(pair, engine(tp_size=2)).hint
    assert [each.severity for each in fit(pair, engine()).findings] == ["warns"]
    assert fit(pair, engine(tp_size=2), DOCKER).findings == ()


def test_gpus_are_chosen_by_trtb_or_by_tensorrt_llms_own_parameter() -> None:
    machine = fake_hardware(fake_gpu(), fake_gpu(index=1))
    several = DeployConfig(trtllm=TrtllmDeployConfig(gpu_device_ids=((0,), (1,))))
    with pytest.raises(ConfigError, match="orchestrator"):
        find_fit(Path("/"), engine(), HERE, (), several)
    config = TrtllmDeployConfig(gpu_device_ids=((1,),))
    assert fit(machine, engine(), trtllm=config).groups == ((),)
    with pytest.raises(ConfigError, match="expected one of them"):
        find_fit(Path("/"), engine(), HERE, (("0",),), DeployConfig(trtllm=config))


def test_files_of_another_release_than_the_manifest_says_are_refused(tmp_path: Path) -> None:
    manifest = engine()
    folder = write_trtllm_engine(tmp_path / "engine", manifest)
    check_release_of_files(folder, manifest)
    edited = manifest.model_copy(update={"toolchain": {**VERSIONS, "tensorrt_llm": "1.0.0"}})
    with pytest.raises(
        EngineCorruptError, match=r"config.json says TensorRT-LLM 1\.2\.1.*TensorRT-LLM 1\.0\.0"
    ):
        check_release_of_files(folder, edited)


def test_an_embedded_engine_is_held_against_its_versions_and_the_memory(monkeypatch) -> None:
    manifest = fake_manifest(toolchain={"openvino": "2026.4.1"})
    place = EmbeddedPlace()
    monkeypatch.setattr(EmbeddedPlace, "runtime", {"openvino": "2026.4.1"})
    assert check_embedded(manifest, place, fake_memory(64), DeployConfig(num_kv_blocks=512)) == []
    large = check_embedded(manifest, place, fake_memory(4), DeployConfig(num_kv_blocks=4000))
    with pytest.raises(HardwareError):
        raise_if_blocked(large)
    monkeypatch.setattr(EmbeddedPlace, "runtime", {"openvino": "2026.5.0"})
    (found,) = check_embedded(manifest, place, fake_memory(64), DeployConfig(num_kv_blocks=512))
    assert (found.code, found.severity) == ("runtime_differs", "warns")
    monkeypatch.setattr(EmbeddedPlace, "runtime", {})
    with pytest.raises(HardwareError, match="not installed"):
        raise_if_blocked(check_embedded(manifest, place, fake_memory(64), DeployConfig(num_kv_blocks=512)))


def test_an_embedded_engine_asks_no_gpu_and_no_docker(monkeypatch) -> None:
    monkeypatch.setattr(fit_module, "probe", lambda: pytest.fail("the GPUs were asked"))
    found = find_fit(Path("/"), fake_manifest(), EmbeddedPlace(), (), DeployConfig(num_kv_blocks=2))
    assert found.groups == ((),)


def test_a_finding_of_two_servers_is_told_once() -> None:
    machine = fake_hardware(fake_gpu(), fake_gpu(index=1), driver="550.54.15")
    found = fit(machine, engine(), groups=(("0",), ("1",))).findings
    assert len({replace(each, hint="") for each in found}) == len(found) == 1
