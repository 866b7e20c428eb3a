"""perf_analyzer as a program: found, asked what it can, run for one point, and its end understood.

One process measures one run of one point: with a number of requests it takes no range, and a request that
fails ends it without an export, so nothing else must depend on it. It may also hang for good (its issue
320), so each run has a bound, and ends with its children.
"""

from __future__ import annotations

import itertools
import os
import re
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Literal

from trtb.build.child_process import ProcessEnd, run_program
from trtb.build.errors import HardwareError, ToolchainMissingError
from trtb.build.toolchain import get_toolchain
from trtb.build.toolchain_programs import program_environment, program_of
from trtb.model_repo import contract
from trtb.tools.sweeping.point import Mode

NAME: Final = "perf_analyzer"
PROBE_LIMIT_S: Final = 60.0
MAX_PROBE_LINES: Final = 10_000  # its usage has some 700
MAX_THREADS: Final = 4  # that send; each holds many requests
NUM_TAIL_LINES: Final = 3
STATUS_UNSTABLE: Final = 2
_OPTIONS: Final = (
    *("--async", "--streaming", "--service-kind", "--input-data", "--max-threads", "--concurrency-range"),
    *("--request-rate-range", "--request-distribution", "--request-count", "--profile-export-file"),
)
_VERSION = re.compile(r"Perf Analyzer Version (\S+)")
_OPTION = re.compile(r"(?<![\w-])--[a-z0-9][a-z0-9-]*")
_TELLING = re.compile(r"error|fail", re.IGNORECASE)
_FATAL = re.compile(r"Failed to retrieve results|\bhad error\b")  # said of a request, by its thread
_LOST = re.compile(
    r"connection refused|failed to connect|socket closed|stream removed|connection reset|unavailable"
    r"|server is not (?:ready|live)|stub process",
    re.IGNORECASE,
)

FailureKind = Literal[
    "unstable", "request_error", "connection_lost", "killed", "timeout", "no_export", "bad_export"
]


@dataclass(frozen=True, slots=True)
class PerfAnalyzer:
    """A perf_analyzer that runs here and has every option that is needed."""

    program: Path
    version: str
    environment: Mapping[str, str] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Load:
    """What one run sends."""

    endpoint: str
    mode: Mode
    value: float
    num_requests: int  # those that warm up included
    input_data: Path


@dataclass(frozen=True, slots=True)
class RunFailure:
    """Why a run measured nothing."""

    kind: FailureKind
    why: str
    said: tuple[str, ...] = ()  # perf_analyzer's last lines


def find_perf_analyzer(given: Path | None, home: Path) -> PerfAnalyzer:
    """Return the perf_analyzer that was named, else the toolchain's, else that of the PATH, probed.

    Raises:
        ToolchainMissingError: There is none.
        HardwareError: It does not start here, or lacks an option.
    """
    if given is not None:
        return probe(given, os.environ)
    try:
        path = get_toolchain(NAME, home).path
    except ToolchainMissingError as exc:
        if (found := shutil.which(NAME)) is not None:
            return probe(Path(found), os.environ)
        raise ToolchainMissingError(
            f"{NAME}: neither installed as a toolchain nor on the PATH", f"trtb toolchain install {NAME}"
        ) from exc
    return probe(program_of(path, NAME), program_environment(path))


def probe(program: Path, environment: Mapping[str, str]) -> PerfAnalyzer:
    """Start a perf_analyzer, for its version and for the options that it has.

    Raises:
        HardwareError: It does not start, or lacks an option.
    """
    told, lines = _say(program, "--version", environment=environment)
    version = _VERSION.search("\n".join(lines))
    if version is None:
        last = "; ".join(lines[-NUM_TAIL_LINES:]) or "no output"
        raise HardwareError(
            f"{program}: {told.how}, and did not tell its version ({last}); expected NVIDIA's perf_analyzer",
            f"trtb toolchain install {NAME} fetches one that runs here",
        )
    _, usage = _say(program, environment=environment)  # there is no --help: without arguments it prints all
    known = set(_OPTION.findall("\n".join(usage)))
    if missing := [option for option in _OPTIONS if option not in known]:
        raise HardwareError(
            f"{program}: version {version[1]} has no {', '.join(missing)}; expected 2.47 or later",
            f"trtb toolchain install {NAME} fetches one that has, and leave --perf-analyzer out",
        )
    return PerfAnalyzer(program.absolute(), version[1], environment)  # it works in a folder of the sweep's


