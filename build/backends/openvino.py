"""The embedded CPU backend: GGUF -> Q8_0 or F16 -> OpenVINO IR -> nncf where fewer bits are asked for.

The F16 IR is built for every engine: nncf compresses it, and every engine is measured against it,
because fluent text proves nothing about what quantisation cost.
"""

from __future__ import annotations

import gc
import shutil
from pathlib import Path
from typing import Literal

from trtb.build import kv_cache, quality
from trtb.build.backends.base import BuildHost, BuildPlan, BuiltEngine
from trtb.build.backends.openvino_runtime import (
    compress_weights,
    encode_texts,
    gguf_to_ir,
    smoke_generate,
    text_logits,
)
from trtb.build.checkpoint import PinnedCheckpoint
from trtb.build.compatibility import installed_versions
from trtb.build.config import BuildConfig, resolve_max_seq_len
from trtb.build.errors import CheckpointUnsupportedError, ConfigError, QuantizationError
from trtb.build.gguf_checkpoint import GgufCheckpoint, check_readable, read_gguf, rewrite
from trtb.build.manifest import EngineLimits, QualityReport
from trtb.build.quantization import QuantScheme, check_group_size, get_scheme
from trtb.build.steps import BuildSteps, Progress
from trtb.build.tokenizer import check_tokenizer, write_tokenizer

TOKENS_PER_BLOCK = 32  # fixed by openvino-genai on CPU
MAX_BATCH_SIZE_DEFAULT = 128
MAX_NUM_TOKENS_DEFAULT = 512  # per step; short steps let cancels in

_NNCF_QUANTS = frozenset({"fp8", "int4_awq"})
_MIB = 1 << 20


class OpenvinoBackend:
    """Builds engines for `openvino_genai.ContinuousBatchingPipeline` on an x86-64 CPU."""

    name: Literal["openvino"] = "openvino"

    def check(self, pinned: PinnedCheckpoint, config: BuildConfig, host: BuildHost) -> BuildPlan:  # noqa: ARG002
        """Refuse what cannot be built; see EngineBackend."""
        scheme = get_scheme(self.name, config.quant)
        _check_options(config)
        if pinned.pin.format != "gguf":
            raise CheckpointUnsupportedError(
                f"{pinned.path}: a Hugging Face folder; this version builds GGUF files for the CPU",
                "give a .gguf file of the same model",
            )
        checkpoint = read_gguf(pinned.gguf_path)
        check_readable(checkpoint)
        check_tokenizer(checkpoint)
        shape = checkpoint.model
        return BuildPlan(
            config=config.model_copy(
                update={
                    "max_seq_len": resolve_max_seq_len(config, shape.max_position_embeddings),
                    "group_size": _resolve_group_size(scheme, config, checkpoint),
                    "max_batch_size": config.max_batch_size or MAX_BATCH_SIZE_DEFAULT,
                    "max_num_tokens": config.max_num_tokens or MAX_NUM_TOKENS_DEFAULT,
                    "kv_cache_dtype": "f32",  # greedy answers then do not depend on what else is in flight
                }
            ),
            model=shape,
            toolchain=_toolchain(config.quant),
            compute_capability="cpu",
            peak_host_bytes=_peak_host_bytes(checkpoint, config.quant),
        )

    def build(
        self, pinned: PinnedCheckpoint, plan: BuildPlan, staging: Path, steps: BuildSteps
    ) -> BuiltEngine:
        """Fill `staging` with the engine's files; see EngineBackend."""
        progress = steps.say
        checkpoint = read_gguf(pinned.gguf_path)
        quant = plan.config.quant
        work = staging / ".work"
        base_ir = _convert(checkpoint, work / "f16", "F16", progress)
        if quant == "f16":
            ir = base_ir
        elif quant == "int8_wo":
            ir = _convert(checkpoint, work / "q8_0", "Q8_0", progress)
        else:
            ir = work / quant
            progress("quantise", f"{quant}: compressing weights")
            compress_weights(base_ir, ir, quant, plan.config.group_size or 0, quality.calibration_texts())
        progress("verify", "perplexity and top-1 agreement against f16")
        report = _measure(ir, base_ir, get_scheme(self.name, quant))
        for part in ("openvino_model", "openvino_tokenizer", "openvino_detokenizer"):
            for suffix in (".xml", ".bin"):
                shutil.move(ir / f"{part}{suffix}", staging / f"{part}{suffix}")
        gc.collect()  # the libraries map these files; a mapping would keep the deleted ones' space
        shutil.rmtree(work)
        progress("tokenizer", "writing tokenizer.json")
        write_tokenizer(checkpoint, staging / "tokenizer")
        (staging / "config.json").write_text(plan.model.model_dump_json(indent=2) + "\n")
        progress("verify", "answering a prompt")
        smoke_generate(staging, checkpoint.tokens.eos, plan.model.vocab_size)
        return BuiltEngine(plan.model, checkpoint.tokens, _limits(plan), report)


