"""The engine's own tokenizer as OpenVINO IR, made from an engine's `tokenizer/` folder without torch.

Guided decoding reads the vocabulary from it. What the client sends is tokenised by the folder itself, and
so are the texts that calibrate and measure an engine.
"""

from __future__ import annotations

import gc
import json
import os
from pathlib import Path

from trtb.build.backends.openvino_runtime import silence_telemetry
from trtb.build.errors import CheckpointUnsupportedError

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")  # it remarks on the absence of torch

TOKENIZER_FILES = tuple(
    f"openvino_{part}{suffix}" for part in ("tokenizer", "detokenizer") for suffix in (".xml", ".bin")
)


def write_tokenizer_ir(tokenizer: Path, target: Path) -> None:
    """Write `openvino_tokenizer` and `openvino_detokenizer` of a tokenizer folder into `target`.

    Raises:
        CheckpointUnsupportedError: openvino-tokenizers does not know such a tokenizer.
    """
    silence_telemetry()
    import openvino
    from openvino.exceptions import OVTypeError
    from openvino_tokenizers import convert_tokenizer
    from transformers import PreTrainedTokenizerFast

    fast = PreTrainedTokenizerFast.from_pretrained(tokenizer)
    try:
        models = convert_tokenizer(fast, with_detokenizer=True, skip_special_tokens=True)
    except (OVTypeError, NotImplementedError, RuntimeError, KeyError, ValueError) as exc:
        kind = json.loads((tokenizer / "tokenizer.json").read_bytes()).get("model", {}).get("type")
        raise CheckpointUnsupportedError(
            f"tokenizer.json of type {kind}: openvino-tokenizers refused: {type(exc).__name__}: {exc}",
            "use --backend tensorrt_llm, which needs no second tokenizer",
        ) from exc
    for model, part in zip(models, ("tokenizer", "detokenizer"), strict=True):
        openvino.save_model(model, target / f"openvino_{part}.xml")
    del models
    gc.collect()
