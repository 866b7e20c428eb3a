"""What made a run's answers: its input, engine, settings and versions, as rows of names and values."""

from __future__ import annotations

from collections.abc import Sequence

from trtb.build.manifest import EngineManifest, FileEntry
from trtb.runner.run_folder import RunRecord
from trtb.tools.pages.printable import shown_count, shown_text

MAX_FILES = 12

Rows = list[tuple[str, "str | list[str]"]]


def run_rows(record: RunRecord) -> Rows:
    """Return what was run, where and when."""
    return _shown(
        [
            ("input", record.input_path),
            ("input sha256", record.input_sha256),
            ("input size", f"{shown_count(record.input_bytes)} bytes"),
            ("run", record.run_id),
            ("host", record.host),
            ("begun", record.created_at),
            ("last written", record.updated_at),
            ("starts", str(record.num_starts)),
        ]
    )


def engine_rows(record: RunRecord, engine: EngineManifest | None) -> Rows:
    """Return which engine answered, and what it was made of; less where its manifest is not at hand."""
    rows: Rows = [("engine", record.engine), ("engine_id", record.engine_id)]
    if engine is None:
        return _shown([*rows, ("built from", "not known here: the engine is not in this store")])
    pin, limits = engine.checkpoint, engine.limits
    rows += [
        ("backend", engine.backend),
        ("quantisation", engine.quant),
        ("checkpoint", f"{pin.name}, revision {pin.revision}"),
        ("checkpoint source", pin.source),
        ("checkpoint files", _files(pin.files)),
        ("limits", f"{limits.max_seq_len} tokens a request, {limits.max_batch_size} requests in flight"),
        ("KV blocks of", f"{limits.tokens_per_block} tokens"),
        ("compiled for", engine.compute_capability if engine.gpu is None else _gpu(engine)),
        ("toolchain", _pairs(engine.toolchain)),
        ("built", f"{engine.built_at}, by trtb {engine.trtb_version}"),
    ]
    if engine.container is not None:
        rows.append(("container", engine.container))
    if engine.quality is not None:
        quality = engine.quality
        base = f"{quality.base_perplexity:.4g} of {quality.base}"
        agreement = f"{quality.top1_agreement:.1%} of tokens agree"
        rows.append(("quality", f"perplexity {quality.perplexity:.4g}, {base}; {agreement}"))
    return _shown(rows)


def setting_rows(record: RunRecord) -> Rows:
    """Return every option of the last start, those that decide the answers first."""
    first = sorted(record.settings)
    rest = sorted(set(record.job) - set(first) - {"input_path", "engine"})
    values = {**record.job, **record.settings}
    return _shown([(name, _value(values[name])) for name in (*first, *rest)])


def version_rows(record: RunRecord) -> Rows:
    """Return the versions of what had a part in the answers."""
    return _shown(list(record.versions.items()))


def _gpu(engine: EngineManifest) -> str:
    assert engine.gpu is not None
    driver = f", driver {engine.gpu.driver_version}" if engine.gpu.driver_version else ""
    return f"{engine.compute_capability}, on {engine.gpu.name}{driver}"


def _files(entries: list[FileEntry]) -> list[str]:
    lines = [f"{each.path} sha256 {each.sha256}" for each in entries[:MAX_FILES]]
    more = len(entries) - MAX_FILES
    return [*lines, f"and {more} more"] if more > 0 else lines


def _pairs(values: dict[str, str]) -> list[str]:
    return [f"{name} {value}" for name, value in sorted(values.items())]


def _value(value: object) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return str(value) or "none"


def _shown(rows: Sequence[tuple[str, str | list[str]]]) -> Rows:
    """Make every value printable: a path may hold any character."""
    return [
        (name, shown_text(value) if isinstance(value, str) else [shown_text(each) for each in value])
        for name, value in rows
    ]
