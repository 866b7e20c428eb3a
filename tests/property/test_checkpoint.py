"""A sharded checkpoint: pinned when untouched; refused, or found changed, after any one corruption."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
from fakes.hf_folder import SIZES, Tensors, num_bytes, write_index, write_shard
from hypothesis import given, settings
from hypothesis import strategies as st

from trtb.build.checkpoint import list_pinned, pin_path, verify
from trtb.build.errors import CheckpointError

tensor = st.tuples(st.sampled_from(sorted(SIZES)), st.lists(st.integers(1, 4), max_size=3).map(tuple))
contents = st.dictionaries(st.text(min_size=1, max_size=8), tensor, min_size=2, max_size=8)
KINDS = ["truncate", "grow", "flip in the header", "flip in the data", "remove", "swap", "empty", "copy"]


def split(tensors: Tensors, num_shards: int) -> dict[str, Tensors]:
    names = list(tensors)
    return {
        f"model-{number + 1:05}-of-{num_shards:05}.safetensors": {
            name: tensors[name] for name in names[number::num_shards]
        }
        for number in range(num_shards)
    }


def write(folder: Path, tensors: Tensors, num_shards: int) -> list[Path]:
    folder.mkdir()
    (folder / "tokenizer.json").write_text("{}")
    (folder / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
    shards = split(tensors, num_shards)
    for number, (name, content) in enumerate(shards.items()):
        write_shard(folder / name, content, fill=number + 1)
    write_index(folder, shards)
    return [folder / name for name in shards]


def corrupt(kind: str, shards: list[Path], data: st.DataObject) -> bool:
    """Do one kind of damage; returns False where it would change nothing."""
    path = data.draw(st.sampled_from(shards))
    content = bytearray(path.read_bytes())
    header_end = 8 + int.from_bytes(content[:8], "little")
    if kind == "truncate":
        path.write_bytes(content[: data.draw(st.integers(0, len(content) - 1))])
    elif kind == "grow":
        path.write_bytes(content + b"\0" * data.draw(st.integers(1, 20)))
    elif kind == "remove":
        path.unlink()
    elif kind == "empty":
        path.write_bytes(b"")
    elif kind.startswith("flip"):
        first, last = (0, header_end - 1) if kind.endswith("header") else (header_end, len(content) - 1)
        content[data.draw(st.integers(first, last))] ^= 1 << data.draw(st.integers(0, 7))
        path.write_bytes(content)
    else:
        other = data.draw(st.sampled_from(shards))
        if other.read_bytes() == content:
            return False
        if kind == "swap":
            path.write_bytes(other.read_bytes())
        other.write_bytes(content)
    return True


@settings(max_examples=60)
@given(tensors=contents, num_shards=st.integers(1, 3), kind=st.sampled_from(KINDS), data=st.data())
def test_one_corruption_is_refused_or_found(
    tensors: Tensors, num_shards: int, kind: str, data: st.DataObject
) -> None:
    num_shards = min(num_shards, len(tensors))
    with tempfile.TemporaryDirectory() as name:
        source, home = Path(name, "model"), Path(name, "home")
        shards = write(source, tensors, num_shards)
        damaged = Path(
            shutil.copytree(source, Path(name, "damaged"))
        )  # a pin shares its bytes with its source
        pinned = pin_path(source, home)
        verify(pinned)
        assert pinned.pin.total_bytes == sum(path.stat().st_size for path in source.iterdir())
        if not corrupt(kind, [damaged / path.name for path in shards], data):
            return
        try:
            again = pin_path(damaged, home)
        except CheckpointError as exc:
            assert str(damaged) in exc.message
            assert len(list_pinned(home)) == 1
        else:
            assert kind.startswith("flip")  # the only damage that can leave sound files
            assert again.pin.revision != pinned.pin.revision
        for path in shards:
            target = pinned.path / path.name
            target.unlink()
            if (damaged / path.name).exists():
                shutil.copyfile(damaged / path.name, target)
        with pytest.raises(CheckpointError, match="differ from the pin"):
            verify(pinned)


def test_sizes_of_the_fakes_are_those_of_the_format() -> None:
    from trtb.build.checkpoints.safetensors_file import TensorSpec

    for dtype in SIZES:
        assert num_bytes(dtype, (3, 2)) == TensorSpec("a", dtype, (3, 2)).size_bytes
