"""What a TensorRT-LLM checkpoint must hold: the fields of its config.json, and every rank's tensors.

Worked out from the Hugging Face checkpoint and the options alone, so that what was exported can be held
against it. ModelOpt leaves fields and tensors out without a word; TensorRT-LLM then takes its defaults.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from trtb.build.errors import ConfigError
from trtb.build.quant_schemes import QuantScheme
from trtb.build.trtllm.trtllm_numerics import NVFP4_BLOCK

if TYPE_CHECKING:
    from trtb.build.checkpoints.hf_checkpoint import HfCheckpoint

# model_type of the families whose layout is known here; a checkpoint of another is not vouched for
KNOWN_FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "gemma")

DTYPE_NAMES = {"bf16": "bfloat16", "f16": "float16"}
_STORED_DTYPES = {"bf16": "BF16", "f16": "F16"}
_AWQ_VOCAB_MULTIPLE = 64  # ModelOpt pads the vocabulary of AWQ checkpoints to it
AWQ_ALGOS = ("W4A16_AWQ", "W4A8_AWQ")
# quantised while the engine is built; the checkpoint holds the weights as they were
ENGINE_TIME_ALGOS = ("W8A16", "W4A16")


@dataclass(frozen=True, slots=True)
class CheckpointOptions:
    """How a checkpoint was to be quantised and split, every default resolved."""

    scheme: QuantScheme
    dtype: Literal["bf16", "f16"]  # of what is not quantised
    kv_cache_dtype: str = "auto"  # "fp8" and "int8" have scales in the checkpoint
    group_size: int | None = None
    tp_size: int = 1
    pp_size: int = 1

    @property
    def world_size(self) -> int:
        """Return the number of rank files."""
        return self.tp_size * self.pp_size

    @property
    def stored_algo(self) -> str | None:
        """Return the quantisation of the stored weights, or None where they are as they were."""
        algo = self.scheme.quant_algo
        return None if algo in ENGINE_TIME_ALGOS else algo

    @property
    def kv_algo(self) -> str | None:
        """Return the quantisation of the KV cache, by TensorRT-LLM's name."""
        return {"fp8": "FP8", "int8": "INT8"}.get(self.kv_cache_dtype)


class TensorSpec(NamedTuple):
    """A tensor as it must be stored in each rank file."""

    dtype: str  # safetensors' name
    shape: tuple[int, ...]


