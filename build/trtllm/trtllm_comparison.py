"""A checkpoint's weights against those it was made from: equal where nothing was quantised, near elsewhere.

Each rank is read by itself and its rows are held against the rows and columns of the original that belong
there, so a shard in the wrong place, a pair of nibbles exchanged or two matrices exchanged show as an error
near 1.4, the distance of two unrelated matrices. Memory holds a part of one matrix.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from trtb.build.checkpoints.safetensors_file import StoredTensor, from_bf16, to_bf16
from trtb.build.checkpoints.weight_values import not_finite
from trtb.build.errors import QuantizationError
from trtb.build.trtllm.trtllm_numerics import (
    Array,
    decode_e4m3,
    scale_groups,
    unpack_e2m1_columns,
    unpack_int4_rows,
)
from trtb.build.trtllm.trtllm_tensors import CheckpointOptions, qkv_rows

if TYPE_CHECKING:
    from trtb.build.checkpoints.hf_checkpoint import HfCheckpoint

_CHUNK_VALUES = 1 << 23  # compared at a time: 32 MiB of float32, a few times over

_BITS = {"BF16": "<u2", "F16": "<f2", "F32": "<f4", "F8_E4M3": "u1", "I8": "i1", "U8": "u1"}

_LINEARS = {
    "attention.dense": "self_attn.o_proj",
    "mlp.fc": "mlp.gate_proj",  # TensorRT-LLM's names: fc is the one that passes the activation function
    "mlp.gate": "mlp.up_proj",
    "mlp.proj": "mlp.down_proj",
}
_ROW_PARALLEL = ("attention.dense", "mlp.proj")
_NORMS = {
    "input_layernorm": "input_layernorm",
    "post_layernorm": "post_attention_layernorm",
    "attention.q_layernorm": "self_attn.q_norm",
    "attention.k_layernorm": "self_attn.k_norm",
}

Rank = dict[str, StoredTensor]


@dataclass(frozen=True, slots=True)
class _Part:
    """Rows of a rank's tensor, and where in the original they come from."""

    stored: str  # without ".weight"
    row: int
    num_rows: int
    original: str  # likewise
    original_row: int = 0
    original_column: int = 0


