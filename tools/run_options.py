"""The options of a run: what was typed, over what the job file says, over the defaults."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtb.build.errors import ConfigError, EngineNotFoundError

if TYPE_CHECKING:
    from trtb.build.store import EngineStore, StoredEngine
    from trtb.runner.job_file import JobFile
    from trtb.runner.options import RunOptions

MAX_CONCURRENCY = 4096
_ENDPOINT = re.compile(r"unix:.+|(\[[0-9a-fA-F:]+\]|[^\s/:]+):\d{1,5}")


@dataclass(frozen=True, slots=True)
class Typed:
    """What the command line holds: every value, by its name in RunOptions, and which of them were typed."""

    values: dict[str, Any]
    typed: frozenset[str]


def choose_options(command_line: Typed, config: Path | None, store: EngineStore) -> RunOptions:
    """Return the options of `trtb run`.

    Raises:
        ConfigError: They contradict each other, or the job file is refused.
        EngineNotFoundError: No engine is meant, or more than one.
    """
    from trtb.model_repo.deploy_config import DeployConfig
    from trtb.runner.job_file import read_job_file
    from trtb.runner.launching.devices import group_devices, parse_groups
    from trtb.runner.launching.kv_options import read_dtype, with_kv_cache
    from trtb.runner.launching.launch import check_choice
    from trtb.runner.options import RunOptions, default_start_timeout_s
    from trtb.runner.scheduling.schedule import ORDERS

    job = read_job_file(config) if config is not None else None
    values = dict(command_line.values)
    if job is not None:
        values |= {name: value for name, value in job.options.items() if name not in command_line.typed}
    if values["input_path"] is None:
        raise ConfigError(
            "INPUT_PATH: missing; expected a JSONL file of requests", "name it, or set input.path in --config"
        )
    if values["on_invalid"] not in ("refuse", "fail"):
        raise ConfigError(f"--on-invalid: {values['on_invalid']!r}; expected refuse or fail")
    if values["order"] not in ORDERS:
        raise ConfigError(f"--order: {values['order']!r}; expected {', '.join(ORDERS[:-1])} or {ORDERS[-1]}")
    if not 1 <= values["concurrency"] <= MAX_CONCURRENCY:
        raise ConfigError(f"concurrency: {values['concurrency']}; expected 1 to {MAX_CONCURRENCY}")
    for address in values["endpoints"]:
        check_endpoint(address)
    _check_kv_cache(values)
    _check_result_cache(values)
    if values["deterministic"] and values["endpoints"]:
        raise ConfigError(
            "--deterministic: the precision is the server's own, and --endpoint names one that is running",
            "start it with: trtb serve --deterministic",
        )
    _check_parameters(values["trtllm_parameters"], has_endpoints=bool(values["endpoints"]))
    if values["endpoints"] and (values["device_ids"] or values["launch"] != "auto"):
        raise ConfigError(
            "--device-ids, --launch: of a server of our own, and --endpoint names one that is running",
            "start it with them: trtb serve --device-ids",
        )
    values["launch"] = check_choice(values["launch"])
    input_path = values["input_path"]
    values["output"] = values["output"] or input_path.with_name(f"{input_path.stem}.out{input_path.suffix}")
    engine = values.pop("engine")
    stored = find_engine(store, engine, job, is_typed="engine" in command_line.typed)
    groups = group_devices(parse_groups(values["device_ids"]), stored.manifest)
    values["device_ids"] = tuple(",".join(group) for group in groups)
    if values["start_timeout_s"] is None:
        values["start_timeout_s"] = default_start_timeout_s(stored.manifest)
    known = {option.name for option in fields(RunOptions)}
    assert values.keys() <= known, values.keys() - known
    if values["trtllm_parameters"] and stored.manifest.backend != "tensorrt_llm":
        raise ConfigError(
            f"--trtllm-parameter: {stored.manifest.reference} is an engine of the {stored.manifest.backend} "
            "backend; expected one of tensorrt_llm",
            "leave it out; the KV pool of this backend is --num-kv-blocks",
        )
    values["kv_cache_dtype"] = read_dtype(values["kv_cache_dtype"])
    options = RunOptions(engine_dir=stored.path, manifest=stored.manifest, **values)
    served = DeployConfig(deterministic=options.deterministic)
    with_kv_cache(served, options.kv_options, stored.manifest)  # refuses what the backend has not
    return options


def _check_kv_cache(values: dict[str, Any]) -> None:
    """Refuse what is said of the KV cache of a server that is there already, or against reuse."""
    flags = {
        "num_kv_blocks": "--num-kv-blocks",
        "kv_cache_gb": "--kv-cache-gb",
        "kv_host_cache_gb": "--kv-host-cache-gb",
        "kv_reuse": "--kv-reuse" if values["kv_reuse"] else "--no-kv-reuse",
    }
    given = [flag for name, flag in flags.items() if values[name] is not None]
    if values["kv_cache_dtype"] != "auto":
        given.insert(0, "--kv-cache-dtype")
    if given and values["endpoints"]:
        raise ConfigError(
            f"{', '.join(given)}: the KV cache is the server's own, and --endpoint names one that is running",
            f"start it with: trtb serve {given[0]}",
        )
    if values["kv_reuse"] is False and values["order"] == "prefix":
        raise ConfigError(
            "--order: prefix, and --no-kv-reuse; each prefix would be computed once more, for nobody",
            "give one of the two",
        )


def _check_result_cache(values: dict[str, Any]) -> None:
    """Refuse a run whose equal requests have answers of their own, which the cache cannot hold."""
    if values["cache"] and values["dedup"] is False:
        raise ConfigError(
            "--cache: with --no-dedup; equal requests share one answer in the cache, so that a second run "
            "could not repeat several of the first",
            "give one of the two",
        )


def check_endpoint(address: str) -> None:
    """Refuse what is no address of a server.

    Raises:
        ConfigError: It is none.
    """
    if not _ENDPOINT.fullmatch(address):
        raise ConfigError(f"--endpoint: {address!r}; expected host:port, such as 127.0.0.1:8001")


def _check_parameters(pairs: tuple[str, ...], *, has_endpoints: bool) -> None:
    from trtb.model_repo.trtllm_parameters import parse_pairs, parse_parameters

    if pairs and has_endpoints:
        raise ConfigError(
            "--trtllm-parameter: it is the server's own, and --endpoint names one that is running",
            "start it with: trtb serve --trtllm-parameter",
        )
    parse_parameters(parse_pairs(pairs))


def find_engine(
    store: EngineStore, engine: str | None, job: JobFile | None, *, is_typed: bool = False
) -> StoredEngine:
    """Return the engine of a run, checked against what the job file says of it.

    Args:
        store: The engines.
        engine: A reference, typed or of the job file.
        job: The job file, whose `model_path` finds the engine where none is named.
        is_typed: The engine was typed, and wins over `model_path`.

    Raises:
        ConfigError: The engine is not the job file's model, or of another length.
        EngineNotFoundError: No engine is meant, or more than one.
    """
    model = job.model_path if job and not is_typed else None
    stored = _by_model(store, model) if model and engine is None else store.resolve(engine)
    manifest = stored.manifest
    if model and not _is_of(stored, model):
        raise ConfigError(
            f"inference.model_path: {model!r}; engine {manifest.reference} is of {manifest.checkpoint.name}",
            "leave one of the two out",
        )
    if job and job.max_seq_len not in (None, manifest.limits.max_seq_len):
        raise ConfigError(
            f"inference.max_seq_len: {job.max_seq_len}; engine {manifest.reference} was built for "
            f"{manifest.limits.max_seq_len}",
            f"build another: trtb build --model {manifest.checkpoint.name} --max-seq-len {job.max_seq_len}",
        )
    return stored


def _by_model(store: EngineStore, model: str) -> StoredEngine:
    """Return the one default engine of a checkpoint, or the engine that the name means."""
    defaults = [
        stored
        for stored in store.list()
        if _is_of(stored, model) and store.default_version(stored.manifest.name) == stored.manifest.version
    ]
    if len(defaults) > 1:
        listed = ", ".join(stored.manifest.reference for stored in defaults)
        raise EngineNotFoundError(
            f"inference.model_path: {model!r} has several engines ({listed}); expected one",
            "name it: inference.engine, or --engine",
        )
    return defaults[0] if defaults else store.resolve(model)


def _is_of(stored: StoredEngine, model: str) -> bool:
    manifest = stored.manifest
    checkpoint = manifest.checkpoint
    names = {checkpoint.name, f"{checkpoint.name}@{checkpoint.revision}", manifest.name, manifest.reference}
    return model in names | {manifest.engine_id}
