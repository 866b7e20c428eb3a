"""The evidence of an acceptance: one record of every version and figure, for machines and for people.

It is made to be sent to somebody else. Prompts and answers are never given to it; the name of the machine
and paths are taken out of whatever text comes from elsewhere, unless they are asked for.
"""

from __future__ import annotations

import platform
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, JsonValue

from trtb.build import files

SCHEMA_VERSION: Final = 1
JSON_FILE: Final = "evidence.json"
TEXT_FILE: Final = "evidence.txt"

Verdict = Literal["passed", "failed", "interrupted"]

# an absolute path; one inside a word, an address or a name is none
_PATH: Final = re.compile(r"(?<![\w./:~>@-])~?/[^\s'\":;,()\[\]{}<>|=]+")
# what is the same on every machine
_KNOWN_PATHS: Final = ("/dev/", "/proc/", "/sys/", "/opt/tritonserver", "/usr/", "/v1/")
_INDENT: Final = 22

T = TypeVar("T")


class StepEvidence(BaseModel):
    """What became of one step."""

    model_config = ConfigDict(strict=True, extra="forbid")

    name: str
    result: Literal["passed", "failed", "not_applicable", "not_run", "interrupted"]
    reason: str = ""  # why it did not pass
    hint: str = ""
    code: str | None = None  # the error's
    exit_code: int = 0
    duration_s: float = 0.0
    figures: dict[str, JsonValue] = {}


class Evidence(BaseModel):
    """`evidence.json`, and what `trtb accept --json` prints."""

    model_config = ConfigDict(strict=True, extra="forbid")

    schema_version: Literal[1] = SCHEMA_VERSION
    verdict: Verdict
    failed_step: str | None  # the first that failed, or was interrupted
    exit_code: int
    backend: str
    why: str  # this backend
    model: str
    quants: list[str]
    num_requests: int
    started_at: str
    duration_s: float
    versions: dict[str, str]
    steps: list[StepEvidence]

    def step(self, name: str) -> StepEvidence:
        """Return the step of that name."""
        return next(step for step in self.steps if step.name == name)


class Redactor:
    """Takes paths and the machine's name out of texts.

    Args:
        known: Folders by what stands in their place, such as "trtb home".
    """

    def __init__(self, known: Mapping[str, Path], host: str | None = None) -> None:
        pairs = {str(path): f"<{name}>" for name, path in known.items() if len(path.parts) > 1}
        self._known = sorted(pairs.items(), key=lambda pair: len(pair[0]), reverse=True)
        name = platform.node() if host is None else host
        self._host = re.compile(rf"(?<![\w.-]){re.escape(name)}(?![\w-])") if name else None

    def clean(self, value: T) -> T:
        """Return a JSON value whose texts are cleaned; the keys are ours and stay."""
        cleaned: Any = value
        if isinstance(value, str):
            cleaned = self._clean_text(value)
        elif isinstance(value, list):
            cleaned = [self.clean(entry) for entry in value]
        elif isinstance(value, dict):
            cleaned = {key: self.clean(entry) for key, entry in value.items()}
        return cleaned  # type: ignore[no-any-return]

    def _clean_text(self, text: str) -> str:
        for path, name in self._known:
            text = re.sub(rf"{re.escape(path)}(?![\w.-])", name, text)
        text = _PATH.sub(lambda found: found[0] if found[0].startswith(_KNOWN_PATHS) else "<path>", text)
        return self._host.sub("<host>", text) if self._host else text


def write_evidence(folder: Path, evidence: Evidence) -> None:
    """Write both files; each is there whole and durable when this returns."""
    files.write_atomic(folder / JSON_FILE, evidence.model_dump_json(indent=2).encode() + b"\n")
    files.write_atomic(folder / TEXT_FILE, to_text(evidence).encode())


def to_text(evidence: Evidence) -> str:
    """Return the evidence as people read it."""
    return "\n".join(_lines(evidence)) + "\n"


def verdict_lines(evidence: Evidence) -> list[str]:
    """Return the verdict, and of the step that failed the reason and what to do."""
    failed = f" at {evidence.failed_step}" if evidence.failed_step else ""
    told = [f"trtb acceptance: {evidence.verdict}{failed} (exit code {evidence.exit_code})"]
    if evidence.failed_step:
        told += _reason_lines(evidence.step(evidence.failed_step))
    return told


def _lines(evidence: Evidence) -> Iterator[str]:
    yield verdict_lines(evidence)[0]
    yield f"backend   {evidence.backend}: {evidence.why}"
    yield f"model     {evidence.model}, as {', '.join(evidence.quants)}"
    yield f"requests  {evidence.num_requests}"
    yield f"begun     {evidence.started_at}, {evidence.duration_s:.1f} s"
    yield ""
    yield "versions"
    for name, version in evidence.versions.items():
        yield f"  {name:<{_INDENT - 3}} {version}"
    for step in evidence.steps:
        yield ""
        yield f"{step.name}: {step.result.replace('_', ' ')}, {step.duration_s:.1f} s"
        yield from _reason_lines(step)
        for key, value in _flat(step.figures):
            yield f"  {key:<{_INDENT - 3}} {value}"
    if evidence.failed_step:  # once more, where the eye is: the steps after it may be many
        yield ""
        yield from verdict_lines(evidence)


def _reason_lines(step: StepEvidence) -> Iterator[str]:
    for name, text in (("reason", step.reason), ("next", step.hint)):
        if text:
            yield f"  {name:<{_INDENT - 3}} {text}"


def _flat(figures: Mapping[str, JsonValue], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield one pair for each figure; of a list of records, one for each record.

    >>> list(_flat({"a": {"b": 1.25, "c": None}, "d": [{"e": 1, "f": True}, 2]}))
    [('a.b', '1.25'), ('a.c', '-'), ('d', 'e 1, f yes'), ('d', '2')]
    """
    for key, value in figures.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict):
            yield from _flat(value, f"{name}.")
        elif isinstance(value, list):
            yield from ((name, _shown(entry)) for entry in value)
        else:
            yield name, _shown(value)


def _shown(value: JsonValue) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_shown(entry)}" for key, entry in value.items())
    if isinstance(value, list):
        return " ".join(_shown(entry) for entry in value)
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) and abs(value) < 1e5 else str(value)
