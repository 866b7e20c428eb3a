"""What is read of GPUs: the real nvidia-ml-py in a child process, on a library that plays any machine.

`TRTB_UPDATE_GOLDEN=1` writes the reports of tests/golden/hardware anew.
"""

from __future__ import annotations

import ast
import ctypes
import inspect
import os
import re
import subprocess
from pathlib import Path

import pynvml
import pytest
from fakes.nvml_library import LIBRARY, Machine, compile_library, no_library

from trtb.build import hardware
from trtb.build.hardware import probe, probe_gpus
from trtb.build.probe import gpu_child
from trtb.build.probe.gpu_child import kernel_module_version, make_report
from trtb.build.probe.hardware_info import GpuReport, Problem

GOLDEN = Path(__file__).parents[1] / "golden" / "hardware"

MIG_SLICES = (
    *("0.mig 1", "0.mig_max 7", "0.mig0.name NVIDIA H100 80GB HBM3 MIG 3g.40gb"),
    *("0.mig0.uuid MIG-5f3c2a1e-0d4b-5c6a-8e7f-9a0b1c2d3e4f", "0.mig0.memory_total 42144366592"),
    *("0.mig0.memory_free 42102423552", "0.mig0.multiprocessors 60", "0.mig0.gpu_instance 2"),
    *("0.mig0.compute_instance 0", "0.mig3.name NVIDIA H100 80GB HBM3 MIG 1g.10gb"),
    *("0.mig3.uuid MIG-a1b2c3d4-1111-5222-8333-444455556666", "0.mig3.memory_total 10200547328"),
    *("0.mig3.memory_free 10184818688", "0.mig3.multiprocessors 16", "0.mig3.gpu_instance 9"),
    "0.mig3.compute_instance 0",
    # a container that is given slices sees their card and may not ask it everything
    *("fault.0.nvmlDeviceGetMemoryInfo 4", "fault.0.nvmlDeviceGetComputeRunningProcesses_v3 4"),
    "fault.0.nvmlDeviceGetGraphicsRunningProcesses_v3 4",
)
MACHINES = {
    "h100": Machine(["h100"]),
    "h200": Machine(["h200"]),
    "a100_40gb": Machine(["a100_40gb"]),
    "l40s": Machine(["l40s"]),
    "rtx4090": Machine(["rtx4090"]),
    "mig": Machine(["h100"], MIG_SLICES),
    "nvlink_pair": Machine(
        ["h100", "h100"],
        ["1.bus_id 00000000:3B:00.0", "1.uuid GPU-1", "0-1.p2p.0 0", "0-1.p2p.2 0", "0-1.path 50"],
    ),
    "mixed_pair": Machine(["l40s", "rtx4090"], ["0-1.p2p.0 1", "0-1.p2p.2 5", "0-1.path 30"]),
    "broken_memory": Machine(
        ["a100_40gb"],
        [
            *("0.ecc_errors.1.0 3", "0.ecc_errors.1.1 17", "0.remapped_rows 12 4 1 1"),
            *("0.compute_mode 3", "0.power_limit_mw 250000", "0.clock_reasons 0x44"),
        ],
    ),
    "old_driver": Machine(
        ["a100_40gb"],
        ["0.processes 900:1048576"],
        system=("driver 470.256.02", "nvml 11.470.256.02", "cuda 11040"),
        driver=470,
    ),
    "no_gpu": Machine(),
    "version_mismatch": Machine(["h100"], ["fault.nvmlInitWithFlags 18"]),
    "errors_half_way": Machine(["h100", "h200"], ["fault.from.1.nvmlDeviceGetPowerUsage 999"]),
    "lost_gpu": Machine(
        ["h100", "h200", "h100"],
        [
            *("fault.0.nvmlDeviceGetTemperatureV 15", "fault.1.nvmlDeviceGetHandleByIndex_v2 15"),
            *("2.bus_id 00000000:3B:00.0", "2.uuid GPU-2"),
        ],
    ),
    "busy": Machine(
        ["h200"],
        [
            *("0.memory_free 20971520000", "0.processes 4242:118111600640 77:-"),
            *("0.graphics_processes 1873:6291456", "0.clock_reasons 0", "0.temperature.0 74"),
        ],
    ),
    "few_fields": Machine(["gtx1080ti"]),
}


