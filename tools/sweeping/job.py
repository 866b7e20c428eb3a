"""A sweep as it was asked for becomes one that can run: every mistake is found before anything starts."""

from __future__ import annotations

import collections
import itertools
from dataclasses import dataclass
from pathlib import Path

from trtb.build import __version__, files, hardware
from trtb.build.errors import ConfigError
from trtb.build.quantization import get_scheme
from trtb.build.store import EngineStore, StoredEngine
from trtb.runner.launching.devices import Group, group_devices, parse_groups, read_devices
from trtb.runner.launching.launch import check_choice
from trtb.runner.options import RunOptions
from trtb.tools.run_options import check_endpoint
from trtb.tools.sweeping import workload
from trtb.tools.sweeping.best import Rule, check_rule
from trtb.tools.sweeping.machine import describe_machine
from trtb.tools.sweeping.perf_analyzer import find_perf_analyzer
from trtb.tools.sweeping.plan import MAX_RATE, MAX_REQUESTS, SweepPlan, axes_of, parse_numbers
from trtb.tools.sweeping.point import Mode
from trtb.tools.sweeping.settings import Axis, build_config, is_of_build, parse_axes
from trtb.tools.sweeping.store import SweepFolder
from trtb.tools.sweeping.sweep import SweepJob
from trtb.tools.sweeping.target import TargetOptions, Tell

DEFAULT_LOADS = "1,4,16,64"
DEFAULT_INPUT_TOKENS = "128"
DEFAULT_OUTPUT_TOKENS = "32"
MAX_LENGTH = 1 << 20  # in tokens; the engine's own limit comes after


@dataclass(frozen=True, slots=True)
class SweepRequest:
    """What a person asked for, as it was typed."""

    engine: str | None
    endpoint: str | None
    concurrency: str | None
    request_rate: str | None
    input_tokens: str | None
    output_tokens: str | None
    input_path: Path | None
    request_count: int | None
    warmup_request_count: int | None
    repeats: int
    max_spread: float
    point_timeout_s: float
    latency_limit_ms: float | None
    best: str
    settings: tuple[str, ...]
    output: Path | None
    perf_analyzer: Path | None
    num_kv_blocks: int | None
    deterministic: bool
    device_ids: str | None
    launch: str
    start_timeout_s: float | None
    seed: int

    @property
    def rule(self) -> Rule:
        """Return the rule by which the best point is chosen."""
        return check_rule(self.best, self.latency_limit_ms)


def make_job(request: SweepRequest, home: Path, tell: Tell) -> SweepJob:
    """Return the sweep that was asked for.

    Raises:
        ConfigError: The options contradict each other or the engine.
        EngineNotFoundError: No engine is meant, or more than one.
        InputFileError: No line of the user's file can be sent.
        ToolchainMissingError: There is no perf_analyzer.
        HardwareError: perf_analyzer does not run here, or lacks an option.
    """
    rule = request.rule
    stored = EngineStore(home).resolve(request.engine)
    axes = parse_axes(request.settings, stored.manifest)
    _check_endpoint(request)
    _check_given_once(request, axes)
    _check_builds(axes, stored)
    mode, values = _load_of(request)
    input_options = _input_options(request, stored)
    lengths = None if input_options else _lengths_of(request, stored)
    analyzer = find_perf_analyzer(request.perf_analyzer, home)
    tell(f"perf_analyzer {analyzer.version}: {analyzer.program}; best by {rule}")
    plan = SweepPlan(
        trtb_version=__version__,
        perf_analyzer_version=analyzer.version,
        machine=describe_machine(hardware.probe()),
        engine=stored.manifest.reference,
        engine_id=stored.manifest.engine_id,
        endpoint=request.endpoint,
        mode=mode,
        values=values,
        axes=axes_of(axes, lengths),
        input_name=request.input_path.name if request.input_path else None,
        input_sha256=files.sha256_file(request.input_path) if request.input_path else None,
        num_requests=request.request_count,
        num_warmup=request.warmup_request_count,
        repeats=request.repeats,
        max_spread=request.max_spread,
        point_timeout_s=request.point_timeout_s,
        latency_limit_ms=request.latency_limit_ms,
        num_kv_blocks=request.num_kv_blocks,
        deterministic=request.deterministic,
        seed=request.seed,
    )
    _check_names(plan)
    _check_counts(plan)
    folder = request.output or Path(f"sweep-{stored.manifest.name}-{stored.manifest.version}")
    return SweepJob(
        plan,
        SweepFolder(folder.resolve()),
        stored,
        analyzer,
        _target(request, stored, home),
        input_options,
        tell,
    )


def _check_endpoint(request: SweepRequest) -> None:
    if request.endpoint is None:
        return
    check_endpoint(request.endpoint)
    own = {
        "--set": bool(request.settings),
        "--num-kv-blocks": request.num_kv_blocks is not None,
        "--deterministic": request.deterministic,
        "--device-ids": request.device_ids is not None,
        "--launch": request.launch != "auto",
    }
    if named := [option for option, is_given in own.items() if is_given]:
        raise ConfigError(
            f"{', '.join(named)}: of a server of our own, and --endpoint names one that is running",
            "leave --endpoint out, or start that server with them: trtb serve",
        )


