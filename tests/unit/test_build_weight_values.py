"""NaN and infinity are found in every type of floating point, wherever they stand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from trtb.build.checkpoints import weight_values
from trtb.build.checkpoints.safetensors_file import TensorSpec, read_header, to_bf16, write_safetensors
from trtb.build.checkpoints.weight_values import check_finite
from trtb.build.errors import CheckpointError

TYPES = {"F16": np.float16, "F32": np.float32, "F64": np.float64}


@pytest.mark.parametrize("dtype", ["BF16", *TYPES])
@pytest.mark.parametrize("value", [None, np.nan, -np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, 4, 6])
def test_one_value_that_is_not_finite_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: str, value: float | None, place: int
) -> None:
    monkeypatch.setattr(weight_values, "_CHUNK_VALUES", 3)
    largest = 65504.0  # of F16
    values = np.array([0.0, -0.0, 1e-7, largest, -largest, 1.0, -1.0], np.float32)
    if value is not None:
        values[place] = value
    bits = to_bf16(values) if dtype == "BF16" else values.astype(TYPES[dtype])
    specs = [TensorSpec("good", "I64", (1,)), TensorSpec("a.weight", dtype, (7,))]
    path = tmp_path / "model.safetensors"
    write_safetensors(path, specs, lambda spec: bits if spec.name == "a.weight" else np.array([-1]))
    tensors = read_header(path).values()
    if value is None:
        check_finite(tensors)
        return
    with pytest.raises(CheckpointError, match=r"model.safetensors: a.weight: NaN or infinity"):
        check_finite(tensors)
