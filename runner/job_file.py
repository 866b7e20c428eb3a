"""The job file: every option of a run in one YAML file, read strictly and written so that a run repeats.

A key that is unknown, of a wrong type, or not honoured by this version is refused with its line: a setting
that is silently ignored would make a run other than its file says. One table pairs keys and options, for
both directions.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml
from pydantic import ValidationError

from trtb.build.errors import ConfigError
from trtb.model_repo.trtllm_parameters import parse_pairs, parse_parameters, to_pairs
from trtb.runner.job_sections import SECTIONS, Inference, Job
from trtb.runner.launching.devices import read_devices
from trtb.runner.run_folder import RunRecord
from trtb.runner.yaml_lines import YamlDocument, read_yaml

FILE_NAME: Final = "job.yaml"
MAX_SHOWN_CHARS = 60

# keys that change nothing at these values, and cannot be honoured at any other
_NOT_YET: Final[dict[tuple[str, str], tuple[tuple[object, ...], str]]] = {
    ("monitoring", "enabled"): ((False,), "this version has no metrics but the report"),
}


@dataclass(frozen=True, slots=True)
class _Key:
    """A key of the file and the field of RunOptions that it sets."""

    section: str
    key: str
    option: str
    read: Callable[[Any], Any] = lambda value: value
    write: Callable[[Any], Any] = lambda value: value
    is_path: bool = False


def _ms(section: str, key: str, option: str) -> _Key:
    return _Key(section, key, option, lambda value: value / 1e3, _to_ms)


def _to_ms(seconds: float) -> float:
    value = round(seconds * 1e3, 6)
    return int(value) if value.is_integer() else value


_KEYS: Final = (
    _Key("input", "path", "input_path", is_path=True),
    _Key("input", "limit", "limit"),
    _Key("input", "on_invalid", "on_invalid"),
    _Key("input", "model_aliases", "model_aliases", tuple, list),
    _Key("input", "strict_params", "strict_params"),
    _Key("input", "max_line_bytes", "max_line_bytes"),
    _Key("inference", "engine", "engine"),
    _Key("inference", "batch_size", "concurrency"),
    _Key("inference", "default_max_tokens", "default_max_tokens"),
    _Key("inference", "deterministic", "deterministic"),
    _Key("inference", "num_kv_blocks", "num_kv_blocks"),
    *(
        _Key("inference", name, name)
        for name in ("kv_cache_dtype", "kv_cache_gb", "kv_host_cache_gb", "kv_reuse", "kv_retention")
    ),
    _Key("inference", "trtllm_parameters", "trtllm_parameters", to_pairs, parse_pairs),
    _Key("inference", "device_ids", "device_ids", read_devices, list),
    _Key("inference", "launch", "launch"),
    _Key("inference", "endpoints", "endpoints", tuple, list),
    _Key("scheduler", "queue_size", "queue_size"),
    _Key("scheduler", "order", "order"),
    _Key("scheduler", "dedup", "dedup"),
    _Key("scheduler", "canary", "canary"),
    _Key("scheduler", "max_failure_rate", "max_failure_rate"),
    _ms("scheduler", "timeout_ms", "request_timeout_s"),
    _Key("scheduler", "retry_times", "max_attempts", lambda value: value + 1, lambda value: value - 1),
    _ms("scheduler", "grace_ms", "grace_s"),
    _ms("scheduler", "server_wait_ms", "server_wait_s"),
    _ms("scheduler", "start_timeout_ms", "start_timeout_s"),
    _Key("output", "path", "output", is_path=True),
    _Key("output", "follow", "follow", is_path=True),
    _Key("output", "overwrite", "overwrite"),
    _Key("cache", "enabled", "cache"),
    _Key("cache", "capacity_gb", "cache_capacity_gb"),
    _Key("cache", "ttl_hours", "cache_ttl_hours"),
    _ms("cache", "sync_interval_ms", "cache_sync_interval_s"),
)
# of a repeated run, the first would mix two runs' results, and the second replace what it repeats
_NOT_REPEATED: Final = frozenset({"follow", "overwrite"})


@dataclass(frozen=True, slots=True)
class JobFile:
    """A job file that was read: options by their names in RunOptions (and `engine`), and two checks."""

    path: Path
    options: dict[str, Any]
    model_path: str | None
    max_seq_len: int | None


def read_job_file(path: Path) -> JobFile:
    """Read a job file; relative paths in it count from its own folder.

    Raises:
        ConfigError: It cannot be read, or says something that cannot be honoured; each fault with its line.
    """
    document = read_yaml(path)
    faults = list(_unhonoured(document))
    try:
        job = Job.model_validate(document.value)
    except ValidationError as exc:
        faults += [_describe(error, document) for error in exc.errors(include_url=False)]
        raise _refused(path, faults) from exc
    faults += _unknown_parameters(job, document)
    faults += _wrong_devices(job, document)
    if faults:
        raise _refused(path, faults)
    options: dict[str, Any] = {}
    for key in _KEYS:
        value = getattr(getattr(job, key.section), key.key, None)
        if value is not None:
            options[key.option] = path.absolute().parent / value if key.is_path else key.read(value)
    inference = job.inference or Inference()
    return JobFile(path, options, inference.model_path, inference.max_seq_len)


def known_keys() -> Iterator[str]:
    """Yield every key of a job file's sections, as section.key: what the README lists."""
    for section, model in SECTIONS.items():
        yield from (f"{section}.{key}" for key in model.model_fields)


