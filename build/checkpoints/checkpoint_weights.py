"""The weights of a Hugging Face folder: one safetensors file, or shards and their index, which must agree.

transformers takes model.safetensors where both are there, and leaves out a shard that the index does not
name: what it would load, and what is pinned, must be the same tensors.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtb.build.checkpoints.json_file import load_json
from trtb.build.checkpoints.safetensors_file import StoredTensor, read_header
from trtb.build.errors import CheckpointError

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"

# Mistral's own form of the same weights, beside the shards; nothing here reads it
OTHER_FORM_PREFIX = "consolidated"

_AGAIN = "fetch the checkpoint again"


@dataclass(frozen=True, slots=True)
class Weights:
    """Every tensor of a checkpoint, by name, and the files they stand in."""

    files: tuple[Path, ...]
    tensors: dict[str, StoredTensor]


def read_weights(folder: Path) -> Weights:
    """Read every header of a checkpoint's weights and compare them with the index.

    Raises:
        CheckpointError: A file is missing, too many or damaged, or index and shards disagree.
    """
    names = sorted(path.name for path in folder.iterdir() if path.is_file() and not is_other_form(path.name))
    # the suffix in capitals is a file that no reader takes: it must not pass unseen
    shards = [name for name in names if name.lower().endswith(".safetensors")]
    if not shards:
        raise CheckpointError(f"{folder}: no *.safetensors; expected the model's weights")
    if INDEX_FILE in names:
        return _read_sharded(folder, shards)
    if shards != [SINGLE_FILE]:
        raise CheckpointError(
            f"{folder}: {', '.join(shards)}; expected {SINGLE_FILE}, or shards with {INDEX_FILE}",
            "an adapter must be merged into its base first; other forms of the weights must be moved away",
        )
    path = folder / SINGLE_FILE
    return Weights((path,), read_header(path))


def is_other_form(name: str) -> bool:
    """Say whether a file holds the same weights in a form that nothing here reads."""
    return name.lower().startswith(OTHER_FORM_PREFIX)


def _read_sharded(folder: Path, shards: list[str]) -> Weights:
    index = folder / INDEX_FILE
    weight_map, total_size = _read_index(index)
    listed = set(weight_map.values())
    if missing := sorted(listed - set(shards)):
        raise CheckpointError(
            f"{folder}: {len(missing)} of {len(listed)} shards missing: {', '.join(missing)}", _AGAIN
        )
    if unknown := sorted(set(shards) - listed):
        raise CheckpointError(
            f"{index}: does not name {', '.join(unknown)}; expected an index of every *.safetensors",
            "move files that are no part of the checkpoint away",
        )
    tensors: dict[str, StoredTensor] = {}
    for shard in shards:
        for name, tensor in read_header(folder / shard).items():
            if name in tensors:
                raise CheckpointError(
                    f"{folder}: {name}: in {tensors[name].path.name} and in {shard}; expected it once", _AGAIN
                )
            if weight_map.get(name) != shard:
                raise CheckpointError(
                    f"{index}: {name}: {weight_map.get(name, 'not named')}; it stands in {shard}", _AGAIN
                )
            tensors[name] = tensor
    if absent := sorted(set(weight_map) - set(tensors)):
        raise CheckpointError(
            f"{folder / weight_map[absent[0]]}: no tensor {absent[0]} ({len(absent)} such); "
            f"expected it, {INDEX_FILE} names it",
            _AGAIN,
        )
    num_bytes = sum(tensor.size_bytes for tensor in tensors.values())
    if total_size is not None and total_size != num_bytes:
        raise CheckpointError(
            f"{index}: metadata.total_size: {total_size}; the shards hold {num_bytes} bytes", _AGAIN
        )
    return Weights(tuple(folder / shard for shard in shards), tensors)


def _read_index(path: Path) -> tuple[dict[str, str], Any]:
    index = load_json(path, is_strict=True)
    try:
        weight_map = index["weight_map"]
        total_size = index.get("metadata", {}).get("total_size")
        if not weight_map or not all(isinstance(shard, str) for shard in weight_map.values()):
            raise ValueError("no names of shards")
    except (ValueError, KeyError, AttributeError, TypeError) as exc:
        raise CheckpointError(
            f"{path}: no weight_map ({type(exc).__name__}: {exc}); expected the index of shards", _AGAIN
        ) from exc
    return weight_map, total_size
