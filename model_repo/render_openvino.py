"""The openvino engine's model: the contract's tensors before the engine library, as a python model."""

from __future__ import annotations

import importlib.resources
import os
from pathlib import Path

from trtb.build import hardware, kv_cache
from trtb.build.errors import ConfigError
from trtb.build.manifest import EngineLimits, EngineManifest
from trtb.model_repo import contract, pbtxt
from trtb.model_repo.deploy_config import DeployConfig, limits_as_served
from trtb.model_repo.trtllm_parameters import TrtllmDeployConfig, to_parameters

BACKEND = "python"


def render_model(
    engine_dir: Path, manifest: EngineManifest, model_dir: Path, config: DeployConfig, max_batch_size: int
) -> None:
    """Write the model of an engine into `model_dir`.

    The engine's folder is written relative to the model's where the repository lies inside it, so that
    an engine can be moved.

    Raises:
        ConfigError: `config` holds what is TensorRT-LLM's alone.
    """
    if config.kv_host_cache_bytes:
        raise ConfigError(
            f"kv_host_cache_bytes: {config.kv_host_cache_bytes}; {manifest.reference} is an engine of the "
            "openvino backend, whose KV cache is in host memory as it is",
            "leave it out; the KV pool of this backend is --num-kv-blocks, or --kv-cache-gb",
        )
    if config.trtllm != TrtllmDeployConfig():
        defaults = to_parameters(TrtllmDeployConfig())
        given = [name for name, text in to_parameters(config.trtllm).items() if defaults.get(name) != text]
        raise ConfigError(
            f"{', '.join(given)}: of TensorRT-LLM; {manifest.reference} is an engine of the openvino backend",
            "leave it out; the KV pool of this backend is --num-kv-blocks",
        )
    limits = limits_as_served(manifest, config.kv_cache_dtype)
    version_dir = make_version_dir(model_dir)
    copy_template("openvino", version_dir)
    inside = model_dir.resolve().is_relative_to(engine_dir.resolve())
    parameters = {
        "engine_dir": os.path.relpath(engine_dir, model_dir) if inside else str(engine_dir.resolve()),
        "engine_id": manifest.engine_id,
        "max_num_tokens": str(manifest.limits.max_num_tokens),
        "max_batch_size": str(max_batch_size),
        "max_queue_size": str(config.max_queue_size),
        "num_kv_blocks": str(config.num_kv_blocks or num_blocks_for_machine(limits)),
        "deterministic": "true" if config.deterministic else "false",
        contract.KV_DTYPE_PARAMETER: config.kv_cache_dtype,
        contract.KV_REUSE_PARAMETER: "false" if config.kv_reuse is False else "true",
    }
    write_contract_config(model_dir, max_batch_size, parameters)


def render_noop_model(model_dir: Path) -> None:
    """Write a model of the same contract that answers at once with a fixed answer, for benchmarks."""
    copy_template("noop", make_version_dir(model_dir))
    write_contract_config(model_dir, 1024, {})


def num_blocks_for_machine(limits: EngineLimits) -> int:
    """Return the KV pool that suits this machine and engine, in blocks.

    It is counted in f32, as the manifest does; without `deterministic` a CPU with bf16 takes half of that.
    """
    return kv_cache.default_num_blocks(
        hardware.available_host_bytes(),
        limits.kv_bytes_per_token * limits.tokens_per_block,
        limits.max_batch_size * kv_cache.num_blocks_needed(limits.max_seq_len, 0, limits.tokens_per_block),
    )


def make_version_dir(model_dir: Path) -> Path:
    """Make the folder of the one version that a model has."""
    version_dir = model_dir / contract.MODEL_VERSION
    version_dir.mkdir(parents=True)
    return version_dir


def write_contract_config(model_dir: Path, max_batch_size: int, parameters: dict[str, str]) -> None:
    """Write the config.pbtxt of a decoupled model that speaks the contract."""
    model = pbtxt.new_config(contract.MODEL_NAME, BACKEND, max_batch_size)
    pbtxt.declare(model, contract.INPUTS, contract.OUTPUTS)
    pbtxt.add_cpu_instances(model, 1)
    pbtxt.set_parameters(model, parameters)
    pbtxt.write(model_dir / "config.pbtxt", model)


def copy_template(name: str, version_dir: Path) -> None:
    """Copy a model template's files into a version folder."""
    source = importlib.resources.files("trtb.model_repo") / "templates" / name / "1"
    for entry in source.iterdir():
        if entry.name.endswith(".py"):
            (version_dir / entry.name).write_bytes(entry.read_bytes())
