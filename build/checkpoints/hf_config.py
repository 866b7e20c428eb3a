"""What a Hugging Face config.json says of a decoder: its sizes, and the tensors that they imply.

One table of families gives both the number of parameters, for planning without any weights, and the names
and shapes that a checkpoint's weights are held against. The defaults are those of transformers'
configuration classes: a config.json leaves out what equals its class's default.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from trtb.build.checkpoints.hf_config_checks import check_rope_scaling, check_values
from trtb.build.checkpoints.json_file import load_object
from trtb.build.errors import CheckpointError, CheckpointUnsupportedError
from trtb.build.manifest import ModelShape


@dataclass(frozen=True, slots=True)
class Family:
    """How one model_type differs from Llama."""

    ties_embeddings: bool = False  # where config.json does not say
    has_qkv_bias: bool | None = None  # None: config.json's attention_bias says, of all four projections
    has_qk_norm: bool = False
    norms: tuple[str, ...] = ("input_layernorm", "post_attention_layernorm")
    head_dim: int | None = None  # where config.json does not say; None: hidden_size / num_heads
    rope_theta: float = 10000.0
    has_experts: bool = False


_SANDWICH = (
    "input_layernorm",
    "post_attention_layernorm",
    "pre_feedforward_layernorm",
    "post_feedforward_layernorm",
)
FAMILIES = {
    "llama": Family(),
    "mistral": Family(has_qkv_bias=False),
    "mixtral": Family(has_qkv_bias=False, rope_theta=1e6, has_experts=True),
    "qwen2": Family(has_qkv_bias=True),
    "qwen3": Family(has_qk_norm=True, head_dim=128),
    "gemma": Family(ties_embeddings=True, head_dim=256),
    "gemma2": Family(ties_embeddings=True, head_dim=256, norms=_SANDWICH),
}


class HfShape(NamedTuple):
    """A decoder's sizes, as its config.json alone gives them."""

    model: ModelShape
    intermediate_size: int
    num_parameters: int  # the embedding once where it is tied to lm_head


def read_config(source: Path | Mapping[str, Any]) -> HfShape:
    """Read a decoder's sizes from a config.json, its folder, or its parsed content.

    Raises:
        CheckpointError: It is not there, or lacks a size.
        CheckpointUnsupportedError: It is of no family that is known here.
    """
    if isinstance(source, Path):
        path = source / "config.json" if source.is_dir() else source
        return _shape(str(path), load_object(path))
    return _shape("config.json", source)


def get_family(where: str, config: Mapping[str, Any]) -> Family:
    """Return what is special of the config's model_type.

    Raises:
        CheckpointUnsupportedError: It is not known here.
    """
    model_type = config.get("model_type")
    if isinstance(model_type, str) and model_type in FAMILIES:
        return FAMILIES[model_type]
    raise CheckpointUnsupportedError(
        f"{where}: model_type: {model_type!r}; expected one of {', '.join(FAMILIES)}",
        "choose a text-only model of one of these families",
    )


def has_tied_embeddings(where: str, config: Mapping[str, Any]) -> bool:
    """Say whether lm_head is the embedding."""
    tied = config.get("tie_word_embeddings")
    return get_family(where, config).ties_embeddings if tied is None else bool(tied)


def read_rope(where: str, config: Mapping[str, Any]) -> tuple[float, dict[str, Any] | None]:
    """Return RoPE's theta and its scaling, from the keys of transformers 4 or those of 5.

    Version 5 writes `rope_parameters` alone, in which version 4 sees no theta: it takes 10000 and says
    nothing. A scaling that scales nothing is None; its kind stands under `rope_type` in either form.

    Raises:
        CheckpointError: Theta is no positive number, or the scaling no object of such.
        CheckpointUnsupportedError: The scaling's kind is not known here.
    """
    found = config.get("rope_parameters") or {}
    scaling = config.get("rope_scaling") or {}
    if not isinstance(found, Mapping) or not isinstance(scaling, Mapping):
        raise CheckpointError(f"{where}: rope_parameters, rope_scaling: expected objects")
    merged = {**scaling, **found}
    theta = merged.pop("rope_theta", config.get("rope_theta", get_family(where, config).rope_theta))
    if isinstance(theta, bool) or not isinstance(theta, (int, float)) or not theta > 0:
        raise CheckpointError(f"{where}: rope_theta: {theta!r}; expected a positive number")
    kind = merged.pop("type", None)
    kind = merged.pop("rope_type", kind)
    if kind is None or kind == "default":
        return float(theta), None
    scaling = {"rope_type": kind, **merged}
    check_rope_scaling(where, scaling)
    return float(theta), scaling


