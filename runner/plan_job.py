"""The settings of a plan as a job file: only keys that this version honours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from trtb.build import files
from trtb.build.errors import ConfigError
from trtb.build.planning.plan import Plan

# what a plan knows and this version's job file cannot hold
NOT_WRITTEN = ("inference.device_ids", "cache")


def check_is_new(path: Path) -> None:
    """Refuse to write over a file.

    Raises:
        ConfigError: There is one of that name.
    """
    if path.exists():
        raise ConfigError(f"{path}: exists; expected a new file", "choose another name, or remove it")


def write_job(
    path: Path, plan: Plan, *, model: str | None, engine: str | None, input_path: Path | None
) -> None:
    """Write a job file that `trtb run --config` takes; see `to_yaml`."""
    files.write_atomic(path, to_yaml(plan, model=model, engine=engine, input_path=input_path))


def to_yaml(plan: Plan, *, model: str | None, engine: str | None, input_path: Path | None) -> bytes:
    """Return the job file of a plan.

    Args:
        plan: Its settings.
        model: A pinned checkpoint's name, where no engine is named.
        engine: An engine's reference.
        input_path: The file that was counted.
    """
    settings = plan.settings
    inference: dict[str, Any] = {}
    if engine is not None:
        inference["engine"] = engine
    elif model is not None:
        inference["model_path"] = model
    inference["batch_size"] = _batch_size(plan)
    inference["max_seq_len"] = settings.max_seq_len
    if plan.backend == "openvino":
        inference["num_kv_blocks"] = plan.memory.num_blocks
    sections: dict[str, Any] = {"schema_version": 1}
    if input_path is not None:
        sections["input"] = {"path": str(input_path.absolute())}
    sections["inference"] = inference
    head = (
        f"# planned for {plan.model} as {plan.quant} on {plan.device}; the engine is built with\n"
        f"# {build_command(plan, model or plan.model)}\n"
    )
    body: str = yaml.safe_dump(sections, sort_keys=False, allow_unicode=True)
    return (head + body).encode()


def build_command(plan: Plan, model: str) -> str:
    """Return the command that builds the planned engine."""
    settings = plan.settings
    words = [f"trtb build --model {model} --backend {plan.backend} --quant {plan.quant}"]
    if settings.group_size is not None:
        words.append(f"--group-size {settings.group_size}")
    if settings.world_size > 1:
        words.append(f"--tp-size {settings.tp_size} --pp-size {settings.pp_size}")
    if settings.kv_cache_dtype in ("fp8", "int8"):  # else it is what "auto" means
        words.append(f"--kv-cache-dtype {settings.kv_cache_dtype}")
    words.append(f"--max-seq-len {settings.max_seq_len} --max-batch-size {settings.max_batch_size}")
    words.append(f"--max-num-tokens {settings.max_num_tokens}")
    return " ".join(words)


def _batch_size(plan: Plan) -> int:
    """Return how many requests the client keeps in flight; its admission holds them to the pool besides."""
    most = plan.settings.max_batch_size
    return most if plan.workload is None else max(1, min(most, plan.workload.num_requests))