@pytest.fixture(scope="session")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the compiled libraries."""
    return tmp_path_factory.mktemp("nvml")


@pytest.fixture
def machine_root(tmp_path: Path) -> Path:
    """A root folder in which the kernel module of driver 580 is loaded."""
    version = tmp_path / "root/proc/driver/nvidia/version"
    version.parent.mkdir(parents=True)
    version.write_text(
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build  (dvs-builder)\n"
        "GCC version:  gcc version 12.3.0 (Ubuntu 12.3.0-1ubuntu1~22.04)\n"
    )
    return tmp_path / "root"


def report_of(
    machine: Machine, libraries: Path, root: Path, monkeypatch: pytest.MonkeyPatch, timeout_s: float = 60.0
) -> GpuReport:
    for name, value in machine.environment(libraries, root.parent).items():
        monkeypatch.setenv(name, value)
    return probe_gpus(root=root, answer_timeout_s=timeout_s)


def check_golden(name: str, report: GpuReport) -> None:
    path = GOLDEN / f"{name}.json"
    text = report.model_dump_json(indent=2) + "\n"
    if os.environ.get("TRTB_UPDATE_GOLDEN"):
        path.write_text(text)
    assert path.read_text() == text


@pytest.mark.parametrize("name", MACHINES)
def test_a_machine_is_reported_as_it_is(
    name: str, libraries: Path, machine_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = report_of(MACHINES[name], libraries, machine_root, monkeypatch)
    check_golden(name, report)
    assert GpuReport.model_validate_json(report.model_dump_json()) == report


def test_a_whole_gpu_leaves_no_question_open(
    libraries: Path, machine_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every field of the record has a question behind it, and the library answers them all."""
    report = report_of(MACHINES["h100"], libraries, machine_root, monkeypatch)
    (gpu,) = report.gpus
    assert not report.problems
    assert None not in gpu.model_dump().values()
    assert None not in (*gpu.clocks.model_dump().values(), *gpu.pcie.model_dump().values())
    assert None not in report.driver.model_dump().values()
    assert (gpu.sm, gpu.pci_bus_id, report.driver.major) == (90, "0000:19:00.0", 580)


