"""The plan of a TensorRT-LLM engine on GPUs of one kind: how many of them, and its settings."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from trtb.build import kv_cache
from trtb.build.errors import ConfigError
from trtb.build.planning.findings import MEMORY_CODES, Finding, is_blocked
from trtb.build.planning.plan import (
    MAX_USEFUL_BATCH,
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
    FREE_GPU_MEMORY_FRACTION,
    TOKENS_PER_BLOCK,
    Sizes,
    gpu_reserve_bytes,
    gpu_weight_bytes,
    kv_bytes_per_token,
    peak_build_bytes,
)
from trtb.build.planning.preflight_build import BuildNeeds, check_devices, check_layout_of, freest
from trtb.build.planning.preflight_gpu import GpuDevice, largest_pool
from trtb.build.planning.preflight_host import gib
from trtb.build.quant_schemes import QuantScheme
from trtb.build.quantization import check_layout, resolve_kv_cache_dtype

TP_SIZES = (1, 2, 4, 8)
STEP_TOKENS = (8192, 4096, 2048)  # the tuning guide saw no difference in speed between them
DEFAULT_BATCH = 256  # without a file to go by
# With room for fewer requests a GPU is mostly idle: Llama-3.1-70B in FP8 was published with 912 output
# tokens/s on one H100, whose KV cache is small then, and with 6,170 on two.
MIN_USEFUL_REQUESTS = 32
TYPICAL_SHARE = 0.25  # of max_seq_len that a request has, without a file
# a second use of the host's memory pays where much of the file is shared prefixes that the pool cannot keep
MIN_SHARED_SHARE = 0.2
HOST_CACHE_SHARE = 0.25


def plan_gpu(
    sizes: Sizes,
    scheme: QuantScheme,
    devices: Sequence[GpuDevice],
    options: PlanOptions,
    workload: Workload | None = None,
    *,
    dtype: str = "bf16",
    host_bytes: int | None = None,
) -> Plan:
    """Return the plan on the fewest devices that hold enough requests, or the nearest where none fits.

    Args:
        sizes: The model.
        scheme: A scheme of the tensorrt_llm backend.
        devices: What there is, or would be; an engine uses those of one kind.
        options: What is fixed; a plan changes none of it.
        workload: The file's lengths.
        dtype: "bf16" or "f16", of what is not quantised.
        host_bytes: The host's free memory, where the devices are this machine's.

    Raises:
        ConfigError: An option is impossible for this model, whatever the GPU.
    """
    pool = largest_pool(devices) or list(devices)
    fitting: list[Plan] = []
    refused: list[Plan] = []
    for settings in _candidates(sizes, scheme, pool, options, workload, dtype):
        if fitting and settings.max_seq_len < fitting[0].settings.max_seq_len:
            break  # shorter sequences are for where nothing else fits
        plan = _make_plan(sizes, scheme, devices, pool, settings, options, workload)
        if not plan.fits:
            refused.append(plan)
            if any(found.severity == "blocks" and found.code not in MEMORY_CODES for found in plan.findings):
                break  # other settings would not help
        elif _is_useful(plan):
            return _with_host_cache(plan, pool, host_bytes)
        else:
            fitting.append(plan)
    if not fitting:
        return refused[-1]
    best = max(fitting, key=lambda plan: plan.memory.num_tokens / plan.settings.tp_size)
    return _with_host_cache(best, pool, host_bytes)


def _is_useful(plan: Plan) -> bool:
    if plan.workload is None:
        request = plan.settings.max_seq_len * TYPICAL_SHARE
        return plan.memory.num_tokens >= MIN_USEFUL_REQUESTS * request
    enough = min(MIN_USEFUL_REQUESTS, plan.workload.num_requests)
    return plan.memory.num_blocks >= enough * plan.workload.mean_blocks


def _candidates(
    sizes: Sizes,
    scheme: QuantScheme,
    pool: Sequence[GpuDevice],
    options: PlanOptions,
    workload: Workload | None,
    dtype: str,
) -> Iterator[Settings]:
    """Yield settings to try: few GPUs before many, a 16-bit KV cache before FP8; last, shorter sequences."""
    seq_lens = [resolve_seq_len(sizes, options, workload)]
    if options.max_seq_len is None and workload is None:
        seq_lens += [length for length in (4096, 2048) if length < seq_lens[0]]
    splits = list(_splits(sizes, scheme, len(pool), options))
    for max_seq_len in seq_lens:
        for tp_size, group_size in splits:
            for kv_cache_dtype in _kv_cache_dtypes(scheme, pool, options, dtype):
                settings = Settings(
                    tp_size=tp_size,
                    pp_size=options.pp_size,
                    group_size=group_size,
                    kv_cache_dtype=kv_cache_dtype,
                    max_seq_len=max_seq_len,
                    max_batch_size=1,
                    max_num_tokens=STEP_TOKENS[-1],
                )
                yield _sized(sizes, scheme, pool, settings, options, workload)


def _splits(
    sizes: Sizes, scheme: QuantScheme, num_devices: int, options: PlanOptions
) -> Iterator[tuple[int, int | None]]:
    """Yield the tensor parallelisms that the model and the devices allow, with the group size of each."""
    fault: ConfigError | None = None
    wanted = TP_SIZES if options.tp_size is None else (options.tp_size,)
    found = 0
    for tp_size in wanted:
        if found and tp_size * options.pp_size > num_devices:
            break
        try:
            group_size = check_layout(
                scheme,
                sizes.shape,
                sizes.intermediate_size,
                sizes.linears(),
                group_size=options.group_size,
                tp_size=tp_size,
                pp_size=options.pp_size,
            )
        except ConfigError as exc:
            fault = fault or exc
            continue
        found += 1
        yield tp_size, group_size
    if not found and fault is not None:
        raise fault


def _kv_cache_dtypes(
    scheme: QuantScheme, pool: Sequence[GpuDevice], options: PlanOptions, dtype: str
) -> Iterator[str]:
    own = {"bf16": "bf16", "f16": "f16"}.get(scheme.name, dtype)
    if options.kv_cache_dtype != "auto":
        yield resolve_kv_cache_dtype(scheme, options.kv_cache_dtype, own)
        return
    has_fp8 = "fp8" in scheme.kv_cache_dtypes and bool(pool) and pool[0].sm >= 89
    if has_fp8 and scheme.name == "fp8":
        # the largest single gain in TensorRT-LLM's tuning guide: 3,390 to 5,300 tokens/s
        yield "fp8"
        return
    yield own
    if has_fp8:
        yield "fp8"


def _sized(
    sizes: Sizes,
    scheme: QuantScheme,
    pool: Sequence[GpuDevice],
    settings: Settings,
    options: PlanOptions,
    workload: Workload | None,
) -> Settings:
    """Return the settings with the batch and the step that hold the most requests in flight."""
    best, best_rank = settings, (-1, -1, -1)
    for step in (options.max_num_tokens,) if options.max_num_tokens else STEP_TOKENS:
        batches = (options.max_batch_size,) if options.max_batch_size else _batches()
        for batch in batches:
            tried = replace(settings, max_batch_size=batch, max_num_tokens=max(step, batch))
            blocks = _memory(sizes, scheme, pool, tried, options).num_blocks
            if blocks < num_blocks_of(tried.max_seq_len) and batch != batches[0]:
                break
            wanted = concurrencies(blocks, tried.max_seq_len, workload)[0] if workload else DEFAULT_BATCH
            held = min(batch, power_of_two_above(max(1, min(wanted, MAX_USEFUL_BATCH))))
            # of batches that hold equally many the smallest; a larger step where it costs no request
            rank = (held, step, -batch)
            if rank > best_rank:
                best, best_rank = tried, rank
    return best


def _batches() -> tuple[int, ...]:
    return tuple(1 << power for power in range(MAX_USEFUL_BATCH.bit_length()))


def _memory(
    sizes: Sizes, scheme: QuantScheme, pool: Sequence[GpuDevice], settings: Settings, options: PlanOptions
) -> MemoryUse:
    used = freest(pool, settings.world_size)
    total = min((device.free_bytes for device in used), default=0)
    weights = gpu_weight_bytes(sizes, scheme, settings.group_size, settings.tp_size, settings.pp_size)
    reserve = gpu_reserve_bytes(sizes, settings.max_batch_size, settings.max_num_tokens, settings.tp_size)
    per_token = kv_bytes_per_token(sizes.shape, settings.kv_cache_dtype, settings.tp_size, settings.pp_size)
    pool_bytes = math.floor(max(0, total - weights - reserve) * FREE_GPU_MEMORY_FRACTION)
    planned_bytes = math.floor(pool_bytes * (1 - options.margin))
    return MemoryUse(
        total_bytes=total,
        weight_bytes=weights,
        reserve_bytes=reserve,
        bytes_per_token=per_token,
        num_blocks=kv_cache.num_blocks_in(planned_bytes, per_token * TOKENS_PER_BLOCK),
        pool_margin=options.margin,
    )


def _make_plan(
    sizes: Sizes,
    scheme: QuantScheme,
    devices: Sequence[GpuDevice],
    pool: Sequence[GpuDevice],
    settings: Settings,
    options: PlanOptions,
    workload: Workload | None,
) -> Plan:
    memory = _memory(sizes, scheme, pool, settings, options)
    most, least = concurrencies(memory.num_blocks, settings.max_seq_len, workload)
    needs = needs_of(sizes, scheme, settings)
    found = [
        *check_layout_of(needs),
        *check_devices(needs, devices),
        *check_lengths(sizes, options, settings.max_seq_len, workload),
    ]
    if not is_blocked(found):
        found += _check_pool(memory, settings)
    device = pool[0].model if pool else "no GPU"
    return Plan(
        model=sizes.name,
        backend="tensorrt_llm",
        quant=scheme.name,
        device=device,
        settings=settings,
        memory=memory,
        max_concurrency=most,
        min_concurrency=least,
        peak_build_bytes=needs.peak_host_bytes,
        workload=workload,
        estimate=estimate(sizes, device, settings, scheme.name, workload, options),
        findings=tuple(found),
    )


def needs_of(sizes: Sizes, scheme: QuantScheme, settings: Settings) -> BuildNeeds:
    """Return what building with these settings needs of a machine."""
    return BuildNeeds(
        sizes=sizes,
        scheme=scheme,
        group_size=settings.group_size,
        tp_size=settings.tp_size,
        pp_size=settings.pp_size,
        kv_cache_dtype=settings.kv_cache_dtype,
        max_seq_len=settings.max_seq_len,
        max_batch_size=settings.max_batch_size,
        max_num_tokens=settings.max_num_tokens,
        peak_host_bytes=peak_build_bytes(sizes, scheme),
    )


def _check_pool(memory: MemoryUse, settings: Settings) -> Iterator[Finding]:
    if memory.num_tokens < settings.max_seq_len:
        yield Finding(
            "kv_pool_small",
            "blocks",
            f"KV cache: {gib(memory.pool_bytes)} after a margin of {memory.pool_margin:.0%}, "
            f"{memory.num_tokens} tokens",
            f"{settings.max_seq_len} tokens: one whole sequence",
            "a smaller --max-seq-len, fewer bits, or more GPUs (--tp-size)",
        )


def _with_host_cache(plan: Plan, pool: Sequence[GpuDevice], host_bytes: int | None) -> Plan:
    """Return the plan with evicted KV blocks kept in host memory, where that can pay."""
    load = plan.workload
    if load is None or host_bytes is None or load.shared_prefix_share < MIN_SHARED_SHARE or pool[0].sm < 90:
        return plan
    if load.num_blocks <= plan.memory.num_blocks:
        return plan
    shared = int(load.shared_prefix_share * load.prompt_tokens) * plan.memory.bytes_per_token
    host_cache_bytes = min(shared, int(host_bytes * HOST_CACHE_SHARE) // plan.settings.world_size)
    return replace(plan, settings=replace(plan.settings, host_cache_bytes=host_cache_bytes))
