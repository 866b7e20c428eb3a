"""Where an engine's memory goes: weights, activations, what the runtime keeps, and the rest for the KV cache.

Pure arithmetic over a model's shape: a config.json alone is enough. On a GPU each figure is of one rank.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from trtb.build import kv_cache
from trtb.build.checkpoints.hf_checkpoint import Linear, layer_linears
from trtb.build.manifest import ModelShape
from trtb.build.quant_schemes import QuantScheme

TOKENS_PER_BLOCK: Final = 32  # trtllm-build's default, and fixed by openvino-genai on CPU

_MIB: Final = 1 << 20
_F32 = 4

# From the log in TensorRT-LLM's memory reference (a 7B FP8 engine on an 80 GB H100): what was gone, beyond
# weights, activations and decoder, when the KV pool was sized; and what CUDA does not show of NVML's total.
GPU_RUNTIME_BYTES: Final = 800 * _MIB
GPU_HIDDEN_BYTES: Final = 600 * _MIB
# NCCL's buffers and the all-reduce workspace of a rank that has peers
GPU_PEER_BYTES: Final = 512 * _MIB
# logits in f32 and the sampler's sorted copies, for each request in flight and token of the vocabulary:
# 180 MB for 256 requests and 32,000 tokens in the same log
_DECODER_BYTES = 22
# the share of the memory left that TensorRT-LLM gives to the KV cache unless told otherwise
FREE_GPU_MEMORY_FRACTION: Final = 0.9

# resident, beyond weights and KV cache: the libraries, the compiled model's buffers and the python stub
CPU_RUNTIME_BYTES: Final = 600 * _MIB


@dataclass(frozen=True, slots=True)
class Sizes:
    """What memory planning needs to know of a model: its shape, and what the shape does not say."""

    name: str
    shape: ModelShape
    intermediate_size: int
    num_parameters: int
    has_tied_embeddings: bool

    @property
    def num_quantised(self) -> int:
        """Return the weights in the matrices of all layers: what a scheme quantises."""
        if self.shape.architecture == "mixtral":  # its shape does not say how many experts there are
            return self.num_parameters - self.num_tables * self.num_embedding
        return self.shape.num_layers * sum(row.in_features * row.out_features for row in self.linears())

    @property
    def num_embedding(self) -> int:
        """Return the weights of one table of embeddings."""
        return self.shape.vocab_size * self.shape.hidden_size

    @property
    def num_tables(self) -> int:
        """Return how many tables of embeddings the checkpoint has."""
        return 1 if self.has_tied_embeddings else 2

    def linears(self) -> tuple[Linear, ...]:
        """Return the kinds of matrices that a backend may quantise; of experts, those of one."""
        return layer_linears(self.shape, self.intermediate_size)


def gpu_weight_bytes(
    sizes: Sizes, scheme: QuantScheme, group_size: int | None, tp_size: int, pp_size: int
) -> int:
    """Return a rank's share of the weights of a TensorRT-LLM checkpoint.

    The table of embeddings and lm_head are both there, in 16 bits, even where a checkpoint ties them; so a
    stage of a pipeline has one of the two, and the only stage both.
    """
    quantised = sizes.num_quantised * scheme.bytes_per_weight(group_size)
    rest = max(0, sizes.num_parameters - sizes.num_quantised - sizes.num_tables * sizes.num_embedding)
    layers = (quantised + 2 * rest) / sizes.shape.num_layers * math.ceil(sizes.shape.num_layers / pp_size)
    tables = 2 * (2 if pp_size == 1 else 1) * sizes.num_embedding
    return math.ceil((layers + tables) / tp_size)


def cpu_weight_bytes(sizes: Sizes, scheme: QuantScheme, group_size: int | None) -> int:
    """Return the bytes of an OpenVINO engine's weights on disk."""
    tables = sizes.num_tables * sizes.num_embedding
    in_layers = (sizes.num_parameters - tables) * _cpu_bytes(scheme.weight_bits, scheme, group_size)
    return math.ceil(in_layers + tables * _cpu_bytes(scheme.embedding_bits, scheme, None))


