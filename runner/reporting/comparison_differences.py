"""What two runs did not have in common, and what of it forbids to lay a difference in speed to the engine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from trtb.runner.report import RunReport
from trtb.runner.reporting.comparison_model import Difference, Value
from trtb.runner.run_folder import RunRecord
from trtb.runner.wording import counted

# of a run's options: those that the record has elsewhere, and those that name its files
_TOLD_ELSEWHERE: Final = frozenset({"engine", "input_path", "output", "engine_dir", "follow", "overwrite"})
# which change neither how long a request takes nor how many go at a time
NO_MATTER_OF_SPEED: Final = frozenset(
    {
        *("grace_s", "start_timeout_s", "server_wait_s", "on_invalid", "model_aliases", "strict_params"),
        *("max_line_bytes", "request_timeout_s", "max_attempts", "limit"),
        *("cache_capacity_gb", "cache_ttl_hours", "cache_sync_interval_s"),
    }
)


def differences_of(a: RunRecord, b: RunRecord) -> list[Difference]:
    """Return everything that the records of two runs tell differently."""
    made = [
        Difference(kind="engine", name="engine", a=a.engine, b=b.engine),
        Difference(kind="engine", name="engine_id", a=a.engine_id, b=b.engine_id),
        Difference(kind="input", name="input (sha256)", a=a.input_sha256, b=b.input_sha256),
        Difference(kind="input", name="requests", a=a.total, b=b.total),
        Difference(kind="machine", name="host", a=a.host, b=b.host),
    ]
    options = sorted({*a.job, *b.job} - _TOLD_ELSEWHERE - {*a.settings, *b.settings})
    made += [Difference(kind="setting", name=name, a=x, b=y) for name, x, y in _pairs(a.settings, b.settings)]
    made += [Difference(kind="option", name=name, a=a.job.get(name), b=b.job.get(name)) for name in options]
    made += [Difference(kind="version", name=name, a=x, b=y) for name, x, y in _pairs(a.versions, b.versions)]
    return [found for found in made if found.a != found.b]


def _pairs(a: Mapping[str, Value], b: Mapping[str, Value]) -> list[tuple[str, Value, Value]]:
    return [(name, a.get(name), b.get(name)) for name in sorted({*a, *b})]


def reasons_unlike(
    records: tuple[RunRecord, RunRecord],
    reports: tuple[RunReport, RunReport],
    num_reused: Sequence[Counter[str]],
) -> list[str]:
    """Return what else than the engine the speed of two runs depended on, one line each."""
    new = records[0].job.keys() ^ records[1].job.keys()
    reasons = [
        f"{found.name}: A {value_text(found.a)}, B {value_text(found.b)}"
        for found in differences_of(*records)
        if found.kind in {"machine", "setting", "option"}
        and found.name not in NO_MATTER_OF_SPEED
        and found.name not in new  # an option that one of the versions did not have
    ]
    if records[0].input_sha256 != records[1].input_sha256:
        reasons.append("the inputs are not the same")
    elif records[0].total != records[1].total:
        reasons.append(f"A has {counted(records[0].total, 'request')}, B {records[1].total}")
    for side, report in zip("AB", reports, strict=True):
        if report.state != "finished":
            reasons.append(f"{side} is {report.state}")
        if report.resumed:
            reasons.append(
                f"{side} was resumed: its speed is that of its last session, "
                f"without {counted(report.resumed, 'result')}"
            )
        if report.server_restarts:
            reasons.append(f"{side}'s server was started again {counted(report.server_restarts, 'time')}")
    for kind, name in (("equal", "of equal requests"), ("cache", "of the result cache")):
        a, b = (reused[kind] for reused in num_reused)
        if a != b or (kind == "cache" and a):
            reasons.append(f"answers that cost nothing, being those {name}: A {a}, B {b}")
    return reasons


def value_text(value: Value) -> str:
    """Return a value as people read it.

    >>> [value_text(value) for value in (True, ["a", "b"], [], None, 7)]
    ['on', 'a, b', 'none', 'none', '7']
    """
    if value is None or isinstance(value, bool):
        return "on" if value else "none" if value is None else "off"
    return ", ".join(value) or "none" if isinstance(value, list) else str(value)
