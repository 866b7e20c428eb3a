"""What a person asks of a server's KV cache, in terms that both backends share. No I/O."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final, get_args

from trtb.build import kv_cache
from trtb.build.errors import ConfigError
from trtb.build.manifest import EngineLimits, EngineManifest
from trtb.model_repo.deploy_config import DeployConfig, KvServedDtype, limits_as_served

GB: Final = 10**9


@dataclass(frozen=True, slots=True)
class KvOptions:
    """The KV cache of a server; None leaves a choice to the backend."""

    dtype: KvServedDtype = "auto"
    num_blocks: int | None = None
    cache_gb: float | None = None  # the pool's size, of each GPU; on a CPU with auto counted in f32
    host_cache_gb: float | None = None  # TensorRT-LLM's second pool, for what the first has no room for
    reuse: bool | None = None  # shared prefixes are computed once


def read_dtype(value: Any) -> KvServedDtype:
    """Return the type that a KV cache is asked to have.

    Raises:
        ConfigError: It is none.
    """
    for known in get_args(KvServedDtype):
        if value == known:
            return known  # type: ignore[no-any-return]
    raise ConfigError(f"--kv-cache-dtype: {value!r}; expected {' or '.join(get_args(KvServedDtype))}")


def with_kv_cache(config: DeployConfig, options: KvOptions, manifest: EngineManifest) -> DeployConfig:
    """Return how an engine is served, with its KV cache as asked.

    Raises:
        ConfigError: Options contradict each other, or the backend has no such choice.
    """
    _check_dtype(options.dtype, manifest, deterministic=config.deterministic)
    if options.num_blocks is not None and options.cache_gb is not None:
        raise ConfigError(
            f"--kv-cache-gb: {options.cache_gb:g}, and --num-kv-blocks: {options.num_blocks}; they are the "
            "same pool",
            "give one of the two",
        )
    if options.host_cache_gb and manifest.backend != "tensorrt_llm":
        raise ConfigError(
            f"--kv-host-cache-gb: {manifest.reference} is an engine of the {manifest.backend} backend, whose "
            "KV cache is in host memory as it is",
            "leave it out; the KV pool of this backend is --num-kv-blocks, or --kv-cache-gb",
        )
    if options.host_cache_gb and options.reuse is False:
        raise ConfigError(
            f"--kv-host-cache-gb: {options.host_cache_gb:g}, and --no-kv-reuse; only blocks that are reused "
            "go there",
            "give one of the two",
        )
    host_gb = options.host_cache_gb
    return replace(
        config,
        kv_cache_dtype=options.dtype,
        num_kv_blocks=num_blocks_asked(options, manifest),
        kv_reuse=options.reuse,
        kv_host_cache_bytes=None if host_gb is None else int(host_gb * GB) or None,
    )


def _check_dtype(dtype: KvServedDtype, manifest: EngineManifest, *, deterministic: bool) -> None:
    if dtype == "auto":
        return
    if manifest.backend == "tensorrt_llm":
        raise ConfigError(
            f"--kv-cache-dtype: {dtype}; that of engine {manifest.reference} was compiled into it",
            f"build another: trtb build --kv-cache-dtype {dtype}",
        )
    if deterministic:
        raise ConfigError(
            f"--kv-cache-dtype: {dtype}, and --deterministic; with 8 bits answers depend on company",
            "give one of the two",
        )


def num_blocks_asked(options: KvOptions, manifest: EngineManifest) -> int | None:
    """Return the pool that was asked for, in blocks; None where none was.

    Raises:
        ConfigError: It holds less than the engine must have.
    """
    cache_gb, limits = options.cache_gb, limits_as_served(manifest, options.dtype)
    if cache_gb is None:
        return options.num_blocks
    per_block = limits.kv_bytes_per_token * limits.tokens_per_block
    found = kv_cache.num_blocks_in(int(cache_gb * GB), per_block)
    least = _least_blocks(limits, manifest.backend)
    if found < least:
        raise ConfigError(
            f"--kv-cache-gb: {cache_gb:g} is {found} blocks of {limits.tokens_per_block} tokens for engine "
            f"{manifest.reference}; expected {least} or more",
            f"give at least {_up(least * per_block)}",
        )
    return found


def _least_blocks(limits: EngineLimits, backend: str) -> int:
    """Return what a pool must hold: TensorRT-LLM takes none that is too small for the longest sequence."""
    if backend != "tensorrt_llm":
        return 2
    return kv_cache.num_blocks_needed(limits.max_seq_len, 0, limits.tokens_per_block)


def _up(num_bytes: int) -> str:
    """Return bytes in GB, rounded up.

    >>> _up(1_234_500_000), _up(1)
    ('1.235', '0.001')
    """
    return f"{-(-num_bytes // 10**6) / 1000:g}"
