"""What a sweep measures, in which order, and by which bounds: decided before anything starts. Pure."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from trtb.build.errors import ConfigError
from trtb.build.manifest import Record
from trtb.tools.sweeping.point import SCHEMA_VERSION, Mode, SettingValue
from trtb.tools.sweeping.settings import Axis

INPUT_TOKENS: Final = "input_tokens"
OUTPUT_TOKENS: Final = "output_tokens"
_LENGTHS: Final = frozenset({INPUT_TOKENS, OUTPUT_TOKENS})
WAVES: Final = 4  # requests of a run, for each that is in flight
MIN_REQUESTS: Final = 16
RATE_SPAN_S: Final = 20.0  # that a run at a request rate lasts, at the least
MAX_VALUE: Final = 4096
MAX_RATE: Final = 10_000.0  # in requests/s
MAX_REQUESTS: Final = 1_000_000  # of one run: perf_analyzer holds them all in memory


@dataclass(frozen=True, slots=True)
class PlannedPoint:
    """One point to measure."""

    name: str
    settings: dict[str, SettingValue]  # of the engine and of the load
    mode: Mode
    value: float
    num_requests: int  # of one run, those that warm up apart
    num_warmup: int

    @property
    def engine_settings(self) -> dict[str, SettingValue]:
        """Return the settings that make another server, or another engine."""
        return {name: value for name, value in self.settings.items() if name not in _LENGTHS}

    @property
    def lengths(self) -> tuple[int, int] | None:
        """Return the tokens of a synthetic prompt and of its answer; None where a file has them."""
        if INPUT_TOKENS not in self.settings:
            return None
        return int(self.settings[INPUT_TOKENS]), int(self.settings[OUTPUT_TOKENS])


class SweepPlan(Record):
    """What a sweep is: `sweep.json`, and what a resumed one must agree with."""

    schema_version: Literal[1] = SCHEMA_VERSION
    trtb_version: str
    perf_analyzer_version: str
    machine: str  # that measures, in words
    engine: str
    engine_id: str
    endpoint: str | None  # of a server that was there; None: servers of the sweep's own
    mode: Mode
    values: list[float]
    axes: dict[str, list[SettingValue]]  # settings, then lengths
    input_name: str | None  # the user's file; None: synthetic prompts
    input_sha256: str | None
    num_requests: int | None  # of one run; None: by the load
    num_warmup: int | None
    repeats: int
    max_spread: float
    point_timeout_s: float
    latency_limit_ms: float | None
    num_kv_blocks: int | None
    deterministic: bool
    seed: int

    @property
    def server_settings(self) -> dict[str, SettingValue]:
        """Return what every server of the sweep was given beside its axes, by its name as a setting."""
        given: dict[str, SettingValue] = {}
        if self.num_kv_blocks is not None:
            given["num_kv_blocks"] = self.num_kv_blocks
        if self.deterministic:
            given["deterministic"] = True
        return given

    def points(self) -> list[PlannedPoint]:
        """Return the points in the order in which they are measured: one server after the other."""
        return [
            self._point(dict(zip(self.axes, values, strict=True)), value)
            for values in itertools.product(*self.axes.values())
            for value in self.values
        ]

    def groups(self) -> Iterator[tuple[dict[str, SettingValue], list[PlannedPoint]]]:
        """Yield the points that one server measures, with its settings."""
        for _, group in itertools.groupby(self.points(), key=lambda point: repr(point.engine_settings)):
            points = list(group)
            yield points[0].engine_settings, points

    def _point(self, settings: dict[str, SettingValue], value: float) -> PlannedPoint:
        num_requests = self.num_requests or default_requests(self.mode, value)
        num_warmup = default_warmup(self.mode, value) if self.num_warmup is None else self.num_warmup
        return PlannedPoint(
            name_of(settings, self.axes, self.mode, value),
            settings,
            self.mode,
            value,
            num_requests,
            num_warmup,
        )


def default_requests(mode: Mode, value: float) -> int:
    """Return how many requests one run counts.

    >>> default_requests("concurrency", 16), default_requests("request_rate", 0.5)
    (64, 16)
    """
    wanted = value * (WAVES if mode == "concurrency" else RATE_SPAN_S)
    return max(MIN_REQUESTS, math.ceil(wanted))


def default_warmup(mode: Mode, value: float) -> int:
    """Return how many requests go before them: as many as will be in flight."""
    return math.ceil(value) if mode == "concurrency" else min(MIN_REQUESTS, math.ceil(value))


def name_of(
    settings: dict[str, SettingValue], axes: dict[str, list[SettingValue]], mode: Mode, value: float
) -> str:
    """Return a point's name, which is its file's: what distinguishes it from the others of its sweep.

    >>> name_of({"num_kv_blocks": 200, "quant": "bf16"}, {"num_kv_blocks": [200, 400], "quant": ["bf16"]},
    ...         "concurrency", 4)
    'num_kv_blocks-200_concurrency-4'
    """
    parts = [f"{name}-{settings[name]}" for name, values in axes.items() if len(values) > 1]
    text = "_".join([*parts, f"{mode.replace('_', '-')}-{value:g}"])
    return "".join(each if each.isalnum() or each in "._-" else "." for each in text)


def axes_of(
    axes: Sequence[Axis], lengths: tuple[Sequence[int], Sequence[int]] | None
) -> dict[str, list[SettingValue]]:
    """Return a plan's axes: those that change the server outermost, so that it is started seldom."""
    found: dict[str, list[SettingValue]] = {axis.name: list(axis.values) for axis in axes}
    if lengths is not None:
        found[INPUT_TOKENS] = list(dict.fromkeys(lengths[0]))
        found[OUTPUT_TOKENS] = list(dict.fromkeys(lengths[1]))
    return found


def parse_numbers(option: str, text: str, *, is_whole: bool, max_value: float = MAX_VALUE) -> list[float]:
    """Return the numbers of a list that a person typed, in order, each once.

    >>> parse_numbers("--concurrency", "1,4,16", is_whole=True)
    [1.0, 4.0, 16.0]

    Raises:
        ConfigError: One is no such number.
    """
    kind = f"whole numbers from 1 to {max_value:.0f}" if is_whole else f"numbers above 0, to {max_value:.0f}"
    found = []
    for part in text.split(","):
        try:
            value = float(part)
        except ValueError:
            value = math.nan
        is_good = 0 < value <= max_value  # nan is not
        if not is_good or (is_whole and value % 1):
            raise ConfigError(f"{option}: {part.strip()!r} in {text!r}; expected {kind}, as in 1,4,16")
        found.append(value)
    return list(dict.fromkeys(found))
