"""What the output of trtllm-build and of its container means: progress, memory, and why it failed.

The patterns are messages that TensorRT, TensorRT-LLM, CUDA, Open MPI and docker are known to print; a message
only explains a failure that has happened, since several of them are also printed by builds that succeed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from trtb.build.child_process import ProcessEnd

Progress = Callable[[str, str], None]  # (step, detail)

MIB = 1 << 20
TAIL_LINES_SHOWN = 20
MAX_LINE_SHOWN = 300


@dataclass(frozen=True, slots=True)
class Cause:
    """One known way to fail."""

    name: str
    pattern: re.Pattern[str]
    what: str
    next_step: str


def _cause(name: str, pattern: str, what: str, next_step: str) -> Cause:
    return Cause(name, re.compile(pattern), what, next_step)


# The first that matches is named: what lies deeper stands further up.
CAUSES = (
    _cause(
        "disk",
        r"No space left on device|Disk quota exceeded|\[Errno 28\]",
        "the disk is full",
        "free space below TRTB_HOME (`trtb engines prune`), or set TRTB_HOME to a larger disk",
    ),
    _cause(
        "docker_engine",
        r"Cannot connect to the Docker daemon|permission denied while trying to connect to the Docker daemon",
        "docker is here, and its engine does not answer",
        "start the docker engine, or add this user to the group docker; or install trtllm-build",
    ),
    _cause(
        "docker_gpu",
        r"could not select device driver|unknown or invalid runtime name: nvidia|nvidia-container-cli",
        "docker cannot hand GPUs to containers",
        "install the NVIDIA Container Toolkit and restart the docker engine",
    ),
    _cause(
        "flags",
        r"error: (?:unrecognized arguments|argument --?\w+:|the following arguments are required)",
        "this trtllm-build does not know an option: it is of another release",
        "use a release that README, TensorRT-LLM, lists, or leave the --trtllm-option out",
    ),
    _cause(
        "driver",
        r"CUDA driver version is insufficient|NVIDIA driver on your system is too old"
        r"|Error 803: system has unsupported display driver",
        "the NVIDIA driver is too old for this release's CUDA",
        "update the driver, or build and serve with the release for older drivers",
    ),
    _cause(
        "gpu",
        r"No CUDA GPUs are available|no CUDA-capable device is detected|Found no NVIDIA driver"
        r"|libcuda\.so\.1: cannot open shared object|libnvidia-ml\.so\.1: cannot open shared object"
        r"|max_workers must be greater than 0|GPU is required",
        "no GPU is visible to the compiler",
        "check nvidia-smi and CUDA_VISIBLE_DEVICES; an engine is compiled on the kind of GPU it will run on",
    ),
    _cause(
        "architecture",
        r"Unsupported model architecture",
        "TensorRT-LLM has no compiled model of this architecture",
        "choose a checkpoint of another family, or --backend openvino",
    ),
    _cause(
        "checkpoint",
        r"Required but not provided tensors|KeyError: '[^']*(?:scaling_factor|\.weight)'"
        r"|SafetensorError|HeaderTooLarge",
        "the quantised checkpoint lacks tensors that its scheme needs",
        "it is damaged, or was quantised without calibration: `trtb engines prune`, then build again",
    ),
    _cause(
        "compute_capability",
        r"is not supported on SM ?(?:>=)? ?\d+|is unsupported on pre-\w+ \(sm ?< ?\d+\)"
        r"|no kernel image is available for execution on the device"
        r"|No valid weight only groupwise GEMM tactic|is not compatible with the current PyTorch installation"
        r"|generated on an incompatible device",
        "this GPU's compute capability has no kernels for the quantisation or for an option",
        "choose another --quant (README, Quantisations) or leave the --trtllm-option out",
    ),
    _cause(
        "tensorrt_version",
        r"expecting library version \S+ got|engine plan file is not compatible"
        r"|caused by using different TensorRT.LLM version|Failed to deserialize cuda engine",
        "files of different TensorRT or TensorRT-LLM versions met",
        "compile and serve in one container; leave input_timing_cache out",
    ),
    _cause(
        "installation",
        r"undefined symbol|No module named '(?:tensorrt|torch)|Decoding operators failed to load"
        r"|libnvinfer\S*: cannot open shared object|libpython\S*: cannot open shared object",
        "this installation of TensorRT-LLM is broken: parts of different releases, or parts missing",
        "use the container, unchanged, or a fresh environment with nothing but tensorrt-llm",
    ),
    _cause(
        "mpi",
        r"(?:orte|opal|mpi)_init(?::startup)?(?: failed|:internal-failure)|An error occurred in MPI_Init"
        r"|libmpi\S*: cannot open shared object|ORTE (?:was unable|has lost)",
        "Open MPI, which TensorRT-LLM loads, does not start",
        "use the container, or install Open MPI; inside a batch job unset its PMI and OMPI variables",
    ),
    _cause(
        "shared_memory",
        r"Bus error|No usable temporary directory|unable to (?:open|allocate) shared memory",
        "shared memory is too small",
        "give the container more with --shm-size, 2g or more",
    ),
    _cause(
        "gpu_memory",
        r"Error Code 2: OutOfMemory|CUDA out of memory|CUDA error: out of memory"
        r"|CUDA runtime error in [^\n]*: out of memory|Cuda Runtime \(out of memory\)"
        r"|amount of GPU memory \(\d+ bytes\) could not be allocated",
        "the GPU's memory does not hold the build",
        "end other work on the GPU; lower --max-batch-size or --max-num-tokens; or raise --tp-size",
    ),
    _cause(
        "host_memory",
        r"MemoryError|std::bad_alloc|Cannot allocate memory|DefaultCPUAllocator: can't allocate",
        "the host's memory does not hold the build",
        "end other work, lower the option workers (each loads one rank), or add memory or swap",
    ),
)
_KILLED = Cause(
    "host_memory",
    re.compile(""),
    "it was killed, as the system does when memory runs out",
    next(cause.next_step for cause in CAUSES if cause.name == "host_memory"),
)
_OOM_STATUSES = {-9, 137}  # of a program, and of a container


def explain(end: ProcessEnd) -> Cause | None:
    """Return the likely cause of a failure, or None where nothing known was said."""
    text = "\n".join(end.tail)
    found = next((cause for cause in CAUSES if cause.pattern.search(text)), None)
    is_killed = end.status in _OOM_STATUSES and not end.is_silenced
    return found or (_KILLED if is_killed else None)


def last_lines(lines: Sequence[str]) -> str:
    """Return the end of an output, indented, as an error shows it."""
    shown = (line if len(line) <= MAX_LINE_SHOWN else f"{line[:MAX_LINE_SHOWN]}..." for line in lines)
    return "\n".join(f"  {line}" for line in list(shown)[-TAIL_LINES_SHOWN:])


_NETWORK = re.compile(r"Total time of constructing network from module object ([\d.]+)")
_PROFILES = re.compile(r"Total optimization profiles added: (\d+)")
_STARTED = re.compile(r"Build TensorRT engine \S")
_GENERATED = re.compile(r"Engine generation completed in ([\d.]+) seconds")
_SERIALIZING = re.compile(r"Serializing engine to .*rank(\d+)\.engine")
_ALL = re.compile(r"Total time of building all engines: ([\d:]+)")
_PEAK_DEVICE = re.compile(r"memory usage of TRT CPU/GPU memory allocators: CPU (\d+) MiB, GPU (\d+) MiB")
_PEAK_HOST = re.compile(r"Engine building and serialization: CPU: (\d+) MiB")
_PEAK_PHASE = re.compile(r"Build phase peak memory: ([\d.]+) MB, children: ([\d.]+) MB")
_ADJUSTED = re.compile(
    r"\[W\]\s+(.*(?:Overriding \w+ to|[Ii]s disabled because|are disabled|specifying to|clipping it to"
    r"|accuracy might be affected).*)"
)


@dataclass(slots=True)
class BuildLog:
    """What a running build has told so far; `read` each line in turn."""

    say: Progress
    world_size: int
    peak_device_bytes: int = 0
    peak_host_bytes: int = 0
    adjustments: list[str] = field(default_factory=list)  # the compiler's own words on what it changed
    _num_started: int = 0

    def read(self, line: str) -> None:
        """Take one line in, and tell of the progress it means."""
        if match := _NETWORK.search(line):
            self._tell(f"network defined in {float(match[1]):.1f} s")
        elif match := _PROFILES.search(line):
            self._tell(f"{match[1]} optimisation profiles")
        elif _STARTED.search(line):
            self._num_started += 1
            self._tell(f"choosing kernels, rank {self._num_started} of {self.world_size}")
        elif match := _GENERATED.search(line):
            self._tell(f"kernels chosen in {float(match[1]):.1f} s")
        elif match := _SERIALIZING.search(line):
            self._tell(f"writing rank {match[1]}")
        elif match := _ALL.search(line):
            self._tell(f"all ranks built in {match[1]}")
        self._note_memory(line)
        if (match := _ADJUSTED.search(line)) and match[1] not in self.adjustments:
            self.adjustments.append(match[1])

    def _tell(self, detail: str) -> None:
        self.say("compile", detail)

    def _note_memory(self, line: str) -> None:
        if match := _PEAK_DEVICE.search(line):
            self.peak_device_bytes = max(self.peak_device_bytes, int(match[2]) * MIB)
        if match := _PEAK_HOST.search(line):
            self.peak_host_bytes = max(self.peak_host_bytes, int(match[1]) * MIB)
        if match := _PEAK_PHASE.search(line):
            peak_mib = float(match[1]) + float(match[2])
            self.peak_host_bytes = max(self.peak_host_bytes, int(peak_mib * MIB))
