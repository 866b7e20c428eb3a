"""Hugging Face checkpoints: what a folder holds, read from its headers alone, and its tensors one by one.

Weights and config.json are held against each other here, tensor by tensor. A library that loads the folder
fills what is missing with random numbers, leaves out what it does not expect, and goes on with a warning.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtb.build.checkpoints.checkpoint_weights import read_weights
from trtb.build.checkpoints.hf_config import (
    HfShape,
    expected_tensors,
    get_family,
    has_tied_embeddings,
    read_config,
    read_rope,
)
from trtb.build.checkpoints.hf_tokenizer import read_tokens, write_tokenizer
from trtb.build.checkpoints.json_file import load_object
from trtb.build.checkpoints.safetensors_file import StoredTensor, read_tensor
from trtb.build.errors import CheckpointError, CheckpointUnsupportedError
from trtb.build.manifest import ModelShape, TokenIds

if TYPE_CHECKING:
    import numpy as np

__all__ = ["HfCheckpoint", "HfShape", "Linear", "load_tensor", "read_config", "read_hf", "write_tokenizer"]

_DTYPES = {"BF16": "bf16", "F16": "f16", "F32": "f32"}
_TORCH_DTYPES = {"bf16": "bfloat16", "f16": "float16", "f32": "float32"}
_LM_HEAD = "lm_head.weight"


@dataclass(frozen=True, slots=True)
class Linear:
    """One kind of matrix that a backend may quantise; every layer has it."""

    name: str  # TensorRT-LLM's: "attention.qkv", "mlp.fc"
    in_features: int
    out_features: int
    is_row_parallel: bool  # tensor parallelism splits in_features; of the others, out_features


def layer_linears(model: ModelShape, intermediate_size: int) -> tuple[Linear, ...]:
    """Return the kinds of matrices of a layer; of experts, those of one."""
    hidden, query = model.hidden_size, model.num_heads * model.head_dim
    qkv = query + 2 * model.num_kv_heads * model.head_dim
    return (
        Linear("attention.qkv", hidden, qkv, is_row_parallel=False),
        Linear("attention.dense", query, hidden, is_row_parallel=True),
        Linear("mlp.fc", hidden, intermediate_size, is_row_parallel=False),
        Linear("mlp.gate", hidden, intermediate_size, is_row_parallel=False),
        Linear("mlp.proj", intermediate_size, hidden, is_row_parallel=True),
    )


@dataclass(frozen=True, slots=True)
class HfCheckpoint:
    """The facts of one Hugging Face folder."""

    path: Path
    config: dict[str, Any]  # config.json as it is
    model: ModelShape
    tokens: TokenIds
    intermediate_size: int
    weight_files: tuple[Path, ...]
    num_parameters: int  # of what the model uses: a second copy of a tied embedding does not count
    weight_bytes: int  # of the same
    dtype: str  # "bf16", "f16" or "f32": of most of the weights
    has_tied_embeddings: bool
    rope_theta: float
    rope_scaling: dict[str, Any] | None
    tensors: dict[str, StoredTensor] = field(repr=False)

    def linears(self) -> tuple[Linear, ...]:
        """Return the kinds of matrices that a backend may quantise; of experts, those of one."""
        return layer_linears(self.model, self.intermediate_size)

    def portable_config(self) -> dict[str, Any]:
        """Return config.json in the keys that transformers 4 and 5 both read, without names of code."""
        dropped = {"rope_parameters", "dtype", "auto_map"}
        return {
            **{key: value for key, value in self.config.items() if key not in dropped},
            "torch_dtype": _TORCH_DTYPES[self.dtype],
            "rope_theta": self.rope_theta,
            "rope_scaling": self.rope_scaling,
            "tie_word_embeddings": self.has_tied_embeddings,
            "head_dim": self.model.head_dim,
            "num_key_value_heads": self.model.num_kv_heads,
            "bos_token_id": self.tokens.bos,
            "eos_token_id": self.tokens.eos,
            "pad_token_id": self.tokens.pad,
        }


def read_hf(path: Path) -> HfCheckpoint:
    """Read what a Hugging Face folder holds; the tensors stay on disk.

    Raises:
        CheckpointError: A file is missing or damaged, or the weights are not those of its config.json.
        CheckpointUnsupportedError: It is of no family that is known here, or quantised already.
    """
    where = str(path / "config.json")
    config = load_object(path / "config.json")
    get_family(where, config)
    if "quantization_config" in config:
        raise CheckpointUnsupportedError(
            f"{where}: quantization_config: the weights are quantised already; expected bf16, f16 or f32",
            "give the checkpoint that this one was made from",
        )
    shape = read_config(path)
    weights = read_weights(path)
    is_tied = has_tied_embeddings(where, config)
    used = _match(path, weights.tensors, expected_tensors(where, config), is_tied)
    theta, scaling = read_rope(where, config)
    return HfCheckpoint(
        path=path,
        config=config,
        model=shape.model,
        tokens=read_tokens(path, config, shape.model.vocab_size),
        intermediate_size=shape.intermediate_size,
        weight_files=weights.files,
        num_parameters=sum(math.prod(tensor.shape) for tensor in used),
        weight_bytes=sum(tensor.size_bytes for tensor in used),
        dtype=_main_dtype(used),
        has_tied_embeddings=is_tied,
        rope_theta=theta,
        rope_scaling=scaling,
        tensors=weights.tensors,
    )


def load_tensor(checkpoint: HfCheckpoint, name: str) -> np.ndarray[Any, Any]:
    """Read one tensor, in its own type; bf16 as float32.

    Raises:
        CheckpointError: There is none of that name.
    """
    tensor = checkpoint.tensors.get(name)
    if tensor is None:
        raise CheckpointError(f"{checkpoint.path}: no tensor {name}; expected one of the weights")
    return read_tensor(tensor)


def _match(
    path: Path, found: dict[str, StoredTensor], expected: dict[str, tuple[int, ...]], is_tied: bool
) -> list[StoredTensor]:
    """Return the tensors that the model uses, each of its expected shape."""
    for name, shape in expected.items():
        if name not in found:
            raise CheckpointError(
                f"{path}: no tensor {name}; config.json expects one of shape {list(shape)}",
                "fetch the checkpoint again; where it is an adapter, merge it into its base first",
            )
        if found[name].shape != shape:
            raise CheckpointError(
                f"{found[name].path}: {name}: shape {list(found[name].shape)}; "
                f"config.json expects {list(shape)}",
                "take config.json and weights from one revision",
            )
    # buffers that can be computed, such as rotary_emb.inv_freq, end otherwise
    others = [name for name in found if name not in expected and name.endswith((".weight", ".bias"))]
    if unknown := [name for name in others if not (is_tied and name == _LM_HEAD)]:
        raise CheckpointUnsupportedError(
            f"{found[unknown[0]].path}: {unknown[0]} ({len(unknown)} such): "
            "no part of a model of this config.json; it would be left out without a word",
            "take config.json and weights from one revision, or choose another checkpoint",
        )
    for name in expected:
        if found[name].dtype not in _DTYPES:
            raise CheckpointUnsupportedError(
                f"{found[name].path}: {name}: type {found[name].dtype}; expected one of {', '.join(_DTYPES)}",
                "give the checkpoint that this one was made from",
            )
    return [found[name] for name in expected]


def _main_dtype(tensors: list[StoredTensor]) -> str:
    num_bytes = dict.fromkeys(_DTYPES, 0)
    for tensor in tensors:
        num_bytes[tensor.dtype] += tensor.size_bytes
    return _DTYPES[max(num_bytes, key=num_bytes.__getitem__)]
