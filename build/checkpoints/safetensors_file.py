"""The safetensors format: a header checked to its last byte, tensors read one at a time, files written alike.

The format's own library checks a header too, but names neither the tensor nor what was expected of it.
Files written here are the same bytes for the same tensors, so a pin can be compared between machines.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtb.build.checkpoints.json_file import unique_object
from trtb.build.errors import CheckpointError, CheckpointUnsupportedError

if TYPE_CHECKING:
    import numpy as np

MAX_HEADER_BYTES = 100_000_000  # the format's own limit

DTYPE_BITS = {
    **dict.fromkeys(("F64", "I64", "U64", "C64"), 64),
    **dict.fromkeys(("F32", "I32", "U32"), 32),
    **dict.fromkeys(("F16", "BF16", "I16", "U16"), 16),
    **dict.fromkeys(("I8", "U8", "BOOL"), 8),
    **dict.fromkeys(("F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    "F4": 4,
}
_NUMPY_DTYPES = {
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "BF16": "<u2",
    "I64": "<i8",
    "I32": "<i4",
    "I16": "<i2",
    "I8": "i1",
    "U64": "<u8",
    "U32": "<u4",
    "U16": "<u2",
    "U8": "u1",
    "BOOL": "?",
}
_HEADER_ALIGNMENT = 8


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One tensor of a safetensors file; `offset` counts from the file's begin."""

    path: Path
    name: str
    dtype: str  # the format's name: "BF16", "F8_E4M3"
    shape: tuple[int, ...]
    offset: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One tensor to be written."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def size_bytes(self) -> int:
        """Return the bytes of its data."""
        return math.prod(self.shape) * DTYPE_BITS[self.dtype] // 8


def read_header(path: Path) -> dict[str, StoredTensor]:
    """Read and check a file's header: its tensors by name, in the order of their data.

    Known types, sizes that shape and type give, no gap, no overlap, no name twice, and data up to the
    file's last byte: a download that was cut off shows only here.

    Raises:
        CheckpointError: Any of this is not so.
    """
    size_bytes = path.stat().st_size
    data_start, header = _read_json(path, size_bytes)
    _check_metadata(path, header.pop("__metadata__", {}))
    if not header:
        raise CheckpointError(f"{path}: no tensors; expected weights", "fetch the checkpoint again")
    tensors = [_parse_entry(path, name, entry, data_start) for name, entry in header.items()]
    tensors.sort(key=lambda tensor: (tensor.offset, tensor.size_bytes))
    end = data_start
    for tensor in tensors:
        if tensor.offset != end:
            raise CheckpointError(
                f"{path}: {tensor.name}: data begins at byte {tensor.offset}; expected {end}, "
                "where the tensor before it ends",
                "fetch the checkpoint again",
            )
        end += tensor.size_bytes
    if end != size_bytes:
        raise CheckpointError(f"{path}: {size_bytes} bytes; expected {end}", "fetch the checkpoint again")
    return {tensor.name: tensor for tensor in tensors}


def read_tensor(tensor: StoredTensor) -> np.ndarray[Any, Any]:
    """Read one tensor, in its own type; BF16, which numpy lacks, as float32.

    Raises:
        CheckpointError: The file is shorter than its header says.
        CheckpointUnsupportedError: Its type is one of those that numpy lacks.
    """
    import numpy as np

    if tensor.dtype not in _NUMPY_DTYPES:
        raise CheckpointUnsupportedError(
            f"{tensor.path}: {tensor.name}: type {tensor.dtype}; expected one of {', '.join(_NUMPY_DTYPES)}"
        )
    count = math.prod(tensor.shape)
    values = np.fromfile(tensor.path, _NUMPY_DTYPES[tensor.dtype], count, offset=tensor.offset)
    if values.size != count:
        raise CheckpointError(f"{tensor.path}: {tensor.name}: {values.size} values; expected {count}")
    if tensor.dtype == "BF16":
        values = from_bf16(values)
    return values.reshape(tensor.shape)


def write_safetensors(
    path: Path, specs: Sequence[TensorSpec], produce: Callable[[TensorSpec], np.ndarray[Any, Any]]
) -> None:
    """Write a file of tensors, one in memory at a time; the same tensors give the same bytes.

    Args:
        path: The file; it is not synced.
        specs: The tensors, in the order of their data.
        produce: Returns a tensor's values in the bits of its type: BF16 as uint16.
    """
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}  # transformers refuses a file without it
    end = 0
    for spec in specs:
        header[spec.name] = {
            "dtype": spec.dtype,
            "shape": list(spec.shape),
            "data_offsets": [end, end + spec.size_bytes],
        }
        end += spec.size_bytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _HEADER_ALIGNMENT)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for spec in specs:
            values = produce(spec)
            assert (values.nbytes, values.shape) == (spec.size_bytes, spec.shape), spec.name
            values.tofile(file)


def to_bf16(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return float32 values as bfloat16 bits (uint16), rounded to the nearest, ties to even."""
    import numpy as np

    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    rounded = ((bits + (((bits >> 16) & 1) + np.uint32(0x7FFF))) >> 16).astype(np.uint16)
    is_nan = np.isnan(values)
    if is_nan.any():  # rounding could carry one into infinity
        rounded[is_nan] = (bits[is_nan] >> 16).astype(np.uint16) | np.uint16(0x40)
    return rounded


def from_bf16(bits: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return bfloat16 bits (uint16) as float32, exactly."""
    import numpy as np

    widened: np.ndarray[Any, Any] = (bits.astype(np.uint32) << 16).view(np.float32)
    return widened


def _read_json(path: Path, size_bytes: int) -> tuple[int, dict[str, Any]]:
    try:
        with path.open("rb") as file:
            (header_bytes,) = struct.unpack("<Q", file.read(8))
            if header_bytes > min(size_bytes - 8, MAX_HEADER_BYTES):
                raise ValueError(f"its length is given as {header_bytes}")
            header = json.loads(file.read(header_bytes).decode(), object_pairs_hook=unique_object)
        if not isinstance(header, dict):
            raise TypeError(f"a {type(header).__name__}")
    except (ValueError, TypeError, RecursionError, struct.error) as exc:
        raise CheckpointError(
            f"{path}: {size_bytes} bytes, damaged header ({exc}); expected a safetensors file",
            "fetch the checkpoint again",
        ) from exc
    return 8 + header_bytes, header


def _check_metadata(path: Path, metadata: Any) -> None:
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise CheckpointError(
            f"{path}: __metadata__: {str(metadata)[:200]}; expected an object of texts",
            "fetch the checkpoint again",
        )


def _parse_entry(path: Path, name: str, entry: Any, data_start: int) -> StoredTensor:
    try:
        dtype, shape = entry["dtype"], entry["shape"]
        begin, end = entry["data_offsets"]
        bits = DTYPE_BITS[dtype] * math.prod(shape)
        if not all(type(size) is int and size >= 0 for size in (*shape, begin, end)):
            raise ValueError("not whole numbers")
    except (ValueError, KeyError, TypeError) as exc:
        raise CheckpointError(
            f"{path}: {name}: damaged header: {str(entry)[:200]}; expected dtype, shape and data_offsets",
            "fetch the checkpoint again",
        ) from exc
    if (end - begin) * 8 != bits:
        raise CheckpointError(
            f"{path}: {name}: {end - begin} bytes; {dtype} of shape {shape} takes {bits / 8:g}",
            "fetch the checkpoint again",
        )
    return StoredTensor(path, name, dtype, tuple(shape), data_start + begin, end - begin)
