"""Stored TensorRT-LLM engines as a build leaves them, without their weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fakes.manifest import fake_manifest

from trtb.build.config import BuildConfig
from trtb.build.kv_cache import num_bytes_per_token
from trtb.build.manifest import CheckpointPin, EngineLimits, EngineManifest, GpuRecord, ModelShape, TokenIds

SIZES = {
    "llama-3.1-8b": {"num_layers": 32, "num_heads": 32, "hidden_size": 4096},
    "llama-3.1-70b": {"num_layers": 80, "num_heads": 64, "hidden_size": 8192},
}
VOCABULARY = {"<s>": 0, "</s>": 1, "a": 2, "b": 3, "ab": 4}


def fake_trtllm_manifest(model: str = "llama-3.1-8b", quant: str = "fp8", **fields: Any) -> EngineManifest:
    """Return the manifest of a Llama; `tp_size`, `kv_cache_dtype` and `tensorrt_llm` shape it."""
    tp_size = fields.pop("tp_size", 1)
    kv_cache_dtype = fields.pop("kv_cache_dtype", "fp8" if quant == "fp8" else "bf16")
    version = fields.pop("tensorrt_llm", "1.2.1")
    shape = ModelShape(
        architecture="llama", num_kv_heads=8, head_dim=128, vocab_size=128256,
        max_position_embeddings=131072, **SIZES[model],
    )  # fmt: skip
    limits = EngineLimits(
        max_seq_len=8192,
        max_batch_size=256,
        max_num_tokens=8192,
        tokens_per_block=32,
        kv_bytes_per_token=num_bytes_per_token(shape.num_layers, 8 // tp_size, 128, kv_cache_dtype),
    )
    config = BuildConfig(
        quant=quant,
        tp_size=tp_size,
        kv_cache_dtype=kv_cache_dtype,
        max_seq_len=limits.max_seq_len,
        max_batch_size=limits.max_batch_size,
        max_num_tokens=limits.max_num_tokens,
    )
    values: dict[str, Any] = {
        "name": f"{model}-{quant}",
        "version": 1,
        "backend": "tensorrt_llm",
        "quant": quant,
        "checkpoint": CheckpointPin(
            name=model, revision="0123456789ab", format="hf", source="file", files=[], total_bytes=0,
            pinned_at="2026-01-01T00:00:00+00:00",
        ),
        "model": shape,
        "tokens": TokenIds(bos=0, pad=1, eos=[1]),
        "limits": limits,
        "build_config": json.loads(config.model_dump_json()),
        "compute_capability": "sm_90",
        "gpu": GpuRecord(name="NVIDIA H100 80GB HBM3", compute_capability="sm_90"),
        "toolchain": {"tensorrt_llm": version, "tensorrt": "10.14.1.48"},
    }  # fmt: skip
    return fake_manifest(**{**values, **fields})


def write_trtllm_engine(folder: Path, manifest: EngineManifest, **built: Any) -> Path:
    """Write an engine's files; `built` replaces fields of its build_config, plugins among them."""
    tp_size = int(manifest.build_config["tp_size"])
    limits = manifest.limits
    plugins = {
        "tokens_per_block": limits.tokens_per_block,
        "remove_input_padding": True,
        "use_paged_context_fmha": True,
        "lora_plugin": None,
    }
    plugins |= {name: built.pop(name) for name in list(built) if name in plugins}
    config = {
        "version": manifest.toolchain["tensorrt_llm"],
        "pretrained_config": {"mapping": {"world_size": tp_size, "tp_size": tp_size, "pp_size": 1}},
        "build_config": {
            "max_seq_len": limits.max_seq_len,
            "max_batch_size": limits.max_batch_size,
            "max_num_tokens": limits.max_num_tokens,
            "max_beam_width": 1,
            "kv_cache_type": "PAGED",
            "speculative_decoding_mode": 1,
            "weight_streaming": False,
            "plugin_config": plugins,
            **built,
        },
    }
    engine = folder / "engine"
    engine.mkdir(parents=True)
    (engine / "config.json").write_text(json.dumps(config))
    for rank in range(tp_size):
        (engine / f"rank{rank}.engine").write_bytes(b"ftrt" * 1024)
    (folder / "tokenizer").mkdir()
    write_tokenizer_json(folder / "tokenizer" / "tokenizer.json", VOCABULARY)
    return folder


def write_tokenizer_json(path: Path, vocabulary: dict[str, int], **added: int) -> None:
    """Write a byte-pair tokenizer with a few tokens; `added` stand beside the model's own."""
    from tokenizers import AddedToken, Tokenizer, models

    merges = [("a", "b")] if "ab" in vocabulary else []
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in added])
    assert all(tokenizer.token_to_id(name) == token_id for name, token_id in added.items())
    tokenizer.save(str(path))
