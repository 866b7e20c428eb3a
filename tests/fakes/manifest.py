"""An engine's manifest without an engine."""

from __future__ import annotations

from typing import Any

from trtb.build.manifest import CheckpointPin, EngineLimits, EngineManifest, ModelShape, TokenIds


def fake_manifest(**fields: Any) -> EngineManifest:
    """Return a manifest of a small engine; `fields` replace its own."""
    values: dict[str, Any] = {
        "engine_id": "e" * 64,
        "name": "tiny-int8_wo",
        "version": 3,
        "backend": "openvino",
        "quant": "int8_wo",
        "checkpoint": CheckpointPin(
            name="tiny", revision="0123456789ab", format="gguf", source="file", files=[], total_bytes=0,
            pinned_at="2026-01-01T00:00:00+00:00",
        ),
        "model": ModelShape(
            architecture="llama", num_layers=30, num_heads=9, num_kv_heads=3, head_dim=64, hidden_size=576,
            vocab_size=49152, max_position_embeddings=8192,
        ),
        "tokens": TokenIds(bos=1, pad=2, eos=[2, 0]),
        "limits": EngineLimits(
            max_seq_len=8192, max_batch_size=128, max_num_tokens=512, tokens_per_block=32,
            kv_bytes_per_token=46080,
        ),
        "build_config": {},
        "compute_capability": "cpu",
        "toolchain": {},
        "trtb_version": "0.1.0",
        "quality": None,
        "files": [],
        "built_at": "2026-01-01T00:00:00+00:00",
        "build_duration_s": 1.0,
    }  # fmt: skip
    return EngineManifest(**{**values, **fields})
