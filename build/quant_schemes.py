"""The table of quantisation schemes: what each means on each backend, what it needs, what it may cost.

`max_perplexity_ratio` is of perplexities on the fixed quality texts, quantised over unquantised. It is set
from measurements on a 135M model, which suffers more from few bits than a larger one, with room: a build
beyond it is not merely coarse, something went wrong. Ratios measured, for TensorRT-LLM from the exported
checkpoint with its weights expanded again: fp8 1.025, int8_sq 1.00 (1.05 with its activations simulated),
nvfp4 1.23, int4_awq and w4a8_awq of groups of 64 1.31 (rounding to nearest without AWQ: 1.46, which is
refused). For OpenVINO: int8_wo 1.007, fp8 1.021, int4_awq 1.155, nvfp4 1.264, mxfp4 1.579.

What a GPU can run is what the builder of TensorRT-LLM 1.2 refuses or warns of, and its support matrix.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal

DEFAULT_QUANT: Final = "int8_wo"

# of the groups' scales and of what stays unquantised
_F32_BYTES = 4
_F16_BYTES = 2

BLACKWELL_DATACENTRE: Final = range(100, 120)
BLACKWELL_WORKSTATION: Final = range(120, 122)


@dataclass(frozen=True, slots=True)
class SmNote:
    """What is known against a scheme on some compute capabilities."""

    sms: range
    why: str
    is_refused: bool = True  # False: it may work, and nobody has shown it


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantScheme:
    """One scheme on one backend."""

    name: str
    backend: Literal["openvino", "tensorrt_llm"]
    weight_bits: int
    activation_bits: int = 16  # of what the matrices are multiplied with; 32 and 16 are not quantised
    # of the token embeddings and the output head; TensorRT-LLM leaves both as they are
    embedding_bits: int = 16
    needs_calibration: bool = False
    group_size: int | None = None  # the default; None: one scale a row or a tensor, or the format's own block
    group_sizes: tuple[int, ...] = ()  # what can be made; () leaves nothing to choose
    # of these, what the GPU's kernels can run
    kernel_group_sizes: tuple[int, ...] = ()
    scale_bytes: int = 0  # of one group's scale, in the files
    # both sides of a rank's part of a matrix are multiples of it, or the kernel cannot take the matrix
    kernel_multiple: int = 1
    min_sm: int | None = None  # 90 for compute capability 9.0
    sm_notes: tuple[SmNote, ...] = ()
    quant_algo: str | None = None  # in the config.json of a TensorRT-LLM checkpoint
    modelopt_config: str | None = None  # of modelopt.torch.quantization; None: ModelOpt only exports
    kv_cache_dtypes: frozenset[str] = field(default_factory=frozenset)  # that it can be asked for with
    max_perplexity_ratio: float
    summary: str

    @property
    def unsafe_sms(self) -> frozenset[int]:
        """Return the compute capabilities above the least one on which it must not be built."""
        return frozenset(sm for note in self.sm_notes if note.is_refused for sm in note.sms)

    def bytes_per_weight(self, group_size: int | None = None) -> float:
        """Return what a weight of a quantised matrix takes in the files, its share of the scale included.

        >>> get_row("tensorrt_llm", "int4_awq").bytes_per_weight(64)
        0.5625
        """
        group_size = group_size or self.group_size
        return self.weight_bits / 8 + (self.scale_bytes / group_size if group_size else 0.0)

    def sm_fault(self, sm: int) -> str | None:
        """Return why a GPU of this compute capability cannot run the scheme, or None where it may."""
        if self.min_sm is not None and sm < self.min_sm:
            return f"expected sm_{self.min_sm} or later"
        return next((note.why for note in self.sm_notes if note.is_refused and sm in note.sms), None)

    def distance(self, other: QuantScheme) -> tuple[float, ...]:
        """Order schemes by how well they replace another: none much worse, as many bits, the best."""
        return (
            other.max_perplexity_ratio > self.max_perplexity_ratio + 0.1,
            abs(other.weight_bits - self.weight_bits),
            other.max_perplexity_ratio,
        )


# trtllm-build raises for these on sm_100 and above, and below sm_120
_NO_INTEGER_WEIGHTS = SmNote(BLACKWELL_DATACENTRE, "TensorRT-LLM's builder has no integer weights there")
_NO_SMOOTHQUANT = SmNote(BLACKWELL_DATACENTRE, "TensorRT-LLM's builder has no SmoothQuant there")
_WRONG_LAYOUT = SmNote(
    BLACKWELL_WORKSTATION, "TensorRT-LLM before 1.3 lays 4-bit weights out wrongly there, and says nothing"
)
_NOT_LISTED = SmNote(BLACKWELL_WORKSTATION, "TensorRT-LLM's support matrix does not list it there", False)

_TRTLLM_KV: Final = frozenset({"auto", "bf16", "f16", "fp8", "int8"})
_TRTLLM_FP8_KV: Final = frozenset({"auto", "bf16", "f16", "fp8"})
_OPENVINO_KV: Final = frozenset({"auto", "f32"})

# "Our kernels only handle dims which are multiples of 64 for weight-only quantization", says the C++ source
# that lays integer weights out
_INTEGER_MULTIPLE = 64


SCHEMES: Final[tuple[QuantScheme, ...]] = (
    QuantScheme(
        name="bf16",
        backend="tensorrt_llm",
        weight_bits=16,
        min_sm=80,
        kv_cache_dtypes=_TRTLLM_KV,
        max_perplexity_ratio=1.01,
        summary="weights as bfloat16",
    ),
    QuantScheme(
        name="f16",
        backend="tensorrt_llm",
        weight_bits=16,
        min_sm=80,
        kv_cache_dtypes=_TRTLLM_KV,
        max_perplexity_ratio=1.01,
        summary="weights in half precision",
    ),
    QuantScheme(
        name="fp8",
        backend="tensorrt_llm",
        weight_bits=8,
        activation_bits=8,
        needs_calibration=True,
        min_sm=89,
        quant_algo="FP8",
        modelopt_config="FP8_DEFAULT_CFG",
        kv_cache_dtypes=_TRTLLM_FP8_KV,
        max_perplexity_ratio=1.10,
        summary="FP8 E4M3 weights and activations, one scale a tensor",
    ),
    QuantScheme(
        name="int8_wo",
        backend="tensorrt_llm",
        weight_bits=8,
        kernel_multiple=_INTEGER_MULTIPLE,
        min_sm=80,
        sm_notes=(_NO_INTEGER_WEIGHTS, _NOT_LISTED),
        quant_algo="W8A16",
        kv_cache_dtypes=_TRTLLM_KV,
        max_perplexity_ratio=1.02,
        summary="8-bit weights, one scale a row; quantised as the engine is compiled",
    ),
    QuantScheme(
        name="int8_sq",
        backend="tensorrt_llm",
        weight_bits=8,
        activation_bits=8,
        needs_calibration=True,
        min_sm=80,
        sm_notes=(_NO_SMOOTHQUANT, _NOT_LISTED),
        quant_algo="W8A8_SQ_PER_CHANNEL",
        modelopt_config="INT8_SMOOTHQUANT_CFG",
        kv_cache_dtypes=_TRTLLM_KV,
        max_perplexity_ratio=1.25,
        summary="8-bit weights and activations, SmoothQuant",
    ),
    QuantScheme(
        name="int4_awq",
        backend="tensorrt_llm",
        weight_bits=4,
        needs_calibration=True,
        group_size=128,
        group_sizes=(64, 128),
        kernel_group_sizes=(64, 128),
        scale_bytes=_F32_BYTES,
        kernel_multiple=_INTEGER_MULTIPLE,
        min_sm=80,
        sm_notes=(_NO_INTEGER_WEIGHTS, _WRONG_LAYOUT),
        quant_algo="W4A16_AWQ",
        modelopt_config="INT4_AWQ_CFG",
        kv_cache_dtypes=_TRTLLM_KV,
        max_perplexity_ratio=1.45,
        summary="4-bit weights in groups, activation-aware (AWQ)",
    ),
    QuantScheme(
        name="w4a8_awq",
        backend="tensorrt_llm",
        weight_bits=4,
        activation_bits=8,
        needs_calibration=True,
        group_size=128,
        group_sizes=(64, 128),
        kernel_group_sizes=(128,),  # TensorRT-LLM: "W4A8_AWQ with group_size = 64 is not implemented yet"
        scale_bytes=_F32_BYTES,
        kernel_multiple=_INTEGER_MULTIPLE,
        min_sm=89,
        sm_notes=(_NO_INTEGER_WEIGHTS, _WRONG_LAYOUT),
        quant_algo="W4A8_AWQ",
        modelopt_config="W4A8_AWQ_BETA_CFG",
        kv_cache_dtypes=_TRTLLM_FP8_KV,
        max_perplexity_ratio=1.45,
        summary="4-bit weights in groups, AWQ, and FP8 activations",
    ),
    QuantScheme(
        name="int4_wo",
        backend="tensorrt_llm",
        weight_bits=4,
        kernel_multiple=_INTEGER_MULTIPLE,
        min_sm=80,
        sm_notes=(_NO_INTEGER_WEIGHTS, _WRONG_LAYOUT),
        quant_algo="W4A16",
        kv_cache_dtypes=_TRTLLM_KV,
        max_perplexity_ratio=2.20,  # 1.82 where its rounding is simulated
        summary="4-bit weights, one scale a row: coarse; quantised as the engine is compiled",
    ),
    QuantScheme(
        name="nvfp4",
        backend="tensorrt_llm",
        weight_bits=4,
        activation_bits=4,
        needs_calibration=True,
        group_size=16,
        group_sizes=(16,),
        kernel_group_sizes=(16,),
        scale_bytes=1,
        min_sm=100,
        quant_algo="NVFP4",
        modelopt_config="NVFP4_DEFAULT_CFG",
        kv_cache_dtypes=_TRTLLM_FP8_KV,
        max_perplexity_ratio=1.40,
        summary="FP4 E2M1 weights and activations, FP8 scales in groups of 16",
    ),
    QuantScheme(
        name="f16",
        backend="openvino",
        weight_bits=16,
        kv_cache_dtypes=_OPENVINO_KV,
        max_perplexity_ratio=1.0,
        summary="weights as they are, in half precision",
    ),
    QuantScheme(
        name="int8_wo",
        backend="openvino",
        weight_bits=8,
        embedding_bits=8,
        kv_cache_dtypes=_OPENVINO_KV,
        max_perplexity_ratio=1.02,
        summary="8-bit weights (from a GGUF file: blocks of 32)",
    ),
    QuantScheme(
        name="fp8",
        backend="openvino",
        weight_bits=8,
        embedding_bits=8,
        group_size=64,
        group_sizes=(16, 32, 64, 128, 256),
        scale_bytes=_F16_BYTES,
        kv_cache_dtypes=_OPENVINO_KV,
        max_perplexity_ratio=1.10,
        summary="FP8 E4M3 weights in groups",
    ),
    QuantScheme(
        name="int4_awq",
        backend="openvino",
        weight_bits=4,
        embedding_bits=8,
        needs_calibration=True,
        group_size=64,
        group_sizes=(16, 32, 64, 128, 256),
        scale_bytes=_F16_BYTES,
        kv_cache_dtypes=_OPENVINO_KV,
        max_perplexity_ratio=1.30,
        summary="4-bit weights in groups, AWQ and scale estimation",
    ),
    QuantScheme(
        name="nvfp4",
        backend="openvino",
        weight_bits=4,
        embedding_bits=8,
        group_size=16,
        group_sizes=(16,),
        scale_bytes=1,
        kv_cache_dtypes=_OPENVINO_KV,
        max_perplexity_ratio=1.40,  # 1.23 where its rounding is simulated
        summary="FP4 E2M1 weights, FP8 scales in groups of 16",
    ),
    QuantScheme(
        name="mxfp4",
        backend="openvino",
        weight_bits=4,
        embedding_bits=8,
        group_size=32,
        group_sizes=(32,),
        scale_bytes=1,
        kv_cache_dtypes=_OPENVINO_KV,
        max_perplexity_ratio=1.70,  # 1.49 where its rounding is simulated
        summary="FP4 E2M1 weights, power-of-two scales in groups of 32",
    ),
)


def get_row(backend: str, quant: str) -> QuantScheme | None:
    """Return a backend's scheme of that name, or None."""
    return next((row for row in SCHEMES if (row.backend, row.name) == (backend, quant)), None)
