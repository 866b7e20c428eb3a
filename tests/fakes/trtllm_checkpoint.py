"""A TensorRT-LLM checkpoint as ModelOpt exports it, of a model of a few kilobytes, by other code than trtb's.

Floats of eight and four bits are ml_dtypes' here, and packing is done value by value.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from fakes.hf_folder import write_folder

from trtb.build.checkpoints.hf_checkpoint import HfCheckpoint, load_tensor, read_hf
from trtb.build.checkpoints.hf_config import expected_tensors
from trtb.build.checkpoints.safetensors_file import StoredTensor, TensorSpec, to_bf16, write_safetensors

Array = np.ndarray[Any, Any]
Tensors = dict[str, tuple[str, Array]]  # name -> (safetensors' dtype, values in their bits)

GROUP_SIZE = 64
SIZES = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "rope_theta": 100000.0,
    "rms_norm_eps": 1e-5,
}
ALGOS = {
    "bf16": None,
    "int8_wo": "W8A16",
    "fp8": "FP8",
    "int4_awq": "W4A16_AWQ",
    "w4a8_awq": "W4A8_AWQ",
    "int8_sq": "W8A8_SQ_PER_CHANNEL",
    "nvfp4": "NVFP4",
}
ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "gemma": "GemmaForCausalLM",
    "mixtral": "MixtralForCausalLM",
}


def write_source(folder: Path, model_type: str = "llama", *, seed: int = 7, **config: Any) -> HfCheckpoint:
    """Write a Hugging Face folder with random weights, in bfloat16."""
    merged = {**SIZES, "model_type": model_type, "architectures": [ARCHITECTURES[model_type]], **config}
    write_folder(folder, merged)
    random = np.random.default_rng(seed)
    written = json.loads((folder / "config.json").read_text())
    shapes = expected_tensors("config.json", written)
    specs = [TensorSpec(name, "BF16", shape) for name, shape in shapes.items()]
    write_safetensors(
        folder / "model.safetensors",
        specs,
        lambda spec: to_bf16(random.standard_normal(spec.shape).astype(np.float32)),
    )
    return read_hf(folder)


def read_bits(tensor: StoredTensor) -> Array:
    """Read a tensor of 16-bit floats as its bits."""
    return np.fromfile(tensor.path, np.uint16, tensor.size_bytes // 2, offset=tensor.offset).reshape(
        tensor.shape
    )


def export(
    source: HfCheckpoint, quant: str, *, tp_size: int = 1, pp_size: int = 1, kv_algo: str | None = None
) -> tuple[dict[str, Any], list[Tensors]]:
    """Return config.json and the tensors of each rank of a right checkpoint."""
    ranks = [
        _rank(source, quant, tp_rank, tp_size, pp_rank, pp_size, kv_algo)
        for pp_rank in range(pp_size)
        for tp_rank in range(tp_size)
    ]
    return _config(source, quant, tp_size, pp_size, kv_algo), ranks


def write(folder: Path, config: dict[str, Any], ranks: list[Tensors]) -> Path:
    """Write a checkpoint's folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    for number, rank in enumerate(ranks):
        specs = [TensorSpec(name, dtype, values.shape) for name, (dtype, values) in rank.items()]
        path = folder / f"rank{number}.safetensors"
        write_safetensors(path, specs, lambda spec, rank=rank: np.array(rank[spec.name][1], order="C"))
    return folder


