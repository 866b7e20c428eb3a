"""Why a server did not start: messages that Triton, TensorRT-LLM, CUDA, MPI and docker are known to print.

A message only explains a start that failed: some of them are also printed by servers that do start.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Cause:
    """A known reason, on one line, and what to do about it."""

    name: str
    what: str
    next_step: str


@dataclass(frozen=True, slots=True)
class _Known:
    """One known message; the groups of `pattern` fill the braces of `what`."""

    name: str
    pattern: re.Pattern[str]
    what: str
    next_step: str


def _known(name: str, pattern: str, what: str, next_step: str) -> _Known:
    return _Known(name, re.compile(pattern, re.IGNORECASE), what, next_step)


# The first that matches is told: what lies deeper stands further up.
_KNOWN = (
    _known(
        "tensorrt_version",
        r"expecting library version (\S+?) got (\S+?)[,.]?(?:\s|$)",
        "the engine is of another TensorRT: expecting library version {} got {}",
        "serve it in the image that built it (trtb engines show), or build it again",
    ),
    _known(
        "incompatible_device",
        r"generated on an incompatible device,? expecting compute (\S+?) got compute (\S+?)[,.]?(?:\s|$)",
        "the engine was built for another GPU: expecting compute {} got compute {}",
        "choose GPUs of its kind with --device-ids, or build it again on this kind",
    ),
    _known(
        "plugin_version",
        r"using different TensorRT.LLM version to build engine and run engine",
        "the engine was built by another TensorRT-LLM than the one that loads it",
        "serve it in the image that built it (trtb engines show), or build it again",
    ),
    _known(
        "mixed_install",
        r"undefined symbol: (\S+)|No module named '?tensorrt_llm\.bindings",
        "parts of different TensorRT-LLM releases are installed together",
        "use NVIDIA's image as it is, with nothing installed over its tensorrt_llm",
    ),
    _known(
        "mpi_world_size",
        r"MPI worldSize is expected to be equal to tp\*pp|mpiSize\b.*(?:tp|pp|world)",
        "the number of MPI ranks is not the engine's tp_size x pp_size",
        "trtb starts as many as the manifest says: trtb engines verify",
    ),
    _known(
        "mpi_slots",
        r"not enough slots available in the system",
        "MPI has no room for so many ranks on this machine",
        "unset the variables of the batch system around it (SLURM_*, PBS_*), or start it outside",
    ),
    _known(
        "kv_pool_small",
        r"maxTokensInPagedKvCache must be large enough to process at least 1 sequence",
        "the KV cache does not hold one sequence of the engine's max_seq_len",
        "free GPU memory, raise kv_cache_free_gpu_mem_fraction, or build with a smaller --max-seq-len",
    ),
    _known(
        "shared_memory",
        r"Unable to initialize shared memory key|requires at least \d+ ?MB of shared memory|Bus error"
        r"|Error while (?:creating|attaching to) shared memory segment",
        "shared memory (/dev/shm) is too small",
        "start the container that trtb is in with --shm-size 2g, or remove old files in /dev/shm",
    ),
    _known(
        "backend_missing",
        r"unable to find (?:backend library for backend '?([\w-]+)|'?libtriton_([\w-]+)\.so)"
        r"|failed to (?:load|stat).{0,80}libtriton_tensorrtllm\.so",
        "this tritonserver has not the backend that the engine needs",
        "use an image of the flavour trtllm-python-py3 (trtb engines show names the engine's own)",
    ),
    _known(
        "driver",
        r"CUDA driver version is insufficient|forward compatibility was attempted on non supported HW"
        r"|Error 803: system has unsupported display driver",
        "the NVIDIA driver is too old for this image's CUDA",
        "update the driver, or build and serve with the release for older drivers (README, Toolchains)",
    ),
    _known(
        "docker_gpu",
        r"could not select device driver|unknown or invalid runtime name: nvidia|nvidia-container-cli"
        r"|cannot set both Count and DeviceIDs",
        "docker cannot hand its containers those GPUs",
        "install the NVIDIA Container Toolkit and restart the docker engine; check --device-ids",
    ),
    _known(
        "no_gpu",
        r"no CUDA-capable device is detected|CUDA_ERROR_NO_DEVICE|invalid device ordinal",
        "the server sees no GPU, or fewer than its ranks need",
        "check --device-ids, CUDA_VISIBLE_DEVICES and nvidia-smi",
    ),
    _known(
        "gpu_memory",
        r"Error Code 2: OutOfMemory|CUDA error: out of memory|CUDA runtime error in [^\n]*out of memory"
        r"|Cuda Runtime \(out of memory\)|GPU memory \(\d+ bytes\) could not be allocated",
        "the GPU's memory does not hold the engine",
        "end other work on the GPU, choose another with --device-ids, or build with fewer bits",
    ),
    _known(
        "docker_image",
        r"No such image: (\S+)|Unable to find image '([^']+)' locally",
        "docker has no image {}",
        "docker pull it; it is not fetched without being asked for",
    ),
    _known(
        "docker_engine",
        r"Cannot connect to the Docker daemon|permission denied while trying to connect to the Docker daemon",
        "docker is here, and its engine does not answer",
        "start the docker engine, or add this user to the group docker",
    ),
    _known(
        "port_taken",
        r"Address already in use|address is already in use|port is already allocated",
        "a port is already in use",
        "choose another with --grpc-port and --metrics-port; 0 takes a free one",
    ),
    _known(
        "engine_unreadable",
        r"Error opening engine file:? ?'?(\S*)|Failed to deserialize cuda engine",
        "the engine's files cannot be read or are damaged",
        "trtb engines verify",
    ),
    _known(
        "host_memory",
        r"std::bad_alloc|Cannot allocate memory",
        "the host's memory does not hold the engine while it is loaded",
        "end other work, or raise the memory limit of the container that trtb is in",
    ),
)


def explain(text: str) -> Cause | None:
    """Return the known reason that a server's log tells of; None where it tells of none."""
    for known in _KNOWN:
        if found := known.pattern.search(text):
            told = [group for group in found.groups() if group]
            return Cause(known.name, known.what.format(*told), known.next_step)
    return None
