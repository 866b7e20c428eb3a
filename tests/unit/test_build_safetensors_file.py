"""Safetensors files: what a header may not say, and that what is written reads back everywhere."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from fakes.hf_folder import write_raw, write_shard
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

from trtb.build.checkpoints.safetensors_file import (
    DTYPE_BITS,
    TensorSpec,
    from_bf16,
    read_header,
    read_tensor,
    to_bf16,
    write_safetensors,
)
from trtb.build.errors import CheckpointError, CheckpointUnsupportedError


def entry(dtype: str = "F32", shape: Any = (2,), offsets: Any = (0, 8)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def test_a_sound_header_gives_every_tensor_where_it_stands(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    header = {
        "__metadata__": {"format": "pt"},
        "b": entry("F32", [2], [4, 12]),
        "a": entry("U8", [4], [0, 4]),
    }
    text = json.dumps(header).encode() + b"   "
    write_raw(path, text, bytes(range(12)))
    found = read_header(path)
    assert list(found) == ["a", "b"]
    assert (found["b"].shape, found["b"].offset, found["b"].size_bytes) == ((2,), 8 + len(text) + 4, 8)
    assert read_tensor(found["a"]).tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("header", "data", "message"),
    [
        ({"a": entry("F33")}, 8, "a: damaged header"),
        ({"a": entry(shape=[3])}, 8, r"a: 8 bytes; F32 of shape \[3\] takes 12"),
        ({"a": entry(shape=[-2])}, 8, "a: damaged header"),
        ({"a": entry(shape=[True, 2])}, 8, "a: damaged header"),
        ({"a": entry(shape=[2.0])}, 8, "a: damaged header"),
        ({"a": entry(shape="22")}, 8, "a: damaged header"),
        ({"a": entry(shape=None)}, 8, "a: damaged header"),
        ({"a": entry(offsets=[8, 0])}, 8, "a: -8 bytes"),
        ({"a": entry(offsets=[-8, 0])}, 8, "a: damaged header"),
        ({"a": entry(offsets=[0])}, 8, "a: damaged header"),
        ({"a": []}, 8, "a: damaged header"),
        ({"a": entry(offsets=[4, 12])}, 12, "a: data begins at byte .*; expected"),
        ({"a": entry(), "b": entry(offsets=[12, 20])}, 20, "b: data begins at byte"),
        ({"a": entry(), "b": entry(offsets=[4, 12])}, 12, "b: data begins at byte"),
        ({"a": entry()}, 7, "bytes; expected"),
        ({"a": entry()}, 9, "bytes; expected"),
        ({}, 0, "no tensors"),
        ({"__metadata__": {}}, 0, "no tensors"),
        ([], 0, "damaged header .a list"),
    ],
)
def test_a_header_that_is_not_sound_is_refused_by_name(
    tmp_path: Path, header: Any, data: int, message: str
) -> None:
    path = tmp_path / "a.safetensors"
    write_raw(path, json.dumps(header).encode(), bytes(data))
    with pytest.raises(CheckpointError, match=message) as caught:
        read_header(path)
    assert str(path) in caught.value.message


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "0 bytes, damaged header"),
        (b"\x05\0\0", "3 bytes, damaged header"),
        (struct.pack("<Q", 1 << 62) + b"{}", "its length is given as 4611686018427387904"),
        (struct.pack("<Q", 3) + b"{}", "its length is given as 3"),
        (struct.pack("<Q", 2) + b"{]", "damaged header"),
        (struct.pack("<Q", 2) + b"\xff\xfe", "damaged header"),
        (struct.pack("<Q", 20000) + b"[" * 20000, "damaged header"),
    ],
)
def test_bytes_that_are_no_header_are_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=message):
        read_header(path)


def test_a_name_that_stands_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    one = json.dumps(entry())
    write_raw(path, f'{{"a": {one}, "a": {one}}}'.encode(), bytes(8))
    with pytest.raises(CheckpointError, match="key 'a' twice"):
        read_header(path)


def test_an_empty_tensor_is_sound(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    write_shard(path, {"none": ("F32", (0, 4)), "some": ("F32", (1,))})
    assert read_tensor(read_header(path)["none"]).shape == (0, 4)


def test_types_that_numpy_lacks_are_known_but_not_read(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    write_raw(path, json.dumps({"a": entry("F8_E4M3", [8], [0, 8])}).encode(), bytes(8))
    with pytest.raises(CheckpointUnsupportedError, match="type F8_E4M3"):
        read_tensor(read_header(path)["a"])


@pytest.mark.parametrize(
    "dtype", ["float64", "float32", "float16", "int64", "int32", "int16", "int8", "bool"]
)
def test_what_the_format_s_own_library_writes_is_read(tmp_path: Path, dtype: str) -> None:
    values = np.arange(12).reshape(3, 4).astype(dtype)
    safetensors.numpy.save_file({"b": values, "a": values[:1].copy()}, tmp_path / "a.safetensors")
    found = read_header(tmp_path / "a.safetensors")
    assert read_tensor(found["b"]).tolist() == values.tolist()
    assert read_tensor(found["b"]).dtype == values.dtype


def test_what_is_written_is_read_by_the_format_s_own_library(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    values = {"x": np.arange(6, dtype=np.float32).reshape(2, 3), "y": np.arange(3, dtype=np.float32)}
    specs = [TensorSpec("x", "F32", (2, 3)), TensorSpec("y", "F32", (3,))]
    write_safetensors(path, specs, lambda spec: values[spec.name])
    read = safetensors.numpy.load_file(path)
    assert {name: value.tolist() for name, value in read.items()} == {
        name: value.tolist() for name, value in values.items()
    }
    with safetensors.safe_open(path, "numpy") as file:
        assert file.metadata() == {"format": "pt"}
    assert [tensor.offset % 4 for tensor in read_header(path).values()] == [0, 0]


def test_every_type_of_the_format_is_known(tmp_path: Path) -> None:
    """The library refuses a type that it does not know, with another message than a wrong size."""
    for dtype in DTYPE_BITS:
        write_raw(tmp_path / "a", json.dumps({"a": entry(dtype, [8], [0, DTYPE_BITS[dtype]])}).encode())
        with pytest.raises(safetensors.SafetensorError, match="incomplete metadata"):
            safetensors.safe_open(tmp_path / "a", "numpy")


@given(st_numpy.arrays(np.float32, st.integers(0, 50), elements=st.floats(width=32)))
def test_bfloat16_is_the_nearest_value_with_ties_to_even(values: np.ndarray[Any, Any]) -> None:
    import ml_dtypes

    with np.errstate(over="ignore", invalid="ignore"):
        wanted = values.astype(ml_dtypes.bfloat16)
    found = from_bf16(to_bf16(values))
    assert np.array_equal(found, wanted.astype(np.float32), equal_nan=True)
    assert np.array_equal(np.signbit(found), np.signbit(values))


@pytest.mark.parametrize("metadata", [[1], "text", {"format": 1}, None])
def test_metadata_that_is_no_object_of_texts_is_refused(tmp_path: Path, metadata: object) -> None:
    path = tmp_path / "model.safetensors"
    entry = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}
    header = json.dumps({"__metadata__": metadata, "a": entry}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(4))
    with pytest.raises(CheckpointError, match=r"__metadata__: .*; expected an object of texts"):
        read_header(path)
