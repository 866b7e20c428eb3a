"""The one table of versions that work together; preflight, build, deploy and the containers read it.

Facts, not wishes: each row was installed and run as a whole.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from packaging.version import Version


@dataclass(frozen=True, slots=True)
class Pin:
    """One distribution of a toolchain and the version it was tried with."""

    distribution: str
    version: str
    why: str = ""


OPENVINO_TOOLCHAIN = (
    Pin("openvino", "2026.4.1"),
    Pin("openvino-genai", "2026.4.1.0"),
    Pin("openvino-tokenizers", "2026.4.1.0"),
    Pin("nncf", "3.4.0"),
    Pin("gguf", "0.19.0"),
    Pin("tokenizers", "0.23.3"),
    Pin("numpy", "1.26.4", "Triton 2.51's python stub breaks with numpy 2"),
)

PYTRITON = Pin("nvidia-pytriton", "0.7.0", "carries tritonserver 2.51 and its python backend")
TRITON_VERSION = "2.51.0"

# Any newer driver of a CUDA major serves it: that is CUDA's minor-version compatibility.
MIN_DRIVER_BY_CUDA_MAJOR = {13: 580, 12: 525}
IMAGE_REPOSITORY = "nvcr.io/nvidia/tritonserver"
IMAGE_FLAVOUR = "trtllm-python-py3"


@dataclass(frozen=True, slots=True)
class TrtllmRelease:
    """One release of TensorRT-LLM and what stands around it in Triton's containers.

    An engine loads only in the release that built it, and in exactly its TensorRT: a plan of another
    fourth digit is refused. From pip the same release brings another TensorRT than in its container.
    """

    version: str
    containers: tuple[str, ...]  # "26.07" and so on, the newest first
    tensorrt: str  # all four parts
    cuda: str
    python: str
    torch: str
    bundled_driver: str  # what the container was released with, not what it needs
    modelopt: str | None  # a requirement, or None where no release note says
    why: str = ""

    @property
    def cuda_major(self) -> int:
        """Return the line of CUDA."""
        return int(self.cuda.partition(".")[0])

    @property
    def min_driver(self) -> int:
        """Return the least major version of the NVIDIA driver."""
        return MIN_DRIVER_BY_CUDA_MAJOR[self.cuda_major]

    @property
    def image(self) -> str:
        """Return the newest container that has this release."""
        return f"{IMAGE_REPOSITORY}:{self.containers[0]}-{IMAGE_FLAVOUR}"


# Newest first. 1.0 is the first release whose compiled engines are served through the tensors that trtb
# speaks, 1.2.1 the last stable one that compiles engines at all.
TRTLLM_RELEASES = (
    TrtllmRelease(
        version="1.2.1",
        containers=("26.07", "26.06", "26.05", "26.04"),
        tensorrt="10.14.1.48",
        cuda="13.1.0.036",
        python="3.12.3",
        torch="2.10.0a0+b4e4ee81d3.nv25.12",
        bundled_driver="590.44.01",
        modelopt="~=0.37.0",
        why="the last stable release that compiles engines",
    ),
    TrtllmRelease(
        version="1.2.0",
        containers=("26.03",),
        tensorrt="10.14.1.48",
        cuda="13.1.0.036",
        python="3.12.3",
        torch="2.10.0a0+b4e4ee81d3.nv25.12",
        bundled_driver="590.44.01",
        modelopt="~=0.37.0",
    ),
    TrtllmRelease(
        version="1.1.0",
        containers=("26.02", "26.01", "25.12"),
        tensorrt="10.13.3.9",
        cuda="13.0.2.006",
        python="3.12.3",
        torch="2.9.0a0+145a3a7bda.nv25.10",
        bundled_driver="580.95.05",
        modelopt="~=0.37.0",
    ),
    TrtllmRelease(
        version="1.0.3.2510",
        containers=("25.11",),
        tensorrt="10.13.3.9",
        cuda="13.0.2.006",
        python="3.12.3",
        torch="2.9.0a0+145a3a7bda.nv25.10",
        bundled_driver="580.95.05",
        modelopt=None,
    ),
    TrtllmRelease(
        version="1.0.0",
        containers=("25.10", "25.09"),
        tensorrt="10.11.0.33",
        cuda="12.9.1.010",
        python="3.12.3",
        torch="2.8.0a0+5228986c39.nv25.6",
        bundled_driver="575.57.08",
        modelopt="~=0.33.0",
        why="the last one on CUDA 12, for drivers older than CUDA 13 needs",
    ),
)
PRIMARY_TRTLLM = TRTLLM_RELEASES[0]
CUDA12_TRTLLM = TRTLLM_RELEASES[-1]


def get_release(version: str) -> TrtllmRelease | None:
    """Return the row of a TensorRT-LLM version; None for one that trtb does not know."""
    return next((row for row in TRTLLM_RELEASES if row.version == version), None)


def get_release_of_image(image: str) -> TrtllmRelease | None:
    """Return the row of a container's name with its tag; None for another image, or one named by digest only.

    >>> get_release_of_image("nvcr.io/nvidia/tritonserver:25.09-trtllm-python-py3").version
    '1.0.0'
    """
    name, _, tag = image.partition("@")[0].rpartition(":")
    container, _, flavour = tag.partition("-")
    if name.rpartition("/")[2] != IMAGE_REPOSITORY.rpartition("/")[2] or flavour != IMAGE_FLAVOUR:
        return None
    return next((row for row in TRTLLM_RELEASES if container in row.containers), None)


def choose_release(driver: str) -> TrtllmRelease | None:
    """Return the release to build with under that NVIDIA driver; None where it is too old for all.

    >>> choose_release("580.95.05").version, choose_release("550.54.15").version, choose_release("470.1")
    ('1.2.1', '1.0.0', None)
    """
    major = int(driver.partition(".")[0])
    return next((row for row in (PRIMARY_TRTLLM, CUDA12_TRTLLM) if major >= row.min_driver), None)


@dataclass(frozen=True, slots=True)
class TensorChange:
    """A tensor of Triton's tensorrt_llm model that a release of TensorRT-LLM renamed or brought."""

    name: str
    since: str
    formerly: str | None = None  # None: it was not there


