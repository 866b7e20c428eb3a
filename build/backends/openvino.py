"""The embedded CPU backend: GGUF or Hugging Face folder -> F16 IR -> nncf where fewer bits are asked for.

The F16 IR is built for every engine: nncf compresses it, and every engine is measured against it,
because fluent text proves nothing about what quantisation cost.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

import numpy as np

from trtb.build import files, kv_cache, quality
from trtb.build.backends.base import BuildHost, BuildPlan, BuiltEngine
from trtb.build.backends.openvino_gguf import GgufSource
from trtb.build.backends.openvino_hf import HfSource
from trtb.build.backends.openvino_nncf import compress_weights
from trtb.build.backends.openvino_runtime import MODEL_FILES, score_texts, smoke_generate
from trtb.build.backends.openvino_tokenizer import TOKENIZER_FILES
from trtb.build.calibration import calibrate_with
from trtb.build.checkpoint import PinnedCheckpoint
from trtb.build.compatibility import installed_versions
from trtb.build.config import BuildConfig, resolve_max_seq_len
from trtb.build.errors import ConfigError
from trtb.build.manifest import EngineLimits
from trtb.build.planning.plan_memory import cpu_build_bytes
from trtb.build.prompt_encoder import encode_texts
from trtb.build.quantization import check_linears, get_scheme
from trtb.build.steps import BuildSteps, step_files

TOKENS_PER_BLOCK = 32  # fixed by openvino-genai on CPU
MAX_BATCH_SIZE_DEFAULT = 128
MAX_NUM_TOKENS_DEFAULT = 512  # per step; short steps let cancels in

_SCORE_FILE = "score.json"

Source = GgufSource | HfSource


class OpenvinoBackend:
    """Builds engines for `openvino_genai.ContinuousBatchingPipeline` on an x86-64 CPU."""

    name: Literal["openvino"] = "openvino"

    def check(self, pinned: PinnedCheckpoint, config: BuildConfig, host: BuildHost) -> BuildPlan:
        """Refuse what cannot be built; see EngineBackend."""
        scheme = get_scheme(self.name, config.quant)
        _check_options(config)
        source = _open(pinned, host.home)
        group_size = check_linears(scheme, source.linears(), config.group_size, 1)
        uses_nncf = _uses_nncf(source, config.quant)
        calibration = None
        if scheme.needs_calibration:
            vocab_size = source.model.vocab_size
            calibration = calibrate_with(source.write_tokenizer, config.calibration, vocab_size)
        return BuildPlan(
            config=config.model_copy(
                update={
                    "max_seq_len": resolve_max_seq_len(config, source.model.max_position_embeddings),
                    "group_size": group_size,
                    "dtype": "f16",
                    "max_batch_size": config.max_batch_size or MAX_BATCH_SIZE_DEFAULT,
                    "max_num_tokens": config.max_num_tokens or MAX_NUM_TOKENS_DEFAULT,
                    "kv_cache_dtype": "f32",  # greedy answers then do not depend on what else is in flight
                }
            ),
            model=source.model,
            toolchain=source.versions | (installed_versions(("nncf",)) if uses_nncf else {}),
            compute_capability="cpu",
            peak_host_bytes=cpu_build_bytes(
                source.num_parameters, source.model.vocab_size, uses_nncf=uses_nncf
            ),
            calibration=calibration,
            warnings=calibration.warnings if calibration else (),
        )

    def build(
        self, pinned: PinnedCheckpoint, plan: BuildPlan, staging: Path, steps: BuildSteps
    ) -> BuiltEngine:
        """Fill `staging` with the engine's files; see EngineBackend."""
        source = _open(pinned, steps.home)
        steps.say("tokenizer", "writing tokenizer.json")
        tokenizer = staging / "tokenizer"
        source.write_tokenizer(tokenizer)
        length = plan.model.max_position_embeddings
        texts = [ids[:length] for ids in encode_texts(tokenizer, quality.quality_texts())]
        if isinstance(source, GgufSource):
            base_ir = source.convert(steps, "F16")
        else:
            base_ir = source.convert(steps, tokenizer, texts)
        base = _score_base(steps, base_ir, texts)
        if isinstance(source, HfSource):
            quality.check_conversion(source.read_reference(base_ir), base.perplexity)
        ir = _quantise(source, plan, base_ir, steps)
        steps.say("verify", "perplexity, top-1 and greedy agreement against f16")
        report = quality.compare(base if ir == base_ir else score_texts(ir, texts), base, "f16")
        quality.check_report(report, get_scheme(self.name, plan.config.quant))
        for name in MODEL_FILES:
            files.link_or_copy(ir / name, staging / name)
        for name in TOKENIZER_FILES:
            files.link_or_copy(base_ir / name, staging / name)
        (staging / "config.json").write_text(plan.model.model_dump_json(indent=2) + "\n")
        steps.say("verify", "answering a prompt")
        smoke_generate(staging, source.tokens.eos, plan.model.vocab_size)
        return BuiltEngine(plan.model, source.tokens, _limits(plan), report)


