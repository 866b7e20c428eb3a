"""A llama of two layers in a GGUF file, with random weights and a vocabulary of bytes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np

HIDDEN, HEADS, KV_HEADS, LAYERS, FFN = 64, 2, 1, 2, 96
HEAD_DIM = HIDDEN // HEADS
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m['content'] }}<|im_end|>{% endfor %}"


def byte_alphabet() -> list[str]:
    """The 256 printable stand-ins of byte-level BPE, in the order of the bytes."""
    kept = [*range(33, 127), *range(161, 173), *range(174, 256)]
    spare = iter(range(256, 512))
    return [chr(byte) if byte in kept else chr(next(spare)) for byte in range(256)]


def write_tiny(
    path: Path,
    *,
    quant: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.Q4_1,
    architecture: str = "llama",
    pre: str = "smollm",
    changes: dict[str, Any] | None = None,
    extra_tensors: Mapping[str, tuple[int, ...]] | None = None,
) -> Path:
    """Write a llama with random weights, a byte-level vocabulary and three control tokens."""
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *byte_alphabet()]
    merges = [("t", "h"), ("th", "e"), ("Ġ", "the"), ("i", "n"), ("Ġ", "a"), ("e", "r"), ("Ġ", "Ġ")]
    tokens += [left + right for left, right in merges]
    tokens += ["<tool>"]
    types = [3, 3, 3] + [1] * (len(tokens) - 4) + [4]
    writer = gguf.GGUFWriter(path, architecture)
    numbers = {
        "block_count": LAYERS,
        "context_length": 512,
        "embedding_length": HIDDEN,
        "feed_forward_length": FFN,
        "attention.head_count": HEADS,
        "attention.head_count_kv": KV_HEADS,
        "vocab_size": len(tokens),
        "rope.dimension_count": HEAD_DIM,
    }
    for key, value in numbers.items():
        writer.add_uint32(f"{architecture}.{key}", value)
    writer.add_float32(f"{architecture}.rope.freq_base", 10000.0)
    writer.add_float32(f"{architecture}.attention.layer_norm_rms_epsilon", 1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges([" ".join(pair) for pair in merges])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_chat_template(TEMPLATE)
    writer.add_array("general.languages", ["en"])
    writer.add_file_type(3)
    for key, value in (changes or {}).items():
        if isinstance(value, str):
            writer.add_string(key, value)
        else:
            writer.add_uint32(key, value)
    random = np.random.default_rng(0)

    def matrix(name: str, *shape: int) -> None:
        data = (random.standard_normal(shape) * 0.2).astype(np.float32)
        writer.add_tensor(name, gguf.quants.quantize(data, quant), raw_dtype=quant)

    matrix("token_embd.weight", len(tokens), HIDDEN)
    for layer in range(LAYERS):
        block = f"blk.{layer}"
        for norm in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"{block}.{norm}.weight", np.ones(HIDDEN, np.float32))
        matrix(f"{block}.attn_q.weight", HIDDEN, HIDDEN)
        matrix(f"{block}.attn_k.weight", KV_HEADS * HEAD_DIM, HIDDEN)
        matrix(f"{block}.attn_v.weight", KV_HEADS * HEAD_DIM, HIDDEN)
        matrix(f"{block}.attn_output.weight", HIDDEN, HIDDEN)
        matrix(f"{block}.ffn_gate.weight", FFN, HIDDEN)
        matrix(f"{block}.ffn_up.weight", FFN, HIDDEN)
        matrix(f"{block}.ffn_down.weight", HIDDEN, FFN)
    writer.add_tensor("output_norm.weight", np.ones(HIDDEN, np.float32))
    for name, shape in (extra_tensors or {}).items():
        writer.add_tensor(name, random.standard_normal(shape).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
