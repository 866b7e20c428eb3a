"""A TensorRT-LLM checkpoint of a tiny Llama in which every tensor is there, and zero."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fakes.trtllm_build import DTYPES, LINEARS, SCHEMES

BYTES = {"F32": 4, "F16": 2, "BF16": 2, "I8": 1, "U8": 1, "F8_E4M3": 1}


def make_config(**changes: Any) -> dict[str, Any]:
    """Return a config.json, with fields of its quantization and its mapping changed by their own names."""
    config: dict[str, Any] = {
        "producer": {"name": "modelopt", "version": "0.47.0"},
        "architecture": "LlamaForCausalLM",
        "dtype": "bfloat16",
        "logits_dtype": "float16",
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "hidden_size": 64,
        "vocab_size": 128,
        "max_position_embeddings": 8192,
        "intermediate_size": 128,
        "mapping": {"world_size": 1, "tp_size": 1, "pp_size": 1},
        "quantization": {"quant_algo": None, "kv_cache_quant_algo": None},
    }
    for name, value in changes.items():
        part = next((part for part in ("mapping", "quantization") if name in config[part]), None)
        (config[part] if part else config)[name] = value
    config["mapping"]["world_size"] = config["mapping"]["tp_size"] * config["mapping"]["pp_size"]
    return config


def write_zeros(
    folder: Path, *, is_left_out: Callable[[str], bool] = lambda _name: False, **changes: Any
) -> dict[str, Any]:
    """Write a checkpoint and return its config; `is_left_out` says which tensors are missing."""
    config = make_config(**changes)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    mapping = config["mapping"]
    for rank in range(mapping["world_size"]):
        tensors = _tensors(rank // mapping["tp_size"], config)
        kept = {name: row for name, row in tensors.items() if not is_left_out(name)}
        _write_safetensors(folder / f"rank{rank}.safetensors", kept)
    return config


def _tensors(stage: int, config: dict[str, Any]) -> dict[str, tuple[str, list[int]]]:
    plain = DTYPES[config["dtype"]]
    dtype, companions = SCHEMES[config["quantization"]["quant_algo"]]
    found: dict[str, tuple[str, list[int]]] = {}
    num_stages = config["mapping"]["pp_size"]
    if stage == 0:
        found["transformer.vocab_embedding.weight"] = (plain, [8, 4])
    if stage == num_stages - 1:
        found |= {"transformer.ln_f.weight": (plain, [4]), "lm_head.weight": (plain, [8, 4])}
    for layer in range(config["num_hidden_layers"] // num_stages):
        prefix = f"transformer.layers.{layer}"
        for norm in ("input_layernorm", "post_layernorm"):
            found[f"{prefix}.{norm}.weight"] = (plain, [4])
        for linear in LINEARS:
            found[f"{prefix}.{linear}.weight"] = (dtype or plain, [4, 4])
            found |= {f"{prefix}.{linear}.{part}": ("F32", [1]) for part in companions}
        if config["quantization"]["kv_cache_quant_algo"]:
            found[f"{prefix}.attention.kv_cache_scaling_factor"] = ("F32", [1])
    return found


def _write_safetensors(path: Path, tensors: dict[str, tuple[str, list[int]]]) -> None:
    header, offset = {}, 0
    for name, (dtype, shape) in tensors.items():
        end = offset + BYTES[dtype] * math.prod(shape)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(offset))
