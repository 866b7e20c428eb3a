"""The number formats of TensorRT-LLM checkpoints, decoded with numpy: what a stored weight is worth.

Tables instead of casts: numpy has no type of eight or four floating bits, and a table of all values can be
held against another implementation as a whole.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

NVFP4_BLOCK = 16


def _decode_float(bits: int, exponent_bits: int, mantissa_bits: int) -> float:
    """Return the value of a small IEEE-like float, subnormals included, no code of it special."""
    bias = (1 << (exponent_bits - 1)) - 1
    mantissa = bits & ((1 << mantissa_bits) - 1)
    exponent = (bits >> mantissa_bits) & ((1 << exponent_bits) - 1)
    sign = -1.0 if bits >> (exponent_bits + mantissa_bits) else 1.0
    if exponent == 0:
        return float(sign * mantissa * 2.0 ** (1 - bias - mantissa_bits))
    return float(sign * (1 + mantissa / (1 << mantissa_bits)) * 2.0 ** (exponent - bias))


def _e4m3_table() -> Array:
    table = np.array([_decode_float(bits, 4, 3) for bits in range(256)], np.float32)
    table[[0x7F, 0xFF]] = np.nan  # E4M3 has no infinity, and one NaN of each sign
    return table


E4M3 = _e4m3_table()  # by its eight bits
E2M1 = np.array([_decode_float(bits, 2, 1) for bits in range(16)], np.float32)  # by its four


def decode_e4m3(bits: Array) -> Array:
    """Return the values of E4M3 bytes (uint8) as float32."""
    return np.asarray(E4M3[bits])


def unpack_int4_rows(packed: Array) -> Array:
    """Return int8 (2 * rows, columns) of bytes that hold two rows each, the even one in their low half.

    >>> unpack_int4_rows(np.array([[0x7F]], np.uint8)).tolist()
    [[-1], [7]]
    """
    signed = packed.view(np.int8)
    rows, columns = packed.shape
    found = np.empty((rows, 2, columns), np.int8)
    np.right_shift(np.left_shift(signed, 4), 4, out=found[:, 0])
    np.right_shift(signed, 4, out=found[:, 1])
    return found.reshape(2 * rows, columns)


def unpack_e2m1_columns(packed: Array) -> Array:
    """Return float32 (rows, 2 * columns) of bytes that hold two columns each, the even one in their low half.

    >>> unpack_e2m1_columns(np.array([[0xF1]], np.uint8)).tolist()
    [[0.5, -6.0]]
    """
    rows, columns = packed.shape
    found = np.empty((rows, columns, 2), np.float32)
    found[..., 0] = E2M1[packed & 15]
    found[..., 1] = E2M1[packed >> 4]
    return found.reshape(rows, 2 * columns)


def scale_groups(values: Array, scales: Array) -> Array:
    """Multiply float32 (rows, columns) in place by the scales (rows, columns / group) of their groups."""
    rows, num_groups = scales.shape
    grouped = values.reshape(rows, num_groups, -1)
    grouped *= scales[:, :, None]
    return values
