"""A rendered repository held against its engine as a whole, before a server takes minutes to refuse it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path, PurePath
from typing import Any, Final, get_args

from trtb.build.errors import ConfigError
from trtb.build.manifest import EngineManifest
from trtb.model_repo import contract, pbtxt, render_openvino, render_trtllm, trtllm_tensors
from trtb.model_repo.contract import TensorSpec
from trtb.model_repo.deploy_config import KvServedDtype
from trtb.model_repo.trtllm_engine import ENGINE_FOLDER, TOKENIZER_INFO, read_engine
from trtb.model_repo.trtllm_rules import resolve

_OPENVINO_NUMBERS: Final = {"max_num_tokens": 1, "max_batch_size": 1, "max_queue_size": 0, "num_kv_blocks": 2}
_OPENVINO_KV: Final = {
    contract.KV_DTYPE_PARAMETER: get_args(KvServedDtype),
    contract.KV_REUSE_PARAMETER: ("true", "false"),
}
_OPENVINO_PARAMETERS: Final = frozenset(
    {"engine_dir", "engine_id", "deterministic", *_OPENVINO_KV, *_OPENVINO_NUMBERS}
)


def check(
    repository: Path, manifest: EngineManifest, engine_dir: Path, engine_root: PurePath | None = None
) -> None:
    """Check a rendered repository against the engine that it serves.

    Args:
        repository: The folder that the server is given.
        manifest: Of the engine.
        engine_dir: The engine's folder.
        engine_root: The same as the server sees it, where that is another path.

    Raises:
        ConfigError: Something in it is not the contract's, not the engine's, or not there.
    """
    is_gpu = manifest.backend == "tensorrt_llm"
    tensors = trtllm_tensors if is_gpu else contract
    model_dir = repository / contract.MODEL_NAME
    config = check_contract(repository, tensors.INPUTS, tensors.OUTPUTS)
    expected = render_trtllm.BACKEND if is_gpu else render_openvino.BACKEND
    if config.backend != expected:
        raise ConfigError(f"{model_dir}: backend {config.backend!r}; expected {expected!r}")
    limit = manifest.limits.max_batch_size
    if not 1 <= config.max_batch_size <= limit:
        raise ConfigError(
            f"{model_dir}: max_batch_size {config.max_batch_size}; expected 1 to {limit}, which "
            f"{manifest.reference} was built for"
        )
    parameters = {key: value.string_value for key, value in config.parameters.items()}
    if parameters.get("engine_id") != manifest.engine_id:
        raise ConfigError(
            f"{model_dir}: engine_id {parameters.get('engine_id')!r}; expected {manifest.engine_id!r}, of "
            f"{manifest.reference}"
        )
    if is_gpu:
        _check_trtllm(model_dir, config, parameters, manifest, engine_dir, engine_root)
    else:
        _check_openvino(model_dir, parameters)


def check_contract(repository: Path, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> Any:
    """Check what every model of ours has in common, and return its configuration.

    Raises:
        ConfigError: The name, version folder, transaction policy or a tensor is not as it must be.
    """
    model_dir = repository / contract.MODEL_NAME
    config = pbtxt.read(model_dir / "config.pbtxt")
    if config.name != contract.MODEL_NAME:
        raise ConfigError(f"{model_dir}: name {config.name!r}; expected {contract.MODEL_NAME!r}")
    if not config.model_transaction_policy.decoupled:
        raise ConfigError(
            f"{model_dir}: not decoupled; expected model_transaction_policy {{ decoupled: true }}"
        )
    if not (model_dir / contract.MODEL_VERSION).is_dir():
        raise ConfigError(f"{model_dir}: no version folder {contract.MODEL_VERSION}")
    others = [path.name for path in model_dir.iterdir() if path.is_dir()]
    if len(others) > 1:
        raise ConfigError(f"{model_dir}: version folders {', '.join(sorted(others))}; expected one")
    expected = pbtxt.new_config(config.name, config.backend, config.max_batch_size)
    pbtxt.declare(expected, inputs, outputs)
    for kind in ("input", "output"):
        declared = {tensor.name: tensor for tensor in getattr(config, kind)}
        for tensor in getattr(expected, kind):
            if declared.pop(tensor.name, None) != tensor:
                raise ConfigError(f"{model_dir}: {kind} {tensor.name} is missing or declared otherwise")
        if declared:
            raise ConfigError(f"{model_dir}: {kind} {', '.join(declared)} is none of the model's")
    return config


def _check_openvino(model_dir: Path, parameters: dict[str, str]) -> None:
    if unknown := parameters.keys() - _OPENVINO_PARAMETERS:
        raise ConfigError(f"{model_dir}: parameter {', '.join(sorted(unknown))} is none of the model's")
    for name, least in _OPENVINO_NUMBERS.items():
        text = parameters.get(name, "")
        if not text.isdecimal() or int(text) < least:
            raise ConfigError(f"{model_dir}: parameter {name} {text!r}; expected a number from {least}")
    if parameters.get("deterministic") not in ("true", "false"):
        raise ConfigError(f"{model_dir}: parameter deterministic; expected true or false")
    for name, allowed in _OPENVINO_KV.items():
        if parameters.get(name, allowed[0]) not in allowed:  # engines of older versions have none
            raise ConfigError(f"{model_dir}: parameter {name}; expected {' or '.join(allowed)}")
    engine = model_dir / parameters.get("engine_dir", "")
    if "engine_dir" not in parameters or not engine.is_dir():
        raise ConfigError(f"{model_dir}: parameter engine_dir: {engine} is no folder; expected the engine's")
    if not (model_dir / contract.MODEL_VERSION / "model.py").is_file():
        raise ConfigError(f"{model_dir}: no {contract.MODEL_VERSION}/model.py")


def _check_trtllm(
    model_dir: Path,
    config: Any,
    parameters: dict[str, str],
    manifest: EngineManifest,
    engine_dir: Path,
    engine_root: PurePath | None,
) -> None:
    try:
        chosen = render_trtllm.read_parameters(parameters)
        resolve(chosen, read_engine(engine_dir, manifest))
    except ConfigError as exc:
        raise ConfigError(f"{model_dir}: {exc.message}", exc.hint) from exc
    root = engine_root or engine_dir.resolve()
    is_guided = bool(parameters["guided_decoding_backend"])
    paths = {
        "gpt_model_path": str(root / ENGINE_FOLDER),
        "xgrammar_tokenizer_info_path": str(root / TOKENIZER_INFO) if is_guided else "",
    }
    for name, expected in paths.items():
        if parameters[name] != expected:
            raise ConfigError(f"{model_dir}: parameter {name} {parameters[name]!r}; expected {expected!r}")
    for name in ("enable_kv_cache_reuse", "enable_chunked_context"):
        if name not in parameters:
            raise ConfigError(f"{model_dir}: parameter {name}: not there; releases have different defaults")
    count, wanted = render_trtllm.instance_count(config), render_trtllm.num_instances(chosen)
    kinds = {group.kind for group in config.instance_group}
    if count != wanted or kinds != {config.instance_group[0].KIND_CPU}:
        raise ConfigError(f"{model_dir}: {count} instances; expected {wanted}, of KIND_CPU")
    batching = config.dynamic_batching
    if not batching.HasField("default_queue_policy"):
        raise ConfigError(f"{model_dir}: no default_queue_policy; the executor's own bound would apply")
    if any(size > config.max_batch_size for size in batching.preferred_batch_size):
        raise ConfigError(f"{model_dir}: preferred_batch_size over max_batch_size {config.max_batch_size}")