def _config(
    source: HfCheckpoint, quant: str, tp_size: int, pp_size: int, kv_algo: str | None
) -> dict[str, Any]:
    model, hf = source.model, source.config
    quantization: dict[str, Any] = {"quant_algo": ALGOS[quant], "kv_cache_quant_algo": kv_algo}
    quantization["exclude_modules"] = None if quant in {"bf16", "int8_wo"} else ["lm_head"]
    if quant.endswith("awq"):
        quantization |= {"group_size": GROUP_SIZE, "has_zero_point": False, "pre_quant_scale": True}
    if quant == "nvfp4":
        quantization["group_size"] = 16
    config = {
        "producer": {"name": "modelopt", "version": "0.47.0"},
        "architecture": hf["architectures"][0],
        "dtype": "bfloat16",
        "logits_dtype": "float16",
        "num_hidden_layers": model.num_layers,
        "num_attention_heads": model.num_heads,
        "num_key_value_heads": model.num_kv_heads,
        "hidden_size": model.hidden_size,
        "norm_epsilon": 1e-05,
        "vocab_size": -(-model.vocab_size // 64) * 64 if quant.endswith("awq") else model.vocab_size,
        "max_position_embeddings": model.max_position_embeddings,
        "hidden_act": "gelu_pytorch_tanh" if hf["model_type"] == "gemma" else "silu",
        "use_parallel_embedding": True,
        "embedding_sharding_dim": 0,
        "head_size": model.head_dim,
        "intermediate_size": source.intermediate_size,
        "position_embedding_type": "rope_gpt_neox",
        "share_embedding_table": hf["model_type"] == "gemma",
        "rotary_pct": 1.0,
        "rank": tp_size * pp_size - 1,
        "rotary_base": 100000.0,
        "mapping": {"world_size": tp_size * pp_size, "tp_size": tp_size, "pp_size": pp_size},
        "quantization": quantization,
        "attn_bias": hf["model_type"] == "qwen2" or bool(hf.get("attention_bias")),
        "mlp_bias": bool(hf.get("mlp_bias")),
    }
    if hf["model_type"].startswith("qwen"):
        config["qwen_type"] = hf["model_type"]
    if scaling := hf.get("rope_scaling"):
        config["rotary_scaling"] = scaling
    return config


def _rank(
    source: HfCheckpoint,
    quant: str,
    tp_rank: int,
    tp_size: int,
    pp_rank: int,
    pp_size: int,
    kv_algo: str | None,
) -> Tensors:
    model = source.model
    num_layers = model.num_layers // pp_size
    found: Tensors = {}

    def part(values: Array, axis: int) -> Array:
        return np.array_split(values, tp_size, axis)[tp_rank]

    def plain(name: str, values: Array) -> None:
        found[name] = ("BF16", to_bf16(values))

    def vocabulary(name: str) -> Array:
        values = load_tensor(source, name)
        padding = -len(values) % (64 if quant.endswith("awq") else tp_size)
        return part(np.pad(values, ((0, padding), (0, 0))), 0)

    one = np.float32(1) if source.config["model_type"] == "gemma" else np.float32(0)
    if pp_rank == 0:
        plain("transformer.vocab_embedding.weight", vocabulary("model.embed_tokens.weight"))
    for layer in range(num_layers):
        hf, name = f"model.layers.{pp_rank * num_layers + layer}", f"transformer.layers.{layer}"
        norms = {"input_layernorm": "input_layernorm", "post_attention_layernorm": "post_layernorm"}
        if source.config["model_type"] == "qwen3":
            norms |= {
                "self_attn.q_norm": "attention.q_layernorm",
                "self_attn.k_norm": "attention.k_layernorm",
            }
        for original, stored in norms.items():
            plain(f"{name}.{stored}.weight", load_tensor(source, f"{hf}.{original}.weight") + one)
        for kind in ("weight", "bias"):
            if f"{hf}.self_attn.q_proj.{kind}" not in source.tensors:
                continue
            heads = [load_tensor(source, f"{hf}.self_attn.{letter}_proj.{kind}") for letter in "qkv"]
            repeats = max(1, tp_size // model.num_kv_heads)
            for index in (1, 2):  # with more ranks than KV heads, each head stands in several ranks
                by_head = heads[index].reshape(model.num_kv_heads, model.head_dim, *heads[index].shape[1:])
                heads[index] = np.repeat(by_head, repeats, 0).reshape(-1, *heads[index].shape[1:])
            joined = np.concatenate([part(values, 0) for values in heads])
            if kind == "bias":
                plain(f"{name}.attention.qkv.bias", joined)
            else:
                _quantise(found, f"{name}.attention.qkv", joined, quant)
        for original, stored, axis in (
            ("self_attn.o_proj", "attention.dense", 1),
            ("mlp.gate_proj", "mlp.fc", 0),
            ("mlp.up_proj", "mlp.gate", 0),
            ("mlp.down_proj", "mlp.proj", 1),
        ):
            weight = load_tensor(source, f"{hf}.{original}.weight")
            _quantise(found, f"{name}.{stored}", part(weight, axis), quant)
            if f"{hf}.{original}.bias" in source.tensors:
                bias = load_tensor(source, f"{hf}.{original}.bias")
                plain(f"{name}.{stored}.bias", part(bias, 0) if axis == 0 else bias)
        if kv_algo:
            for kind in ("k_cache", "v_cache", "kv_cache"):
                found[f"{name}.attention.{kind}_scaling_factor"] = ("F32", np.ones(1, np.float32))
    if pp_rank == pp_size - 1:
        plain("transformer.ln_f.weight", load_tensor(source, "model.norm.weight") + one)
        if source.config["model_type"] != "gemma":
            head = "model.embed_tokens.weight" if source.has_tied_embeddings else "lm_head.weight"
            plain("lm_head.weight", vocabulary(head))
    return found


def _quantise(found: Tensors, name: str, weight: Array, quant: str) -> None:
    if quant in {"bf16", "int8_wo"}:
        found[f"{name}.weight"] = ("BF16", to_bf16(weight))
        return
    one = np.full(1, np.abs(weight).max() / 448, np.float32)
    if quant == "fp8":
        stored = (weight / one).astype(ml_dtypes.float8_e4m3fn)
        found[f"{name}.weight"] = ("F8_E4M3", stored.view(np.uint8))
        found[f"{name}.weights_scaling_factor"] = ("F32", one)
        found[f"{name}.activation_scaling_factor"] = ("F32", one.copy())
        return
    if quant == "nvfp4":
        second = np.full((), np.abs(weight).max() / 448 / 6, np.float32)
        blocks = weight.reshape(len(weight), -1, 16)
        scale = (np.abs(blocks).max(-1) / 6 / second).astype(ml_dtypes.float8_e4m3fn)
        values = blocks / (scale.astype(np.float32) * second)[..., None]
        codes = values.reshape(weight.shape).astype(ml_dtypes.float4_e2m1fn).view(np.uint8) & 15
        found[f"{name}.weight"] = ("U8", (codes[:, ::2] | codes[:, 1::2] << 4).astype(np.uint8))
        found[f"{name}.weights_scaling_factor"] = ("F8_E4M3", scale.view(np.uint8))
        found[f"{name}.weights_scaling_factor_2"] = ("F32", second)
        found[f"{name}.activation_scaling_factor"] = ("F32", second.copy())
        return
    random = np.random.default_rng(weight.shape[1])
    prequant = random.uniform(0.5, 2, weight.shape[1]).astype(ml_dtypes.bfloat16)
    found[f"{name}.prequant_scaling_factor"] = ("BF16", prequant.view(np.uint16))
    smoothed = weight / prequant.astype(np.float32)
    if quant == "int8_sq":
        scale = np.abs(smoothed).max(1) / 127
        found[f"{name}.weight"] = ("I8", np.rint(smoothed / scale[:, None]).astype(np.int8))
        found[f"{name}.weights_scaling_factor"] = ("F32", scale)
        found[f"{name}.activation_scaling_factor"] = ("F32", one)
        return
    groups = smoothed.reshape(len(weight), -1, GROUP_SIZE)
    scale = np.abs(groups).max(-1) / 7
    values = np.rint(groups / scale[..., None]).astype(np.int8).reshape(weight.shape)
    found[f"{name}.weight"] = ("I8", pack_int4_rows(values))
    found[f"{name}.weights_scaling_factor"] = ("F32", scale)
    if quant == "w4a8_awq":
        found[f"{name}.activation_scaling_factor"] = ("F32", one)
        found[f"{name}.weights_scaling_factor_2"] = ("F32", one.copy())


def pack_int4_rows(values: Array) -> Array:
    """Pack pairs of rows of -8 to 7 into bytes, the even row in their low half."""
    bits = values.astype(np.uint8)
    return ((bits[::2] & 15) | (bits[1::2] & 15) << 4).view(np.int8)