def _open(pinned: PinnedCheckpoint, home: Path) -> Source:
    return GgufSource(pinned) if pinned.pin.format == "gguf" else HfSource(pinned, home)


def _uses_nncf(source: Source, quant: str) -> bool:
    """Return whether nncf makes the engine; the 8 bits of a GGUF file are its rewrite as Q8_0."""
    return quant != "f16" and not (quant == "int8_wo" and isinstance(source, GgufSource))


def _check_options(config: BuildConfig) -> None:
    """Refuse what this backend has no use for, rather than pass over it."""
    alone = {"tp_size": config.tp_size == 1, "pp_size": config.pp_size == 1, "trtllm": not config.trtllm}
    alone["kv_cache_dtype"] = config.kv_cache_dtype in ("auto", "f32")
    alone["dtype"] = config.dtype in ("auto", "f16")
    alone["quantise_with"] = config.quantise_with == "auto"
    if wrong := [name for name, is_fine in alone.items() if not is_fine]:
        raise ConfigError(
            f"{wrong[0]}: {getattr(config, wrong[0])!r}; the openvino backend has no such choice",
            "leave it out, or use --backend tensorrt_llm",
        )


def _quantise(source: Source, plan: BuildPlan, base_ir: Path, steps: BuildSteps) -> Path:
    """Return the folder of the engine's IR; the base's own where nothing is left to do."""
    quant, calibration = plan.config.quant, plan.calibration
    if not _uses_nncf(source, quant):
        return source.convert(steps, "Q8_0") if isinstance(source, GgufSource) and quant != "f16" else base_ir

    def produce(folder: Path) -> None:
        steps.say("quantise", f"{quant}: compressing weights")
        samples = calibration.token_ids if calibration else ()
        compress_weights(base_ir, folder, quant, plan.config.group_size, samples)

    inputs = {
        "base": step_files(base_ir),
        "quant": quant,
        "group_size": plan.config.group_size,
        "calibration": calibration.sha256 if calibration else None,
        "versions": plan.toolchain,
    }
    return steps.run("quantise", inputs, produce)


def _score_base(steps: BuildSteps, base_ir: Path, texts: list[list[int]]) -> quality.TextScore:
    """Return the base's score; a step, as every quantisation of a checkpoint is held against it."""

    def produce(folder: Path) -> None:
        steps.say("score", "the f16 base on the quality texts")
        found = score_texts(base_ir, texts)
        record = {
            "log_probs": found.log_probs.tolist(),
            "top1": found.top1.tolist(),
            "answers": found.answers,
        }
        (folder / _SCORE_FILE).write_text(json.dumps(record) + "\n")

    folder = steps.run("score", {"base": step_files(base_ir), "texts": texts}, produce)
    record = json.loads((folder / _SCORE_FILE).read_bytes())
    return quality.TextScore(
        log_probs=np.array(record["log_probs"], dtype=np.float64),
        top1=np.array(record["top1"], dtype=np.int64),
        answers=tuple(tuple(answer) for answer in record["answers"]),
    )


def _limits(plan: BuildPlan) -> EngineLimits:
    model, config = plan.model, plan.config
    assert config.max_seq_len is not None
    assert config.max_batch_size is not None
    assert config.max_num_tokens is not None
    return EngineLimits(
        max_seq_len=config.max_seq_len,
        max_batch_size=config.max_batch_size,
        max_num_tokens=config.max_num_tokens,
        tokens_per_block=TOKENS_PER_BLOCK,
        kv_bytes_per_token=kv_cache.num_bytes_per_token(
            model.num_layers, model.num_kv_heads, model.head_dim, config.kv_cache_dtype
        ),
    )
