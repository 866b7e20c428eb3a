"""The tensorrt_llm engine's model: TensorRT-LLM's C++ backend, with every tensor and parameter that it reads.

The backend reads each parameter by its name and falls back to a default where one is missing, but for
those of `ALWAYS_THERE`: without one of them a model does not load. They are empty where they are off.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import Any, Final

from trtb.build.errors import ConfigError
from trtb.build.manifest import EngineManifest
from trtb.model_repo import contract, pbtxt, trtllm_tensors
from trtb.model_repo.deploy_config import DeployConfig
from trtb.model_repo.trtllm_engine import ENGINE_FOLDER, TOKENIZER_INFO, TrtllmEngine, read_engine
from trtb.model_repo.trtllm_parameters import TrtllmDeployConfig, parse_parameters, to_parameters
from trtb.model_repo.trtllm_rules import resolve

BACKEND: Final = "tensorrtllm"
ALWAYS_THERE: Final = (
    "gpt_model_type",
    "gpt_model_path",
    "guided_decoding_backend",
    "tokenizer_dir",
    "xgrammar_tokenizer_info_path",
)
# ours: the client compares it with the engine that a run wants; the backend does not look at it
ENGINE_ID: Final = "engine_id"
# a setting of Triton's core, as NVIDIA's template has it: inputs may stay where the backend wants them
_FORCE_CPU: Final = ("FORCE_CPU_ONLY_INPUT_TENSORS", "no")
_KEEP_FILE: Final = (
    ".keep"  # Triton wants the version's folder, and not everything that copies keeps empty ones
)


def render_model(
    engine_dir: Path,
    manifest: EngineManifest,
    model_dir: Path,
    config: DeployConfig,
    max_batch_size: int,
    engine_root: PurePath,
) -> None:
    """Write the model of an engine into `model_dir`; `engine_root` is its folder as the server sees it.

    Raises:
        ConfigError: The parameters contradict each other or the engine.
        EngineCorruptError: The engine's files are not what its manifest says.
    """
    if config.kv_cache_dtype != "auto":
        raise ConfigError(
            f"kv_cache_dtype: {config.kv_cache_dtype}; that of {manifest.reference} was compiled into it",
            f"build another: trtb build --kv-cache-dtype {config.kv_cache_dtype}",
        )
    if config.deterministic:
        raise ConfigError(
            f"deterministic: {manifest.reference} computes in the precision that it was compiled for",
            "leave it out; see README.md, Determinism",
        )
    engine = read_engine(engine_dir, manifest)
    chosen = resolve(_with_kv_cache(config, engine), engine)
    version_dir = model_dir / contract.MODEL_VERSION
    version_dir.mkdir(parents=True)
    (version_dir / _KEEP_FILE).touch()
    model = pbtxt.new_config(contract.MODEL_NAME, BACKEND, max_batch_size)
    pbtxt.declare(model, trtllm_tensors.INPUTS, trtllm_tensors.OUTPUTS)
    batching = model.dynamic_batching
    batching.preferred_batch_size.append(max_batch_size)
    batching.max_queue_delay_microseconds = config.max_queue_delay_us
    batching.default_queue_policy.SetInParent()  # at 0, too: its absence means another default
    batching.default_queue_policy.max_queue_size = config.max_queue_size
    pbtxt.add_cpu_instances(model, num_instances(chosen))
    pbtxt.set_parameters(model, served_parameters(chosen, engine_root, manifest.engine_id))
    pbtxt.write(model_dir / "config.pbtxt", model)


def served_parameters(config: TrtllmDeployConfig, engine_root: PurePath, engine_id: str) -> dict[str, str]:
    """Return every parameter of the model, sorted; `config` has no choice left open."""
    assert config.guided_decoding_backend != "auto"
    is_guided = config.guided_decoding_backend == "xgrammar"
    parameters = to_parameters(config) | {
        "gpt_model_path": str(engine_root / ENGINE_FOLDER),
        "guided_decoding_backend": "xgrammar" if is_guided else "",
        "tokenizer_dir": "",
        "xgrammar_tokenizer_info_path": str(engine_root / TOKENIZER_INFO) if is_guided else "",
        ENGINE_ID: engine_id,
    }
    return dict(sorted((parameters | dict([_FORCE_CPU])).items()))


def read_parameters(parameters: Mapping[str, str]) -> TrtllmDeployConfig:
    """Return the config that a model's parameters say; the way back of `served_parameters`.

    Raises:
        ConfigError: A parameter is unknown, missing, or no value of its own.
    """
    missing = [name for name in ALWAYS_THERE if name not in parameters]
    if missing:
        raise ConfigError(
            f"parameter {', '.join(missing)}: not there; without it TensorRT-LLM loads no model"
        )
    fixed = {"gpt_model_path", "tokenizer_dir", "xgrammar_tokenizer_info_path", ENGINE_ID, _FORCE_CPU[0]}
    given = {name: text for name, text in parameters.items() if name not in fixed}
    return parse_parameters(given | {"guided_decoding_backend": given["guided_decoding_backend"] or "off"})


def num_instances(config: TrtllmDeployConfig) -> int:
    """Return how many instances of the engine run: one for each group of GPUs."""
    return max(1, len(config.gpu_device_ids), len(config.participant_ids))


def instance_count(model: Any) -> int:
    """Return the instances that a model's configuration asks for."""
    return sum(group.count for group in model.instance_group)


def _with_kv_cache(config: DeployConfig, engine: TrtllmEngine) -> TrtllmDeployConfig:
    """Return the parameters with what was said of the KV cache in the terms of both backends."""
    blocks, per_block = config.num_kv_blocks, engine.tokens_per_block
    asked: tuple[tuple[str, str, Any], ...] = (
        (
            f"num_kv_blocks: {blocks}, which is {(blocks or 0) * per_block} tokens",
            "max_tokens_in_paged_kv_cache",
            None if blocks is None else blocks * per_block,
        ),
        (f"kv_reuse: {config.kv_reuse}", contract.KV_REUSE_PARAMETER, config.kv_reuse),
        (
            f"kv_host_cache_bytes: {config.kv_host_cache_bytes}",
            "kv_cache_host_memory_bytes",
            config.kv_host_cache_bytes,
        ),
    )
    parameters = config.trtllm
    for text, name, value in asked:
        given = getattr(parameters, name)
        if value is not None and given not in (None, value):
            raise ConfigError(f"{text}, and {name}: {given}", "give one of the two")
    return parameters.model_copy(update={name: value for _, name, value in asked if value is not None})
