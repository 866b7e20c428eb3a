"""The plan of an engine before anything is built: what it takes, what it can hold, and how to set it.

Pure: a model's sizes, a scheme, the devices and the file's lengths in, figures out. `plan_gpu` and `plan_cpu`
make one; this module has what both share.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from trtb.build import kv_cache
from trtb.build.planning.findings import Finding, is_blocked
from trtb.build.planning.plan_memory import TOKENS_PER_BLOCK, Sizes
from trtb.build.planning.throughput import Reference, nearest_reference

DEFAULT_MARGIN: Final = 0.2
MAX_SEQ_LEN_DEFAULT: Final = 8192
# throughput fell again at larger batches in TensorRT-LLM's tuning guide
MAX_USEFUL_BATCH: Final = 512


@dataclass(frozen=True, slots=True)
class Workload:
    """What a file of requests adds up to; lengths are in tokens, answers as long as they may be."""

    num_requests: int
    prompt_tokens: int  # of all
    output_tokens: int  # of all, at the most
    max_request_tokens: int  # of the longest prompt with its answer
    num_blocks: int  # KV blocks of all requests, to their last token
    shared_prefix_share: float = 0.0  # of the prompt tokens

    @property
    def mean_prompt_tokens(self) -> float:
        """Return a prompt's mean length."""
        return self.prompt_tokens / self.num_requests

    @property
    def mean_output_tokens(self) -> float:
        """Return an answer's mean length, at the most."""
        return self.output_tokens / self.num_requests

    @property
    def mean_blocks(self) -> int:
        """Return the KV blocks of a request of mean length, rounded up."""
        return max(1, -(-self.num_blocks // self.num_requests))


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOptions:
    """What a person fixed; None leaves it to the plan."""

    group_size: int | None = None
    tp_size: int | None = None
    pp_size: int = 1
    max_seq_len: int | None = None
    max_batch_size: int | None = None
    max_num_tokens: int | None = None
    kv_cache_dtype: str = "auto"
    num_kv_blocks: int | None = None  # CPU only: TensorRT-LLM sizes its pool itself
    margin: float = DEFAULT_MARGIN
    gpu_hour_cost: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a plan would build and serve with."""

    tp_size: int = 1
    pp_size: int = 1
    group_size: int | None = None
    kv_cache_dtype: str
    max_seq_len: int
    max_batch_size: int
    max_num_tokens: int
    host_cache_bytes: int = 0  # KV blocks kept in host memory; 0 is off

    @property
    def world_size(self) -> int:
        """Return how many ranks, and so GPUs, there are."""
        return self.tp_size * self.pp_size


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryUse:
    """Where the memory goes; on GPUs, of one rank."""

    total_bytes: int  # what is there to be used
    weight_bytes: int
    reserve_bytes: int  # activations, runtime, buffers
    bytes_per_token: int  # of the KV cache
    num_blocks: int  # of the pool that is counted on
    pool_margin: float = 0.0  # the share left out of a pool that the engine sizes by itself
    tokens_per_block: int = TOKENS_PER_BLOCK

    @property
    def pool_bytes(self) -> int:
        """Return what the blocks take."""
        return self.num_blocks * self.tokens_per_block * self.bytes_per_token

    @property
    def num_tokens(self) -> int:
        """Return what the blocks hold."""
        return self.num_blocks * self.tokens_per_block

    @property
    def needed_bytes(self) -> int:
        """Return weights, reserve and pool."""
        return self.weight_bytes + self.reserve_bytes + self.pool_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """How long a file may take: the nearest published figure, not scaled."""

    reference: Reference
    duration_s: float
    cost: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What an engine takes and can do on some devices; `fits` says whether it can be built and served."""

    model: str
    backend: Literal["openvino", "tensorrt_llm"]
    quant: str
    device: str
    settings: Settings
    memory: MemoryUse
    max_concurrency: int  # requests of mean length, or of max_seq_len without a file
    min_concurrency: int  # requests as long as the longest
    peak_build_bytes: int  # of host memory
    workload: Workload | None
    estimate: Estimate | None
    findings: tuple[Finding, ...]

    @property
    def fits(self) -> bool:
        """Return whether nothing blocks."""
        return not is_blocked(self.findings)


def resolve_seq_len(sizes: Sizes, options: PlanOptions, workload: Workload | None) -> int:
    """Return the length to build for: what is asked, what the file needs, or the model's within reason."""
    most = sizes.shape.max_position_embeddings
    if options.max_seq_len is not None:
        return min(options.max_seq_len, most)
    if workload is None:
        return min(most, MAX_SEQ_LEN_DEFAULT)
    return min(most, num_blocks_of(workload.max_request_tokens) * TOKENS_PER_BLOCK)


def num_blocks_of(num_tokens: int) -> int:
    """Return the blocks of a sequence."""
    return kv_cache.num_blocks_needed(num_tokens, 0, TOKENS_PER_BLOCK)


def concurrencies(num_blocks: int, max_seq_len: int, workload: Workload | None) -> tuple[int, int]:
    """Return how many requests fit the pool at once: of mean length, and of the greatest."""
    longest = num_blocks_of(max_seq_len)
    if workload is None:
        return num_blocks // longest, num_blocks // longest
    longest = min(longest, num_blocks_of(workload.max_request_tokens))
    return num_blocks // min(longest, workload.mean_blocks), num_blocks // longest


def check_lengths(
    sizes: Sizes, options: PlanOptions, max_seq_len: int, workload: Workload | None
) -> list[Finding]:
    """Return findings where the file or the options ask for more than the model's context."""
    most = sizes.shape.max_position_embeddings
    found = []
    if options.max_seq_len is not None and options.max_seq_len > most:
        found.append(
            Finding(
                "context_short",
                "blocks",
                f"max_seq_len: {options.max_seq_len}",
                f"at most {most}, the model's context",
                f"--max-seq-len {most}",
            )
        )
    if workload is not None and workload.max_request_tokens > max_seq_len:
        found.append(
            Finding(
                "requests_too_long",
                "warns",
                f"the file's longest request: {workload.max_request_tokens} tokens with its answer",
                f"at most {max_seq_len}",
                "longer ones fail with context_length_exceeded; trtb validate --tokens lists them",
            )
        )
    return found


def estimate(
    sizes: Sizes, device: str, settings: Settings, quant: str, workload: Workload | None, options: PlanOptions
) -> Estimate | None:
    """Return the nearest published rate and what the file takes at it; None without a file or a figure.

    On a CPU `device` is its strongest instruction set.
    """
    if workload is None:
        return None
    is_gpu = device not in ("avx2", "avx512_bf16")
    reference = nearest_reference(
        num_parameters=sizes.num_parameters,
        device=device,
        num_gpus=settings.world_size if is_gpu else 0,
        quant=quant,
        prompt_tokens=workload.mean_prompt_tokens,
        output_tokens=workload.mean_output_tokens,
    )
    if reference is None:
        return None
    duration_s = workload.output_tokens / reference.output_tokens_per_s
    hourly = options.gpu_hour_cost
    cost = None if hourly is None or not is_gpu else hourly * settings.world_size * duration_s / 3600
    return Estimate(reference=reference, duration_s=duration_s, cost=cost)


def power_of_two_above(value: int) -> int:
    """Return the least power of two that is not below a number.

    >>> power_of_two_above(1), power_of_two_above(65)
    (1, 128)
    """
    return 1 << max(0, value - 1).bit_length()
