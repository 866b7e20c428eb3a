"""What is asked of the modelopt worker, and what is taken from its reply.

The worker is `backends/workers/modelopt_export.py`; it runs in the modelopt toolchain, where nothing of trtb
is installed, so the two sides share no code but this shape of a request.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from pydantic import ValidationError

from trtb.build import quality
from trtb.build.errors import BuildError
from trtb.build.manifest import QualityReport, Record
from trtb.build.trtllm.trtllm_tensors import CheckpointOptions
from trtb.build.worker import WORKERS

if TYPE_CHECKING:
    from trtb.build.checkpoints.hf_checkpoint import HfCheckpoint

WORKER_SCRIPT: Final = WORKERS / "modelopt_export.py"

# Part of the request: raise it when the worker makes other files of the same request.
RECIPE: Final = 1

BATCH_TOKENS: Final = 2048  # computed at a time; a forward pass weighs every matrix, whatever its batch
# Of those that go through the model once more for each of AWQ's eleven exponents, a sample as large as
# TensorRT-LLM's own 32 of 512 tokens is enough; more takes hours on a CPU.
MAX_AWQ_TOKENS: Final = 32 * 512

_LIBRARY_BYTES = 1 << 30
_LOAD_BYTES = {"bf16": 2, "f16": 2, "f32": 4}
_NOT_IN_FILES = ("model_dir", "output_dir")


class Figures(Record):
    """A model against its base on the quality texts."""

    num_tokens: int
    perplexity: float
    base_perplexity: float
    top1_agreement: float
    logits_cosine: float
    greedy_agreement: float | None


class ExportResult(Record):
    """What the worker did."""

    decoder_type: str
    architecture: str
    device: Literal["cpu", "cuda"]
    num_parameters: int
    num_calibration_tokens: int
    num_calibration_batches: int
    compute_dtype: Literal["f32", "bf16"]  # of the figures, of both sides alike
    seconds: dict[str, float]
    weights: Figures | None  # the exported checkpoint, its activations as they are
    simulated: Figures | None  # the quantised model, activations and KV cache rounded as an engine does
    notes: list[str]

    @property
    def quality(self) -> QualityReport | None:
        """Return the figures of the files that were made, or else of the model that they were made from."""
        figures = self.weights or self.simulated
        if figures is None:
            return None
        base = "the checkpoint in float32" if self.compute_dtype == "f32" else "the checkpoint in bf16"
        return QualityReport(base=base, **figures.model_dump(exclude={"logits_cosine"}))


def make_request(
    source: HfCheckpoint,
    options: CheckpointOptions,
    output_dir: Path,
    *,
    calibration_token_ids: Sequence[Sequence[int]] = (),
    quality_token_ids: Sequence[Sequence[int]] = (),
    device: Literal["auto", "cuda", "cpu"] = "auto",
) -> dict[str, Any]:
    """Return the worker's request.

    Args:
        source: The checkpoint; its folder is read again by the worker.
        options: What to make of it, every default resolved.
        output_dir: An empty folder, that becomes the TensorRT-LLM checkpoint.
        calibration_token_ids: Samples; needed where weights, activations or KV cache are calibrated.
        quality_token_ids: Texts to measure on; none, and nothing is measured.
        device: Where to compute.
    """
    dtype = options.dtype
    samples = [list(sample) for sample in calibration_token_ids]
    if options.scheme.name.endswith("awq"):
        samples = _take(samples, MAX_AWQ_TOKENS)
    return {
        "recipe": RECIPE,
        "model_dir": str(source.path.absolute()),
        "output_dir": str(output_dir.absolute()),
        "quant": options.scheme.name,
        "kv_cache_dtype": options.kv_cache_dtype,
        "dtype": dtype,
        # float32 weights are cast as they are read, which is what the export would do with them
        "load_dtype": dtype if source.dtype == "f32" else source.dtype,
        "group_size": options.group_size,
        "tp_size": options.tp_size,
        "pp_size": options.pp_size,
        "token_ids": samples,
        "batch_tokens": BATCH_TOKENS,
        "quality_token_ids": [list(text) for text in quality_token_ids],
        "num_prompt_tokens": quality.NUM_PROMPT_TOKENS,
        "num_greedy_tokens": quality.NUM_GREEDY_TOKENS,
        "device": device,
    }


def step_inputs(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a request that shapes the files; the checkpoint itself is named by its pin."""
    return {key: value for key, value in request.items() if key not in _NOT_IN_FILES}


def read_result(result: Mapping[str, Any]) -> ExportResult:
    """Read the worker's result.

    Raises:
        BuildError: It is not what a worker of this version says.
    """
    try:
        return ExportResult.model_validate(dict(result))
    except ValidationError as exc:
        first = exc.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise BuildError(f"{WORKER_SCRIPT.name}: reply: {where}: {first['msg']}") from exc


def peak_host_bytes(source: HfCheckpoint, dtype: str, *, is_measured: bool = True) -> int:
    """Estimate the worker's most memory on a CPU, all of it in float32 while it measures."""
    weights = source.num_parameters * _LOAD_BYTES[dtype if source.dtype == "f32" else source.dtype]
    widened = source.num_parameters * 4 if is_measured else 0
    return _LIBRARY_BYTES + 2 * weights + widened


def _take(samples: list[list[int]], max_tokens: int) -> list[list[int]]:
    taken: list[list[int]] = []
    left = max_tokens
    for sample in samples:
        taken.append(sample[:left])
        left -= len(taken[-1])
        if left == 0:
            break
    return taken
