"""Packing and unpacking agree for any values, and the tables of small floats with another implementation."""

from __future__ import annotations

import ml_dtypes
import numpy as np
from fakes.trtllm_checkpoint import pack_int4_rows
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from trtb.build.trtllm.trtllm_numerics import (
    E2M1,
    E4M3,
    decode_e4m3,
    scale_groups,
    unpack_e2m1_columns,
    unpack_int4_rows,
)

SIDES = st.integers(1, 8)


@given(st.data())
def test_int4_rows_come_back(data: st.DataObject) -> None:
    shape = (2 * data.draw(SIDES), data.draw(SIDES))
    values = data.draw(arrays.arrays(np.int8, shape, elements=st.integers(-8, 7)))
    assert np.array_equal(unpack_int4_rows(pack_int4_rows(values)), values)


@given(st.data())
def test_e2m1_columns_come_back(data: st.DataObject) -> None:
    shape = (data.draw(SIDES), 2 * data.draw(SIDES))
    codes = data.draw(arrays.arrays(np.uint8, shape, elements=st.integers(0, 15)))
    packed = codes[:, ::2] | codes[:, 1::2] << 4
    expected = codes.view(ml_dtypes.float4_e2m1fn).astype(np.float32)
    assert np.array_equal(unpack_e2m1_columns(packed), expected)


def test_the_tables_are_those_of_ml_dtypes() -> None:
    codes = np.arange(256, dtype=np.uint8)
    expected = codes.view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    assert np.array_equal(E4M3, expected, equal_nan=True)
    assert np.array_equal(np.signbit(E4M3[:-1]), np.signbit(expected[:-1]))  # all but the last NaN
    assert np.array_equal(E2M1, codes[:16].view(ml_dtypes.float4_e2m1fn).astype(np.float32))


@given(arrays.arrays(np.float32, st.integers(1, 20), elements=st.floats(-448, 448, width=32)))
def test_e4m3_of_any_float_is_within_half_a_step(values: np.ndarray) -> None:
    stored = values.astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
    step = np.maximum(np.abs(values), 2.0**-6) / 8  # three bits of mantissa, subnormals below 2 ** -6
    assert (np.abs(decode_e4m3(stored) - values) <= step).all()


@given(st.data())
def test_groups_are_scaled_along_a_row(data: st.DataObject) -> None:
    rows, num_groups, group = data.draw(SIDES), data.draw(SIDES), data.draw(SIDES)
    scales = data.draw(arrays.arrays(np.float32, (rows, num_groups), elements=st.integers(1, 9)))
    values = scale_groups(np.ones((rows, num_groups * group), np.float32), scales)
    for column in range(num_groups * group):
        assert np.array_equal(values[:, column], scales[:, column // group])
