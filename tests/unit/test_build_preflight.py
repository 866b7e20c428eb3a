"""Preflight: a healthy machine has no findings, and each thing that is wrong with one has its own."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from fakes.machine import GIB, fake_disk, fake_gpu, fake_hardware, fake_host, fake_memory
from fakes.manifest import fake_manifest
from fakes.model_sizes import model_sizes

from trtb.build.config import make_config
from trtb.build.errors import HardwareError, InsufficientMemoryError
from trtb.build.manifest import FileEntry
from trtb.build.planning.findings import Finding
from trtb.build.planning.gpu_catalogue import get_gpu
from trtb.build.planning.plan import PlanOptions
from trtb.build.planning.plan_gpu import needs_of, plan_gpu
from trtb.build.planning.preflight import (
    check_build,
    check_engine,
    check_machine,
    needs_of_config,
    raise_if_blocked,
)
from trtb.build.planning.preflight_build import BuildNeeds
from trtb.build.planning.preflight_engine import runnable_on, runtime_of
from trtb.build.planning.preflight_gpu import devices_named, devices_of
from trtb.build.probe.hardware_info import (
    CpuInfo,
    DockerInfo,
    GpuProcess,
    HardwareInfo,
    MigDevice,
    PcieLink,
    PeerLink,
    PortInfo,
    Problem,
    Ulimit,
)
from trtb.build.quantization import get_scheme

OPENVINO = {"openvino": "2026.4.1", "openvino-genai": "2026.4.1.0", "openvino-tokenizers": "2026.4.1.0"}
TRTLLM = {"tensorrt_llm": "1.2.1", "tensorrt": "10.14.1.48"}


def severities(found: list[Finding]) -> dict[str, str]:
    return {finding.code: finding.severity for finding in found}


def host_with(**fields: object) -> HardwareInfo:
    return fake_hardware(host=fake_host(**fields))


def cpu(*flags: str, quota: float | None = None) -> CpuInfo:
    return CpuInfo(
        model="a CPU",
        num_sockets=1,
        num_cores=8,
        num_threads=8,
        num_usable_threads=8,
        quota_cpus=quota,
        flags=flags,
    )


@pytest.mark.parametrize("purpose", ["build", "serve", "run"])
def test_a_healthy_machine_has_no_findings(purpose) -> None:
    assert check_machine(fake_hardware(), "openvino", purpose) == []
    assert check_machine(fake_hardware(fake_gpu(), fake_gpu(index=1)), "tensorrt_llm", purpose) == []


@pytest.mark.parametrize(
    ("code", "severity", "fields"),
    [
        ("platform_unsupported", "blocks", {"architecture": "aarch64"}),
        ("cpu_slow", "warns", {"cpu": cpu()}),
        ("cpu_low_precision", "informs", {"cpu": cpu("avx2", "amx_bf16")}),
        ("cpu_limited", "informs", {"cpu": cpu("avx2", quota=2)}),
        ("few_open_files", "warns", {"ulimits": (Ulimit(name="nofile", soft=256, hard=256),)}),
        ("memory_limited", "informs", {"memory": fake_memory(64, limit_bytes=8 * GIB)}),
        ("shared_memory_small", "blocks", {"shared_memory": fake_disk("/dev/shm", free_bytes=32 << 20)}),
        ("port_taken", "warns", {"ports": (PortInfo(port=8001, is_free=False),)}),
        ("disk_not_writable", "blocks", {"disks": (fake_disk(is_writable=False),)}),
        ("network_file_system", "warns", {"disks": (fake_disk(file_system="nfs4", is_network=True),)}),
        ("disk_in_memory", "warns", {"disks": (fake_disk(file_system="tmpfs", is_memory=True),)}),
        ("clock_unsynchronised", "informs", {"is_clock_synchronised": False}),
    ],
)
def test_each_fault_of_a_host_is_found(code: str, severity: str, fields: dict[str, object]) -> None:
    assert severities(check_machine(host_with(**fields), "openvino", "serve")) == {code: severity}


def test_tensorrt_llm_wants_more_shared_memory_and_locked_memory() -> None:
    host = fake_host(
        shared_memory=fake_disk("/dev/shm", free_bytes=GIB),
        ulimits=(Ulimit(name="memlock", soft=8 << 20, hard=8 << 20),),
    )
    found = severities(check_machine(fake_hardware(fake_gpu(), host=host), "tensorrt_llm", "serve"))
    assert found == {"shared_memory_small": "warns", "locked_memory_limited": "warns"}


@pytest.mark.parametrize(
    ("code", "severity", "fields"),
    [
        ("gpu_unreadable", "blocks", {"compute_capability": None}),
        ("gpu_too_old", "blocks", {"compute_capability": "7.5"}),
        ("gpu_prohibited", "blocks", {"compute_mode": "prohibited"}),
        ("gpu_sliced", "blocks", {"mig_mode": "enabled"}),
        ("gpu_fabric_down", "blocks", {"fabric_state": "in_progress"}),
        ("gpu_memory_errors", "warns", {"ecc_uncorrected_errors": 3}),
        ("gpu_rows_broken", "warns", {"row_remap_failed": True}),
        ("gpu_rows_broken", "warns", {"row_remap_pending": True}),
        ("gpu_busy", "warns", {"processes": (GpuProcess(pid=7, used_bytes=GIB),)}),
        ("gpu_throttled", "warns", {"throttle_reasons": ("thermal",)}),
        ("gpu_hot", "warns", {"temperature_c": 84}),
        ("gpu_power_capped", "informs", {"power_limit_w": 400.0}),
        (
            "gpu_link_narrow",
            "warns",
            {"pcie": PcieLink(generation=5, generation_max=5, width=8, width_max=16)},
        ),
        ("gpu_persistence_off", "informs", {"persistence": "disabled"}),
    ],
)
def test_each_fault_of_a_gpu_is_found_and_costs_less_where_there_is_another(
    code: str, severity: str, fields: dict[str, object]
) -> None:
    alone = check_machine(fake_hardware(fake_gpu(**fields)), "tensorrt_llm", "run")
    assert severities(alone) == {code: severity}
    assert alone[0].found.startswith("GPU 0")
    beside = check_machine(fake_hardware(fake_gpu(**fields), fake_gpu(index=1)), "tensorrt_llm", "run")
    assert severities(beside)[code] == ("warns" if severity == "blocks" else severity)


def test_the_cpu_backend_does_not_care_for_gpus() -> None:
    broken = fake_gpu(compute_capability="7.0", ecc_uncorrected_errors=9)
    assert check_machine(fake_hardware(broken, driver="470.82.01"), "openvino", "run") == []


@pytest.mark.parametrize(
    ("driver", "severity", "hint"),
    [("580.65.06", None, ""), ("550.54.15", "warns", "25.10-trtllm"), ("470.82.01", "blocks", "driver 580")],
)
def test_drivers_older_than_cuda_needs_are_found(driver: str, severity: str | None, hint: str) -> None:
    found = check_machine(fake_hardware(fake_gpu(), driver=driver), "tensorrt_llm", "run")
    assert severities(found) == ({} if severity is None else {"driver_old": severity})
    assert all(hint in finding.hint for finding in found)


def test_no_driver_is_told_by_what_kept_it_away() -> None:
    def hint(hardware: HardwareInfo) -> str:
        (finding,) = check_machine(hardware, "tensorrt_llm", "run")
        assert (finding.code, finding.severity) == ("gpu_driver_missing", "blocks")
        return finding.hint

    assert "openvino" in hint(fake_hardware())
    assert "--gpus all" in hint(host_with(nvidia_pci_devices=("0000:01:00.0",)))
    mismatch = Problem(what="NVML: start", why="driver/library version mismatch", kind="version_mismatch")
    assert "restart" in hint(fake_hardware(problems=(mismatch,)))
    wedged = Problem(what="NVML: start", why="no answer", kind="timeout")
    assert "Xid" in hint(fake_hardware(problems=(wedged,)))


def test_gpus_of_several_kinds_and_far_from_each_other_are_told() -> None:
    peer = PeerLink(first=0, second=1, can_peer=False, peer_status="x", has_nvlink=False, path="system")
    hardware = fake_hardware(fake_gpu(), fake_gpu("A100-80GB", 1), peers=(peer,))
    found = check_machine(hardware, "tensorrt_llm", "run")
    assert severities(found) == {"gpus_mixed": "warns", "gpu_peers_far": "informs"}
    assert "GPU 0: NVIDIA H100 80GB HBM3, sm_90; GPU 1: NVIDIA A100-SXM4-80GB, sm_80" in found[0].found


def test_a_driver_without_gpus_and_gpus_that_are_hidden_are_told() -> None:
    empty = fake_hardware(fake_gpu()).model_copy(update={"gpus": ()})
    assert severities(check_machine(empty, "tensorrt_llm", "run")) == {"gpu_missing": "blocks"}
    hidden = fake_hardware(fake_gpu(), host=fake_host(cuda_visible_devices="1"))
    assert severities(check_machine(hidden, "tensorrt_llm", "run")) == {"gpus_hidden": "informs"}


def test_what_could_not_be_read_is_told_once_where_it_matters() -> None:
    serial = Problem(what="GPU 0: serial", why="not permitted", kind="no_permission")
    fan = Problem(what="GPU 0: fan", why="not supported", kind="not_supported")
    hardware = fake_hardware(fake_gpu(), problems=(serial, fan))
    assert severities(check_machine(hardware, "tensorrt_llm", "run")) == {"not_readable": "informs"}
    assert check_machine(hardware, "openvino", "run") == []


def trtllm_engine(**fields: object):
    values = {
        "backend": "tensorrt_llm",
        "quant": "fp8",
        "compute_capability": "sm_90",
        "toolchain": TRTLLM,
        "build_config": {"tp_size": 1, "pp_size": 1},
        "files": [FileEntry(path="rank0.engine", size_bytes=9 * GIB, sha256="0" * 64)],
        **fields,
    }
    return fake_manifest(**values)


def test_an_engine_of_another_release_is_refused_in_one_line_that_names_both() -> None:
    hardware = fake_hardware(fake_gpu())
    assert check_engine(hardware, trtllm_engine(), TRTLLM) == []
    other = {"tensorrt_llm": "1.0.0", "tensorrt": "10.11.0.33"}
    (finding,) = check_engine(hardware, trtllm_engine(), other)
    assert (finding.code, finding.severity) == ("runtime_differs", "blocks")
    assert "\n" not in finding.message
    for told in ("1.2.1", "10.14.1.48", "sm_90", "1.0.0", "10.11.0.33"):
        assert told in finding.found
    assert "26.07-trtllm-python-py3" in finding.hint
    assert "trtb build --model tiny --quant fp8" in finding.hint
    with pytest.raises(HardwareError) as caught:
        raise_if_blocked([finding])
    assert caught.value.exit_code == 4


@pytest.mark.parametrize("fourth", ["10.14.1.47", "10.14.2.48"])
def test_tensorrt_counts_to_its_fourth_digit(fourth: str) -> None:
    found = check_engine(fake_hardware(fake_gpu()), trtllm_engine(), {**TRTLLM, "tensorrt": fourth})
    assert severities(found) == {"runtime_differs": "blocks"}


def test_an_engine_for_another_gpu_is_refused() -> None:
    found = check_engine(fake_hardware(fake_gpu("L40S")), trtllm_engine(), TRTLLM)
    assert severities(found) == {"gpu_pool_small": "blocks"}
    assert "sm_90" in found[0].expected
    assert "sm_89" in found[0].found


def test_an_engine_of_two_ranks_needs_two_equal_gpus_with_room() -> None:
    two = trtllm_engine(
        build_config={"tp_size": 2, "pp_size": 1},
        files=[FileEntry(path=f"rank{rank}.engine", size_bytes=70 * GIB, sha256="0" * 64) for rank in (0, 1)],
    )
    pair = (fake_gpu(), fake_gpu(index=1))
    assert check_engine(fake_hardware(*pair), two, TRTLLM) == []
    assert severities(check_engine(fake_hardware(fake_gpu()), two, TRTLLM)) == {"gpu_pool_small": "blocks"}
    busy = (fake_gpu(), fake_gpu(index=1, memory_free_bytes=60 * GIB))
    assert severities(check_engine(fake_hardware(*busy), two, TRTLLM)) == {"gpu_memory_small": "blocks"}


def test_in_a_mixed_pool_each_engine_runs_on_its_own_kind() -> None:
    hardware = fake_hardware(fake_gpu(), fake_gpu("A100-80GB", 1), fake_gpu("A100-80GB", 2))
    assert runnable_on(trtllm_engine(), hardware) == ["GPU 0"]
    assert runnable_on(trtllm_engine(compute_capability="sm_80"), hardware) == ["GPU 1", "GPU 2"]
    assert runnable_on(trtllm_engine(compute_capability="sm_89"), hardware) == []
    four = trtllm_engine(compute_capability="sm_80", build_config={"tp_size": 4, "pp_size": 1})
    assert runnable_on(four, hardware) == []
    assert runnable_on(fake_manifest(), hardware) == ["CPU"]


def test_a_runtime_is_installed_or_in_the_engines_container_or_nowhere() -> None:
    manifest = trtllm_engine(container="nvcr.io/nvidia/tritonserver:25.10-trtllm-python-py3")
    bare = fake_host(docker=DockerInfo(client_version="28", server_version=None, runtimes=()))
    assert runtime_of(manifest, fake_host(), {}) == {"tensorrt_llm": "1.0.0", "tensorrt": "10.11.0.33"}
    assert runtime_of(manifest, fake_host(), TRTLLM) == TRTLLM
    assert runtime_of(manifest, bare, {}) == {}
    found = check_engine(fake_hardware(fake_gpu()), manifest, {})
    assert severities(found) == {"runtime_missing": "blocks"}
    assert "25.10" in found[0].hint


def test_an_openvino_engine_of_another_release_loads_and_may_answer_otherwise() -> None:
    manifest = fake_manifest(toolchain={**OPENVINO, "nncf": "3.4.0"})
    hardware = fake_hardware()
    assert check_engine(hardware, manifest, OPENVINO, 512) == []
    newer = {**OPENVINO, "openvino-genai": "2026.5.0.0"}
    assert severities(check_engine(hardware, manifest, newer, 512)) == {"runtime_differs": "warns"}
    assert severities(check_engine(hardware, manifest, {}, 512)) == {"runtime_missing": "blocks"}


def test_an_openvino_engines_pool_is_held_against_the_memory() -> None:
    manifest = fake_manifest()
    block_bytes = manifest.limits.kv_bytes_per_token * manifest.limits.tokens_per_block

    def found(share: float, total_gib: float = 8) -> dict[str, str]:
        hardware = host_with(memory=fake_memory(total_gib))
        return severities(check_engine(hardware, manifest, {}, int(share * total_gib * GIB / block_bytes)))

    assert found(0.3) == {}
    assert found(0.6) == {"memory_reserve_small": "warns"}
    assert found(0.75) == {"kv_pool_large": "blocks", "memory_reserve_small": "blocks"}
    assert "host_memory_small" in found(1.2)
    assert check_engine(host_with(), manifest, {}, 100)[0].code == "kv_pool_small"


def build_needs(model: str, quant: str, gpu: str = "H100", **options: object) -> BuildNeeds:
    scheme, sizes = get_scheme("tensorrt_llm", quant), model_sizes(model)
    made = plan_gpu(sizes, scheme, devices_named(get_gpu(gpu), 8), PlanOptions(**options))
    return needs_of(sizes, scheme, made.settings)


def test_a_build_on_a_machine_that_fits_has_no_findings() -> None:
    needs = build_needs("llama-3.1-8b", "fp8")
    assert check_build(fake_hardware(fake_gpu()), needs) == []


def test_a_resolved_configuration_is_checked_as_it_is() -> None:
    config = make_config(
        quant="int4_awq", group_size=128, kv_cache_dtype="bf16", max_seq_len=8192, max_batch_size=64,
        max_num_tokens=8192, tp_size=2,
    )  # fmt: skip
    sizes, scheme = model_sizes("llama-3.1-8b"), get_scheme("tensorrt_llm", "int4_awq")
    needs = needs_of_config(sizes, scheme, config, peak_host_bytes=40 * GIB)
    assert check_build(fake_hardware(fake_gpu(), fake_gpu(index=1)), needs) == []
    assert severities(check_build(fake_hardware(fake_gpu()), needs)) == {"gpu_pool_small": "blocks"}
    few = fake_hardware(fake_gpu(), fake_gpu(index=1), host=fake_host(memory=fake_memory(40)))
    assert severities(check_build(few, needs)) == {"host_memory_small": "blocks"}


def test_a_70b_build_on_a_small_machine_without_a_gpu_is_refused_with_numbers() -> None:
    hardware = host_with(memory=fake_memory(23))
    needs = build_needs("llama-3.1-70b", "int4_awq")
    found = check_build(hardware, needs)
    assert severities(found) == {"host_memory_small": "blocks", "gpu_pool_small": "blocks"}
    assert "23.0 GiB" in found[0].found
    assert re.search(r"2\d\d\.\d GiB", found[0].expected)
    with pytest.raises(InsufficientMemoryError, match="1 more") as caught:
        raise_if_blocked(found)
    assert caught.value.exit_code == 4


def test_a_build_needs_disk_a_gpu_of_the_kind_and_a_layout_that_works() -> None:
    needs = build_needs("llama-3.1-8b", "fp8")
    small = fake_hardware(fake_gpu(), host=fake_host(disks=(fake_disk(free_bytes=10 * GIB),)))
    assert severities(check_build(small, needs)) == {"disk_full": "blocks"}
    assert severities(check_build(fake_hardware(fake_gpu("A100-80GB")), needs)) == {
        "quant_unsupported": "blocks"
    }
    busy = fake_hardware(fake_gpu(memory_free_bytes=6 * GIB))
    assert severities(check_build(busy, needs)) == {"gpu_memory_small": "blocks"}
    odd = replace(needs, tp_size=3)
    assert severities(check_build(fake_hardware(*(fake_gpu(index=i) for i in range(4))), odd)) == {
        "layout_unsupported": "blocks"
    }
    wide = replace(needs, tp_size=4)
    assert severities(check_build(fake_hardware(fake_gpu()), wide)) == {"gpu_pool_small": "blocks"}


@pytest.mark.parametrize(("gpu", "code"), [("RTX-5090", "quant_unsupported"), ("B200", "quant_unsupported")])
def test_four_bit_weights_are_refused_where_the_release_gets_them_wrong(gpu: str, code: str) -> None:
    needs = build_needs("llama-3.1-8b", "int4_awq")
    assert severities(check_build(fake_hardware(fake_gpu(gpu)), needs)) == {code: "blocks"}


def test_what_nobody_has_shown_to_work_is_a_warning() -> None:
    needs = build_needs("llama-3.1-8b", "int8_wo")
    assert severities(check_build(fake_hardware(fake_gpu("RTX-5090")), needs)) == {
        "quant_unverified": "warns"
    }


def test_slices_are_devices_of_their_own() -> None:
    parts = tuple(
        MigDevice(
            index=index, name="1g.10gb", uuid=f"MIG-{index}", gpu_instance_id=index, compute_instance_id=0,
            num_multiprocessors=16, memory_total_bytes=10 * GIB, memory_free_bytes=10 * GIB,
        )
        for index in range(2)
    )  # fmt: skip
    hardware = fake_hardware(fake_gpu(mig_mode="enabled", mig_devices=parts))
    assert [device.label for device in devices_of(hardware)] == ["GPU 0 slice 0", "GPU 0 slice 1"]
    assert severities(check_machine(hardware, "tensorrt_llm", "run")) == {"gpu_sliced": "informs"}
    small = build_needs("smollm2-135m", "bf16")
    assert check_build(hardware, small) == []
    assert severities(check_build(hardware, replace(small, tp_size=3))) == {"gpu_pool_small": "blocks"}
    assert severities(check_build(hardware, build_needs("llama-3.1-8b", "bf16"))) == {
        "gpu_memory_small": "blocks"
    }


def test_the_gravest_comes_first_and_nothing_is_raised_where_nothing_blocks() -> None:
    hardware = fake_hardware(fake_gpu(persistence="disabled", temperature_c=90, compute_capability="7.0"))
    found = check_machine(hardware, "tensorrt_llm", "run")
    assert [finding.severity for finding in found] == ["blocks", "warns", "informs"]
    raise_if_blocked(found[1:])


def test_every_finding_says_what_to_do() -> None:
    hardware = fake_hardware(
        fake_gpu(compute_capability="7.0", ecc_uncorrected_errors=1, persistence="disabled")
    )
    for finding in check_machine(hardware, "tensorrt_llm", "serve"):
        assert finding.hint
        assert finding.reference
        assert "\n" not in finding.message


def codes_in_source() -> set[str]:
    package = Path(__file__).parents[2] / "build"
    paths = list((package / "planning").glob("p*.py"))
    source = "\n".join(path.read_text(encoding="utf-8") for path in paths)
    return set(re.findall(r'Finding\(\s*"([a-z0-9_]+)"', source))


def test_every_code_stands_in_the_readme_and_no_other() -> None:
    readme = Path(__file__).parents[2] / "README.md"
    if not readme.is_file():
        pytest.skip("the documents are not part of the wheel")
    text = readme.read_text(encoding="utf-8")
    table = text.partition("<!-- findings: begin -->")[2].partition("<!-- findings: end -->")[0]
    assert set(re.findall(r"^\| `([a-z0-9_]+)`", table, re.MULTILINE)) == codes_in_source()
