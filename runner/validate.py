"""Check a whole request file before anything is started: one pass, flat memory, every fault counted.

The file is read a second time only where two custom_ids may be equal. Findings are capped, counts are not;
a warning that many lines earn is told once. Every occurrence of a custom_id after the first is invalid,
also where the first line is invalid itself: an answer could not be told from a failure by its custom_id.
"""

from __future__ import annotations

import hashlib
import io
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

import orjson

from trtb.build.files import trtb_home
from trtb.runner.duplicates import MAX_IN_MEMORY, Duplicate, DuplicateFinder
from trtb.runner.findings import (
    DUPLICATE_CUSTOM_ID,
    EMPTY_FILE,
    INVALID_ENCODING,
    INVALID_JSON_LINE,
    Fault,
    Finding,
)
from trtb.runner.line_set import LineSet
from trtb.runner.parameters import DEFAULT_CAPABILITIES
from trtb.runner.plain import read_plain
from trtb.runner.reader import (
    BOM,
    BUFFER_BYTES,
    DEFAULT_MAX_LINE_BYTES,
    TooLong,
    content,
    is_blank,
    iter_lines,
    open_input,
    read_lines,
)
from trtb.runner.request import Capabilities
from trtb.runner.schema import Invalid, LineParser, too_long, usable_custom_id

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

SCHEMA_VERSION = 1
MAX_FINDINGS = 100
_MAX_WARNING_KINDS = 1000

_EMPTY = Fault(None, EMPTY_FILE, "no requests found; expected at least one line", "write one request a line")
_BOM_REMOVED = Fault(
    None, INVALID_ENCODING, "UTF-8 byte order mark removed", "save the file without it", "warning", column=1
)
_TWICE_HINT = "give every request a custom_id of its own"


@dataclass(frozen=True, slots=True)
class ValidationReport:
    """What a file holds; counts are exact, `findings` holds at most so many, errors before warnings."""

    sha256: str  # of the file's bytes as they are
    num_bytes: int
    total: int  # lines that are not blank
    valid: int
    invalid: int
    is_refused: bool  # no line of it can run: empty, or not JSON Lines at all
    truncated: bool  # there are more findings than are listed
    findings: list[Finding]
    num_warnings: int  # kinds, each counted once
    invalid_lines: LineSet
    codes: Counter[str]  # errors by code

    @property
    def has_errors(self) -> bool:
        """Say whether anything stops a run that takes only a faultless file."""
        return bool(self.codes)


def validate_file(
    path: Path,
    *,
    model_names: frozenset[str] | None,
    strict_params: bool,
    capabilities: Capabilities = DEFAULT_CAPABILITIES,
    max_line_bytes: int = DEFAULT_MAX_LINE_BYTES,
    max_findings: int = MAX_FINDINGS,
    on_progress: Callable[[int], None] | None = None,
    max_ids_in_memory: int = MAX_IN_MEMORY,
) -> ValidationReport:
    """Check every line of a request file.

    Args:
        path: The file; it must not change meanwhile.
        model_names: The names that `body.model` may have; None takes any.
        strict_params: Whether an unknown parameter is an error.
        capabilities: What the engine can do beyond sampling text.
        max_line_bytes: Longer lines are invalid, and never held in memory.
        max_findings: How many findings are listed.
        on_progress: Hears of the size of each chunk as it is read.
        max_ids_in_memory: How many custom_ids are remembered before they go to disk.

    Raises:
        InputFileError: The file cannot be opened.
    """
    finder = DuplicateFinder(trtb_home() / "cache", max_ids_in_memory)
    parser = LineParser(model_names, strict_params, capabilities)
    tally = _Tally(parser, model_names, finder, max_line_bytes, max_findings)
    with open_input(path) as raw:
        tee = _HashingReader(raw, on_progress)
        tally.read(cast(BinaryIO, io.BufferedReader(tee, BUFFER_BYTES)))
        if not tally.is_another_format():
            for duplicate in finder.find(lambda: _read_ids(raw, max_line_bytes)):
                tally.add_duplicate(duplicate)
    return tally.report(tee.hexdigest(), tee.num_bytes)


def to_json(report: ValidationReport) -> dict[str, Any]:
    """Return the object that `trtb validate --json` prints."""
    return {
        "schema_version": SCHEMA_VERSION,
        "total": report.total,
        "valid": report.valid,
        "invalid": report.invalid,
        "truncated": report.truncated,
        "findings": [asdict(finding) for finding in report.findings],
    }


class _HashingReader(io.RawIOBase):
    """Passes a file's bytes on, and keeps their hash."""

    def __init__(self, raw: io.FileIO, on_bytes: Callable[[int], None] | None) -> None:
        self._raw = raw
        self._on_bytes = on_bytes
        self._digest = hashlib.sha256()
        self.num_bytes = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        num_bytes = self._raw.readinto(buffer) or 0
        self._digest.update(memoryview(buffer)[:num_bytes])
        self.num_bytes += num_bytes
        if self._on_bytes and num_bytes:
            self._on_bytes(num_bytes)
        return num_bytes

    def hexdigest(self) -> str:
        return self._digest.hexdigest()


