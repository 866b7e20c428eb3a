"""Messages of servers that do not start become one line that says why, and what to do."""

from __future__ import annotations

import pytest

from trtb.runner.launching.start_causes import explain

MESSAGES = {
    "tensorrt_version": "[TRT] [E] IRuntime::deserializeCudaEngine: Error Code 1: Serialization (The engine "
    "plan file is not compatible with this version of TensorRT, expecting library version 10.14.1.48 got "
    "10.11.0.33, please rebuild.)\n[TensorRT-LLM][ERROR] Failed to deserialize cuda engine.",
    "incompatible_device": "[TRT] [E] The engine plan file is generated on an incompatible device, expecting "
    "compute 9.0 got compute 8.9, please rebuild.\nFailed to deserialize cuda engine.",
    "plugin_version": "Assertion failed: Expected length (104) != real length (100). This is often caused by "
    "using different TensorRT LLM version to build engine and run engine.",
    "mixed_install": "failed to load libtriton_tensorrtllm.so: undefined symbol: _ZN12tensorrt_llm8executor",
    "mpi_world_size": "Assertion failed: With communicationMode kLEADER, MPI worldSize is expected to be "
    "equal to tp*pp when participantIds are not specified",
    "mpi_slots": "There are not enough slots available in the system to satisfy the 8 slots",
    "kv_pool_small": "Assertion failed: maxTokensInPagedKvCache must be large enough to process at least 1 "
    "sequence to completion (i.e. must be larger than beam_width * tokensPerBlock * maxBlocksPerSeq)",
    "shared_memory": "Unable to initialize shared memory key 'trtb_1_0_region' to requested size (67108864 "
    "bytes). Each Python backend model instance requires at least 64 MB of shared memory.",
    "backend_missing": "Invalid argument: unable to find backend library for backend 'tensorrtllm', try "
    "specifying runtime on the model configuration.",
    "driver": "CUDA driver version is insufficient for CUDA runtime version",
    "docker_gpu": 'docker: Error response from daemon: could not select device driver "" with capabilities: '
    "[[gpu]].",
    "no_gpu": "CUDA runtime error: no CUDA-capable device is detected",
    "gpu_memory": "[TensorRT-LLM][ERROR] CUDA runtime error in ::cudaMalloc(ptr, n): out of memory",
    "docker_image": "docker: Error response from daemon: No such image: repo/tritonserver:26.07.",
    "docker_engine": "Cannot connect to the Docker daemon at unix:///var/run/docker.sock.",
    "port_taken": "failed to start gRPC service: Unavailable - Socket '127.0.0.1:8001' already in use: "
    "Address already in use",
    "engine_unreadable": "Error opening engine file: /engine/engine/rank0.engine",
    "host_memory": "terminate called after throwing an instance of 'std::bad_alloc'",
}


@pytest.mark.parametrize("name", MESSAGES)
def test_a_known_message_is_one_line_with_the_next_step(name: str) -> None:
    log = f"I1201 09:00:00 server.cc:1] loading\n{MESSAGES[name]}\nE1201 09:00:01 main.cc:9] failed\n"
    cause = explain(log)
    assert cause is not None
    assert cause.name == name
    assert "\n" not in cause.what
    assert cause.next_step


def test_both_versions_are_told() -> None:
    for name, told in (
        ("tensorrt_version", ("10.14.1.48", "10.11.0.33")),
        ("incompatible_device", ("9.0", "8.9")),
    ):
        cause = explain(MESSAGES[name])
        assert cause is not None
        assert all(text in cause.what for text in told)


def test_an_unknown_log_has_no_cause() -> None:
    assert explain("") is None
    assert explain("E1201 09:00:01 main.cc:9] failed to load all models") is None
