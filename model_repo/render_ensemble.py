"""NVIDIA's text-in, text-out models around the engine's, filled from the container's own templates.

`trtb` itself speaks token ids to the `tensorrt_llm` model and needs none of them. They are for other
clients, perf_analyzer among them; what they cost is in README.md, What is served.
"""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from pathlib import Path, PurePath
from string import Template
from typing import Any, Final

from trtb.build.compatibility import get_release
from trtb.build.errors import ConfigError
from trtb.build.manifest import EngineManifest
from trtb.model_repo import contract, pbtxt, trtllm_tensors
from trtb.model_repo.trtllm_engine import ENGINE_FOLDER

CONTAINER_TEMPLATES: Final = PurePath("/app/all_models/inflight_batcher_llm")
MODELS: Final = ("preprocessing", "postprocessing", "ensemble", "tensorrt_llm_bls")
# Before this container a request that met a full queue inside an ensemble never came back.
_QUEUES_FIXED_IN: Final = "26.05"
_VARIABLE: Final = re.compile(r"\$\{(\w+)\}")


@dataclass(frozen=True, slots=True)
class EnsembleConfig:
    """How the text models are served."""

    num_tokenizers: int = 5  # instances of preprocessing, and of postprocessing
    num_bls: int = 5  # requests that tensorrt_llm_bls works on at a time
    add_special_tokens: bool = True  # False where clients render the chat template, which has them
    skip_special_tokens: bool = True
    accumulate_tokens: bool = False  # tensorrt_llm_bls streams the whole text so far: no character is cut


def render_ensemble(
    templates: Path,
    repository: Path,
    manifest: EngineManifest,
    config: EnsembleConfig,
    engine_root: PurePath,
) -> None:
    """Add the text models to a repository that holds the engine's, and check each.

    Args:
        templates: The container's inflight_batcher_llm folder, or a copy of it.
        repository: As `render` left it.
        manifest: Of the engine.
        config: How they are served.
        engine_root: The engine's folder as the server sees it.

    Raises:
        ConfigError: A template is missing, or needs a value that is not known.
    """
    model = pbtxt.read(repository / contract.MODEL_NAME / "config.pbtxt")
    _check_queue(manifest, model.dynamic_batching.default_queue_policy.max_queue_size)
    values = _values(config, engine_root, model.max_batch_size)
    for name in MODELS:
        source, target = templates / name, repository / name
        path = source / "config.pbtxt"
        try:
            text = path.read_text(encoding="utf-8")
        except FileNotFoundError as exc:
            raise ConfigError(
                f"{path}: not found; expected NVIDIA's template",
                f"it is in the container of TensorRT-LLM, at {CONTAINER_TEMPLATES}",
            ) from exc
        filled = fill(text, values, path)
        if filled.name not in ("", name):
            raise ConfigError(f"{path}: name {filled.name!r}; expected {name!r}")
        _copy_code(source, target)
        pbtxt.write(target / "config.pbtxt", filled)
        _check_model(target, filled)


def fill(text: str, values: dict[str, str], path: Path) -> Any:
    """Return a template's configuration with its variables filled.

    What is left over in a parameter is made empty, which the models read as not set; taken away, it would
    be missed by some. Anywhere else there is no such value.

    Raises:
        ConfigError: A variable that is no parameter's has no value, or the text is no configuration.
    """
    filled = Template(text).safe_substitute(values)
    bare = _VARIABLE.findall(re.sub(r'"[^"\n]*"', '""', filled))
    if bare:
        raise ConfigError(
            f"{path}: {', '.join(sorted(set(bare)))}: no value; expected a template of a known release"
        )
    config = pbtxt.parse(filled, path)
    for key in config.parameters:
        parameter = config.parameters[key]
        if "${" in parameter.string_value:
            parameter.string_value = ""
    if left := _VARIABLE.findall(str(config)):
        raise ConfigError(f"{path}: {', '.join(sorted(set(left)))}: no value, and not of a parameter")
    return config


def _values(config: EnsembleConfig, engine_root: PurePath, max_batch_size: int) -> dict[str, str]:
    return {
        "triton_max_batch_size": str(max_batch_size),
        "decoupled_mode": "true",
        "max_queue_delay_microseconds": "0",
        "max_queue_size": "0",
        "preprocessing_instance_count": str(config.num_tokenizers),
        "postprocessing_instance_count": str(config.num_tokenizers),
        "bls_instance_count": str(config.num_bls),
        "tokenizer_dir": str(engine_root / "tokenizer"),
        "engine_dir": str(engine_root / ENGINE_FOLDER),
        "add_special_tokens": str(config.add_special_tokens),
        "skip_special_tokens": str(config.skip_special_tokens),
        "accumulate_tokens": str(config.accumulate_tokens),
        "tensorrt_llm_model_name": contract.MODEL_NAME,
        "logits_datatype": f"TYPE_{trtllm_tensors.LOGITS_TYPE}",
        "prompt_embedding_table_data_type": f"TYPE_{trtllm_tensors.PROMPT_TABLE_TYPE}",
        "encoder_input_features_data_type": f"TYPE_{trtllm_tensors.ENCODER_FEATURES_TYPE}",
    }


def _check_queue(manifest: EngineManifest, max_queue_size: int) -> None:
    release = get_release(manifest.toolchain.get("tensorrt_llm", ""))
    if max_queue_size and release is not None and release.containers[0] < _QUEUES_FIXED_IN:
        raise ConfigError(
            f"max_queue_size: {max_queue_size}; expected 0 with an ensemble in the containers of TensorRT-LLM"
            f" {release.version}, where a request that meets a full queue never comes back",
            "leave --max-queue-size out, or do without the ensemble",
        )


def _copy_code(source: Path, target: Path) -> None:
    """Copy a model's version folder, which Triton wants even where it is empty."""
    (target / contract.MODEL_VERSION).mkdir(parents=True)
    if (version := source / contract.MODEL_VERSION).is_dir():
        shutil.copytree(
            version,
            target / contract.MODEL_VERSION,
            dirs_exist_ok=True,
            ignore=shutil.ignore_patterns("__pycache__"),
        )


def _check_model(model_dir: Path, config: Any) -> None:
    """Refuse what Triton would refuse."""
    if config.backend == "python" and not (model_dir / contract.MODEL_VERSION / "model.py").is_file():
        raise ConfigError(f"{model_dir}: no {contract.MODEL_VERSION}/model.py; expected the template's")
    for step in config.ensemble_scheduling.step:
        if not (model_dir.parent / step.model_name).exists() and step.model_name not in MODELS:
            raise ConfigError(f"{model_dir}: step {step.model_name!r} is no model of the repository")
        if step.model_name == contract.MODEL_NAME:
            _check_step(model_dir, step)
    if config.max_batch_size < 1:
        raise ConfigError(f"{model_dir}: max_batch_size {config.max_batch_size}; expected at least 1")


def _check_step(model_dir: Path, step: Any) -> None:
    """Refuse a template whose engine model has other tensors: it is of another release."""
    for mapped, declared in (
        (step.input_map, trtllm_tensors.INPUTS),
        (step.output_map, trtllm_tensors.OUTPUTS),
    ):
        unknown = mapped.keys() - {spec.name for spec in declared}
        if unknown:
            raise ConfigError(
                f"{model_dir}: {', '.join(sorted(unknown))}: the engine's model has no such tensor; expected "
                "a template of the release that built the engine"
            )
