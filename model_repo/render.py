"""An engine becomes a Triton model repository: rendered into a folder of its own, checked, then used.

The repository in the engine's folder is the default rendering. A server that wants other settings (KV
pool, queue limit, precision) renders its own into its working folder; the engine is never changed.
"""

from __future__ import annotations

import importlib.resources
import os
from dataclasses import dataclass
from pathlib import Path

from trtb.build import hardware, kv_cache
from trtb.build.errors import ConfigError
from trtb.build.manifest import EngineLimits, EngineManifest
from trtb.model_repo import contract, pbtxt


@dataclass(frozen=True, slots=True)
class DeployConfig:
    """How an engine is served."""

    num_kv_blocks: int | None = None  # None: a share of this machine's free memory
    max_batch_size: int | None = None  # requests in flight in the engine; never above the engine's own
    max_queue_size: int = 0  # requests waiting in the server; 0 is unlimited
    deterministic: bool = False  # f32 arithmetic and KV: greedy and seeded answers do not depend on company


def render(engine_dir: Path, manifest: EngineManifest, target: Path, config: DeployConfig) -> None:
    """Render the repository of an engine into `target`, an empty or absent folder, and check it.

    The engine's folder is written relative to the model's where the repository lies inside it, so that
    an engine can be moved.

    Raises:
        ConfigError: `config` asks for more than the engine was built for.
    """
    if manifest.backend != "openvino":
        raise ConfigError(f"{manifest.reference}: backend {manifest.backend} cannot be deployed yet")
    max_batch_size = config.max_batch_size or manifest.limits.max_batch_size
    if max_batch_size > manifest.limits.max_batch_size:
        raise ConfigError(
            f"max_batch_size: {max_batch_size}; engine {manifest.reference} was built for at most "
            f"{manifest.limits.max_batch_size}",
            "build an engine with a larger --max-batch-size",
        )
    model_dir = target / contract.MODEL_NAME
    version_dir = model_dir / contract.MODEL_VERSION
    version_dir.mkdir(parents=True)
    copy_template("openvino", version_dir)
    inside = model_dir.resolve().is_relative_to(engine_dir.resolve())
    engine_path = os.path.relpath(engine_dir, model_dir) if inside else str(engine_dir.resolve())
    parameters = {
        "engine_dir": engine_path,
        "engine_id": manifest.engine_id,
        "max_num_tokens": str(manifest.limits.max_num_tokens),
        "max_batch_size": str(max_batch_size),
        "max_queue_size": str(config.max_queue_size),
        "num_kv_blocks": str(config.num_kv_blocks or num_blocks_for_machine(manifest.limits)),
        "deterministic": "true" if config.deterministic else "false",
    }
    write_contract_config(model_dir, "python", max_batch_size, parameters)
    check(target)


def render_into_engine(staged: Path, manifest: EngineManifest) -> None:
    """Render the default repository into an engine's own folder, before it is committed."""
    render(staged, manifest, staged / "repository", DeployConfig())


def num_blocks_for_machine(limits: EngineLimits) -> int:
    """Return the KV pool that suits this machine and engine, in blocks."""
    return kv_cache.default_num_blocks(
        hardware.available_host_bytes(),
        limits.kv_bytes_per_token * limits.tokens_per_block,
        limits.max_batch_size * kv_cache.num_blocks_needed(limits.max_seq_len, 0, limits.tokens_per_block),
    )


def render_noop(target: Path) -> None:
    """Render a model of the same contract that answers at once with a fixed answer, for benchmarks."""
    model_dir = target / contract.MODEL_NAME
    version_dir = model_dir / contract.MODEL_VERSION
    version_dir.mkdir(parents=True)
    copy_template("noop", version_dir)
    write_contract_config(model_dir, "python", 1024, {})
    check(target)


def write_contract_config(
    model_dir: Path, backend: str, max_batch_size: int, parameters: dict[str, str]
) -> None:
    """Write the config.pbtxt of a decoupled model that speaks the contract."""
    model = pbtxt.new_config(contract.MODEL_NAME, backend, max_batch_size)
    model.model_transaction_policy.decoupled = True
    for spec in contract.INPUTS:
        pbtxt.add_tensor(model.input, spec, is_input=True)
    for spec in contract.OUTPUTS:
        pbtxt.add_tensor(model.output, spec, is_input=False)
    group = model.instance_group.add(count=1)
    group.kind = group.KIND_CPU
    pbtxt.set_parameters(model, parameters)
    pbtxt.write(model_dir / "config.pbtxt", model)


def copy_template(name: str, version_dir: Path) -> None:
    """Copy a model template's files into a version folder."""
    source = importlib.resources.files("trtb.model_repo") / "templates" / name / "1"
    for entry in source.iterdir():
        if entry.name.endswith(".py"):
            (version_dir / entry.name).write_bytes(entry.read_bytes())


def check(repository: Path) -> None:
    """Check a rendered repository as a whole.

    Raises:
        ConfigError: A model's name, version folder, tensors or transaction policy is not the contract's.
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
    declared = {tensor.name: tensor for tensor in config.input}
    for spec in contract.INPUTS:
        tensor = declared.get(spec.name)
        if tensor is None or tuple(tensor.dims) != spec.dims or tensor.optional != spec.optional:
            raise ConfigError(f"{model_dir}: input {spec.name} is missing or declared otherwise")
