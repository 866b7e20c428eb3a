"""What trtllm-build says: progress, memory, and why it failed."""

from __future__ import annotations

import pytest

from trtb.build.child_process import ProcessEnd
from trtb.build.trtllm.trtllm_log import CAUSES, MIB, BuildLog, explain, last_lines

# Each as its program prints it.
MESSAGES = [
    ("disk", "OSError: [Errno 28] No space left on device"),
    ("disk", "OSError: [Errno 122] Disk quota exceeded"),
    ("docker_engine", "Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is it running?"),
    ("docker_engine", "permission denied while trying to connect to the Docker daemon socket"),
    ("docker_gpu", 'docker: Error response from daemon: could not select device driver "" with capabilities'),
    ("docker_gpu", "docker: Error response from daemon: unknown or invalid runtime name: nvidia."),
    ("flags", "trtllm-build: error: unrecognized arguments: --enable_xqa enable"),
    ("flags", "trtllm-build: error: argument --gemm_plugin: invalid choice: 'int4'"),
    ("driver", "RuntimeError: CUDA driver version is insufficient for CUDA runtime version"),
    ("driver", "RuntimeError: The NVIDIA driver on your system is too old (found version 12020)."),
    ("gpu", "RuntimeError: No CUDA GPUs are available"),
    ("gpu", "ImportError: libcuda.so.1: cannot open shared object file: No such file or directory"),
    ("gpu", "RuntimeError: Found no NVIDIA driver on your system."),
    ("gpu", "ValueError: max_workers must be greater than 0"),
    ("gpu", "OSError: GPU is required for inference."),
    ("architecture", "AssertionError: Unsupported model architecture: SmolLM3ForCausalLM"),
    ("checkpoint", "RuntimeError: Required but not provided tensors:{'transformer.layers.1.mlp.fc.weight'}"),
    ("checkpoint", "KeyError: 'transformer.layers.0.mlp.fc.activation_scaling_factor'"),
    ("compute_capability", "NotImplementedError: gemm_swiglu_plugin=fp8 is not supported on SM 100."),
    ("compute_capability", "RuntimeError: INT8/INT4 quantization is not supported on SM>=100."),
    ("compute_capability", "W4A(fp)8 kernel is unsupported on pre-Ada (sm<89) architectures!"),
    ("compute_capability", "CUDA error: no kernel image is available for execution on the device"),
    ("compute_capability", "No valid weight only groupwise GEMM tactic(It is usually caused by the failure"),
    (
        "compute_capability",
        "The engine plan file is generated on an incompatible device, expecting compute 9.0",
    ),
    ("tensorrt_version", "with this version of TensorRT, expecting library version 10.14.1.48 got 10.13.3.9"),
    ("tensorrt_version", "This is often caused by using different TensorRT LLM version to build engine"),
    ("installation", "ImportError: libtriton_tensorrtllm.so: undefined symbol: _ZN12tensorrt_llm"),
    ("installation", "ModuleNotFoundError: No module named 'tensorrt_llm.bindings'"),
    ("installation", "ImportError: libpython3.10.so.1.0: cannot open shared object file"),
    ("mpi", "It looks like orte_init failed for some reason; your parallel process is"),
    ("mpi", "It looks like opal_init failed for some reason; your parallel process is"),
    ("mpi", "    orte_init:startup:internal-failure"),
    ("mpi", "*** An error occurred in MPI_Init_thread"),
    ("mpi", "ImportError: libmpi.so.40: cannot open shared object file: No such file or directory"),
    ("shared_memory", "Bus error (core dumped)"),
    (
        "gpu_memory",
        "[TRT] [E] [virtualMemoryBuffer.cpp::resizePhysical::151] Error Code 2: OutOfMemory (Requested",
    ),
    ("gpu_memory", "Requested amount of GPU memory (24793579520 bytes) could not be allocated."),
    ("gpu_memory", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."),
    (
        "gpu_memory",
        "[TensorRT-LLM][ERROR] CUDA runtime error in ::cudaMallocAsync(ptr, n): out of memory (/app/x.h:112)",
    ),
    ("host_memory", "MemoryError"),
    ("host_memory", "terminate called after throwing an instance of 'std::bad_alloc'"),
    ("host_memory", "RuntimeError: [enforce fail] DefaultCPUAllocator: can't allocate memory"),
]


def ended(*lines: str, status: int = 1, is_silenced: bool = False) -> ProcessEnd:
    return ProcessEnd(status=status, tail=lines, peak_rss_bytes=0, duration_s=1.0, is_silenced=is_silenced)


@pytest.mark.parametrize(("name", "message"), MESSAGES)
def test_a_known_message_is_explained_with_a_next_step(name: str, message: str) -> None:
    cause = explain(ended("[TRT] [I] before", message, "  File build.py, line 1"))
    assert cause is not None
    assert cause.name == name
    assert cause.what
    assert cause.next_step


def test_every_cause_has_a_message_that_shows_it() -> None:
    assert {name for name, _ in MESSAGES} == {cause.name for cause in CAUSES}


@pytest.mark.parametrize("status", [-9, 137])
def test_a_killed_compiler_most_likely_ran_out_of_memory(status: int) -> None:
    cause = explain(ended("[TRT] [I] working", status=status))
    assert cause is not None
    assert cause.name == "host_memory"
    assert "killed" in cause.what
    assert explain(ended(status=status, is_silenced=True)) is None


def test_nothing_is_made_up_where_nothing_known_was_said() -> None:
    assert explain(ended("AssertionError: never seen before")) is None


def test_the_deeper_cause_is_named_where_several_messages_fit() -> None:
    cause = explain(ended("Error Code 2: OutOfMemory", "OSError: [Errno 28] No space left on device"))
    assert cause is not None
    assert cause.name == "disk"


def test_an_error_shows_the_last_lines_cut_to_a_bearable_length() -> None:
    shown = last_lines([f"line {number}" for number in range(100)] + ["x" * 1000]).splitlines()
    assert len(shown) == 20
    assert shown[0] == "  line 81"
    assert shown[-1] == f"  {'x' * 300}..."


def test_progress_is_told_rank_by_rank() -> None:
    told: list[tuple[str, str]] = []
    log = BuildLog(lambda step, detail: told.append((step, detail)), world_size=2)
    for line in (
        "[TRT-LLM] [I] Set gemm_plugin to None.",
        "[TRT-LLM] [I] Total time of constructing network from module object 2.7941246032714844 seconds",
        "[TRT-LLM] [I] Total optimization profiles added: 5",
        "[TRT-LLM] [I] Build TensorRT engine Unnamed Network 0",
        "[TRT] [I] Engine generation completed in 15.4544 seconds.",
        "[TRT-LLM] [I] Serializing engine to /engine/rank0.engine...",
        "[TRT-LLM] [I] Build TensorRT engine Unnamed Network 0",
        "[TRT-LLM] [I] Total time of building all engines: 00:00:47",
    ):
        log.read(line)
    assert told == [
        ("compile", "network defined in 2.8 s"),
        ("compile", "5 optimisation profiles"),
        ("compile", "choosing kernels, rank 1 of 2"),
        ("compile", "kernels chosen in 15.5 s"),
        ("compile", "writing rank 0"),
        ("compile", "choosing kernels, rank 2 of 2"),
        ("compile", "all ranks built in 00:00:47"),
    ]


def test_the_largest_peak_of_memory_counts() -> None:
    log = BuildLog(lambda _step, _detail: None, world_size=1)
    for line in (
        "[MemUsageStats] Peak memory usage of TRT CPU/GPU memory allocators: CPU 8 MiB, GPU 19386 MiB",
        "[MemUsageStats] Peak memory usage of TRT CPU/GPU memory allocators: CPU 8 MiB, GPU 775 MiB",
        "[MemUsageStats] Peak memory usage during Engine building and serialization: CPU: 6600 MiB",
        "[TRT-LLM] [I] Build phase peak memory: 4851.33 MB, children: 24.88 MB",
    ):
        log.read(line)
    assert log.peak_device_bytes == 19386 * MIB
    assert log.peak_host_bytes == 6600 * MIB


def test_what_the_compiler_changed_is_kept_in_its_own_words_once() -> None:
    log = BuildLog(lambda _step, _detail: None, world_size=2)
    for _ in range(2):
        log.read("[10/12/2026-15:46:16] [TRT-LLM] [W] Overriding reduce_fusion to False")
        log.read("[TRT-LLM] [W] padding removal and fMHA are both enabled, max_input_len will be ignored")
    assert log.adjustments == ["Overriding reduce_fusion to False"]
