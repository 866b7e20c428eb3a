"""What is asked of a KV cache, in terms of both backends, and what neither can honour."""

from __future__ import annotations

import pytest
from fakes.manifest import fake_manifest
from fakes.trtllm_engine import fake_trtllm_manifest

from trtb.build.errors import ConfigError
from trtb.model_repo.deploy_config import DeployConfig
from trtb.runner.launching.kv_options import KvOptions, with_kv_cache

CPU = fake_manifest()  # 46,080 bytes a token in f32, blocks of 32 tokens
GPU = fake_trtllm_manifest()
GPU_BLOCK_BYTES = GPU.limits.kv_bytes_per_token * GPU.limits.tokens_per_block


def test_what_is_not_asked_is_left_to_the_backend():
    for manifest in (CPU, GPU):
        assert with_kv_cache(DeployConfig(), KvOptions(), manifest) == DeployConfig()


@pytest.mark.parametrize(
    ("options", "manifest", "served"),
    [
        (KvOptions(num_blocks=40, reuse=False), CPU, DeployConfig(num_kv_blocks=40, kv_reuse=False)),
        (KvOptions(cache_gb=1.0), CPU, DeployConfig(num_kv_blocks=10**9 // (46_080 * 32))),
        (KvOptions(cache_gb=40.0), GPU, DeployConfig(num_kv_blocks=40 * 10**9 // GPU_BLOCK_BYTES)),
        (KvOptions(host_cache_gb=2.5), GPU, DeployConfig(kv_host_cache_bytes=2_500_000_000)),
        (KvOptions(host_cache_gb=0), GPU, DeployConfig()),
        (KvOptions(host_cache_gb=0), CPU, DeployConfig()),
        (
            KvOptions("int8", cache_gb=1.0),
            CPU,
            DeployConfig(kv_cache_dtype="int8", num_kv_blocks=10**9 // 437_760),  # as measured
        ),
    ],
)
def test_one_set_of_options_is_for_both_backends(options, manifest, served):
    assert with_kv_cache(DeployConfig(), options, manifest) == served


@pytest.mark.parametrize(
    ("options", "manifest", "said"),
    [
        (KvOptions(num_blocks=40, cache_gb=1.0), CPU, "they are the same pool"),
        (KvOptions(host_cache_gb=1.0), CPU, "KV cache is in host memory as it is"),
        (KvOptions(host_cache_gb=1.0, reuse=False), GPU, "only blocks that are reused go there"),
        (KvOptions(cache_gb=0.002), CPU, "is 1 blocks of 32 tokens"),
        (KvOptions(cache_gb=0.5), GPU, "expected 256 or more"),
        (KvOptions("int8"), GPU, "was compiled into it"),
    ],
)
def test_what_contradicts_itself_or_the_backend_is_refused_with_a_way_out(options, manifest, said):
    with pytest.raises(ConfigError) as caught:
        with_kv_cache(DeployConfig(), options, manifest)
    assert said in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize("manifest", [CPU, GPU])
def test_the_size_that_a_refusal_names_is_large_enough(manifest):
    with pytest.raises(ConfigError) as caught:
        with_kv_cache(DeployConfig(), KvOptions(cache_gb=0.001), manifest)
    least = float(caught.value.hint.removeprefix("give at least "))
    assert with_kv_cache(DeployConfig(), KvOptions(cache_gb=least), manifest).num_kv_blocks