def to_yaml(record: RunRecord) -> bytes:
    """Return the job file of a run, resolved; with another output it repeats the run."""
    values = {**record.job, "input_path": record.input_path, "engine": record.engine}
    values["output"] = str(Path(str(values["output"])).resolve())
    sections: dict[str, Any] = {"schema_version": 1}
    for key in _KEYS:
        value = values.get(key.option)
        if value is not None and key.option not in _NOT_REPEATED:
            sections.setdefault(key.section, {})[key.key] = key.write(value)
    head = (
        f"# run {record.run_id}; repeat it: trtb run --config {FILE_NAME} -o OTHER.jsonl\n"
        f"# input sha256 {record.input_sha256}\n# engine {record.engine_id}\n"
    )
    body: str = yaml.safe_dump(sections, sort_keys=False, allow_unicode=True)
    return (head + body).encode()


def _unhonoured(document: YamlDocument) -> Iterator[tuple[int, str]]:
    for (section, key), (neutral, why) in _NOT_YET.items():
        values = document.value.get(section) if isinstance(document.value, dict) else None
        value = values.get(key) if isinstance(values, dict) else None
        if value is None or any(type(value) is type(same) and value == same for same in neutral):
            continue
        expected = " or ".join(_shown(same) for same in neutral)
        text = f"{section}.{key}: {_shown(value)}; expected {expected}, for {why}"
        yield document.line((section, key)), text


def _unknown_parameters(job: Job, document: YamlDocument) -> Iterator[tuple[int, str]]:
    given = job.inference.trtllm_parameters if job.inference else None
    for pair in to_pairs(given or {}):
        name = pair.partition("=")[0]
        place = ("inference", "trtllm_parameters", name)
        try:
            parse_parameters(parse_pairs([pair]))
        except ConfigError as exc:
            hint = f"; {exc.hint}" if exc.hint else ""
            yield document.line(place), f"{'.'.join(place[:2])}: {exc.message}{hint}"


def _wrong_devices(job: Job, document: YamlDocument) -> Iterator[tuple[int, str]]:
    given = job.inference.device_ids if job.inference else None
    try:
        read_devices([] if given is None else given)
    except ConfigError as exc:
        yield document.line(("inference", "device_ids")), f"inference.{exc.message}"


def _describe(error: Any, document: YamlDocument) -> tuple[int, str]:
    """Return the line and the words of one of pydantic's findings."""
    place = tuple(error["loc"])
    where = ".".join(str(part) for part in place)
    line = document.line(place)
    if error["type"] == "extra_forbidden":
        return line, f"{where}: unknown key; {_nearest(place)}"
    if error["type"] in ("model_type", "dict_type"):
        return line, f"{where or 'the file'}: {_shown(error['input'])}; expected keys with values"
    problem = error["msg"].removeprefix("Input should be ")
    return line, f"{where}: {_shown(error['input'])}; expected {problem}"


def _nearest(place: tuple[Any, ...]) -> str:
    """Return what an unknown key may have meant."""
    *parents, key = (str(part) for part in place)
    elsewhere = {
        name: f"{section}.{name}" for section, model in SECTIONS.items() for name in model.model_fields
    }
    elsewhere |= {entry.option: f"{entry.section}.{entry.key}" for entry in _KEYS}
    here = SECTIONS[parents[0]].model_fields if parents and parents[0] in SECTIONS else Job.model_fields
    for names in ({name: name for name in here}, elsewhere):
        if close := difflib.get_close_matches(key, names, n=1, cutoff=0.75):
            return f"the nearest known one is {names[close[0]]}"
    return f"expected one of {', '.join(here)}"


def _refused(path: Path, faults: list[tuple[int, str]]) -> ConfigError:
    lines = [f"{path}:{line}: {text}" for line, text in sorted(faults)]
    return ConfigError("\n".join(lines), "README.md lists every key of a job file")


def _shown(value: Any) -> str:
    if isinstance(value, (dict, list)) and value:
        return "a list" if isinstance(value, list) else "a mapping"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    text = repr(value)
    return text if len(text) <= MAX_SHOWN_CHARS else text[:MAX_SHOWN_CHARS] + "…"