def _check_options(config: BuildConfig) -> None:
    """Refuse what this backend has no use for, rather than pass over it."""
    alone = {"tp_size": config.tp_size == 1, "pp_size": config.pp_size == 1, "trtllm": not config.trtllm}
    alone["kv_cache_dtype"] = config.kv_cache_dtype in ("auto", "f32")
    alone["dtype"] = config.dtype == "auto"
    if wrong := [name for name, is_fine in alone.items() if not is_fine]:
        raise ConfigError(
            f"{wrong[0]}: {getattr(config, wrong[0])!r}; the openvino backend has no such choice",
            "leave it out, or use --backend tensorrt_llm",
        )


def _convert(
    checkpoint: GgufCheckpoint, folder: Path, gguf_type: Literal["Q8_0", "F16"], progress: Progress
) -> Path:
    folder.mkdir(parents=True)
    gguf = folder / "model.gguf"
    progress("rewrite", f"{checkpoint.path.name} as {gguf_type}")
    rewrite(checkpoint, gguf, gguf_type)
    progress("convert", f"{gguf_type} to OpenVINO IR")
    gguf_to_ir(gguf)
    gguf.unlink()
    return folder


def _measure(ir: Path, base_ir: Path, scheme: QuantScheme) -> QualityReport:
    (ids,) = encode_texts(base_ir, [quality.quality_text()])
    base = quality.score(text_logits(base_ir, ids), ids)
    if ir == base_ir:
        return quality.compare(base, base, "f16")
    report = quality.compare(quality.score(text_logits(ir, ids), ids), base, "f16")
    ratio = report.perplexity / report.base_perplexity
    if not ratio <= scheme.max_perplexity_ratio:  # also refuses nan
        raise QuantizationError(
            f"{scheme.name}: perplexity {report.perplexity:.3f} against {report.base_perplexity:.3f} of f16, "
            f"ratio {ratio:.3f}; expected at most {scheme.max_perplexity_ratio}",
            "build with --quant int8_wo, or with a smaller group size",
        )
    return report


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


def _resolve_group_size(scheme: QuantScheme, config: BuildConfig, checkpoint: GgufCheckpoint) -> int | None:
    if scheme.group_size is None:
        if config.group_size is not None:
            raise ConfigError(f"group_size: {config.group_size}; {scheme.name} has no groups to choose")
        return None
    group_size = config.group_size or scheme.group_size
    widths = {tensor.shape[0] for tensor in checkpoint.tensors if len(tensor.shape) > 1}
    check_group_size(group_size, widths)
    return group_size


def _toolchain(quant: str) -> dict[str, str]:
    names = ("openvino", "openvino-genai", "openvino-tokenizers", "gguf", "tokenizers", "numpy")
    return installed_versions((*names, "nncf") if quant in _NNCF_QUANTS else names)


def _peak_host_bytes(checkpoint: GgufCheckpoint, quant: str) -> int:
    """Estimate the peak: the F16 IR and its float32 compilation, or nncf's copies; and the libraries."""
    bytes_per_parameter = 8 if quant in _NNCF_QUANTS else 6
    logits_bytes = 20 * 512 * checkpoint.model.vocab_size  # of the quality text, in float32 and float64
    return checkpoint.num_parameters * bytes_per_parameter + logits_bytes + 600 * _MIB