def padded_vocab_size(source: HfCheckpoint, options: CheckpointOptions) -> int:
    """Return the vocabulary that the checkpoint claims."""
    vocab_size = source.model.vocab_size
    if options.scheme.quant_algo in AWQ_ALGOS:
        vocab_size = -(-vocab_size // _AWQ_VOCAB_MULTIPLE) * _AWQ_VOCAB_MULTIPLE
    return vocab_size


def shares_embedding(source: HfCheckpoint, options: CheckpointOptions) -> bool:
    """Say whether the head is left out of the files; of other tied models it is written once more.

    Raises:
        ConfigError: The head is left out, and the stage that needs it has no embedding.
    """
    is_shared = source.config["model_type"] == "gemma" and source.has_tied_embeddings
    if is_shared and options.pp_size > 1:
        raise ConfigError(
            f"pp_size: {options.pp_size}; ModelOpt exports gemma without an output head, "
            "and its last stage would have none",
            "use --pp-size 1",
        )
    return is_shared


def expected_config(source: HfCheckpoint, options: CheckpointOptions) -> dict[str, Any]:
    """Return the fields of config.json that shape the engine, with the values they must have."""
    config, model = source.config, source.model
    model_type = config["model_type"]
    fields: dict[str, Any] = {
        "architecture": config["architectures"][0],
        "dtype": DTYPE_NAMES[options.dtype],
        "num_hidden_layers": model.num_layers,
        "num_attention_heads": model.num_heads,
        "num_key_value_heads": model.num_kv_heads,
        "hidden_size": model.hidden_size,
        "intermediate_size": source.intermediate_size,
        "head_size": model.head_dim,
        "vocab_size": padded_vocab_size(source, options),
        "max_position_embeddings": model.max_position_embeddings,
        "norm_epsilon": config.get("rms_norm_eps", 1e-6),
        "hidden_act": config.get("hidden_act", "gelu_pytorch_tanh" if model_type == "gemma" else "silu"),
        "position_embedding_type": "rope_gpt_neox",
        "rotary_pct": 1.0,
        "rotary_base": source.rope_theta,  # where it is absent, TensorRT-LLM takes 10000
        "rotary_scaling": source.rope_scaling,
        "share_embedding_table": shares_embedding(source, options),
        "attn_bias": _has_bias(source, "self_attn.q_proj"),
        "mlp_bias": _has_bias(source, "mlp.gate_proj"),
        "mapping": {
            "world_size": options.world_size,
            "tp_size": options.tp_size,
            "pp_size": options.pp_size,
        },
        "quantization": _quantization(options),
    }
    if model_type.startswith("qwen"):
        fields["qwen_type"] = model_type  # without it, the model class of TensorRT-LLM fails
    return fields


def expected_tensors(
    source: HfCheckpoint, options: CheckpointOptions, pp_rank: int
) -> Iterator[tuple[str, TensorSpec]]:
    """Yield each tensor of a rank of this stage; the ranks of a stage differ in their data only."""
    hidden = source.model.hidden_size
    plain = _STORED_DTYPES[options.dtype]
    table = TensorSpec(plain, (-(-padded_vocab_size(source, options) // options.tp_size), hidden))
    if pp_rank == 0:
        yield "transformer.vocab_embedding.weight", table
    if pp_rank == options.pp_size - 1:
        yield "transformer.ln_f.weight", TensorSpec(plain, (hidden,))
        if not shares_embedding(source, options):
            yield "lm_head.weight", table
    for layer in range(source.model.num_layers // options.pp_size):
        for name, spec in _layer_tensors(source, options):
            yield f"transformer.layers.{layer}.{name}", spec


def qkv_rows(source: HfCheckpoint, tp_size: int) -> tuple[int, int]:
    """Return the rows of a rank's query, and of its key or value: at least one head, repeated if need be."""
    model = source.model
    return (
        model.num_heads // tp_size * model.head_dim,
        max(1, model.num_kv_heads // tp_size) * model.head_dim,
    )


def linear_tensors(options: CheckpointOptions, rows: int, columns: int) -> dict[str, TensorSpec]:
    """Return the tensors of one matrix of a rank, by what follows its name."""
    plain = _STORED_DTYPES[options.dtype]
    one, prequant = TensorSpec("F32", (1,)), TensorSpec(plain, (columns,))
    algo = options.stored_algo
    if algo is None:
        return {"weight": TensorSpec(plain, (rows, columns))}
    if algo == "FP8":
        return {
            "weight": TensorSpec("F8_E4M3", (rows, columns)),
            "weights_scaling_factor": one,
            "activation_scaling_factor": one,
        }
    if algo == "W8A8_SQ_PER_CHANNEL":
        return {
            "weight": TensorSpec("I8", (rows, columns)),
            "weights_scaling_factor": TensorSpec("F32", (rows,)),
            "activation_scaling_factor": one,
            "prequant_scaling_factor": prequant,
        }
    if algo == "NVFP4":
        scalar = TensorSpec("F32", ())
        return {
            "weight": TensorSpec("U8", (rows, columns // 2)),
            "weights_scaling_factor": TensorSpec("F8_E4M3", (rows, columns // NVFP4_BLOCK)),
            "weights_scaling_factor_2": scalar,
            "activation_scaling_factor": scalar,
        }
    assert algo in AWQ_ALGOS, algo
    assert options.group_size is not None
    found = {
        "weight": TensorSpec("I8", (rows // 2, columns)),
        "weights_scaling_factor": TensorSpec("F32", (rows, columns // options.group_size)),
        "prequant_scaling_factor": prequant,
    }
    if algo == "W4A8_AWQ":
        found |= {"activation_scaling_factor": one, "weights_scaling_factor_2": one}
    return found


def _layer_tensors(source: HfCheckpoint, options: CheckpointOptions) -> Iterator[tuple[str, TensorSpec]]:
    model, tp_size = source.model, options.tp_size
    plain = _STORED_DTYPES[options.dtype]
    for name in ("input_layernorm", "post_layernorm"):
        yield f"{name}.weight", TensorSpec(plain, (model.hidden_size,))
    if "model.layers.0.self_attn.q_norm.weight" in source.tensors:
        for name in ("q_layernorm", "k_layernorm"):
            yield f"attention.{name}.weight", TensorSpec(plain, (model.head_dim,))
    query, key = qkv_rows(source, tp_size)
    sizes = {
        "attention.qkv": (query + 2 * key, model.hidden_size, "self_attn.q_proj"),
        "attention.dense": (model.hidden_size, query, "self_attn.o_proj"),
        "mlp.fc": (source.intermediate_size // tp_size, model.hidden_size, "mlp.gate_proj"),
        "mlp.gate": (source.intermediate_size // tp_size, model.hidden_size, "mlp.up_proj"),
        "mlp.proj": (model.hidden_size, source.intermediate_size // tp_size, "mlp.down_proj"),
    }
    for name, (rows, columns, original) in sizes.items():
        for kind, spec in linear_tensors(options, rows, columns).items():
            yield f"{name}.{kind}", spec
        if _has_bias(source, original):
            yield f"{name}.bias", TensorSpec(plain, (rows,))
    if options.kv_algo:
        for kind in ("k_cache", "v_cache", "kv_cache"):  # the last is the larger, for older releases
            yield f"attention.{kind}_scaling_factor", TensorSpec("F32", (1,))


def _has_bias(source: HfCheckpoint, linear: str) -> bool:
    return f"model.layers.0.{linear}.bias" in source.tensors


def _quantization(options: CheckpointOptions) -> dict[str, Any]:
    algo = options.scheme.quant_algo
    fields: dict[str, Any] = {"quant_algo": algo, "kv_cache_quant_algo": options.kv_algo}
    if options.stored_algo is None:
        # null means head, embeddings and routers; a list of the head alone would let int8 at the embeddings
        fields["exclude_modules"] = None
        return fields
    fields["exclude_modules"] = ["lm_head"]
    if algo in AWQ_ALGOS:
        fields |= {"group_size": options.group_size, "has_zero_point": False, "pre_quant_scale": True}
    if algo == "NVFP4":
        fields["group_size"] = NVFP4_BLOCK
    return fields
