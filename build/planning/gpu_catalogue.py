"""The GPUs that a plan can name without having one: memory, bandwidth and compute capability.

Memory is the total that NVML reports for the product, in MiB, with ECC as shipped; bandwidth is the maker's
data sheet's. What a GPU of this machine really has is the probe's to say.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from trtb.build.errors import ConfigError

_MIB = 1 << 20
FP8_MIN_SM = 89
FP4_MIN_SM = 100


@dataclass(frozen=True, slots=True)
class GpuModel:
    """One product."""

    name: str  # as a person types it
    sm: int  # compute capability as one number, 90 for 9.0
    memory_mib: int
    bandwidth_gb_per_s: int  # 10^9 bytes
    nvml_names: tuple[str, ...]

    @property
    def memory_bytes(self) -> int:
        """Return the total memory."""
        return self.memory_mib * _MIB

    @property
    def has_fp8(self) -> bool:
        """Return whether its tensor cores multiply FP8."""
        return self.sm >= FP8_MIN_SM

    @property
    def has_fp4(self) -> bool:
        """Return whether its tensor cores multiply FP4."""
        return self.sm >= FP4_MIN_SM


GPUS: tuple[GpuModel, ...] = (
    GpuModel("B200", 100, 183359, 8000, ("NVIDIA B200",)),
    GpuModel("GH200", 90, 97871, 4000, ("NVIDIA GH200 480GB",)),
    GpuModel("H200", 90, 143771, 4800, ("NVIDIA H200", "NVIDIA H200 NVL")),
    GpuModel("H100", 90, 81559, 3350, ("NVIDIA H100 80GB HBM3",)),
    GpuModel("H100-NVL", 90, 95830, 3900, ("NVIDIA H100 NVL",)),
    GpuModel("H100-PCIe", 90, 81559, 2000, ("NVIDIA H100 PCIe",)),
    GpuModel("A100-80GB", 80, 81920, 2039, ("NVIDIA A100-SXM4-80GB", "NVIDIA A100 80GB PCIe")),
    GpuModel("A100-40GB", 80, 40960, 1555, ("NVIDIA A100-SXM4-40GB", "NVIDIA A100-PCIE-40GB")),
    GpuModel("L40S", 89, 46068, 864, ("NVIDIA L40S",)),
    GpuModel("RTX-6000-Ada", 89, 49140, 960, ("NVIDIA RTX 6000 Ada Generation",)),
    GpuModel("RTX-4090", 89, 24564, 1008, ("NVIDIA GeForce RTX 4090",)),
    GpuModel("RTX-5090", 120, 32607, 1792, ("NVIDIA GeForce RTX 5090",)),
    GpuModel("L4", 89, 23034, 300, ("NVIDIA L4",)),
    GpuModel("A40", 86, 46068, 696, ("NVIDIA A40",)),
    GpuModel("A10", 86, 23028, 600, ("NVIDIA A10",)),
    GpuModel("T4", 75, 15360, 320, ("Tesla T4", "NVIDIA T4")),
    GpuModel("V100", 70, 32768, 900, ("Tesla V100-SXM2-32GB", "Tesla V100-PCIE-32GB")),
)


def get_gpu(name: str) -> GpuModel:
    """Return the catalogue's GPU of that name, whatever its case, spaces and dashes.

    Raises:
        ConfigError: The catalogue has no such GPU, or several.
    """
    known = {_plain(gpu.name): gpu for gpu in GPUS}
    known["h100sxm"] = known["h100"]
    if (gpu := known.get(_plain(name))) is not None:
        return gpu
    meant = [gpu.name for key, gpu in known.items() if key.startswith(_plain(name))]
    close = meant or [
        known[key].name for key in difflib.get_close_matches(_plain(name), known, n=2, cutoff=0.6)
    ]
    raise ConfigError(
        f"gpu: {name!r}; expected one of {', '.join(gpu.name for gpu in GPUS)}",
        f"did you mean {' or '.join(close)}?"
        if close
        else "name the GPU whose memory is nearest below yours",
    )


def find_gpu(nvml_name: str | None) -> GpuModel | None:
    """Return the catalogue's entry of a GPU by the name its driver tells, or None."""
    return next((gpu for gpu in GPUS if nvml_name in gpu.nvml_names), None)


def _plain(name: str) -> str:
    return "".join(letter for letter in name.casefold() if letter.isalnum())
