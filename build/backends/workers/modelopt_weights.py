"""What a TensorRT-LLM checkpoint computes with: its shards joined, dequantised, under Hugging Face names.

A second reading of the format beside trtb's own, by torch's casts instead of tables: a mistake in either
shows as a disagreement between them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

# E2M1, by its four bits; the upper half is negative
_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)

_NORMS = {
    "input_layernorm": "input_layernorm",
    "post_layernorm": "post_attention_layernorm",
    "attention.q_layernorm": "self_attn.q_norm",
    "attention.k_layernorm": "self_attn.k_norm",
}
_COLUMN = {"mlp.fc": "mlp.gate_proj", "mlp.gate": "mlp.up_proj"}
_ROW = {"attention.dense": "self_attn.o_proj", "mlp.proj": "mlp.down_proj"}

# Families whose tensors are laid out as here.
ARCHITECTURES = (
    *("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM", "GemmaForCausalLM"),
)


def read_parameters(folder: Path) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield each parameter as (Hugging Face name, float32 tensor), one in memory at a time."""
    config = json.loads((folder / "config.json").read_text("utf-8"))
    tp_size, pp_size = config["mapping"]["tp_size"], config["mapping"]["pp_size"]
    layers_per_stage = config["num_hidden_layers"] // pp_size
    for stage in range(pp_size):
        ranks = [_open(folder / f"rank{stage * tp_size + rank}.safetensors") for rank in range(tp_size)]
        names = set(ranks[0].keys())
        for name, renamed in (("vocab_embedding", "model.embed_tokens"), ("ln_f", "model.norm")):
            if f"transformer.{name}.weight" in names:
                shards = [_float(rank, f"transformer.{name}.weight") for rank in ranks]
                yield f"{renamed}.weight", _norm(shards[0], config) if name == "ln_f" else torch.cat(shards)
        if "lm_head.weight" in names:
            yield "lm_head.weight", torch.cat([_float(rank, "lm_head.weight") for rank in ranks])
        for layer in range(layers_per_stage):
            target = f"model.layers.{stage * layers_per_stage + layer}"
            for name, tensor in _layer(ranks, f"transformer.layers.{layer}", names, config):
                yield f"{target}.{name}", tensor


def _open(path: Path) -> Any:
    from safetensors import safe_open

    return safe_open(path, framework="pt")


def _layer(
    ranks: list[Any], prefix: str, names: set[str], config: dict[str, Any]
) -> Iterator[tuple[str, torch.Tensor]]:
    for name, renamed in _NORMS.items():
        if f"{prefix}.{name}.weight" in names:
            yield f"{renamed}.weight", _norm(_float(ranks[0], f"{prefix}.{name}.weight"), config)
    for kind in ("weight", "bias"):
        if f"{prefix}.attention.qkv.{kind}" in names:
            shards = [_read(rank, f"{prefix}.attention.qkv", kind) for rank in ranks]
            for letter, tensor in zip("qkv", _split_qkv(shards, config), strict=True):
                yield f"self_attn.{letter}_proj.{kind}", tensor
        for name, renamed in _COLUMN.items():
            if f"{prefix}.{name}.{kind}" in names:
                yield (
                    f"{renamed}.{kind}",
                    torch.cat([_read(rank, f"{prefix}.{name}", kind) for rank in ranks]),
                )
        for name, renamed in _ROW.items():
            if f"{prefix}.{name}.{kind}" in names:
                # a row-parallel bias is added once, after the sum over the ranks
                shards = [_read(rank, f"{prefix}.{name}", kind) for rank in ranks]
                yield f"{renamed}.{kind}", shards[0] if kind == "bias" else torch.cat(shards, dim=1)


def _split_qkv(shards: list[torch.Tensor], config: dict[str, Any]) -> list[torch.Tensor]:
    tp_size, num_kv_heads = len(shards), config["num_key_value_heads"]
    q_rows = config["num_attention_heads"] // tp_size * config["head_size"]
    kv_rows = max(1, num_kv_heads // tp_size) * config["head_size"]
    parts = [shard.split([q_rows, kv_rows, kv_rows]) for shard in shards]
    step = max(1, tp_size // num_kv_heads)  # with more ranks than KV heads, each head stands in `step` ranks
    query, key, value = zip(*parts, strict=True)
    return [torch.cat(query), torch.cat(key[::step]), torch.cat(value[::step])]


def _norm(weight: torch.Tensor, config: dict[str, Any]) -> torch.Tensor:
    # Gemma's norms multiply by 1 + weight; the checkpoint holds the sum
    return weight - 1.0 if config["architecture"] == "GemmaForCausalLM" else weight


def _float(rank: Any, name: str) -> torch.Tensor:
    tensor: torch.Tensor = rank.get_tensor(name)
    return tensor.float()


def _read(rank: Any, linear: str, kind: str) -> torch.Tensor:
    return _float(rank, f"{linear}.bias") if kind == "bias" else _dequantise(rank, linear)


def _dequantise(rank: Any, linear: str) -> torch.Tensor:
    stored: torch.Tensor = rank.get_tensor(f"{linear}.weight")
    if stored.dtype in {torch.float16, torch.bfloat16}:
        return stored.float()
    scale = _float(rank, f"{linear}.weights_scaling_factor")
    if stored.dtype == torch.float8_e4m3fn:
        return stored.float() * scale
    if stored.dtype == torch.uint8:  # two E2M1 in a byte, the even column in its low half
        table = torch.tensor(_E2M1)
        values = torch.stack([table[(stored & 15).long()], table[(stored >> 4).long()]], dim=-1).flatten(1)
        scale = scale * _float(rank, f"{linear}.weights_scaling_factor_2")
        return values * scale.repeat_interleave(16, dim=1)
    if scale.dim() == 1:
        values = stored.float() * scale[:, None]
    else:  # two int4 in a byte, the even row in its low half
        low, high = (stored << 4) >> 4, stored >> 4
        values = torch.stack([low, high], dim=1).flatten(0, 1).float()
        values = values * scale.repeat_interleave(values.shape[1] // scale.shape[1], dim=1)
    return values * _float(rank, f"{linear}.prequant_scaling_factor")