def gpu_reserve_bytes(sizes: Sizes, max_batch_size: int, max_num_tokens: int, tp_size: int) -> int:
    """Return what a rank needs beside weights and KV cache; an estimate, and generous.

    Activations grow with the tokens of one step: 4 times the MLP's width and 6 times the model's, in 16
    bits, were 11 % above the 1,134 MiB that the reference log shows for 8,192 tokens of a 7B model.
    """
    shape = sizes.shape
    heads = (shape.num_heads + 2 * shape.num_kv_heads) * shape.head_dim
    width = 4 * sizes.intermediate_size / tp_size + 6 * shape.hidden_size + heads / tp_size
    activations = 2 * width * max_num_tokens
    decoder = _DECODER_BYTES * max_batch_size * shape.vocab_size
    peers = GPU_PEER_BYTES if tp_size > 1 else 0
    return math.ceil(activations + decoder) + GPU_RUNTIME_BYTES + GPU_HIDDEN_BYTES + peers


def cpu_reserve_bytes(
    sizes: Sizes, scheme: QuantScheme, weight_bytes: int, max_batch_size: int, max_num_tokens: int
) -> int:
    """Return what the CPU engine needs beside its mapped weights and the KV cache; its arithmetic is in f32.

    The compiled model is a copy of the weights, of 16-bit ones in f32 and packed once more: a process with a
    135M engine held 4.3 times the 269 MB of F16 weights after its first answers, and 3.1 times the 144 MB
    of Q8_0 weights, of which 150 MB were no weights.
    """
    shape = sizes.shape
    compiled = 3 * weight_bytes if scheme.weight_bits >= 16 else weight_bytes
    activations = _F32 * max_num_tokens * (6 * shape.hidden_size + 4 * sizes.intermediate_size)
    logits = _F32 * max_batch_size * shape.vocab_size
    return compiled + activations + logits + CPU_RUNTIME_BYTES


def kv_bytes_per_token(shape: ModelShape, dtype: str, tp_size: int = 1, pp_size: int = 1) -> int:
    """Return the bytes that one token takes in a rank's KV cache; a KV head is on one rank at least.

    >>> llama = dict(architecture="llama", num_layers=32, num_heads=32, num_kv_heads=8, head_dim=128)
    >>> shape = ModelShape(**llama, hidden_size=4096, vocab_size=128256, max_position_embeddings=131072)
    >>> kv_bytes_per_token(shape, "bf16") // 1024, kv_bytes_per_token(shape, "fp8", tp_size=4) // 1024
    (128, 16)
    """
    num_layers = math.ceil(shape.num_layers / pp_size)
    num_kv_heads = math.ceil(shape.num_kv_heads / tp_size)
    return kv_cache.num_bytes_per_token(num_layers, num_kv_heads, shape.head_dim, dtype)


def peak_build_bytes(sizes: Sizes, scheme: QuantScheme) -> int:
    """Return the host memory that quantising and compiling takes at its peak, roughly.

    On the CPU backend: the F16 model and its f32 compilation, or nncf's copies (measured on a 135M model).
    For TensorRT-LLM there is no official figure; reports of builds that were killed (256 GB of host memory
    were too little for AWQ of a 70B model, 48 GB are asked for 7B) come to twice the 16-bit checkpoint.
    """
    if scheme.backend == "openvino":
        uses_nncf = scheme.name not in ("f16", "int8_wo")
        return cpu_build_bytes(sizes.num_parameters, sizes.shape.vocab_size, uses_nncf=uses_nncf)
    return 2 * checkpoint_bytes(sizes) + 2048 * _MIB


def cpu_build_bytes(num_parameters: int, vocab_size: int, *, uses_nncf: bool) -> int:
    """Return the peak of a CPU build: the F16 model compiled in f32, or nncf's copies; and the libraries."""
    bytes_per_parameter = 8 if uses_nncf else 6
    logits_bytes = 20 * 512 * vocab_size  # of the longest quality text, in float32 and float64
    return num_parameters * bytes_per_parameter + logits_bytes + 600 * _MIB


def checkpoint_bytes(sizes: Sizes) -> int:
    """Return the size of the model's 16-bit checkpoint."""
    return 2 * sizes.num_parameters


def _cpu_bytes(bits: int, scheme: QuantScheme, group_size: int | None) -> float:
    if bits == 8 and (group_size or scheme.group_size) is None:
        return 1 + 2 / 32  # Q8_0: a 16-bit scale for a block of 32
    return scheme.bytes_per_weight(group_size) if bits == scheme.weight_bits else bits / 8
