"""The plan of an OpenVINO engine on this host: its KV pool is the one that the server will take."""

from __future__ import annotations

import math

from trtb.build import kv_cache
from trtb.build.manifest import EngineLimits
from trtb.build.planning.findings import Finding
from trtb.build.planning.plan import (
    MemoryUse,
    Plan,
    PlanOptions,
    Settings,
    Workload,
    check_lengths,
    concurrencies,
    estimate,
    num_blocks_of,
    power_of_two_above,
    resolve_seq_len,
)
from trtb.build.planning.plan_memory import (
    TOKENS_PER_BLOCK,
    Sizes,
    cpu_reserve_bytes,
    cpu_weight_bytes,
    kv_bytes_per_token,
    peak_build_bytes,
)
from trtb.build.planning.preflight_build import BuildNeeds, check_layout_of
from trtb.build.planning.preflight_host import MAX_CACHE_SHARE, check_cache_share, check_host_memory
from trtb.build.probe.hardware_info import HostInfo
from trtb.build.quant_schemes import QuantScheme
from trtb.build.quantization import check_linears

MAX_BATCH_SIZE = 128
MAX_NUM_TOKENS = 512  # a longer step gained nothing and lets cancels in later
# The most it can be: what --deterministic takes, and any CPU without 16-bit arithmetic. The server counts
# its blocks in f32 too, so that a cache of 16 bits has as many and takes half of the memory.
KV_CACHE_DTYPE = "f32"


def plan_cpu(
    sizes: Sizes,
    scheme: QuantScheme,
    host: HostInfo,
    options: PlanOptions,
    workload: Workload | None = None,
    *,
    limits: EngineLimits | None = None,
) -> Plan:
    """Return the plan on this host's processor and memory.

    Args:
        sizes: The model.
        scheme: A scheme of the openvino backend.
        host: What was probed.
        options: What is fixed; a plan changes none of it.
        workload: The file's lengths.
        limits: Those of an engine that is built already.

    Raises:
        ConfigError: The group size does not divide the model's matrices.
    """
    settings = _settings(sizes, scheme, options, workload, limits)
    per_token = kv_bytes_per_token(sizes.shape, settings.kv_cache_dtype)
    if limits is not None:
        per_token = limits.kv_bytes_per_token
    num_blocks = pool_blocks(settings, per_token, host.memory.available_bytes, options.num_kv_blocks)
    weights = cpu_weight_bytes(sizes, scheme, settings.group_size)
    memory = MemoryUse(
        total_bytes=host.memory.available_bytes,
        weight_bytes=weights,
        reserve_bytes=cpu_reserve_bytes(
            sizes, scheme, weights, settings.max_batch_size, settings.max_num_tokens
        ),
        bytes_per_token=per_token,
        num_blocks=num_blocks,
    )
    most, least = concurrencies(num_blocks, settings.max_seq_len, workload)
    needs = _needs(sizes, scheme, settings)
    needed = math.ceil((weights + memory.reserve_bytes) * (1 + options.margin)) + memory.pool_bytes
    found = (
        *check_layout_of(needs),
        *check_lengths(sizes, options, settings.max_seq_len, workload),
        *check_host_memory(host.memory, needed, f"an engine of {sizes.name} as {scheme.name}"),
        *check_cache_share(host.memory, memory.pool_bytes, weights + memory.reserve_bytes),
        *_check_pool(memory, settings, host, workload),
    )
    device = instruction_set(host)
    return Plan(
        model=sizes.name,
        backend="openvino",
        quant=scheme.name,
        device=device,
        settings=settings,
        memory=memory,
        max_concurrency=most,
        min_concurrency=least,
        peak_build_bytes=needs.peak_host_bytes,
        workload=workload,
        estimate=estimate(sizes, device, settings, scheme.name, workload, options),
        findings=found,
    )


def pool_blocks(
    settings: Settings, bytes_per_token: int, available_bytes: int, num_kv_blocks: int | None
) -> int:
    """Return the KV pool, in blocks, that a server takes on a host with so much free memory."""
    if num_kv_blocks is not None:
        return num_kv_blocks
    useful = settings.max_batch_size * num_blocks_of(settings.max_seq_len)
    return kv_cache.default_num_blocks(available_bytes, bytes_per_token * TOKENS_PER_BLOCK, useful)


def instruction_set(host: HostInfo) -> str:
    """Return what decides the CPU engine's speed: "avx512_bf16", "avx2", or "x86_64" for neither."""
    return next((flag for flag in ("avx512_bf16", "avx2") if flag in host.cpu.flags), "x86_64")


def _settings(
    sizes: Sizes,
    scheme: QuantScheme,
    options: PlanOptions,
    workload: Workload | None,
    limits: EngineLimits | None,
) -> Settings:
    group_size = check_linears(scheme, sizes.linears(), options.group_size, 1)
    if limits is not None:
        return Settings(
            group_size=group_size,
            kv_cache_dtype=KV_CACHE_DTYPE,
            max_seq_len=limits.max_seq_len,
            max_batch_size=limits.max_batch_size,
            max_num_tokens=limits.max_num_tokens,
        )
    batch = MAX_BATCH_SIZE
    if workload is not None:  # more than the file has requests is of no use
        batch = min(batch, power_of_two_above(workload.num_requests))
    return Settings(
        group_size=group_size,
        kv_cache_dtype=KV_CACHE_DTYPE,
        max_seq_len=resolve_seq_len(sizes, options, workload),
        max_batch_size=options.max_batch_size or batch,
        max_num_tokens=options.max_num_tokens or MAX_NUM_TOKENS,
    )


def _needs(sizes: Sizes, scheme: QuantScheme, settings: Settings) -> BuildNeeds:
    return BuildNeeds(
        sizes=sizes,
        scheme=scheme,
        group_size=settings.group_size,
        kv_cache_dtype=settings.kv_cache_dtype,
        max_seq_len=settings.max_seq_len,
        max_batch_size=settings.max_batch_size,
        max_num_tokens=settings.max_num_tokens,
        peak_host_bytes=peak_build_bytes(sizes, scheme),
    )


def _check_pool(
    memory: MemoryUse, settings: Settings, host: HostInfo, workload: Workload | None
) -> list[Finding]:
    longest = settings.max_seq_len
    if workload is not None:
        longest = min(longest, workload.max_request_tokens)
    if longest <= memory.num_tokens:
        return []
    needed = num_blocks_of(longest)
    bytes_needed = needed * memory.bytes_per_token * TOKENS_PER_BLOCK
    is_possible = bytes_needed <= MAX_CACHE_SHARE * host.memory.usable_bytes
    return [
        Finding(
            "kv_pool_small",
            "warns" if workload is None else "blocks",
            f"KV cache: {memory.num_blocks} blocks, {memory.num_tokens} tokens",
            f"{longest} tokens, for the longest request",
            f"--num-kv-blocks {needed}" if is_possible else "a smaller --max-seq-len, or more memory",
        )
    ]
