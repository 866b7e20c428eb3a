"""The checkpoint that a worker quantises: what it is, whether it fits, and its weights."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import protocol
import torch

# What ModelOpt 0.47 exports without tensorrt_llm at its side, each tried; others fail only after the whole
# calibration, or not at all.
DECODER_TYPES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "llama",
    "MixtralForCausalLM": "llama",
    "Qwen2ForCausalLM": "qwen",
    "Qwen3ForCausalLM": "qwen",
    "GemmaForCausalLM": "gemma",
    "GPT2LMHeadModel": "gpt",
}
_LOAD_DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}
_LIBRARY_BYTES = 1 << 30  # torch, transformers and ModelOpt, with nothing loaded


class OutOfMemoryError(protocol.WorkerError):
    """The work does not fit into the memory that is there."""

    kind = protocol.OUT_OF_MEMORY


@dataclass(frozen=True)
class Source:
    """A checkpoint, with no weight of it loaded."""

    folder: Path
    config: Any  # transformers'
    architecture: str
    decoder_type: str  # ModelOpt's name of the family
    num_parameters: int  # a tied head counted once
    rope_theta: float | None
    rope_scaling: dict[str, Any] | None


def open_source(folder: Path) -> Source:
    """Read a checkpoint's configuration and refuse what cannot be exported, before any weight is read."""
    from modelopt.torch.export.model_utils import get_model_type
    from transformers import AutoConfig, AutoModelForCausalLM

    path = folder / "config.json"
    if not path.is_file():  # transformers would take the path for a name on the hub
        raise protocol.InvalidError(f"{path}: not found; expected a Hugging Face folder")
    raw = json.loads(path.read_text("utf-8"))
    architecture = next(iter(raw.get("architectures") or []), None)
    if architecture not in DECODER_TYPES:
        raise protocol.UnsupportedError(
            f"{path}: architectures: {architecture!r}; ModelOpt exports {', '.join(DECODER_TYPES)}",
            "quantise it with the scripts of the TensorRT-LLM container",
        )
    config = AutoConfig.from_pretrained(folder, local_files_only=True)
    rope_theta, rope_scaling = _set_rope(config, raw)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    decoder_type = get_model_type(model)
    if decoder_type != (known := DECODER_TYPES[architecture]):
        raise protocol.WorkerError(
            f"{architecture}: ModelOpt takes it for {decoder_type!r}; expected {known!r}"
        )
    return Source(
        folder=folder,
        config=config,
        architecture=architecture,
        decoder_type=decoder_type,
        num_parameters=sum(parameter.numel() for parameter in model.parameters()),
        rope_theta=rope_theta,
        rope_scaling=rope_scaling,
    )


def _set_rope(config: Any, raw: dict[str, Any]) -> tuple[float | None, dict[str, Any] | None]:
    """Give the configuration both forms of the rotary parameters, and return base and scaling.

    transformers 5 writes `rope_parameters`, which version 4 leaves unread for a base of 10000, and keeps
    nothing else, from which ModelOpt exports no base at all: either way the model is silently another.
    """
    merged = {**(raw.get("rope_scaling") or {}), **(raw.get("rope_parameters") or {})}
    theta = merged.pop("rope_theta", raw.get("rope_theta", getattr(config, "rope_theta", None)))
    if theta is None:  # a family without rotary positions
        return None, None
    theta, kind = float(theta), merged.pop("type", "default")
    kind = merged.pop("rope_type", kind)
    scaling = None if kind == "default" else {"rope_type": kind, **merged}
    config.__dict__["rope_theta"], config.__dict__["rope_scaling"] = theta, scaling
    return theta, scaling


def check_rope(config: dict[str, Any], model_source: Source) -> None:
    """Compare an exported configuration's rotary parameters with the checkpoint's."""
    found = (config.get("rotary_base"), config.get("rotary_scaling"))
    expected = (model_source.rope_theta, model_source.rope_scaling)
    if found != expected:
        raise protocol.WorkerError(f"exported rotary_base and rotary_scaling {found}; expected {expected}")