def expected_tensors(where: str, config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Return the name and shape of every tensor that a decoder of this config has.

    Raises:
        CheckpointError: The config lacks a size.
        CheckpointUnsupportedError: It is of no family that is known here.
    """
    model, intermediate_size, _ = _shape(where, config)
    family = get_family(where, config)
    hidden = model.hidden_size
    found: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (model.vocab_size, hidden)}
    for layer in range(model.num_layers):
        for name, shape in _layer_tensors(where, config, family, model, intermediate_size).items():
            found[f"model.layers.{layer}.{name}"] = shape
    found["model.norm.weight"] = (hidden,)
    if not has_tied_embeddings(where, config):
        found["lm_head.weight"] = (model.vocab_size, hidden)
    return found


def _layer_tensors(
    where: str, config: Mapping[str, Any], family: Family, model: ModelShape, intermediate_size: int
) -> dict[str, tuple[int, ...]]:
    hidden = model.hidden_size
    query, key = model.num_heads * model.head_dim, model.num_kv_heads * model.head_dim
    linears = {
        "self_attn.q_proj": (query, hidden),
        "self_attn.k_proj": (key, hidden),
        "self_attn.v_proj": (key, hidden),
        "self_attn.o_proj": (hidden, query),
    }
    biased = list(linears)
    if family.has_qkv_bias is not None:
        biased = biased[:3] if family.has_qkv_bias else []
    elif not config.get("attention_bias"):
        biased = []
    if family.has_experts:
        num_experts = need_int(where, config, "num_local_experts", default=8)
        linears["block_sparse_moe.gate"] = (num_experts, hidden)
        for expert in range(num_experts):
            prefix = f"block_sparse_moe.experts.{expert}"
            linears |= {f"{prefix}.{name}": (intermediate_size, hidden) for name in ("w1", "w3")}
            linears[f"{prefix}.w2"] = (hidden, intermediate_size)
    else:
        mlp = {f"mlp.{name}_proj": (intermediate_size, hidden) for name in ("gate", "up")}
        mlp["mlp.down_proj"] = (hidden, intermediate_size)
        linears |= mlp
        if config.get("mlp_bias"):
            biased += mlp
    found: dict[str, tuple[int, ...]] = {f"{name}.weight": shape for name, shape in linears.items()}
    found |= {f"{name}.bias": (linears[name][0],) for name in biased}
    found |= {f"{name}.weight": (hidden,) for name in family.norms}
    if family.has_qk_norm:
        found |= {f"self_attn.{name}_norm.weight": (model.head_dim,) for name in ("q", "k")}
    return found


def need_int(where: str, config: Mapping[str, Any], key: str, default: int | None = None) -> int:
    """Return a positive whole number of a config; `default` where it is absent or null.

    Raises:
        CheckpointError: It is something else.
    """
    value = config.get(key)
    if value is None:
        value = default
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise CheckpointError(f"{where}: {key}: {value!r}; expected a positive whole number")
    return value


def _shape(where: str, config: Mapping[str, Any]) -> HfShape:
    family = get_family(where, config)
    check_values(where, config)
    read_rope(where, config)
    hidden, num_heads = need_int(where, config, "hidden_size"), need_int(where, config, "num_attention_heads")
    model = ModelShape(
        architecture=config["model_type"],
        num_layers=need_int(where, config, "num_hidden_layers"),
        num_heads=num_heads,
        num_kv_heads=need_int(where, config, "num_key_value_heads", default=num_heads),
        head_dim=need_int(where, config, "head_dim", default=family.head_dim or hidden // num_heads),
        hidden_size=hidden,
        vocab_size=need_int(where, config, "vocab_size"),
        max_position_embeddings=need_int(where, config, "max_position_embeddings"),
    )
    if num_heads % model.num_kv_heads:
        raise CheckpointError(
            f"{where}: num_key_value_heads: {model.num_kv_heads}; expected a divisor of {num_heads} heads"
        )
    intermediate_size = need_int(where, config, "intermediate_size")
    in_layer = _layer_tensors(where, config, family, model, intermediate_size).values()
    embeddings = 1 if has_tied_embeddings(where, config) else 2
    num_parameters = (
        model.num_layers * sum(math.prod(shape) for shape in in_layer)
        + embeddings * model.vocab_size * hidden
        + hidden
    )
    return HfShape(model, intermediate_size, num_parameters)