def command_of(analyzer: PerfAnalyzer, load: Load, export: Path) -> list[str]:
    """Return the command of one run; `export` must not exist."""
    value = f"{load.value:g}"
    if load.mode == "concurrency":
        drive = ["--concurrency-range", value]
    else:
        # evenly spaced: its Poisson has one fixed seed, whose first intervals are long
        # and with both ends: alone, one below 1 is taken for the beginning of a range that ends there
        drive = ["--request-rate-range", f"{value}:{value}", "--request-distribution", "constant"]
    return [
        str(analyzer.program),
        *("-m", contract.MODEL_NAME, "-u", load.endpoint, "-i", "grpc", "--service-kind", "triton"),
        *("--async", "--streaming", "--max-threads", str(MAX_THREADS)),
        *("--input-data", str(load.input_data)),
        *drive,
        *("--request-count", str(load.num_requests)),
        *("--profile-export-file", str(export)),
    ]


def run_command(
    analyzer: PerfAnalyzer,
    command: list[str],
    export: Path,
    timeout_s: float,
    server_fault: Callable[[], str | None],
) -> RunFailure | None:
    """Run perf_analyzer once; returns None where its export is there.

    Args:
        analyzer: The program.
        command: Of `command_of`.
        export: The file that the command names.
        timeout_s: When it is ended, if it has not ended itself.
        server_fault: Says what became of the server, if something did: perf_analyzer would wait for ever.

    Raises:
        OSError: It cannot be started.
    """
    export.parent.mkdir(parents=True, exist_ok=True)
    export.unlink(missing_ok=True)
    deadline = time.monotonic() + timeout_s
    is_late = has_failed = False
    fault: str | None = None

    def hear(line: str) -> None:
        nonlocal has_failed
        has_failed = has_failed or _FATAL.search(line) is not None

    def is_over() -> bool:
        nonlocal is_late, fault
        is_late = is_late or time.monotonic() > deadline
        fault = fault or server_fault()
        return is_late or has_failed or fault is not None  # after a failed request it may wait for ever

    ended = run_program(
        command,
        work_dir=export.parent,
        on_line=hear,
        environment=analyzer.environment,
        silence_limit_s=timeout_s + 60,  # it says nothing while it measures: the deadline is the bound
        is_done=is_over,
    )
    has_export = export.is_file() and export.stat().st_size > 0
    if fault is not None and not has_export:
        return RunFailure("connection_lost", fault, ended.tail)
    failure = failure_of(ended, timeout_s=timeout_s, is_late=is_late, has_export=has_export)
    return None if failure is None else replace(failure, said=ended.tail)


def failure_of(ended: ProcessEnd, *, timeout_s: float, is_late: bool, has_export: bool) -> RunFailure | None:
    """Return why a run that ended so measured nothing; None where it did."""
    if ended.status == 0 and has_export:
        return None
    last = _last_words(ended)
    if is_late:
        return RunFailure("timeout", f"not over after {timeout_s:.0f} s{last and ': '}{last}")
    if ended.status == STATUS_UNSTABLE:
        return RunFailure("unstable", f"perf_analyzer called its own measurement unstable: {last}")
    if last and ended.status != 0:
        is_lost = _LOST.search("\n".join(ended.tail)) is not None
        kind: FailureKind = "connection_lost" if is_lost else "request_error"
        how = "waited for ever after a failure" if ended.status < 0 else ended.how
        return RunFailure(kind, f"perf_analyzer {how}: {last}")
    if ended.status < 0:
        return RunFailure("killed", f"perf_analyzer {ended.how}")
    return RunFailure("no_export", f"perf_analyzer {ended.how}, and wrote no export{last and ': '}{last}")


def _last_words(ended: ProcessEnd) -> str:
    """Return the last lines that tell of an error, the usage after it apart; nothing where none does."""
    lines = itertools.takewhile(lambda line: not line.startswith("Usage:"), ended.tail)
    telling = [line.strip() for line in lines if _TELLING.search(line)]
    return "; ".join(dict.fromkeys(telling[-NUM_TAIL_LINES:]))


def _say(program: Path, *arguments: str, environment: Mapping[str, str]) -> tuple[ProcessEnd, list[str]]:
    lines: list[str] = []
    deadline = time.monotonic() + PROBE_LIMIT_S

    def keep(line: str) -> None:
        if len(lines) < MAX_PROBE_LINES:
            lines.append(line)

    try:
        ended = run_program(
            [str(program.absolute()), *arguments],
            work_dir=Path("/"),
            on_line=keep,
            environment=environment,
            silence_limit_s=PROBE_LIMIT_S,
            is_done=lambda: len(lines) >= MAX_PROBE_LINES or time.monotonic() > deadline,
        )
    except OSError as exc:
        raise HardwareError(
            f"{program}: cannot be started: {exc.strerror or exc}; expected NVIDIA's perf_analyzer",
            f"trtb toolchain install {NAME}",
        ) from exc
    return ended, lines
