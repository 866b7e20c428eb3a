"""The settings of a plan as a job file that `trtb run --config` takes with the engines there are.

What an engine is built with is no setting of a run: it is in the command that builds it.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import yaml

from trtb.build import files
from trtb.build.disk_errors import tell_disk_errors
from trtb.build.errors import ConfigError
from trtb.build.planning.plan import Plan

_HINT = "give --write a new file in a folder of yours"


def check_is_new(path: Path) -> None:
    """Refuse to write over a file.

    Raises:
        ConfigError: There is one of that name.
    """
    with tell_disk_errors(ConfigError, path.parent, _HINT):
        is_there = path.exists()
    if is_there:
        raise ConfigError(f"{path}: exists; expected a new file", "choose another name, or remove it")


def write_job(
    path: Path, plan: Plan, *, model: str, build_spec: str, engine: str | None, input_path: Path | None
) -> None:
    """Write a job file that `trtb run --config` takes; see `to_yaml`.

    Raises:
        ConfigError: It cannot be written there.
    """
    data = to_yaml(plan, model=model, build_spec=build_spec, engine=engine, input_path=input_path)
    with tell_disk_errors(ConfigError, path.parent, _HINT, needed_bytes=len(data)):
        files.write_atomic(path, data)


def to_yaml(plan: Plan, *, model: str, build_spec: str, engine: str | None, input_path: Path | None) -> bytes:
    """Return the job file of a plan.

    `inference.max_seq_len` is left out: it would refuse every engine that was built for another length, also
    one that is long enough. So are GPUs: a run takes those that are free when it starts.

    Args:
        plan: Its settings.
        model: What the checkpoint is pinned as.
        build_spec: What `trtb build --model` takes for it.
        engine: An engine's reference, where the plan is of one.
        input_path: The file that was counted.
    """
    inference: dict[str, Any] = {"engine": engine} if engine is not None else {"model_path": model}
    inference["batch_size"] = _batch_size(plan)
    if plan.backend == "openvino":
        inference["num_kv_blocks"] = plan.memory.num_blocks
    if host_cache_bytes := plan.settings.host_cache_bytes:
        inference["trtllm_parameters"] = {"kv_cache_host_memory_bytes": host_cache_bytes}
    sections: dict[str, Any] = {"schema_version": 1}
    if input_path is not None:
        sections["input"] = {"path": str(input_path.absolute())}
    sections["inference"] = inference
    head = f"# planned for {engine or model} as {plan.quant} on {plan.device}\n"
    if engine is None:
        head += f"# with the engine of: {build_command(plan, build_spec)}\n"
    body: str = yaml.safe_dump(sections, sort_keys=False, allow_unicode=True)
    return (head + body).encode()


def build_command(plan: Plan, model: str) -> str:
    """Return the command that builds the planned engine of what `--model` takes."""
    settings = plan.settings
    words = [f"trtb build --model {shlex.quote(model)} --backend {plan.backend} --quant {plan.quant}"]
    if settings.group_size is not None:
        words.append(f"--group-size {settings.group_size}")
    if settings.world_size > 1:
        words.append(f"--tp-size {settings.tp_size} --pp-size {settings.pp_size}")
    if settings.kv_cache_dtype in ("fp8", "int8"):  # else it is what "auto" means
        words.append(f"--kv-cache-dtype {settings.kv_cache_dtype}")
    words.append(f"--max-seq-len {settings.max_seq_len} --max-batch-size {settings.max_batch_size}")
    words.append(f"--max-num-tokens {settings.max_num_tokens}")
    return " ".join(words)


def run_command(path: Path, input_path: Path | None) -> str:
    """Return the command that runs a plan's job file; a file that was not counted is still to be named."""
    return f"trtb run {'' if input_path else 'INPUT.jsonl '}--config {shlex.quote(str(path))}"


def _batch_size(plan: Plan) -> int:
    """Return how many requests the client keeps in flight; its admission holds them to the pool besides."""
    most = plan.settings.max_batch_size
    return most if plan.workload is None else max(1, min(most, plan.workload.num_requests))
