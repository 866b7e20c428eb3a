"""Published and measured output rates: what a plan may expect, always told with where it comes from.

A figure is never scaled to another GPU, quantisation or length: the nearest row is named with its own
conditions, or there is none.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

# a row is near enough where the model's size and both lengths are within these factors
MAX_SIZE_RATIO: Final = 1.15
MAX_LENGTH_RATIO: Final = 2.0

_BENCH = "TensorRT-LLM performance overview, release 0.17, trtllm-bench: compiled engine, no server"
_SERVED = "TensorRT-LLM performance overview, release 0.14, 500 requests at once through Triton, BF16"
_FLOOD = "synthetic requests of equal length, all at once, KV cache in 95 % of the free memory"
_HERE = "measured by hand for trtb: 2 cores of an AMD EPYC, the library driven directly, no server"


@dataclass(frozen=True, slots=True)
class Reference:
    """One published figure and its conditions."""

    model: str
    num_parameters: int
    device: str  # a name of the GPU catalogue, or "avx2", "avx512_bf16"
    num_gpus: int
    quant: str
    prompt_tokens: int
    output_tokens: int
    output_tokens_per_s: float
    source: str
    conditions: str


_LLAMA_8B = ("Llama-3.1-8B", 8_030_261_248)
_LLAMA_70B = ("Llama-3.1-70B", 70_553_706_496)
_SMOLLM2 = ("SmolLM2-135M", 134_515_008)

_LENGTHS = (
    (128, 128), (128, 2048), (128, 4096), (500, 2000), (1000, 1000), (2048, 128), (2048, 2048), (5000, 500),
    (20000, 2000),
)  # fmt: skip
# (model, GPU, tensor parallelism, quantisation): output tokens/s at each of _LENGTHS; 0 was not published
_FLOODED = {
    (_LLAMA_8B, "H200", 1, "fp8"): (
        29526.04, 25398.86, 17370.8, 21020.81, 17537.96, 3794.14, 11968.5, 3987.79, 1804.1),
    (_LLAMA_8B, "H100", 1, "fp8"): (
        28836.77, 21109.38, 13593.65, 16500.69, 15244.78, 3556.73, 9488.42, 3559.36, 1401.31),
    (_LLAMA_8B, "GH200", 1, "fp8"): (
        29852.96, 21769.55, 14189.89, 17137.29, 16482.77, 3843.95, 10265.9, 3932.58, 1560.2),
    (_LLAMA_8B, "L40S", 1, "fp8"): (
        9104.61, 5365.81, 3025.92, 4273.75, 4054.71, 1066.52, 2225.27, 981.2, 327.97),
    (_LLAMA_8B, "A100-80GB", 1, "f16"): (
        6627.27, 5255.99, 3453.79, 4276.58, 3786.83, 799.61, 2424.16, 825.13, 330.04),
    (_LLAMA_70B, "H200", 1, "fp8"): (
        4020.75, 4165.68, 2651.75, 3018.39, 2823.45, 465.99, 1913.8, 560.16, 279.52),
    (_LLAMA_70B, "H200", 2, "fp8"): (
        6823.01, 8290.35, 6526.67, 6848.02, 5164.76, 809.0, 4183.88, 1025.38, 640.62),
    (_LLAMA_70B, "H200", 4, "fp8"): (
        11098.63, 14156.0, 10574.06, 12452.79, 8911.29, 1358.06, 7130.44, 1811.55, 1199.68),
    (_LLAMA_70B, "H200", 8, "fp8"): (
        15355.84, 21195.88, 16941.52, 17278.4, 13181.24, 1983.03, 11142.47, 2717.83, 1920.45),
    (_LLAMA_70B, "H100", 1, "fp8"): (3378.03, 911.62, 426.32, 775.57, 839.97, 343.29, 0, 245.34, 0),
    (_LLAMA_70B, "H100", 2, "fp8"): (
        6645.12, 6169.58, 3897.06, 4972.57, 4390.53, 772.66, 2898.16, 919.73, 443.01),
    (_LLAMA_70B, "H100", 4, "fp8"): (
        11127.53, 11511.93, 7439.41, 9836.7, 7430.99, 1302.6, 5480.03, 1602.78, 920.19),
    (_LLAMA_70B, "H100", 8, "fp8"): (
        14730.69, 17061.82, 14171.43, 14679.33, 11451.16, 1923.41, 8801.95, 2457.42, 1512.6),
}  # fmt: skip
_BEHIND_TRITON = (
    (_LLAMA_8B, "H100", 1, 467, 256, 9420.0),
    (_LLAMA_8B, "H100", 1, 202, 214, 8291.0),
    (_LLAMA_8B, "H200", 1, 467, 256, 10121.0),
    (_LLAMA_70B, "H100", 4, 467, 256, 4103.0),
    (_LLAMA_70B, "H200", 4, 467, 256, 4185.0),
)
_F32_KV = "requests all at once, KV cache in f32"
_ON_CPU = (
    ("avx2", "int8_wo", 98, 64, 131.0, _F32_KV),
    ("avx2", "f16", 98, 64, 136.0, _F32_KV),
    ("avx2", "fp8", 98, 64, 124.0, _F32_KV),
    ("avx2", "int4_awq", 98, 64, 112.0, _F32_KV),
    ("avx512_bf16", "int8_wo", 80, 48, 457.0, "requests all at once, bf16 arithmetic, KV cache in 8 bits"),
)


def references() -> Iterator[Reference]:
    """Yield every figure."""
    for (model, gpu, tp_size, quant), rates in _FLOODED.items():
        for (prompt, output), rate in zip(_LENGTHS, rates, strict=True):
            if rate:
                yield Reference(*model, gpu, tp_size, quant, prompt, output, rate, _BENCH, _FLOOD)
    for model, gpu, tp_size, prompt, output, rate in _BEHIND_TRITON:
        yield Reference(*model, gpu, tp_size, "bf16", prompt, output, rate, _SERVED, "no limit on the rate")
    for device, quant, prompt, output, rate, conditions in _ON_CPU:
        yield Reference(*_SMOLLM2, device, 0, quant, prompt, output, rate, _HERE, conditions)


def nearest_reference(
    *,
    num_parameters: int,
    device: str,
    num_gpus: int,
    quant: str,
    prompt_tokens: float,
    output_tokens: float,
) -> Reference | None:
    """Return the figure for this device, quantisation and size whose lengths are nearest, or None.

    bf16 and f16 count as one: tensor cores multiply both at the same rate.
    """
    best, best_distance = None, math.inf
    for row in references():
        if (row.device, row.num_gpus) != (device, num_gpus) or _plain(row.quant) != _plain(quant):
            continue
        if _ratio(row.num_parameters, num_parameters) > MAX_SIZE_RATIO:
            continue
        ratios = (_ratio(row.prompt_tokens, prompt_tokens), _ratio(row.output_tokens, output_tokens))
        distance = sum(math.log(ratio) for ratio in ratios)
        if max(ratios) <= MAX_LENGTH_RATIO and distance < best_distance:
            best, best_distance = row, distance
    return best


def _plain(quant: str) -> str:
    return "f16" if quant == "bf16" else quant


def _ratio(first: float, second: float) -> float:
    low, high = sorted((max(first, 1.0), max(second, 1.0)))
    return high / low
