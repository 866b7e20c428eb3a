"""Open a finished run again for its failures: same input, engine and settings, only those lines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from trtb.build import files
from trtb.build.errors import ConfigError
from trtb.build.manifest import EngineManifest
from trtb.runner import ledger
from trtb.runner.errors import InputFileError
from trtb.runner.options import RunOptions
from trtb.runner.reader import open_input
from trtb.runner.run_folder import RunFolder

PATH_OPTIONS = frozenset({"input_path", "output", "follow"})


@dataclass(frozen=True, slots=True)
class NothingToRetry:
    """A finished run in which nothing failed, or nothing of the codes that were named."""

    num_failed: int  # of other codes


def reopen(
    output: Path,
    find_engine: Callable[[str], tuple[Path, EngineManifest]],
    *,
    codes: frozenset[str] | None,
    endpoints: tuple[str, ...],
    request_timeout_s: float | None,
) -> tuple[RunOptions, int] | NothingToRetry:
    """Set a run's failures aside and return the options that run them again, and how many they are.

    A run in which there are none to run again stays as it is. One that had not ended goes on, with its
    canary: it has lines that were never sent.

    Args:
        output: The run's output file.
        find_engine: Returns the folder and manifest of an engine id.
        codes: Only failures of these codes; None is all.
        endpoints: Servers to use instead of the run's own.
        request_timeout_s: Another timeout, or None to keep the run's.

    Raises:
        ConfigError: There is no such run.
        RunLockedError: The run is going on.
    """
    folder = RunFolder(output)
    record = folder.read()
    if record is None:
        raise ConfigError(f"{folder.paths.folder}: no run; expected the folder of one (OUTPUT.run)")
    engine_dir, manifest = find_engine(record.engine_id)
    with open_input(Path(record.input_path)) as file:  # what cannot be run again stays as it is
        if files.sha256_file(Path(record.input_path)) != record.input_sha256:
            raise InputFileError(
                f"{file.name}: not the file that was run; its sha256 differs", "restore the file"
            )
    folder.acquire()
    try:
        if record.state == "finished" and not ledger.count_failures(folder.paths.ledger, codes):
            return NothingToRetry(ledger.count_failures(folder.paths.ledger))
        if record.state == "finished":
            # what failed once fails again more often than any line: that many failures say nothing
            record.job = record.job | {"canary": 0, "max_failure_rate": None}
        record.state = "interrupted"  # first: killed between the two, the run can still go on
        folder.write(record)
        num_reopened = ledger.reopen_failures(folder.paths.ledger, codes)
    finally:
        folder.release()
    job = dict(record.job)
    if endpoints:
        job["endpoints"] = list(endpoints)
    if request_timeout_s is not None:
        job["request_timeout_s"] = request_timeout_s
    values: dict[str, Any] = {"engine_dir": engine_dir, "manifest": manifest}
    for option in fields(RunOptions):
        value = job.get(option.name)
        if option.name in values or option.name not in job:
            continue
        if isinstance(value, list):
            value = tuple(value)  # type: ignore[assignment]
        elif option.name in PATH_OPTIONS and value is not None:
            value = Path(str(value))  # type: ignore[assignment]
        values[option.name] = value
    values.update(overwrite=False, input_path=Path(record.input_path), output=output)
    return RunOptions(**values), num_reopened
