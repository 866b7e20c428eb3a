"""The calls into openvino, openvino_genai and nncf that a build makes, each closed before it returns.

Importing openvino alone reports its use to a web service and leaves an id in the home folder, as nncf
does, unless `openvino_telemetry` cannot be imported; both then use stubs of their own. So every entry
here blocks that import first.
"""

from __future__ import annotations

import contextlib
import gc
import io
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trtb.build.errors import BuildError, QuantizationError

# What the engine serves with: answers that do not depend on what else is in flight. Both together: where
# the processor has bfloat16, that is the default, and an f32 cache is refused with it.
RUNTIME_PROPERTIES = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}

_SMOKE_TOKENS = 8
_SMOKE_PROMPT = "Water boils at"
_NUM_BUILD_BLOCKS = 8


def silence_telemetry() -> None:
    """Make `import openvino_telemetry` fail in this process, for good."""
    sys.modules["openvino_telemetry"] = None  # type: ignore[assignment]


def gguf_to_ir(gguf: Path) -> None:
    """Write the model's and the tokenizers' IR beside a GGUF file of type Q8_0 or F16."""
    silence_telemetry()
    import openvino_genai

    scheduler = openvino_genai.SchedulerConfig()
    scheduler.num_kv_blocks = _NUM_BUILD_BLOCKS
    tokenizer = openvino_genai.Tokenizer(gguf, enable_save_ov_model=True)
    pipeline = openvino_genai.ContinuousBatchingPipeline(
        gguf, tokenizer, scheduler, "CPU", enable_save_ov_model=True, **RUNTIME_PROPERTIES
    )
    del pipeline, tokenizer
    gc.collect()


def encode_texts(ir: Path, texts: list[str]) -> list[list[int]]:
    """Return the texts' token ids by the IR's own tokenizer, without special tokens around them."""
    silence_telemetry()
    import openvino_genai

    tokenizer = openvino_genai.Tokenizer(ir)
    encoded = [tokenizer.encode(text, add_special_tokens=False).input_ids for text in texts]
    return [[int(token) for token in tensor.data[0]] for tensor in encoded]


def compress_weights(base_ir: Path, target: Path, quant: str, group_size: int, texts: list[str]) -> None:
    """Compress the F16 IR's weights with nncf and save the new IR, with the same tokenizers, in `target`.

    Raises:
        QuantizationError: nncf refuses the model or the scheme.
    """
    silence_telemetry()
    import nncf
    import openvino

    model = openvino.Core().read_model(base_ir / "openvino_model.xml")
    options: dict[str, Any] = {"mode": nncf.CompressWeightsMode.FP8_E4M3}
    if quant == "int4_awq":
        samples = [_model_inputs(ids) for ids in encode_texts(base_ir, texts)]
        options = {
            "mode": nncf.CompressWeightsMode.INT4_SYM,
            "ratio": 1.0,
            "awq": True,
            "scale_estimation": True,
            "dataset": nncf.Dataset(samples),
            "subset_size": len(samples),
        }
    nncf.set_log_level(logging.ERROR)  # its handler holds the stdout of before the redirection
    # nncf's errors share no base of their own
    kinds = [kind for kind in vars(nncf.errors).values() if isinstance(kind, type)]
    errors: tuple[type[Exception], ...] = tuple(kind for kind in kinds if issubclass(kind, Exception))
    try:
        with _quiet():
            compressed = nncf.compress_weights(model, group_size=group_size, **options)
    except errors as exc:
        raise QuantizationError(f"{quant}: nncf refused: {type(exc).__name__}: {exc}") from exc
    target.mkdir(parents=True)
    openvino.save_model(compressed, target / "openvino_model.xml")
    del compressed, model
    gc.collect()
    for path in base_ir.glob("openvino_*tokenizer.*"):
        (target / path.name).hardlink_to(path)


def text_logits(ir: Path, ids: list[int]) -> Any:
    """Return the logits (num_tokens, vocab_size) after each token of a text."""
    silence_telemetry()
    import openvino

    core = openvino.Core()
    request = core.compile_model(ir / "openvino_model.xml", "CPU", RUNTIME_PROPERTIES).create_infer_request()
    logits = request.infer(_model_inputs(ids))["logits"][0].copy()
    del request, core
    gc.collect()
    return logits


def smoke_generate(engine: Path, eos: list[int], vocab_size: int) -> list[int]:
    """Answer a fixed prompt with the engine as it will be served.

    Raises:
        BuildError: No token came, or one out of the vocabulary.
    """
    silence_telemetry()
    import numpy as np
    import openvino
    import openvino_genai

    scheduler = openvino_genai.SchedulerConfig()
    scheduler.num_kv_blocks = _NUM_BUILD_BLOCKS
    pipeline = openvino_genai.ContinuousBatchingPipeline(engine, scheduler, "CPU", dict(RUNTIME_PROPERTIES))
    config = openvino_genai.GenerationConfig()
    config.max_new_tokens = _SMOKE_TOKENS
    config.eos_token_id, config.stop_token_ids = eos[0], set(eos)
    (ids,) = encode_texts(engine, [_SMOKE_PROMPT])
    handle = pipeline.add_request(0, openvino.Tensor(np.array([ids], dtype=np.int64)), config)
    while pipeline.has_non_finished_requests():
        pipeline.step()
    tokens = [token for output in handle.read_all() for token in output.generated_ids]
    del handle, pipeline
    gc.collect()
    if not tokens or not all(0 <= token < vocab_size for token in tokens):
        raise BuildError(
            f"smoke prompt: {tokens}; expected 1 to {_SMOKE_TOKENS} token ids below {vocab_size}"
        )
    return tokens


def _model_inputs(ids: list[int]) -> dict[str, Any]:
    import numpy as np

    return {
        "input_ids": np.array([ids], dtype=np.int64),
        "attention_mask": np.ones((1, len(ids)), dtype=np.int64),
        "position_ids": np.arange(len(ids), dtype=np.int64)[None],
        "beam_idx": np.zeros(1, dtype=np.int32),
    }


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep nncf's progress bars off stdout, which belongs to data."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield
