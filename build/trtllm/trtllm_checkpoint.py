"""verify_checkpoint(): a TensorRT-LLM checkpoint is what was asked for, and close to what it was made from.

`trtllm-build` takes a checkpoint without calibrated scales, with a rotary base left out or with a rank of an
earlier export in it, and so does the server; only the answers are wrong. Everything is checked before.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from trtb.build.checkpoints.json_file import unique_object
from trtb.build.checkpoints.safetensors_file import read_header
from trtb.build.errors import CheckpointError, QuantizationError
from trtb.build.manifest import Record
from trtb.build.trtllm.trtllm_comparison import Comparison, MatrixError, Rank, read_float
from trtb.build.trtllm.trtllm_tensors import (
    KNOWN_FAMILIES,
    CheckpointOptions,
    expected_config,
    expected_tensors,
)

if TYPE_CHECKING:
    from trtb.build.checkpoints.hf_checkpoint import HfCheckpoint

# Of an algorithm, the largest relative errors: the median of a kind of matrix, and of a single one. On a
# 135M model they are FP8 0.027 and 0.027, SmoothQuant 0.02 and 0.12, NVFP4 0.095 both, AWQ 0.14 and 0.20.
# SmoothQuant and AWQ are above plain rounding by design: it is the products that come out nearer. Matrices
# that have nothing to do with each other are at 1.4.
_MAX_ERRORS = {
    "FP8": (0.04, 0.08),
    "W8A8_SQ_PER_CHANNEL": (0.15, 0.50),
    "NVFP4": (0.16, 0.32),
    "W4A16_AWQ": (0.30, 0.60),
    "W4A8_AWQ": (0.30, 0.60),
}


class ErrorSummary(Record):
    """How far the matrices of one kind are from their originals; 0 where nothing was quantised."""

    kind: str
    num_matrices: int  # query, key and value apart, and each rank's part
    median_error: float
    worst_error: float
    worst_tensor: str


class CheckpointReport(Record):
    """What was verified of a TensorRT-LLM checkpoint."""

    schema_version: Literal[1] = 1
    architecture: str
    quant: str
    dtype: str
    kv_cache_dtype: str
    group_size: int | None
    tp_size: int
    pp_size: int
    num_tensors: int
    total_bytes: int
    is_structure_verified: bool  # False: of this family only files, types of scales and values were checked
    errors: list[ErrorSummary]
    notes: list[str]


Progress = Callable[[str, str], None]


def verify_checkpoint(
    folder: Path,
    source: HfCheckpoint,
    options: CheckpointOptions,
    progress: Progress | None = None,
) -> CheckpointReport:
    """Hold a checkpoint against the Hugging Face checkpoint it was made from and what was asked for.

    Raises:
        QuantizationError: Anything differs; the message names the file, the field or tensor, what was found
            and what was expected.
    """
    tell = progress or (lambda _step, _detail: None)
    config = _read_config(folder)
    ranks = _read_ranks(folder, options.world_size)
    is_known = source.config["model_type"] in KNOWN_FAMILIES
    tell("verify", f"{options.world_size} ranks, {sum(map(len, ranks))} tensors")
    _check_config(config, expected_config(source, options), is_known)
    errors: list[MatrixError] = []
    for number, rank in enumerate(ranks):
        pp_rank, tp_rank = divmod(number, options.tp_size)
        if is_known:
            _check_tensors(
                rank, dict(expected_tensors(source, options, pp_rank)), f"rank{number}.safetensors"
            )
        _check_scales(rank)
        if is_known:
            errors += _compare(Comparison(source, options, rank, tp_rank, pp_rank), number, tell)
        else:
            _check_finite(rank)
    summaries = _summarise(errors)
    _check_errors(summaries, options)
    return CheckpointReport(
        architecture=config["architecture"],
        quant=options.scheme.name,
        dtype=options.dtype,
        kv_cache_dtype=options.kv_cache_dtype,
        group_size=options.group_size,
        tp_size=options.tp_size,
        pp_size=options.pp_size,
        num_tensors=sum(map(len, ranks)),
        total_bytes=sum(path.stat().st_size for path in folder.iterdir()),
        is_structure_verified=is_known,
        errors=summaries,
        notes=_notes(source, options, is_known),
    )


def _read_config(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    try:
        config = json.loads(path.read_bytes(), object_pairs_hook=unique_object)
    except FileNotFoundError as exc:
        raise QuantizationError(f"{path}: not found; expected a TensorRT-LLM checkpoint") from exc
    except ValueError as exc:
        raise QuantizationError(f"{path}: not JSON ({exc}); expected a TensorRT-LLM checkpoint") from exc
    if not isinstance(config, dict):
        raise QuantizationError(f"{path}: a {type(config).__name__}; expected an object")
    return config


def _read_ranks(folder: Path, world_size: int) -> list[Rank]:
    expected = {f"rank{number}.safetensors" for number in range(world_size)}
    found = {path.name for path in folder.iterdir()} - {"config.json"}
    for name in sorted(expected - found):
        raise QuantizationError(f"{folder / name}: not found; expected a file for each of {world_size} ranks")
    for name in sorted(found - expected):
        raise QuantizationError(
            f"{folder / name}: not expected beside config.json and {world_size} rank files",
            "it is of an earlier export; build again into an empty folder",
        )
    try:
        return [read_header(folder / f"rank{number}.safetensors") for number in range(world_size)]
    except CheckpointError as exc:
        raise QuantizationError(exc.message, "build again") from exc


def _check_config(found: dict[str, Any], expected: dict[str, Any], is_known: bool) -> None:
    """Compare field by field; of an unknown family, what every family has alike."""
    fields = expected if is_known else {key: expected[key] for key in ("dtype", "mapping", "quantization")}
    faults = list(_differences(found, fields, ""))
    if not is_known:  # routers are excluded besides, and mapping tells of experts
        faults = [fault for fault in faults if "exclude_modules" not in fault]
    if faults:
        raise QuantizationError(f"config.json: {'; '.join(faults)}")


def _differences(found: dict[str, Any], expected: dict[str, Any], prefix: str) -> Iterable[str]:
    for key, value in expected.items():
        have = found.get(key)
        if isinstance(value, dict) and key != "rotary_scaling":
            yield from _differences(have if isinstance(have, dict) else {}, value, f"{prefix}{key}.")
        elif not _same(_rope_form(have) if key == "rotary_scaling" else have, value):
            yield f"{prefix}{key}: {json.dumps(have)}; expected {json.dumps(value)}"


def _same(found: Any, expected: Any) -> bool:
    if isinstance(found, bool) or isinstance(expected, bool):
        return found is expected
    if isinstance(found, float) and isinstance(expected, float):
        return math.isclose(found, expected, rel_tol=1e-9)
    return bool(found == expected)


def _rope_form(scaling: Any) -> Any:
    """Return a rotary_scaling with the one of its two names that is in use now."""
    if not isinstance(scaling, dict):
        return scaling
    rest = {key: value for key, value in scaling.items() if key not in {"type", "rope_type"}}
    return {"rope_type": scaling.get("rope_type", scaling.get("type")), **rest}


def _check_tensors(rank: Rank, expected: dict[str, Any], file: str) -> None:
    for name, spec in expected.items():
        tensor = rank.get(name)
        if tensor is None:
            raise QuantizationError(
                f"{file}: {name}: missing; expected {spec.dtype} {list(spec.shape)}",
                "a scale is missing where nothing was calibrated",
            )
        if (tensor.dtype, tensor.shape) != spec:
            raise QuantizationError(
                f"{file}: {name}: {tensor.dtype} {list(tensor.shape)}; "
                f"expected {spec.dtype} {list(spec.shape)}"
            )
    if extra := sorted(set(rank) - set(expected)):
        raise QuantizationError(
            f"{file}: {extra[0]} ({len(extra)} such): expected no such tensor of this model and scheme"
        )


def _check_scales(rank: Rank) -> None:
    for name, tensor in rank.items():
        if not name.endswith(("_scaling_factor", "_scaling_factor_2")):
            continue
        values = read_float(tensor)
        # a block of zeros has a scale of zero in nvfp4, whose own second scale is never zero
        is_block_scale = tensor.dtype == "F8_E4M3"
        is_sound = np.isfinite(values) & ((values >= 0) if is_block_scale else (values > 0))
        if not is_sound.all():
            worst = values[~is_sound].flat[0]
            raise QuantizationError(f"{tensor.path.name}: {name}: {worst}; expected finite scales above 0")


def _check_finite(rank: Rank) -> None:
    for name, tensor in rank.items():
        if tensor.dtype in {"BF16", "F16", "F32", "F8_E4M3"} and not np.isfinite(read_float(tensor)).all():
            raise QuantizationError(f"{tensor.path.name}: {name}: not a number; expected finite weights")


def _compare(comparison: Comparison, number: int, tell: Progress) -> list[MatrixError]:
    num_layers = comparison.source.model.num_layers // comparison.options.pp_size
    comparison.check_rest(None)
    errors: list[MatrixError] = []
    for layer in range(num_layers):
        tell("verify", f"rank {number}, layer {layer + 1} of {num_layers}, against the original weights")
        comparison.check_rest(layer)
        errors += comparison.matrix_errors(layer)
    return errors


def _summarise(errors: list[MatrixError]) -> list[ErrorSummary]:
    summaries = []
    for kind in dict.fromkeys(error.kind for error in errors):
        of_kind = [error for error in errors if error.kind == kind]
        worst = max(of_kind, key=lambda error: error.relative_error)
        summaries.append(
            ErrorSummary(
                kind=kind,
                num_matrices=len(of_kind),
                median_error=statistics.median(error.relative_error for error in of_kind),
                worst_error=worst.relative_error,
                worst_tensor=worst.tensor,
            )
        )
    return summaries


def _check_errors(summaries: list[ErrorSummary], options: CheckpointOptions) -> None:
    if options.stored_algo is None:
        return
    median_bound, worst_bound = _MAX_ERRORS[options.stored_algo]
    for summary in summaries:
        if summary.worst_error > worst_bound:
            raise QuantizationError(
                f"{summary.worst_tensor}: relative error {summary.worst_error:.3f} against the original; "
                f"expected at most {worst_bound:.2f} of {options.scheme.name}",
                "the weights are not those of the checkpoint, or are packed in another order",
            )
        if summary.median_error > median_bound:
            raise QuantizationError(
                f"{summary.kind}: median relative error {summary.median_error:.3f} of "
                f"{summary.num_matrices}; expected at most {median_bound:.2f} of {options.scheme.name}",
                "take another scheme, or a smaller group size",
            )


def _notes(source: HfCheckpoint, options: CheckpointOptions, is_known: bool) -> list[str]:
    notes = []
    if not is_known:
        notes.append(f"structure not verified: the layout of {source.config['model_type']} is not known here")
    if options.stored_algo is None and options.scheme.quant_algo:
        notes.append(f"{options.scheme.name} quantises the weights while the engine is built")
    window = source.config.get("sliding_window")
    if window and source.config.get("use_sliding_window", True):
        notes.append(f"sliding_window {window} is no part of a checkpoint; TensorRT-LLM takes it at run time")
    return notes