def _check_given_once(request: SweepRequest, axes: tuple[Axis, ...]) -> None:
    """Refuse an option that another one would silently take the place of."""
    lengths = {"--input-tokens": request.input_tokens, "--output-tokens": request.output_tokens}
    typed = [option for option, text in lengths.items() if text is not None]
    if request.input_path is not None and typed:
        raise ConfigError(
            f"{', '.join(typed)}: of random prompts, and --input names a file whose lines have their own",
            "leave one of them out",
        )
    options = {"num_kv_blocks": request.num_kv_blocks is not None, "deterministic": request.deterministic}
    for axis in axes:
        if options.get(axis.name, False):
            option = axis.name.replace("_", "-")
            raise ConfigError(
                f"--{option}, --set {axis.name}: both given; expected one of them",
                f"all values in one: --set {axis.name}=V1,V2",
            )


def _check_builds(axes: tuple[Axis, ...], stored: StoredEngine) -> None:
    """Refuse values that no build can have, alone or together, before the first server starts."""
    built = [axis for axis in axes if is_of_build(axis.name)]
    for values in itertools.product(*(axis.values for axis in built)):
        settings = dict(zip((axis.name for axis in built), values, strict=True))
        get_scheme(stored.manifest.backend, build_config(settings, stored.manifest).quant)


def _load_of(request: SweepRequest) -> tuple[Mode, list[float]]:
    if request.concurrency is not None and request.request_rate is not None:
        raise ConfigError(
            "--concurrency, --request-rate: both given; expected one of them",
            "a sweep drives its server in one way",
        )
    if request.request_rate is not None:
        return "request_rate", parse_numbers(
            "--request-rate", request.request_rate, is_whole=False, max_value=MAX_RATE
        )
    return "concurrency", parse_numbers("--concurrency", request.concurrency or DEFAULT_LOADS, is_whole=True)


def _check_names(plan: SweepPlan) -> None:
    """Refuse points of one name, which would be one file: their values differ in what a name leaves out."""
    names = collections.Counter(point.name for point in plan.points())
    name, count = names.most_common(1)[0]
    if count > 1:
        raise ConfigError(
            f"{name}: {count} points of that name; expected values that differ in their first 6 digits",
            "choose values that are further apart",
        )


def _check_counts(plan: SweepPlan) -> None:
    """Refuse runs that end before their load is reached, and those too large to be held in memory."""
    for point in plan.points():
        if point.num_requests + point.num_warmup > MAX_REQUESTS:
            raise ConfigError(
                f"{point.name}: {point.num_requests + point.num_warmup} requests in a run; "
                f"expected {MAX_REQUESTS} at most",
                "choose a smaller --request-count and --warmup-request-count",
            )
        if point.num_requests + point.num_warmup < point.value:
            raise ConfigError(
                f"--request-count {point.num_requests}, --warmup-request-count {point.num_warmup}: fewer "
                f"than the {point.mode.replace('_', ' ')} {point.value:g}; expected as many at the least",
                "leave them out: both then follow the load",
            )


def _lengths_of(request: SweepRequest, stored: StoredEngine) -> tuple[list[int], list[int]]:
    inputs, outputs = (
        [int(value) for value in parse_numbers(option, text, is_whole=True, max_value=MAX_LENGTH)]
        for option, text in (
            ("--input-tokens", request.input_tokens or DEFAULT_INPUT_TOKENS),
            ("--output-tokens", request.output_tokens or DEFAULT_OUTPUT_TOKENS),
        )
    )
    workload.check_lengths(stored.manifest, (max(inputs), max(outputs)))
    return inputs, outputs


def _input_options(request: SweepRequest, stored: StoredEngine) -> RunOptions | None:
    """Return how the lines of the user's file are read; one of them is, to see that they can be."""
    if request.input_path is None:
        return None
    options = RunOptions(
        input_path=request.input_path,
        output=request.input_path,  # nothing is written
        engine_dir=stored.path,
        manifest=stored.manifest,
        model_aliases=("*",),
    )
    workload.file_entries(options, 1)
    return options


def _target(request: SweepRequest, stored: StoredEngine, home: Path) -> TargetOptions:
    groups = group_devices(parse_groups(read_devices(request.device_ids or "")), stored.manifest)
    if len(groups) > 1:
        raise ConfigError(
            f"--device-ids: {request.device_ids!r} makes {len(groups)} servers; a sweep measures one",
            f"name as many GPUs as {stored.manifest.reference} has ranks",
        )
    devices: Group = groups[0] if groups else ()
    return TargetOptions(
        home=home,
        launch=check_choice(request.launch),
        devices=devices,
        num_kv_blocks=request.num_kv_blocks,
        deterministic=request.deterministic,
        start_timeout_s=request.start_timeout_s,
    )
