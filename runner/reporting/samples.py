"""The samples of a run: what client, servers and GPUs did, second by second; their file, and its thinning.

`samples.jsonl` in the run's folder begins with a line of its schema, then has one sample a line. It is
appended to while the run goes on, so a torn last line is no fault, and thinned when it has become long: its
size does not depend on the run's.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import orjson

from trtb.build import files
from trtb.build.errors import ConfigError
from trtb.build.probe.gpu_use import GpuUse

SCHEMA_VERSION: Final = 1
FILE_NAME: Final = "samples.jsonl"
PERIOD_S: Final = 1.0
MAX_SAMPLES: Final = 1500
MIN_SAMPLES: Final = MAX_SAMPLES // 2  # kept of a full file at the most: it is not thinned again at once
_SLACK: Final = 1.25  # a sample is never exactly as long as its period


@dataclass(frozen=True, slots=True)
class Sample:
    """One span of time: gauges as means over it (max_ as the most), seconds of work as sums.

    What is seen of servers is of the run's own; None where there is none, or it does not tell.
    """

    session: int  # 1 is the run's first start
    time_s: float  # since the epoch, at the end of the span
    span_s: float
    in_flight: float
    max_in_flight: int
    bound: float  # requests that may be in flight, KV blocks apart
    waiting: float  # ready to be sent, and not: no place, no blocks, or its prefix is being computed
    drained_fraction: float  # of the span, in which nothing was left but what was in flight
    client_cpu_s: float  # of all threads of the client
    loop_busy_s: float  # the event loop's thread: running, or waiting for a processor
    prepare_s: float  # of that: parsing, rendering and tokenising requests
    loop_lag_s: float  # how late the event loop came to what was due
    max_loop_lag_s: float
    blocks_held: float | None = None  # KV blocks as admission counts them
    max_blocks_held: int | None = None
    num_blocks: int | None = None  # of all servers together
    server_cpu_s: float | None = None
    server_rss_bytes: int | None = None
    engine_active: float | None = None  # requests, by the servers' metrics
    engine_waiting: float | None = None
    engine_blocks_used: float | None = None
    engine_blocks: int | None = None
    gpus: tuple[GpuUse, ...] = ()


_NAMES: Final = frozenset(field.name for field in dataclasses.fields(Sample))
_NEEDED: Final = frozenset(
    field.name for field in dataclasses.fields(Sample) if field.default is dataclasses.MISSING
)
_GPU_NAMES: Final = frozenset(field.name for field in dataclasses.fields(GpuUse))
_SUMS: Final = ("span_s", "client_cpu_s", "loop_busy_s", "prepare_s", "server_cpu_s")
_MEANS: Final = (
    *("in_flight", "bound", "waiting", "drained_fraction", "loop_lag_s", "blocks_held"),
    *("engine_active", "engine_waiting", "engine_blocks_used"),
)
_MOSTS: Final = (
    *("time_s", "max_in_flight", "max_loop_lag_s", "max_blocks_held", "num_blocks"),
    *("server_rss_bytes", "engine_blocks"),
)


def samples_path(folder: Path) -> Path:
    """Return where a run's samples are, from the run's folder."""
    return folder / FILE_NAME


def read_samples(folder: Path) -> list[Sample]:
    """Return a run's samples, oldest first: none where no sample was taken, or by another schema.

    Raises:
        ConfigError: Their file cannot be read.
    """
    try:
        data = samples_path(folder).read_bytes()
    except FileNotFoundError:
        return []
    except OSError as exc:
        raise ConfigError(
            f"{samples_path(folder)}: {exc.strerror}; expected the samples of a run",
            "move it away: the report is made without it",
        ) from exc
    head, *lines = data.split(b"\n")
    if _object(head) != {"schema_version": SCHEMA_VERSION}:
        return []
    found = (_parse(line) for line in lines)
    return [sample for sample in found if sample is not None]


def write_samples(folder: Path, samples: Sequence[Sample]) -> None:
    """Write a run's samples anew; they are durable when this returns."""
    head = orjson.dumps({"schema_version": SCHEMA_VERSION}) + b"\n"
    files.write_atomic(samples_path(folder), head + b"".join(map(to_line, samples)))


