"""Worker of the modelopt toolchain: a Hugging Face folder becomes a TensorRT-LLM checkpoint, quantised.

Runs in the toolchain's python, on a GPU or without one, and reads only what its request names. ModelOpt
exports without a word what no engine can use: weights that no batch calibrated, a rotary base left out,
parts of an earlier export. What can be seen here is checked here; the caller checks the files again.
"""

from __future__ import annotations

import protocol  # before the libraries, which this folder would hide

# isort: split
import gc
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import modelopt_config as schemes
import modelopt_quality as quality
import modelopt_source as source
import modelopt_weights as weights
import torch


@dataclass
class Stopwatch:
    """Seconds of each stage of the work."""

    seconds: dict[str, float]

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """Measure a stage."""
        started = time.monotonic()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.monotonic() - started


class Calibration:
    """The forward loop that ModelOpt calls, once or twice; it counts what really ran."""

    def __init__(self, samples: list[list[int]], batch_tokens: int, progress: protocol.Progress) -> None:
        self.batches = pack(samples, batch_tokens)
        self.num_batches_run = 0
        self._progress = progress
        self._passes = 0

    @property
    def num_tokens(self) -> int:
        """Return the tokens of one pass."""
        return sum(batch.numel() for batch in self.batches)

    def __call__(self, model: Any) -> None:
        """Run every batch through the model."""
        self._passes += 1
        for number, batch in enumerate(self.batches, 1):
            self._progress("calibrate", f"pass {self._passes}, batch {number} of {len(self.batches)}")
            # the head is not quantised, and its output is the largest tensor of all
            model(input_ids=batch.to(model.device), use_cache=False, logits_to_keep=1)
            self.num_batches_run += 1


