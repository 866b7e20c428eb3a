"""A GGUF file as a bf16 Hugging Face folder, without torch: what the toolchains of a GPU read.

The same GGUF file gives the same weights to the byte. Rows of Q and K stand in another order in a GGUF
file of a Llama, because llama.cpp rotates neighbouring values where transformers rotates the two halves
of a head; written as they stand, the model would still load, and answer with nonsense.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtb.build.checkpoints.gguf_checkpoint import GgufCheckpoint
from trtb.build.checkpoints.hf_checkpoint import read_hf
from trtb.build.checkpoints.safetensors_file import TensorSpec, to_bf16, write_safetensors
from trtb.build.checkpoints.tokenizer import check_tokenizer, write_tokenizer
from trtb.build.errors import CheckpointError, CheckpointUnsupportedError

if TYPE_CHECKING:
    import numpy as np

ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}

_CHUNK_VALUES = 1 << 24  # dequantised at a time: 64 MiB of float32
_GLOBAL_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def write_hf(gguf: GgufCheckpoint, folder: Path) -> None:
    """Write a checkpoint's bf16 Hugging Face folder: weights, config.json and tokenizer.

    Memory holds one tensor as bf16 and a part of it as float32, never the model.

    Raises:
        CheckpointUnsupportedError: Its architecture, RoPE scaling, a tensor or its tokenizer.
        CheckpointError: Its tensors are not those of its sizes.
    """
    _check(gguf)
    check_tokenizer(gguf)
    folder.mkdir(parents=True, exist_ok=True)
    sources = {hf_name(gguf, tensor.name): tensor for tensor in gguf.reader.tensors}
    specs = [
        TensorSpec(name, "BF16", tuple(int(size) for size in reversed(sources[name].shape)))
        for name in sorted(sources)
    ]
    write_safetensors(folder / "model.safetensors", specs, lambda spec: _bf16(gguf, sources[spec.name]))
    _write_json(folder / "config.json", _config(gguf))
    write_tokenizer(gguf, folder)
    _complete_tokenizer_config(folder)
    read_hf(folder)  # a tensor that is missing, or too many, shows here


def hf_name(gguf: GgufCheckpoint, name: str) -> str:
    """Return the name that transformers gives to a tensor of a GGUF file.

    Raises:
        CheckpointUnsupportedError: It is none of a dense decoder.
    """
    if name in _GLOBAL_NAMES:
        return _GLOBAL_NAMES[name]
    parts = name.split(".")  # blk.0.attn_q.weight
    if len(parts) == 4 and parts[0] == "blk" and parts[2] in _LAYER_NAMES and parts[3] in {"weight", "bias"}:
        return f"model.layers.{parts[1]}.{_LAYER_NAMES[parts[2]]}.{parts[3]}"
    raise CheckpointUnsupportedError(
        f"{gguf.path}: tensor {name}; expected those of a dense decoder",
        "give a Hugging Face folder of this checkpoint",
    )


def unpermute(rows: np.ndarray[Any, Any], num_heads: int) -> np.ndarray[Any, Any]:
    """Put the rows of a Llama's Q or K from llama.cpp's order into transformers'; shape (rows, ...)."""
    halves = rows.reshape(num_heads, rows.shape[0] // num_heads // 2, 2, *rows.shape[1:])
    return halves.swapaxes(1, 2).reshape(rows.shape)


def _check(gguf: GgufCheckpoint) -> None:
    architecture = gguf.model.architecture
    if architecture not in ARCHITECTURES:
        raise CheckpointUnsupportedError(
            f"{gguf.path}: architecture {architecture!r}; expected one of {', '.join(ARCHITECTURES)}",
            "give a Hugging Face folder of this checkpoint",
        )
    scaling = gguf.metadata.get(f"{architecture}.rope.scaling.type", "none")
    if scaling != "none" or any(tensor.name.startswith("rope_freqs") for tensor in gguf.tensors):
        raise CheckpointUnsupportedError(
            f"{gguf.path}: scaled RoPE ({scaling}): a GGUF file does not hold all of what config.json needs",
            "give a Hugging Face folder of this checkpoint",
        )


def _bf16(gguf: GgufCheckpoint, tensor: Any) -> np.ndarray[Any, Any]:
    """Return a tensor as bfloat16 bits, with its rows in transformers' order."""
    import numpy as np
    from gguf.quants import dequantize

    shape = tuple(int(size) for size in reversed(tensor.shape))
    rows = tensor.data.reshape(-1, tensor.data.shape[-1])
    step = max(1, _CHUNK_VALUES // shape[-1])
    try:
        parts = [
            to_bf16(dequantize(rows[start : start + step], tensor.tensor_type))
            for start in range(0, len(rows), step)
        ]
    except NotImplementedError as exc:
        raise CheckpointUnsupportedError(
            f"{gguf.path}: {tensor.name}: type {tensor.tensor_type.name}; "
            "expected one that the gguf package can dequantise",
            "fetch the checkpoint in F16, BF16, Q8_0 or a K-quant",
        ) from exc
    values: np.ndarray[Any, Any] = np.concatenate(parts).reshape(shape)
    kind = tensor.name.split(".")[-2]
    if gguf.model.architecture == "llama" and kind in {"attn_q", "attn_k"}:
        num_heads = gguf.model.num_heads if kind == "attn_q" else gguf.model.num_kv_heads
        return np.ascontiguousarray(unpermute(values, num_heads))
    return values


def _config(gguf: GgufCheckpoint) -> dict[str, Any]:
    model, tokens, metadata = gguf.model, gguf.tokens, gguf.metadata
    names = {tensor.name for tensor in gguf.tensors}

    def number(key: str, default: float) -> float:
        value = metadata.get(f"{model.architecture}.{key}", default)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise CheckpointError(f"{gguf.path}: {model.architecture}.{key}: {value!r}; expected a number")
        return _shortest(value)

    intermediate_size = metadata.get(f"{model.architecture}.feed_forward_length")
    if not isinstance(intermediate_size, int):
        raise CheckpointError(
            f"{gguf.path}: {model.architecture}.feed_forward_length: {intermediate_size!r}; "
            "expected a whole number"
        )
    return {
        "architectures": [ARCHITECTURES[model.architecture]],
        "model_type": model.architecture,
        "torch_dtype": "bfloat16",
        "vocab_size": model.vocab_size,
        "hidden_size": model.hidden_size,
        "intermediate_size": intermediate_size,
        "num_hidden_layers": model.num_layers,
        "num_attention_heads": model.num_heads,
        "num_key_value_heads": model.num_kv_heads,
        "head_dim": model.head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": model.max_position_embeddings,
        "rms_norm_eps": number("attention.layer_norm_rms_epsilon", 1e-6),
        "rope_theta": number("rope.freq_base", 10000.0),
        "rope_scaling": None,
        "attention_bias": "blk.0.attn_q.bias" in names,
        "mlp_bias": "blk.0.ffn_up.bias" in names,
        "attention_dropout": 0.0,
        "initializer_range": 0.02,
        "use_cache": True,
        "tie_word_embeddings": "output.weight" not in names,
        "bos_token_id": tokens.bos,
        "eos_token_id": tokens.end,
        "pad_token_id": tokens.pad,
    }


def _shortest(value: float) -> float:
    """Return the shortest decimal that is the same float32: GGUF holds 1e-05 as 9.999999747378752e-06."""
    import numpy as np

    return float(str(np.float32(value)))


def _complete_tokenizer_config(folder: Path) -> None:
    """Say in tokenizer_config.json what transformers looks for there, its version 4 included."""
    path, template = folder / "tokenizer_config.json", folder / "chat_template.jinja"
    config = json.loads(path.read_bytes())
    # of its own, version 4 adds token_type_ids, which generate() of a Llama refuses
    config["model_input_names"] = ["input_ids", "attention_mask"]
    if template.is_file():
        config["chat_template"] = template.read_bytes().decode()
        template.unlink()
    _write_json(path, config)


def _write_json(path: Path, data: dict[str, Any]) -> None:
    path.write_text(json.dumps(data, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
