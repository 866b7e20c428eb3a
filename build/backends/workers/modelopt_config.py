"""What each scheme is to ModelOpt, and what its export leaves out of a checkpoint's config.json."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import protocol


@dataclass(frozen=True)
class Scheme:
    """One scheme: ModelOpt's configuration, and the name by which TensorRT-LLM knows it."""

    name: str
    config: str | None  # None: the weights are exported as they are
    quant_algo: str | None
    quantises_activations: bool = False
    has_groups: bool = False


# Weights of int8_wo and int4_wo are quantised while the engine is built: quant_algo asks for it, as
# TensorRT-LLM's own quantize_by_modelopt.py does. ModelOpt's round-to-nearest int4 would claim AWQ scales.
SCHEMES = (
    Scheme("bf16", None, None),
    Scheme("f16", None, None),
    Scheme("int8_wo", None, "W8A16"),
    Scheme("int4_wo", None, "W4A16"),
    Scheme("fp8", "FP8_DEFAULT_CFG", "FP8", quantises_activations=True),
    Scheme("int4_awq", "INT4_AWQ_CFG", "W4A16_AWQ", has_groups=True),
    Scheme("w4a8_awq", "W4A8_AWQ_BETA_CFG", "W4A8_AWQ", quantises_activations=True, has_groups=True),
    Scheme("int8_sq", "INT8_SMOOTHQUANT_CFG", "W8A8_SQ_PER_CHANNEL", quantises_activations=True),
    Scheme("nvfp4", "NVFP4_DEFAULT_CFG", "NVFP4", quantises_activations=True),
)

KV_CONFIGS: dict[str, dict[str, Any]] = {
    "fp8": {"quantizer_name": "*[kv]_bmm_quantizer", "cfg": {"num_bits": (4, 3), "axis": None}},
    "int8": {"quantizer_name": "*[kv]_bmm_quantizer", "cfg": {"num_bits": 8, "axis": None}},
}

_NOTHING = {"quant_cfg": [{"quantizer_name": "*", "enable": False}], "algorithm": "max"}


def get_scheme(name: str) -> Scheme:
    """Return a scheme by its name."""
    for scheme in SCHEMES:
        if scheme.name == name:
            return scheme
    raise protocol.InvalidError(f"quant: {name!r}; expected one of {', '.join(s.name for s in SCHEMES)}")


def make_config(
    scheme: Scheme, kv_cache_dtype: str, group_size: int | None, decoder_type: str
) -> dict[str, Any] | None:
    """Return ModelOpt's configuration, or None where nothing is to be quantised."""
    import modelopt.torch.quantization as mtq

    if scheme.config is None and kv_cache_dtype not in KV_CONFIGS:
        return None
    config = copy.deepcopy(getattr(mtq, scheme.config) if scheme.config else _NOTHING)
    if scheme.has_groups:
        if group_size is None:
            raise protocol.InvalidError(f"group_size: null; {scheme.name} needs one")
        _set_group_size(config, group_size)
    if kv_cache_dtype in KV_CONFIGS:
        config["quant_cfg"].append(KV_CONFIGS[kv_cache_dtype])
    if scheme.name == "int8_sq":
        config["algorithm"] = {"method": "smoothquant", "alpha": _smoothing(decoder_type)}
    if (
        decoder_type == "gemma" and scheme.name == "w4a8_awq"
    ):  # overflows with finer steps, says the same file
        config["algorithm"] = {"method": "awq_lite", "alpha_step": 1}
    return config


def _smoothing(decoder_type: str) -> float:
    """Return how much of the activations' range SmoothQuant moves into the weights, 0 to 1.

    ModelOpt's default is 1. Perplexity of SmolLM2-135M over its unquantised one: 1.66 with 1.0, 1.22 with
    0.8, 1.11 with 0.7, 1.13 with 0.6, 1.25 with 0.5. For Gemma, quantize_by_modelopt.py takes 0.5.
    """
    return 0.5 if decoder_type == "gemma" else 0.7


def _set_group_size(config: dict[str, Any], group_size: int) -> None:
    num_set = 0
    for entry in config["quant_cfg"]:
        attributes = entry.get("cfg")
        for each in attributes if isinstance(attributes, list) else [attributes]:
            if each and "block_sizes" in each and each.get("num_bits") == 4:
                each["block_sizes"][-1] = group_size
                num_set += 1
    if num_set != 1:
        raise protocol.WorkerError(f"ModelOpt's configuration has {num_set} int4 quantisers; expected 1")


def complete_config(config: dict[str, Any], scheme: Scheme, hf_config: Any) -> None:
    """Add to a checkpoint's configuration what ModelOpt leaves to TensorRT-LLM's own wrapper.

    Llama's biases are off by default there and Qwen's on, whatever the checkpoint holds; without
    `qwen_type` a Qwen model is not built at all (tensorrt_llm/models/qwen/config.py and model.py).
    """
    config["quantization"]["quant_algo"] = scheme.quant_algo
    if scheme.config is None:
        # its default is then head, embeddings and routers; a list of the head alone would not exempt the rest
        config["quantization"]["exclude_modules"] = None
    model_type = hf_config.model_type
    if model_type in {"qwen2", "qwen3"}:
        config["qwen_type"] = model_type
    if "attn_bias" not in config:
        config["attn_bias"] = model_type == "qwen2" or bool(getattr(hf_config, "attention_bias", False))
    if "mlp_bias" not in config:
        config["mlp_bias"] = bool(getattr(hf_config, "mlp_bias", False))