def pack(samples: list[list[int]], batch_tokens: int, row_tokens: int = 512) -> list[torch.Tensor]:
    """Join the samples and cut them into batches of equal rows, without padding.

    Each forward pass weighs every matrix again, whatever the batch holds: few large batches are many times
    faster than a batch for each sample. Less than a token a row is left over.
    """
    joined = torch.tensor([token for sample in samples for token in sample], dtype=torch.long)
    num_rows = -(-len(joined) // row_tokens)
    width = len(joined) // num_rows if num_rows else 0
    if width == 0:
        return []
    rows = joined[: num_rows * width].reshape(num_rows, width)
    return list(rows.split(max(1, batch_tokens // width)))


def main(request: dict[str, Any], progress: protocol.Progress) -> dict[str, Any]:
    """Write `config.json` and `rank<r>.safetensors` into `output_dir`, and measure what they hold.

    Request:
        model_dir: The Hugging Face folder: config.json and safetensors.
        output_dir: An empty folder.
        quant, kv_cache_dtype, dtype ("bf16" or "f16"), load_dtype ("bf16", "f16" or "f32"), group_size,
        tp_size, pp_size: As in a build's configuration, every default resolved.
        token_ids: The calibration's samples; batch_tokens: how many of them are computed at a time.
        quality_token_ids: Texts that are not among them; none, and nothing is measured. The models go on
            greedily from the first num_prompt_tokens of each, for num_greedy_tokens.
        device: "auto", "cuda" or "cpu".

    Reply:
        decoder_type, architecture, device, num_parameters, num_calibration_tokens,
        num_calibration_batches (run, over all passes), compute_dtype (of the figures), seconds by stage.
        weights: The exported checkpoint against the base, with activations as they are, or null.
        simulated: The quantised model against the base, activations rounded too, or null.
        notes: What was not measured, and why.
    """
    watch = Stopwatch({})
    output_dir = Path(request["output_dir"])
    if not output_dir.is_dir() or any(output_dir.iterdir()):  # an export leaves what it does not overwrite
        raise protocol.InvalidError(f"{output_dir}: expected an empty folder")
    progress("checkpoint", "reading the configuration")
    model_source = source.open_source(Path(request["model_dir"]))
    scheme = schemes.get_scheme(request["quant"])
    config = schemes.make_config(
        scheme, request["kv_cache_dtype"], request["group_size"], model_source.decoder_type
    )
    calibration = Calibration(request["token_ids"], request["batch_tokens"], progress)
    if config is not None and not calibration.batches:
        raise protocol.InvalidError(
            f"no calibration tokens; {scheme.name} with KV cache {request['kv_cache_dtype']} needs some"
        )
    device = source.choose_device(request["device"])
    needed, available = source.memory(model_source, request["load_dtype"], device)
    source.check_memory(needed, available, device, progress)
    with watch("load"):
        progress("load", f"{model_source.num_parameters / 1e6:.0f} M weights as {request['load_dtype']}")
        model = source.load(model_source, request["load_dtype"], device)
    measured = _Measured(request, model_source, device, watch, progress)
    measured.take_base(model)
    if config is not None:
        with watch("quantise"):
            _quantise(model, config, calibration, progress)
    measured.take_simulated(model, scheme, kv_cache_dtype=request["kv_cache_dtype"])
    with watch("export"):
        progress("export", f"tp {request['tp_size']}, pp {request['pp_size']}")
        _export(model, model_source, request, scheme, output_dir)
    del model
    gc.collect()
    measured.take_exported(output_dir, request["load_dtype"])
    return {
        "decoder_type": model_source.decoder_type,
        "architecture": model_source.architecture,
        "device": device,
        "num_parameters": model_source.num_parameters,
        "num_calibration_tokens": calibration.num_tokens if calibration.num_batches_run else 0,
        "num_calibration_batches": calibration.num_batches_run,
        "compute_dtype": measured.compute_dtype,
        "seconds": watch.seconds,
        "weights": measured.weights,
        "simulated": measured.simulated,
        "notes": measured.notes,
    }


class _Measured:
    """The figures of a build, taken as the model passes through its states."""

    def __init__(
        self,
        request: dict[str, Any],
        model_source: source.Source,
        device: str,
        watch: Stopwatch,
        progress: protocol.Progress,
    ) -> None:
        self.weights: dict[str, Any] | None = None
        self.simulated: dict[str, Any] | None = None
        self.notes: list[str] = []
        self._texts = [text for text in request["quality_token_ids"] if len(text) > 1]
        self._lengths = request["num_prompt_tokens"], request["num_greedy_tokens"]
        self._source, self._device = model_source, device
        self._watch, self._progress = watch, progress
        self._is_wide = device == "cpu" and source.fits_in_float32(model_source)
        self._base: quality.Scores | None = None

    @property
    def compute_dtype(self) -> str:
        return "f32" if self._is_wide else "bf16"

    def take_base(self, model: Any) -> None:
        if self._texts:
            self._base = self._score(model, "the checkpoint as it is")

    def take_simulated(self, model: Any, scheme: schemes.Scheme, kv_cache_dtype: str) -> None:
        if self._base is None or not (scheme.quantises_activations or kv_cache_dtype in schemes.KV_CONFIGS):
            return
        if scheme.name == "nvfp4" and self._device == "cpu":
            self.notes.append("activations were not simulated: ModelOpt rounds to nvfp4 blocks on CUDA only")
            return
        # without answers: each token of one would round every weight again
        self.simulated = self._compare(self._score(model, "the quantised model", num_greedy_tokens=0))

    def take_exported(self, folder: Path, load_dtype: str) -> None:
        if self._base is None:
            return
        if self._source.architecture not in weights.ARCHITECTURES:
            self.notes.append(f"the exported weights of {self._source.architecture} were not read back")
            return
        with self._watch("load"):
            model = source.load(self._source, load_dtype, self._device)
        with self._watch("quality"):
            self._progress("quality", "dequantising the exported checkpoint")
            dtype = torch.float32 if self._is_wide else torch.bfloat16
            source.replace_parameters(model, weights.read_parameters(folder), dtype)
        self.weights = self._compare(self._score(model, "the exported checkpoint"))

    def _score(self, model: Any, what: str, num_greedy_tokens: int | None = None) -> quality.Scores:
        self._progress("quality", f"{what}, on {sum(map(len, self._texts))} tokens")
        num_prompt_tokens, default = self._lengths
        num_tokens = default if num_greedy_tokens is None else num_greedy_tokens
        with self._watch("quality"), quality.in_float32(model, is_wanted=self._is_wide):
            return quality.score(model, self._texts, num_prompt_tokens, num_tokens)

    def _compare(self, scores: quality.Scores) -> dict[str, Any]:
        assert self._base is not None
        figures = quality.compare(scores, self._base)
        if not figures["perplexity"] < float("inf"):  # nor not a number
            raise protocol.WorkerError(f"perplexity {figures['perplexity']}; expected a finite number")
        return figures


def _quantise(
    model: Any, config: dict[str, Any], calibration: Calibration, progress: protocol.Progress
) -> None:
    import modelopt.torch.quantization as mtq

    progress("quantise", f"{calibration.num_tokens} tokens in {len(calibration.batches)} batches")
    with torch.inference_mode():
        mtq.quantize(model, config, calibration)
    # without a batch, ModelOpt leaves scales out or calls unquantised weights quantised
    if calibration.num_batches_run < len(calibration.batches):
        raise protocol.WorkerError(
            f"{calibration.num_batches_run} of {len(calibration.batches)} calibration batches ran"
        )


def _export(
    model: Any,
    model_source: source.Source,
    request: dict[str, Any],
    scheme: schemes.Scheme,
    folder: Path,
) -> None:
    from modelopt.torch.export import export_tensorrt_llm_checkpoint

    dtype = {"bf16": torch.bfloat16, "f16": torch.float16}[request["dtype"]]
    with torch.inference_mode():
        export_tensorrt_llm_checkpoint(
            model,
            model_source.decoder_type,
            dtype=dtype,
            export_dir=folder,
            inference_tensor_parallel=request["tp_size"],  # its default, 0, divides by zero
            inference_pipeline_parallel=request["pp_size"],
        )
    path = folder / "config.json"
    config = json.loads(path.read_text("utf-8"))
    schemes.complete_config(config, scheme, model_source.config)
    source.check_rope(config, model_source)
    path.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    (folder / "quant_cfg.json").unlink(missing_ok=True)  # TensorRT-LLM would take it for mixed precision
    for file in folder.iterdir():
        file.chmod(0o644)  # written 0600, and read by another user in the container


if __name__ == "__main__":
    protocol.run(main)