class _Tally:
    """The counts and findings of one file, as they grow."""

    def __init__(
        self,
        parser: LineParser,
        model_names: frozenset[str] | None,
        finder: DuplicateFinder,
        max_line_bytes: int,
        max_findings: int,
    ) -> None:
        self._parser = parser
        self._model_names = model_names
        self._finder = finder
        self._max_line_bytes = max_line_bytes
        self._max_findings = max_findings
        self._num_valid = 0
        self._invalid_lines = LineSet()
        self._first_line: tuple[int, bytes] | None = None  # its number and first bytes, where it is unusual
        self._errors: list[Finding] = []
        self._duplicates: list[Finding] = []
        self._codes: Counter[str] = Counter()
        self._warnings: dict[str, Finding] = {}
        self._warned: Counter[str] = Counter()
        self._num_unlisted_warnings = 0

    def read(self, file: BinaryIO) -> None:
        """Take every line of the file."""
        model_names, add_id = self._model_names, self._finder.add
        for number, line in enumerate(iter_lines(file, self._max_line_bytes), start=1):
            # a plain line needs no framing taken off: to JSON, a line end is white space
            plain = None if isinstance(line, TooLong) else read_plain(line, model_names)
            if plain is None:
                self._take(number, line)
                continue
            self._num_valid += 1
            add_id(plain.custom_id)

    def _take(self, number: int, line: bytes | TooLong) -> None:
        if isinstance(line, TooLong):
            self._add_invalid(too_long(number, line.num_bytes, self._max_line_bytes))
            return
        had_bom = number == 1 and line.startswith(BOM)
        if had_bom:
            self._warn(_BOM_REMOVED.on(number, None))
        data = content(line, had_bom=had_bom)
        if is_blank(data):
            return
        if not self._num_valid and not self._invalid_lines:
            self._first_line = number, data.strip()[:2]
        parsed = self._parser.parse(number, data)
        if isinstance(parsed, Invalid):
            self._add_invalid(parsed)
            return
        self._num_valid += 1
        self._finder.add(parsed.request.custom_id)
        for finding in parsed.warnings:
            self._warn(finding)

    def _add_invalid(self, invalid: Invalid) -> None:
        self._invalid_lines.add(invalid.line)
        if invalid.custom_id is not None:
            self._finder.add(invalid.custom_id)
        for finding in invalid.findings:
            if finding.severity == "warning":
                self._warn(finding)
                continue
            self._codes[finding.code] += 1
            if len(self._errors) < self._max_findings:
                self._errors.append(finding)

    def add_duplicate(self, duplicate: Duplicate) -> None:
        """Take a later occurrence of a custom_id."""
        if duplicate.line not in self._invalid_lines:
            self._invalid_lines.add(duplicate.line)
            self._num_valid -= 1
        self._codes[DUPLICATE_CUSTOM_ID] += 1
        if len(self._duplicates) < self._max_findings:
            message = f"custom_id: first seen on line {duplicate.first_line}; expected each only once"
            fault = Fault("custom_id", DUPLICATE_CUSTOM_ID, message, _TWICE_HINT)
            self._duplicates.append(fault.on(duplicate.line, duplicate.custom_id))

    def _warn(self, finding: Finding) -> None:
        if finding.message in self._warned or len(self._warnings) < _MAX_WARNING_KINDS:
            self._warned[finding.message] += 1
            self._warnings.setdefault(finding.message, finding)
        else:
            self._num_unlisted_warnings += 1

    def is_another_format(self) -> bool:
        """Say whether this is JSON spread over lines, of which no single one is a request."""
        return not self._num_valid and bool(
            self._first_line and (self._first_line[1].startswith(b"[") or self._first_line[1] == b"{")
        )

    def report(self, sha256: str, num_bytes: int) -> ValidationReport:
        """Return the counts, and the findings in the order of their lines."""
        total = self._num_valid + len(self._invalid_lines)
        is_refused = not total or self.is_another_format()
        if is_refused:
            refusal = self._refusal(total)
            errors, self._codes = [refusal], Counter({refusal.code: 1})
        else:
            errors = sorted(self._errors + self._duplicates, key=_by_line)
        num_warnings = len(self._warnings) + self._num_unlisted_warnings
        findings = errors + [self._counted(finding) for finding in self._warnings.values()]
        findings = findings[: self._max_findings]
        return ValidationReport(
            sha256=sha256,
            num_bytes=num_bytes,
            total=total,
            valid=self._num_valid,
            invalid=len(self._invalid_lines),
            is_refused=is_refused,
            truncated=len(findings) < self._codes.total() + num_warnings,
            findings=sorted(findings, key=_by_line),
            num_warnings=num_warnings,
            invalid_lines=self._invalid_lines,
            codes=self._codes,
        )

    def _refusal(self, total: int) -> Finding:
        if not total:
            return _EMPTY.on(None, None)
        number, start = self._first_line or (1, b"")
        is_array = start.startswith(b"[")
        kind, query = ("a JSON array", ".[]") if is_array else ("pretty-printed JSON", ".")
        message = f"the file is {kind} (lines: {total}); expected one JSON object on each line"
        hint = f"convert it: jq -c '{query}' FILE.json > FILE.jsonl"
        return Fault(None, INVALID_JSON_LINE, message, hint, column=1).on(number, None)

    def _counted(self, finding: Finding) -> Finding:
        count = self._warned[finding.message]
        return finding if count == 1 else replace(finding, message=f"{finding.message} ({count} lines)")


def _by_line(finding: Finding) -> int:
    return finding.line or 0


def _read_ids(raw: io.FileIO, max_line_bytes: int) -> Iterator[tuple[int, str]]:
    raw.seek(0)
    file = io.BufferedReader(raw, BUFFER_BYTES)
    try:
        for line in read_lines(file, max_line_bytes):
            try:
                custom_id = usable_custom_id(orjson.loads(line.data)) if line.data else None
            except (orjson.JSONDecodeError, RecursionError):
                continue
            if custom_id is not None:
                yield line.number, custom_id
    finally:
        file.detach()  # the caller closes the file
