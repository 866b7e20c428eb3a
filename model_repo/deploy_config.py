"""How an engine is served: what both backends have in common, and the parameters of TensorRT-LLM."""

from __future__ import annotations

from dataclasses import dataclass, field

from trtb.model_repo.trtllm_parameters import TrtllmDeployConfig


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
    trtllm: TrtllmDeployConfig = field(default_factory=TrtllmDeployConfig)