@dataclass(frozen=True, slots=True)
class MatrixError:
    """How far a matrix is from its original: the norm of the difference over that of the original."""

    kind: str  # "attention.qkv"
    tensor: str  # with its rank file
    relative_error: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """One rank, ready to be compared."""

    source: HfCheckpoint
    options: CheckpointOptions
    rank: Rank
    tp_rank: int
    pp_rank: int

    def matrix_errors(self, layer: int) -> Iterator[MatrixError]:
        """Yield the error of each quantised matrix of one layer of this stage; query, key and value apart.

        Raises:
            QuantizationError: A value is not a number, or a matrix that was not quantised differs.
            CheckpointError: The original holds a value that is not a number.
        """
        for part in self._linear_parts(layer):
            if self.options.stored_algo is None:
                self._check_equal(part, "weight")
                error = 0.0
            else:
                error = self._relative_error(part)
            kind = part.stored.split(".", 3)[3]
            name = self.rank[f"{part.stored}.weight"]
            yield MatrixError(kind, f"{name.path.name}: {name.name} ({part.original})", error)
            if f"{part.stored}.bias" in self.rank:
                self._check_equal(part, "bias")

    def check_rest(self, layer: int | None) -> None:
        """Hold what is never quantised against the original: a layer's norms, or with None what no layer has.

        Raises:
            QuantizationError: A value differs.
            CheckpointError: The original holds a value that is not a number.
        """
        if layer is None:
            for part in self._global_parts():
                self._check_equal(part, "weight")
            return
        for name, original in _NORMS.items():
            stored = f"transformer.layers.{layer}.{name}"
            if f"{stored}.weight" in self.rank:
                num_rows = self.rank[f"{stored}.weight"].shape[0]
                self._check_equal(
                    _Part(stored, 0, num_rows, f"{self._original_layer(layer)}.{original}"), "weight"
                )

    def _original_layer(self, layer: int) -> str:
        num_layers = self.source.model.num_layers // self.options.pp_size
        return f"model.layers.{self.pp_rank * num_layers + layer}"

    def _linear_parts(self, layer: int) -> Iterator[_Part]:
        stored, original = f"transformer.layers.{layer}", self._original_layer(layer)
        row = 0
        query, key = qkv_rows(self.source, self.options.tp_size)
        model = self.source.model
        # with more ranks than KV heads, several ranks hold the same head
        kv_row = self.tp_rank * model.num_kv_heads // self.options.tp_size * model.head_dim
        for letter, num_rows, begin in (
            ("q", query, self.tp_rank * query),
            ("k", key, kv_row),
            ("v", key, kv_row),
        ):
            yield _Part(
                f"{stored}.attention.qkv", row, num_rows, f"{original}.self_attn.{letter}_proj", begin
            )
            row += num_rows
        for name, hf_name in _LINEARS.items():
            weight = self.source.tensors[f"{original}.{hf_name}.weight"]
            rows, columns = weight.shape
            if name in _ROW_PARALLEL:
                begin = self.tp_rank * (columns // self.options.tp_size)
                yield _Part(f"{stored}.{name}", 0, rows, f"{original}.{hf_name}", original_column=begin)
            else:
                rows //= self.options.tp_size
                yield _Part(f"{stored}.{name}", 0, rows, f"{original}.{hf_name}", self.tp_rank * rows)

    def _global_parts(self) -> Iterator[_Part]:
        embedding = "model.embed_tokens"
        head = embedding if self.source.has_tied_embeddings else "lm_head"
        for stored, original in (("transformer.vocab_embedding", embedding), ("lm_head", head)):
            if (tensor := self.rank.get(f"{stored}.weight")) is not None:
                yield _Part(stored, 0, tensor.shape[0], original, self.tp_rank * tensor.shape[0])
        if (tensor := self.rank.get("transformer.ln_f.weight")) is not None:
            yield _Part("transformer.ln_f", 0, tensor.shape[0], "model.norm")

    def _relative_error(self, part: _Part) -> float:
        weight = self.rank[f"{part.stored}.weight"]
        original = self.source.tensors[f"{part.original}.weight"]
        columns = _width(weight)
        difference = norm = 0.0
        step = max(2, _CHUNK_VALUES // columns & ~1)
        for start in range(0, part.num_rows, step):
            stop = min(start + step, part.num_rows)
            values = _dequantise(self.rank, part.stored, part.row + start, part.row + stop)
            rows = slice(part.original_row + start, part.original_row + stop)
            place = slice(part.original_column, part.original_column + columns)
            expected = _read_original(original, rows, place)
            if not np.isfinite(values).all():
                raise QuantizationError(f"{weight.path.name}: {weight.name}: not a number; expected finite")
            norm += float(np.vdot(expected, expected))
            values -= expected
            difference += float(np.vdot(values, values))
        if norm == 0.0:
            return 0.0 if difference == 0.0 else math.inf
        return math.sqrt(difference / norm)

    def _check_equal(self, part: _Part, kind: str) -> None:
        stored = self.rank[f"{part.stored}.{kind}"]
        original = self.source.tensors[f"{part.original}.{kind}"]
        # a row-parallel bias is added once, after the sum over the ranks: it is whole in each of them
        columns = slice(part.original_column, part.original_column + stored.shape[-1])
        step = max(1, _CHUNK_VALUES // math.prod(stored.shape[1:]))
        for start in range(0, part.num_rows, step):
            stop = min(start + step, part.num_rows)
            rows = slice(part.original_row + start, part.original_row + stop)
            expected = _read_original(original, rows, columns if len(original.shape) > 1 else None)
            if self._is_gemma_norm(part):
                expected = expected + np.float32(1)  # as these norms multiply; the sum is stored
            values = _map(stored)[part.row + start : part.row + stop]
            wanted = _pad(_cast(expected, stored.dtype), len(values))
            if np.array_equal(values, wanted):
                continue
            row = int(np.flatnonzero((values != wanted).reshape(len(values), -1).any(axis=1))[0])
            raise QuantizationError(
                f"{stored.path.name}: {stored.name}: row {part.row + start + row} differs from that of "
                f"{part.original}.{kind}; expected the same weights, as {stored.dtype}"
            )

    def _is_gemma_norm(self, part: _Part) -> bool:
        return self.source.config["model_type"] == "gemma" and part.original.endswith("norm")


def _map(tensor: StoredTensor) -> Array:
    """Return a tensor's values from the mapped file, BF16 and F8 as their bits."""
    dtype = np.dtype(_BITS[tensor.dtype])
    if not tensor.size_bytes:
        return np.empty(tensor.shape, dtype)
    return np.asarray(np.memmap(tensor.path, dtype, "r", tensor.offset, tensor.shape))


def read_float(tensor: StoredTensor) -> Array:
    """Read a whole tensor as float32."""
    return _to_float(_map(tensor), tensor.dtype)


def _read_original(tensor: StoredTensor, rows: slice, columns: slice | None) -> Array:
    mapped = _map(tensor)[rows]
    values = _to_float(mapped if columns is None else mapped[:, columns], tensor.dtype)
    if not np.isfinite(values).all():  # no fault of the quantisation, and equal to nothing
        raise not_finite(tensor)
    return values


def _to_float(values: Array, dtype: str) -> Array:
    if dtype == "BF16":
        return from_bf16(np.ascontiguousarray(values))
    if dtype == "F8_E4M3":
        return decode_e4m3(values)
    return values.astype(np.float32)


def _cast(values: Array, dtype: str) -> Array:
    return to_bf16(values) if dtype == "BF16" else values.astype(_BITS[dtype])


def _pad(values: Array, num_rows: int) -> Array:
    """Append the zeros that stand after the last token of a vocabulary."""
    if len(values) == num_rows:
        return values
    return np.concatenate([values, np.zeros((num_rows - len(values), *values.shape[1:]), values.dtype)])


def _width(weight: StoredTensor) -> int:
    return weight.shape[1] * (2 if weight.dtype == "U8" else 1)


def _dequantise(rank: Rank, linear: str, start: int, stop: int) -> Array:
    """Return rows of a quantised matrix as what they are worth, float32 (stop - start, columns)."""
    weight, scale = rank[f"{linear}.weight"], rank[f"{linear}.weights_scaling_factor"]
    if weight.dtype == "F8_E4M3":
        return decode_e4m3(_map(weight)[start:stop]) * read_float(scale)
    if weight.dtype == "U8":
        values = unpack_e2m1_columns(_map(weight)[start:stop])
        second = read_float(rank[f"{linear}.weights_scaling_factor_2"])
        return scale_groups(values, decode_e4m3(_map(scale)[start:stop]) * second)
    if len(scale.shape) == 1:
        values = _map(weight)[start:stop].astype(np.float32)
        values *= _map(scale)[start:stop, None]
    else:  # a byte holds two rows
        first = start // 2
        values = unpack_int4_rows(_map(weight)[first : -(-stop // 2)]).astype(np.float32)
        values = scale_groups(values[start - 2 * first : stop - 2 * first], _map(scale)[start:stop])
    values *= read_float(rank[f"{linear}.prequant_scaling_factor"])
    return values