def to_line(sample: Sample) -> bytes:
    """Return a sample as its line of the file; what is not known is left out."""
    values = {
        name: round(value, 6) if isinstance(value, float) else value
        for name in Sample.__slots__
        if name != "gpus" and (value := getattr(sample, name)) is not None
    }
    if sample.gpus:
        values["gpus"] = [
            {key: value for key, value in dataclasses.asdict(gpu).items() if value is not None}
            for gpu in sample.gpus
        ]
    return orjson.dumps(values) + b"\n"


def thin(samples: Sequence[Sample], limit: int, period_s: float = PERIOD_S) -> tuple[list[Sample], float]:
    """Merge neighbours until at most `limit` are left; returns them and the period that they now have.

    Neighbours of one session only. Should more sessions than `limit` be there, the first ones go.
    """
    kept = list(samples)
    longest = sum(sample.span_s for sample in kept)
    while len(kept) > limit and period_s <= longest:
        period_s *= 2
        merged: list[Sample] = []
        for sample in kept:
            last = merged[-1] if merged else None
            if (
                last is not None
                and last.session == sample.session
                and last.span_s + sample.span_s <= period_s * _SLACK
            ):
                merged[-1] = merge(last, sample)
            else:
                merged.append(sample)
        kept = merged
    return kept[max(0, len(kept) - limit) :], period_s


def merge(first: Sample, second: Sample) -> Sample:
    """Return two neighbours as one: sums add up, means weigh by their spans, the most is the greater."""
    values: dict[str, Any] = {"session": second.session, "gpus": _merge_gpus(first, second)}
    for names, join in ((_SUMS, _sum), (_MOSTS, _most)):
        for name in names:
            values[name] = join(getattr(first, name), getattr(second, name))
    for name in _MEANS:
        values[name] = _mean(getattr(first, name), first.span_s, getattr(second, name), second.span_s)
    return Sample(**values)


def _merge_gpus(first: Sample, second: Sample) -> tuple[GpuUse, ...]:
    found = {gpu.index: gpu for gpu in first.gpus}
    for gpu in second.gpus:
        old = found.get(gpu.index, gpu)
        means = {
            name: _mean(getattr(old, name), first.span_s, getattr(gpu, name), second.span_s)
            for name in ("busy_fraction", "power_w")
        }
        mosts = {
            name: _most(getattr(old, name), getattr(gpu, name))
            for name in ("memory_used_bytes", "memory_total_bytes")
        }
        found[gpu.index] = GpuUse(gpu.index, **means, **mosts)
    return tuple(found[index] for index in sorted(found))


def _sum(first: float | None, second: float | None) -> float | None:
    return second if first is None else first if second is None else first + second


def _most(first: float | None, second: float | None) -> Any:
    return second if first is None else first if second is None else max(first, second)


def _mean(first: float | None, first_s: float, second: float | None, second_s: float) -> Any:
    if first is None or second is None:
        return second if first is None else first
    whole_s = first_s + second_s
    return second if whole_s <= 0 else (first * first_s + second * second_s) / whole_s


def _parse(line: bytes) -> Sample | None:
    """Return the sample on a line; None where it is torn or none; names that are not ours are passed over."""
    found = _object(line)
    if found is None:
        return None
    uses = found.pop("gpus", [])
    if not isinstance(uses, list):
        return None
    values = _numbers(found, _NAMES, _NEEDED)
    gpus = [_numbers(use, _GPU_NAMES, frozenset({"index"})) for use in uses]
    if values is None or None in gpus:
        return None
    return Sample(**values, gpus=tuple(GpuUse(**gpu) for gpu in gpus if gpu is not None))


def _numbers(found: object, names: frozenset[str], needed: frozenset[str]) -> dict[str, Any] | None:
    """Return what an object has of the names, or None where one that is needed is missing or no number."""
    if not isinstance(found, dict):
        return None
    values = {name: value for name, value in found.items() if name in names and value is not None}
    are_numbers = all(type(value) in {int, float} for value in values.values())
    return values if are_numbers and values.keys() >= needed else None


def _object(line: bytes) -> dict[str, Any] | None:
    try:
        found = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    return found if isinstance(found, dict) else None
