"""The weights of a Hugging Face folder: index and shards must agree, both ways."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from fakes.hf_folder import Tensors, write_index, write_shard

from trtb.build.checkpoints.checkpoint_weights import read_weights
from trtb.build.errors import CheckpointError

ONE, TWO = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
SHARDS: dict[str, Tensors] = {
    ONE: {"a": ("F32", (2, 3)), "b": ("BF16", (4,))},
    TWO: {"c": ("F16", (5,))},
}
WEIGHT_MAP = {"a": ONE, "b": ONE, "c": TWO}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number, (name, tensors) in enumerate(SHARDS.items()):
        write_shard(tmp_path / name, tensors, fill=number)
    write_index(tmp_path, SHARDS)
    return tmp_path


def test_sound_shards_give_every_tensor(folder: Path) -> None:
    found = read_weights(folder)
    assert [path.name for path in found.files] == [ONE, TWO]
    assert {name: tensor.path.name for name, tensor in found.tensors.items()} == WEIGHT_MAP


def test_a_single_file_needs_no_index(tmp_path: Path) -> None:
    write_shard(tmp_path / "model.safetensors", SHARDS[ONE])
    assert list(read_weights(tmp_path).tensors) == ["a", "b"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"weight_map": {**WEIGHT_MAP, "d": TWO}}, rf"{TWO}: no tensor d \(1 such\)"),
        ({"weight_map": {"a": ONE, "c": TWO}}, f"b: not named; it stands in {ONE}"),
        ({"weight_map": {**WEIGHT_MAP, "c": ONE}}, f"does not name {TWO}"),
        ({"weight_map": {**WEIGHT_MAP, "b": TWO}}, f"b: {TWO}; it stands in {ONE}"),
        ({"weight_map": {**WEIGHT_MAP, "c": "../x.safetensors"}}, r"1 of 2 shards missing: \.\./x"),
        ({"weight_map": {**WEIGHT_MAP, "c": 2}}, "no weight_map"),
        ({"weight_map": {}}, "no weight_map"),
        ({"weight_map": []}, "no weight_map"),
        ({"metadata": {"total_size": 41}}, "total_size: 41; the shards hold 42 bytes"),
        ({"metadata": {"total_size": "42"}}, "total_size: 42; the shards hold 42 bytes"),
        ({"metadata": []}, "no weight_map"),
    ],
)
def test_an_index_that_disagrees_is_refused(folder: Path, changes: dict[str, Any], message: str) -> None:
    write_index(folder, SHARDS, **changes)
    with pytest.raises(CheckpointError, match=message):
        read_weights(folder)


@pytest.mark.parametrize("metadata", [{}, {"total_size": 42.0}, {"total_parameters": 15}])
def test_a_total_size_may_be_left_out(folder: Path, metadata: dict[str, Any]) -> None:
    write_index(folder, SHARDS, metadata=metadata)
    assert len(read_weights(folder).tensors) == 3


def test_a_tensor_in_two_shards_is_refused(folder: Path) -> None:
    write_shard(folder / TWO, {"a": ("F32", (2, 3)), "c": ("F16", (5,))})
    with pytest.raises(CheckpointError, match=f"a: in {ONE} and in {TWO}"):
        read_weights(folder)


def test_shards_that_changed_places_are_refused(folder: Path) -> None:
    (folder / ONE).rename(folder / "other")
    (folder / TWO).rename(folder / ONE)
    (folder / "other").rename(folder / TWO)
    with pytest.raises(CheckpointError, match=f"c: {TWO}; it stands in {ONE}"):
        read_weights(folder)


@pytest.mark.parametrize(
    "name", ["model.safetensors", "adapter_model.safetensors", "model-00003-of-00003.SafeTensors"]
)
def test_a_file_that_the_index_does_not_name_is_refused(folder: Path, name: str) -> None:
    write_shard(folder / name, SHARDS[TWO])
    with pytest.raises(CheckpointError, match=f"does not name {name}"):
        read_weights(folder)


@pytest.mark.parametrize("name", ["weights.safetensors", "MODEL.SAFETENSORS", "model.fp16.safetensors"])
def test_weights_that_no_loader_finds_are_refused(tmp_path: Path, name: str) -> None:
    write_shard(tmp_path / name, SHARDS[ONE])
    with pytest.raises(CheckpointError, match=rf"{name}; expected model\.safetensors"):
        read_weights(tmp_path)


def test_shards_without_an_index_are_refused(folder: Path) -> None:
    (folder / "model.safetensors.index.json").unlink()
    with pytest.raises(CheckpointError, match=r"or shards with model\.safetensors\.index\.json"):
        read_weights(folder)


def test_another_form_of_the_same_weights_is_left_out(folder: Path) -> None:
    (folder / "consolidated.safetensors").write_bytes(b"whatever")
    (folder / "consolidated.safetensors.index.json").write_text("{}")
    assert [path.name for path in read_weights(folder).files] == [ONE, TWO]


def test_a_key_that_stands_twice_in_the_index_is_refused(folder: Path) -> None:
    index = json.dumps({"weight_map": WEIGHT_MAP})
    (folder / "model.safetensors.index.json").write_text(index.replace('"b"', '"a"'))
    with pytest.raises(CheckpointError, match="key 'a' twice"):
        read_weights(folder)
