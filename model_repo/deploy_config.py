"""How an engine is served: what both backends have in common, and the parameters of TensorRT-LLM."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from trtb.build import kv_cache
from trtb.build.manifest import EngineLimits, EngineManifest
from trtb.model_repo.trtllm_parameters import TrtllmDeployConfig

KvServedDtype = Literal["auto", "int8"]


@dataclass(frozen=True, slots=True)
class DeployConfig:
    """How an engine is served."""

    # None: a share of this machine's free memory; of a GPU's, as `trtllm` says
    num_kv_blocks: int | None = None
    # requests in flight in the engine, never above the engine's own; TensorRT-LLM always takes the engine's
    # own, and this bounds what Triton hands over at a time
    max_batch_size: int | None = None
    max_queue_size: int = 0  # requests waiting in the server; 0 is unlimited
    max_queue_delay_us: int = 0  # a request waits so long for others to be handed over with (tensorrt_llm)
    # f32 arithmetic and KV: greedy and seeded answers do not depend on company (openvino)
    deterministic: bool = False
    kv_cache_dtype: KvServedDtype = "auto"  # auto: of the arithmetic, or what the engine was compiled for
    kv_reuse: bool | None = None  # shared prefixes are computed once; None: where the engine can
    kv_host_cache_bytes: int | None = None  # for blocks that the GPU has no room for (tensorrt_llm)
    trtllm: TrtllmDeployConfig = field(default_factory=TrtllmDeployConfig)


def limits_as_served(manifest: EngineManifest, kv_cache_dtype: KvServedDtype) -> EngineLimits:
    """Return an engine's limits with the bytes that a token's keys and values take as it is served."""
    if kv_cache_dtype == "auto":
        return manifest.limits
    model, limits = manifest.model, manifest.limits
    per_token = kv_cache.num_bytes_per_token_quantised(
        model.num_layers, model.num_kv_heads, model.head_dim, limits.tokens_per_block
    )
    return limits.model_copy(update={"kv_bytes_per_token": per_token})
