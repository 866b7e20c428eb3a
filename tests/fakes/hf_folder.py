"""A Hugging Face checkpoint folder of a few kilobytes: weights of any family, a vocabulary of bytes."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fakes.gguf_file import byte_alphabet
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from trtb.build.checkpoints.hf_config import expected_tensors

SIZES = {"F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I8": 1, "U8": 1}
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 264,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "rope_theta": 10000.0,
    "eos_token_id": 2,
}
# name -> (dtype, shape)
Tensors = Mapping[str, tuple[str, tuple[int, ...]]]


def num_bytes(dtype: str, shape: tuple[int, ...]) -> int:
    count = SIZES[dtype]
    for size in shape:
        count *= size
    return count


def write_shard(path: Path, tensors: Tensors, fill: int = 1) -> None:
    """Write a safetensors file, after the format's description and not with the code under test."""
    header: dict[str, Any] = {}
    end = 0
    for name, (dtype, shape) in tensors.items():
        begin, end = end, end + num_bytes(dtype, shape)
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}
    write_raw(path, json.dumps(header).encode(), bytes([fill]) * end)


def write_raw(path: Path, header: bytes, data: bytes = b"") -> None:
    path.write_bytes(struct.pack("<Q", len(header)) + header + data)


def write_index(folder: Path, shards: Mapping[str, Tensors], **changes: Any) -> None:
    """Write the index of some shards; `changes` replaces top-level keys of it."""
    weight_map = {name: shard for shard, tensors in shards.items() for name in tensors}
    total = sum(num_bytes(*tensor) for tensors in shards.values() for tensor in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map, **changes}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def write_folder(
    folder: Path, config: Mapping[str, Any] | None = None, *, dtype: str = "BF16", num_shards: int = 1
) -> Path:
    """Write a whole checkpoint; the weights are those that its config implies."""
    config = {**CONFIG, **(config or {})}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    write_byte_tokenizer(folder)
    tensors = {name: (dtype, shape) for name, shape in expected_tensors("config.json", config).items()}
    if num_shards == 1:
        write_shard(folder / "model.safetensors", tensors)
        return folder
    names = list(tensors)
    shards = {
        f"model-{number + 1:05}-of-{num_shards:05}.safetensors": {
            name: tensors[name] for name in names[number::num_shards]
        }
        for number in range(num_shards)
    }
    for number, (shard, content) in enumerate(shards.items()):
        write_shard(folder / shard, content, fill=number + 1)
    write_index(folder, shards)
    return folder


def write_byte_tokenizer(folder: Path) -> None:
    """Write a byte-level tokenizer of 259 tokens, three of them control tokens, and its configuration."""
    control = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    vocab = {token: index for index, token in enumerate([*control, *byte_alphabet()])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens([AddedToken(token, special=True, normalized=False) for token in control])
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>"})
    )