# Of the names that trtb speaks; the rest is as old as in-flight batching.
TENSOR_CHANGES = (
    TensorChange("min_tokens", "0.20", formerly="min_length"),
    TensorChange("seed", "0.20", formerly="random_seed"),
    TensorChange("return_num_input_tokens", "0.20"),
    TensorChange("return_num_output_tokens", "0.20"),
    TensorChange("num_input_tokens", "0.20"),
    TensorChange("num_output_tokens", "0.20"),
)


def tensor_name_in(version: str, name: str) -> str | None:
    """Return what a release of TensorRT-LLM calls a tensor of today; None where it has none such.

    >>> tensor_name_in("0.19.0", "seed"), tensor_name_in("1.2.1", "seed"), tensor_name_in("0.19.0", "end_id")
    ('random_seed', 'seed', 'end_id')
    """
    for change in TENSOR_CHANGES:
        if change.name == name and Version(version) < Version(change.since):
            return change.formerly
    return name


@dataclass(frozen=True, slots=True)
class ToolchainSpec:
    """An environment of its own: what quantises, converts or measures needs what the runtime cannot have."""

    name: str
    purpose: str
    pins: Path  # requirements: every distribution of the environment, by version, with its reason
    resolved: tuple[str, ...]  # installed first, with the further libraries that their platform's build needs
    decisive: tuple[str, ...]  # those of the pins that shape what it makes; a manifest names them
    imports: tuple[str, ...]  # modules that must load in it
    free_bytes: int  # that an install asks for, with a CPU build of torch
    left_out: frozenset[tuple[str, str]] = frozenset()  # (distribution, what it requires and does not get)
    programs: tuple[str, ...] = ()  # of its bin/, that must start
    # (name that a program asks for, pattern of the copy in nvidia-pytriton), where the system may lack it
    libraries: tuple[tuple[str, str], ...] = ()


_DATA = Path(__file__).parent / "data"

TOOLCHAINS = {
    spec.name: spec
    for spec in (
        ToolchainSpec(
            name="modelopt",
            purpose="quantises checkpoints for TensorRT-LLM",
            pins=_DATA / "toolchain-modelopt.txt",
            resolved=("torch",),
            decisive=("torch", "nvidia-modelopt", "transformers"),
            imports=("transformers", "modelopt.torch.quantization", "modelopt.torch.export"),
            free_bytes=2_500_000_000,
        ),
        ToolchainSpec(
            name="optimum",
            purpose="converts Hugging Face checkpoints for OpenVINO",
            pins=_DATA / "toolchain-optimum.txt",
            resolved=("torch",),
            decisive=("torch", "optimum-intel", "optimum", "transformers", "openvino"),
            imports=("optimum.intel", "optimum.exporters.openvino", "nncf", "openvino_tokenizers"),
            free_bytes=2_500_000_000,
            left_out=frozenset(
                {
                    ("optimum-intel", "torchvision"),  # would replace torch, and nothing here imports it
                    ("openvino", "openvino-telemetry"),  # sends usage events
                    ("nncf", "openvino-telemetry"),
                }
            ),
        ),
        ToolchainSpec(
            name="perf_analyzer",
            purpose="measures a server, for trtb sweep",
            pins=_DATA / "toolchain-perf-analyzer.txt",
            resolved=(),
            decisive=("tritonclient",),
            imports=(),
            free_bytes=200_000_000,
            left_out=frozenset(
                ("tritonclient", name)
                for name in ("numpy", "python-rapidjson", "urllib3")  # its client's
            ),
            programs=("perf_analyzer",),
            libraries=(("libb64.so.0d", "libb64-*.so.0d"), ("libcudart.so.12", "libcudart-*.so.12*")),
        ),
    )
}


def installed_versions(distributions: tuple[str, ...]) -> dict[str, str]:
    """Return the installed version of each distribution; one that is absent is left out."""
    found = {name: _version(name) for name in distributions}
    return {name: version for name, version in found.items() if version is not None}


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None