def test_what_a_gpu_does_not_have_is_said_field_by_field(
    libraries: Path, machine_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = report_of(MACHINES["few_fields"], libraries, machine_root, monkeypatch)
    (gpu,) = report.gpus
    reasons = {problem.what: problem.kind for problem in report.problems}
    assert (gpu.serial, gpu.ecc_mode, gpu.mig_mode, gpu.nvlink_active_links) == (None, None, None, None)
    assert gpu.memory_total_bytes == 11811160064
    wanted = ("serial", "ECC mode", "MIG mode", "NVLink", "power draw")
    assert {reasons[f"GPU 0: {what}"] for what in wanted} == {"not_supported"}


def test_a_lost_gpu_costs_one_problem_and_keeps_the_others(
    libraries: Path, machine_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = report_of(MACHINES["lost_gpu"], libraries, machine_root, monkeypatch)
    assert [(gpu.index, gpu.temperature_c) for gpu in report.gpus] == [(0, None), (2, 31)]
    assert report.num_gpus == 3
    lost = [problem.what for problem in report.problems if problem.kind == "lost"]
    assert lost == ["GPU 0: temperature", "GPU 1: device"]
    assert not report.peers  # no pair of two that answer


def test_a_machine_without_a_driver_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in no_library(tmp_path).items():
        monkeypatch.setenv(name, value)
    report = probe_gpus(root=tmp_path)
    assert not report.gpus
    assert [(problem.what, problem.kind) for problem in report.problems] == [("NVML: start", "missing")]
    assert "libnvidia-ml.so.1" in report.problems[0].why


def test_a_call_that_never_returns_is_named_and_the_answers_before_it_are_kept(
    libraries: Path, machine_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(["h100", "h200"], ["fault.1.nvmlDeviceGetEccMode hang"])
    report = report_of(machine, libraries, machine_root, monkeypatch, timeout_s=1.0)
    assert [gpu.index for gpu in report.gpus] == [0]
    assert report.num_gpus == 2
    assert report.problems[-1] == Problem(
        what="GPU 1: ECC mode", why="no answer within 1 s; nothing after it was asked", kind="timeout"
    )


def test_a_child_that_cannot_be_killed_is_left_behind(
    libraries: Path, machine_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that waits in the driver outlives SIGKILL; here, one that is never sent it."""
    left: list[subprocess.Popen[bytes]] = []
    monkeypatch.setattr(gpu_child, "_left_behind", left)
    monkeypatch.setattr(gpu_child, "_END_TIMEOUT_S", 0.01)
    with monkeypatch.context() as immortal:
        immortal.setattr(subprocess.Popen, "kill", lambda self: None)
        machine = Machine(["h100"], ["fault.nvmlInitWithFlags hang"])
        report = report_of(machine, libraries, machine_root, monkeypatch, timeout_s=1.0)
    assert [problem.what for problem in report.problems] == ["NVML: start"]
    (process,) = left
    assert process.poll() is None
    process.kill()
    process.wait()


def test_a_library_that_crashes_takes_only_the_child_with_it(
    libraries: Path, machine_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(["h100", "h200"], ["fault.1.nvmlDeviceGetName crash"])
    report = report_of(machine, libraries, machine_root, monkeypatch)
    assert [gpu.index for gpu in report.gpus] == [0]
    problem = report.problems[-1]
    assert (problem.what, problem.kind) == ("GPU 1: name", "failed")
    assert "SIGSEGV" in problem.why


def test_a_child_that_fails_is_quoted() -> None:
    told = b'{"ask": "NVML"}\nTraceback (most recent call last):\nImportError: no pynvml\n'
    report = make_report(told, "failed", "the process that asked ended with exit code 1", None)
    (problem,) = report.problems
    assert problem.what == "NVML"
    assert problem.why.endswith("exit code 1; nothing after it was asked; it said: ImportError: no pynvml")


def test_words_that_a_library_prints_do_not_disturb_the_report() -> None:
    told = b'NVML: some warning\n[1]\n{"a": 1, "b": 2}\n{"num_gpus": 0}\n{"end": true}\n{"half'
    report = make_report(told, "failed", "", "580.1")
    assert (report.num_gpus, report.problems) == (0, ())


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  470.256.02  Thu May  2 14:37:44", "470.256.02"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build", "580.95.05"),
        ("something else", None),
    ],
)
def test_the_kernel_module_is_known_without_the_library(
    text: str, version: str | None, tmp_path: Path
) -> None:
    file = tmp_path / "proc/driver/nvidia/version"
    file.parent.mkdir(parents=True)
    file.write_text(text)
    assert kernel_module_version(tmp_path) == version


def test_the_whole_probe_holds_gpus_host_and_all_problems(
    libraries: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in MACHINES["few_fields"].environment(libraries, tmp_path).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PATH", str(tmp_path))
    info = probe([tmp_path / "not/yet/there"])
    assert [gpu.name for gpu in info.gpus] == ["NVIDIA GeForce GTX 1080 Ti"]
    assert [disk.path for disk in info.host.disks] == [str(tmp_path / "not/yet/there")]
    assert {problem.what for problem in info.problems} > {"GPU 0: serial", "docker"}
    assert type(info).model_validate_json(info.model_dump_json()) == info


STRUCTURES = {
    "nvmlMemory_t": pynvml.c_nvmlMemory_t,
    "nvmlPciInfo_t": pynvml.nvmlPciInfo_t,
    "nvmlProcessInfo_t": pynvml.c_nvmlProcessInfo_v3_t,
    "nvmlDeviceAttributes_t": pynvml.c_nvmlDeviceAttributes,
    "nvmlGpuFabricInfo_t": pynvml.c_nvmlGpuFabricInfo_t,
    "nvmlTemperature_t": pynvml.c_nvmlTemperature_v1_t,
    "nvmlUtilization_t": pynvml.c_nvmlUtilization_t,
}


@pytest.mark.parametrize("name", STRUCTURES)
def test_the_fake_lays_out_its_structures_as_the_bindings_do(name: str, libraries: Path) -> None:
    library = ctypes.CDLL(str(compile_library(libraries) / LIBRARY))
    structure = STRUCTURES[name]
    layout = {name: ctypes.sizeof(structure)}
    for field, *_ in structure._fields_:
        place = getattr(structure, field)
        layout[f"{name}.{field}"] = place.offset << 16 | place.size
    assert {what: library.fake_nvml_layout(what.encode()) for what in layout} == layout
    assert library.fake_nvml_layout(b"nvmlMemory_t.nothing") == -1


def test_the_fake_has_every_function_that_is_asked_for(libraries: Path) -> None:
    """Whatever hardware.py calls, in the name under which the bindings look it up."""
    tree = ast.parse(Path(hardware.__file__).read_text())
    called = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and re.match(r"nvml[A-Z]", node.attr)
    }
    called |= {"nvmlInitWithFlags", "nvmlErrorString", "nvmlDeviceGetPciInfo_v3"}  # what those call
    unasked = {"nvmlDeviceGetMemoryInfo_v2"}  # in the same function, for those who name a version
    assert len(called) > 40
    library = ctypes.CDLL(str(compile_library(libraries) / LIBRARY))
    missing = []
    for name in sorted(called):
        source = inspect.getsource(inspect.unwrap(getattr(pynvml, name)))
        missing += [
            symbol
            for symbol in re.findall(r'_nvmlGetFunctionPointer\("(\w+)"\)', source)
            if symbol not in unasked and not hasattr(library, symbol)
        ]
    assert not missing