def choose_device(device: str) -> str:
    """Return "cuda" or "cpu"."""
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda" and not torch.cuda.is_available():
        build = f"built for CUDA {torch.version.cuda}" if torch.version.cuda else "built without CUDA"
        raise protocol.InvalidError(
            f"device: cuda; torch {torch.__version__} ({build}) sees no GPU",
            "use device cpu, or a newer driver",
        )
    return device


def memory(model_source: Source, load_dtype: str, device: str) -> tuple[int, int]:
    """Return the bytes needed at the peak and those available.

    An estimate: the loaded weights, and as much again for what the export writes. Measured with float32
    copies of the weights besides, which the figures take only where they fit: 2.1 GB in all for 135 M
    weights in bfloat16.
    """
    weight_bytes = model_source.num_parameters * _LOAD_DTYPES[load_dtype].itemsize
    if device == "cpu":
        return _LIBRARY_BYTES + 2 * weight_bytes, _available_host_bytes()
    free = sum(torch.cuda.mem_get_info(index)[0] for index in range(torch.cuda.device_count()))
    return weight_bytes * 5 // 4, free


def check_memory(needed: int, available: int, device: str, progress: protocol.Progress) -> None:
    """Tell what the work needs, and refuse before the weights are read what would not fit."""
    found = f"about {needed / 2**30:.1f} GiB needed on {device}, {available / 2**30:.1f} available"
    progress("memory", found)
    if needed > available:
        hint = "free memory, or use a machine with more" if device == "cpu" else "use device cpu"
        raise OutOfMemoryError(f"memory: {found}", hint)


def fits_in_float32(model_source: Source) -> bool:
    """Say whether the weights can stand beside themselves in float32."""
    return model_source.num_parameters * 8 + _LIBRARY_BYTES < _available_host_bytes()


def load(model_source: Source, load_dtype: str, device: str) -> Any:
    """Read the weights; every one that the model has must be in the files."""
    from transformers import AutoModelForCausalLM

    model, info = AutoModelForCausalLM.from_pretrained(
        model_source.folder,
        config=model_source.config,
        dtype=_LOAD_DTYPES[load_dtype],
        device_map="auto" if device == "cuda" else None,  # over all GPUs
        local_files_only=True,
        use_safetensors=True,
        output_loading_info=True,
    )
    for what in ("missing_keys", "mismatched_keys"):  # transformers makes such weights up
        if info[what]:
            raise protocol.InvalidError(f"{model_source.folder}: {what}: {sorted(map(str, info[what]))[:3]}")
    if any(parameter.is_meta or parameter.device.type != device for parameter in model.parameters()):
        raise OutOfMemoryError("the weights do not fit in the GPUs' memory", "use device cpu")
    return model.eval()


def replace_parameters(model: Any, tensors: Iterator[tuple[str, torch.Tensor]], dtype: torch.dtype) -> None:
    """Give a model the weights of an exported checkpoint, all of them."""
    left = dict(model.named_parameters())
    is_tied = "lm_head.weight" not in left
    vocab_size = model.config.vocab_size
    for name, tensor in tensors:
        if name == "lm_head.weight" and is_tied:
            continue
        parameter = left.pop(name)
        value = tensor[:vocab_size] if name in {"lm_head.weight", "model.embed_tokens.weight"} else tensor
        if value.shape != parameter.shape:
            raise protocol.WorkerError(
                f"exported {name}: shape {tuple(value.shape)}; expected {tuple(parameter.shape)}"
            )
        parameter.data = value.to(parameter.device, dtype)
    if "lm_head.weight" in left and model.config.architectures == ["GemmaForCausalLM"]:
        left.pop("lm_head.weight").data = model.get_input_embeddings().weight.data
    if left:
        raise protocol.WorkerError(f"the exported checkpoint lacks {', '.join(sorted(left)[:3])}")


def _available_host_bytes() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise protocol.WorkerError("/proc/meminfo: no MemAvailable; expected Linux")
