"""The calls into openvino and openvino_genai that a build makes, each closed before it returns.

Importing openvino alone reports its use to a web service and leaves an id in the home folder, as nncf
does, unless `openvino_telemetry` cannot be imported; both then use stubs of their own. So every entry
here blocks that import first.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trtb.build import quality
from trtb.build.backends.signal_stack import kept_signal_stack
from trtb.build.errors import BuildError
from trtb.build.quality import TextScore

# What the engine serves with: answers that do not depend on what else is in flight. Both together: where
# the processor has bfloat16, that is the default, and an f32 cache is refused with it.
RUNTIME_PROPERTIES = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}

MODEL_FILE = "openvino_model.xml"
MODEL_FILES = (MODEL_FILE, "openvino_model.bin")

_SMOKE_TOKENS = 8
_SMOKE_PROMPT = "Water boils at"
_NUM_BUILD_BLOCKS = 8


def silence_telemetry() -> None:
    """Make `import openvino_telemetry` fail in this process, for good."""
    sys.modules["openvino_telemetry"] = None  # type: ignore[assignment]


@kept_signal_stack()
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


@kept_signal_stack()
def encode_texts(ir: Path, texts: list[str]) -> list[list[int]]:
    """Return the texts' token ids by the IR's own tokenizer, without special tokens around them."""
    silence_telemetry()
    import openvino_genai

    tokenizer = openvino_genai.Tokenizer(ir)
    encoded = [tokenizer.encode(text, add_special_tokens=False).input_ids for text in texts]
    return [[int(token) for token in tensor.data[0]] for tensor in encoded]


@kept_signal_stack()
def score_texts(ir: Path, texts: Sequence[Sequence[int]]) -> TextScore:
    """Score texts, given as token ids, and go on greedily from the beginning of each.

    The arithmetic is float32 on every machine. The beginnings are answered together: all of the same
    length, they make a batch without padding.
    """
    silence_telemetry()
    import openvino

    core = openvino.Core()
    request = core.compile_model(ir / MODEL_FILE, "CPU", RUNTIME_PROPERTIES).create_infer_request()
    scores = []
    for ids in texts:
        request.reset_state()
        scores.append(quality.score(request.infer(model_inputs([ids]))["logits"][0], ids))
    prompts = [
        list(ids[: quality.NUM_PROMPT_TOKENS]) for ids in texts if len(ids) >= quality.NUM_PROMPT_TOKENS
    ]
    answers = _continue_greedily(request, prompts) if prompts else ()
    del request, core
    gc.collect()
    return quality.join(scores, answers)


def _continue_greedily(request: Any, prompts: list[list[int]]) -> quality.Answers:
    import numpy as np

    request.reset_state()
    answers: list[list[int]] = [[] for _ in prompts]
    inputs = model_inputs(prompts)
    for _ in range(quality.NUM_GREEDY_TOKENS):
        chosen = request.infer(inputs)["logits"][:, -1].argmax(axis=-1)
        for answer, token in zip(answers, chosen, strict=True):
            answer.append(int(token))
        length = len(prompts[0]) + len(answers[0])
        inputs |= {
            "input_ids": chosen.astype(np.int64)[:, None],
            "attention_mask": np.ones((len(prompts), length), dtype=np.int64),
            "position_ids": np.full((len(prompts), 1), length - 1, dtype=np.int64),
        }
    return tuple(tuple(answer) for answer in answers)


@kept_signal_stack()
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


def model_inputs(batch: Sequence[Sequence[int]]) -> dict[str, Any]:
    """Return what the IR takes for texts of one length, from their first token on."""
    import numpy as np

    ids = np.array(batch, dtype=np.int64)
    return {
        "input_ids": ids,
        "attention_mask": np.ones(ids.shape, dtype=np.int64),
        "position_ids": np.broadcast_to(np.arange(ids.shape[1], dtype=np.int64), ids.shape).copy(),
        "beam_idx": np.arange(len(batch), dtype=np.int32),
    }
