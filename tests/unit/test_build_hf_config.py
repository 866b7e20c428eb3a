"""config.json: the sizes of known models come out as published, and what is not known is refused."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from trtb.build.checkpoints.hf_config import expected_tensors, has_tied_embeddings, read_config, read_rope
from trtb.build.errors import CheckpointError, CheckpointUnsupportedError


def config(
    model_type: str, vocab: int, hidden: int, layers: int, heads: int, inner: int, **more: Any
) -> dict[str, Any]:
    return {
        "model_type": model_type,
        "vocab_size": vocab,
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": inner,
        "max_position_embeddings": 4096,
        **more,
    }


PUBLISHED = {
    "Llama-2-7B": (config("llama", 32000, 4096, 32, 32, 11008), 6738415616),
    "Llama-3-8B": (config("llama", 128256, 4096, 32, 32, 14336, num_key_value_heads=8), 8030261248),
    "Llama-3.2-1B": (
        config(
            "llama", 128256, 2048, 16, 32, 8192, num_key_value_heads=8, head_dim=64, tie_word_embeddings=True
        ),
        1235814400,
    ),
    "Mistral-7B": (config("mistral", 32000, 4096, 32, 32, 14336, num_key_value_heads=8), 7241732096),
    "Mistral-Nemo": (
        config("mistral", 131072, 5120, 40, 32, 14336, num_key_value_heads=8, head_dim=128),
        12247782400,
    ),
    "Mixtral-8x7B": (
        config("mixtral", 32000, 4096, 32, 32, 14336, num_key_value_heads=8, num_local_experts=8),
        46702792704,
    ),
    "Qwen2.5-7B": (config("qwen2", 152064, 3584, 28, 28, 18944, num_key_value_heads=4), 7615616512),
    "Qwen2.5-0.5B": (
        config("qwen2", 151936, 896, 24, 14, 4864, num_key_value_heads=2, tie_word_embeddings=True),
        494032768,
    ),
    "Qwen3-8B": (
        config("qwen3", 151936, 4096, 36, 32, 12288, num_key_value_heads=8, head_dim=128),
        8190735360,
    ),
    "Gemma-2B": (
        config("gemma", 256000, 2048, 18, 8, 16384, num_key_value_heads=1, head_dim=256),
        2506172416,
    ),
    "Gemma-2-2B": (
        config("gemma2", 256000, 2304, 26, 8, 9216, num_key_value_heads=4, head_dim=256),
        2614341888,
    ),
    "SmolLM2-135M": (
        config("llama", 49152, 576, 30, 9, 1536, num_key_value_heads=3, tie_word_embeddings=True),
        134515008,
    ),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_models_have_their_published_number_of_parameters(name: str) -> None:
    found, num_parameters = PUBLISHED[name]
    assert read_config(found).num_parameters == num_parameters
    assert sum(map(math.prod, expected_tensors(name, found).values())) == num_parameters


def test_the_sizes_are_read_from_a_folder_a_file_or_an_object(tmp_path: Path) -> None:
    found, _ = PUBLISHED["Mistral-Nemo"]
    (tmp_path / "config.json").write_text(json.dumps(found))
    shape = read_config(found)
    assert shape == read_config(tmp_path) == read_config(tmp_path / "config.json")
    model, intermediate_size, _ = shape
    assert model.model_dump() == {
        "architecture": "mistral",
        "num_layers": 40,
        "num_heads": 32,
        "num_kv_heads": 8,
        "head_dim": 128,
        "hidden_size": 5120,
        "vocab_size": 131072,
        "max_position_embeddings": 4096,
    }
    assert intermediate_size == 14336


def test_what_a_config_leaves_out_is_its_class_s_default() -> None:
    assert read_config(config("llama", 10, 64, 1, 4, 8)).model.num_kv_heads == 4
    assert read_config(config("llama", 10, 64, 1, 4, 8, head_dim=None)).model.head_dim == 16
    assert read_config(config("qwen3", 10, 64, 1, 4, 8)).model.head_dim == 128
    assert not has_tied_embeddings("", config("llama", 10, 64, 1, 4, 8))
    assert has_tied_embeddings("", config("gemma", 10, 64, 1, 4, 8))
    assert not has_tied_embeddings("", config("gemma", 10, 64, 1, 4, 8, tie_word_embeddings=False))


def test_biases_are_expected_where_the_config_says_so() -> None:
    def biases(found: dict[str, Any]) -> list[str]:
        names = [name for name in expected_tensors("", found) if name.endswith(".bias")]
        return [name.removeprefix("model.layers.0.").removesuffix("_proj.bias") for name in names]

    assert biases(config("llama", 10, 64, 1, 4, 8)) == []
    assert biases(config("llama", 10, 64, 1, 4, 8, attention_bias=True)) == [
        f"self_attn.{name}" for name in "qkvo"
    ]
    assert biases(config("llama", 10, 64, 1, 4, 8, mlp_bias=True)) == ["mlp.gate", "mlp.up", "mlp.down"]
    assert biases(config("qwen2", 10, 64, 1, 4, 8)) == [f"self_attn.{name}" for name in "qkv"]
    assert biases(config("mistral", 10, 64, 1, 4, 8, attention_bias=True)) == []


LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


@pytest.mark.parametrize(
    ("keys", "theta", "scaling"),
    [
        ({}, 10000.0, None),
        ({"rope_theta": 500000}, 500000.0, None),
        ({"rope_theta": 1e5, "rope_scaling": None}, 1e5, None),
        ({"rope_parameters": {"rope_theta": 1e5, "rope_type": "default"}}, 1e5, None),
        (
            {"rope_theta": 5e5, "rope_scaling": {"rope_type": "llama3", **LLAMA3}},
            5e5,
            {"rope_type": "llama3", **LLAMA3},
        ),
        (
            {"rope_parameters": {"rope_theta": 5e5, "rope_type": "llama3", **LLAMA3}},
            5e5,
            {"rope_type": "llama3", **LLAMA3},
        ),
        (
            {"rope_scaling": {"type": "linear", "factor": 2.0}},
            10000.0,
            {"rope_type": "linear", "factor": 2.0},
        ),
    ],
)
def test_rope_is_read_from_the_keys_of_both_versions(
    keys: dict[str, Any], theta: float, scaling: dict[str, Any] | None
) -> None:
    assert read_rope("", config("llama", 10, 64, 1, 4, 8, **keys)) == (theta, scaling)


def test_a_family_s_own_theta_is_the_default() -> None:
    assert read_rope("", config("mixtral", 10, 64, 1, 4, 8)) == (1e6, None)


@pytest.mark.parametrize("keys", [{"rope_theta": 0}, {"rope_theta": "1e5"}, {"rope_parameters": [1]}])
def test_a_rope_that_is_none_is_refused(keys: dict[str, Any]) -> None:
    with pytest.raises(CheckpointError, match="rope"):
        read_rope("config.json", config("llama", 10, 64, 1, 4, 8, **keys))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": None}, "hidden_size: None; expected a positive whole number"),
        ({"num_hidden_layers": 0}, "num_hidden_layers: 0"),
        ({"vocab_size": True}, "vocab_size: True"),
        ({"intermediate_size": "8"}, "intermediate_size: '8'"),
        ({"num_key_value_heads": 3}, "num_key_value_heads: 3; expected a divisor of 4 heads"),
        ({"num_attention_heads": 128, "head_dim": None}, "head_dim: 0"),
    ],
)
def test_a_size_that_is_none_is_refused_by_its_key(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        read_config({**config("llama", 10, 64, 1, 4, 8), **changes})


@pytest.mark.parametrize("model_type", ["mamba", None, "mistral3"])
def test_a_family_that_is_not_known_is_refused(model_type: Any) -> None:
    with pytest.raises(CheckpointUnsupportedError, match=r"model_type: .*; expected one of llama, mistral"):
        read_config({"model_type": model_type, "text_config": config("llama", 10, 64, 1, 4, 8)})


def test_a_config_that_is_not_there_is_an_error_of_the_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"config\.json: not found"):
        read_config(tmp_path)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"rms_norm_eps": "1e-5"}, r"rms_norm_eps: '1e-5'; expected a number between 0 and 1"),
        ({"rms_norm_eps": 0}, r"rms_norm_eps: 0; expected"),
        ({"rms_norm_eps": math.nan}, r"rms_norm_eps: nan; expected"),
        ({"hidden_act": "evil"}, r"hidden_act: 'evil'; expected one of silu,"),
        ({"hidden_act": ["silu"]}, r"hidden_act: \['silu'\]; expected one of silu,"),
        ({"hidden_activation": "evil"}, r"hidden_activation: 'evil'"),
        ({"tie_word_embeddings": "yes"}, r"tie_word_embeddings: 'yes'; expected true or false"),
        ({"attention_bias": 1}, r"attention_bias: 1; expected true or false"),
        ({"torch_dtype": 5}, r"torch_dtype: 5; expected one of auto, bfloat16"),
        ({"architectures": [5]}, r"architectures: \[5\]; expected a list like"),
        ({"architectures": []}, r"architectures: \[\]; expected a list like"),
        ({"max_position_embeddings": 1}, r"max_position_embeddings: 1; expected .* at least 16"),
        (
            {"rope_scaling": {"type": "linear", "factor": "x"}},
            r"rope_scaling\.factor: 'x'; expected",
        ),
        ({"rope_scaling": {"type": "linear"}}, r"rope_scaling\.factor: not there; 'linear' needs it"),
        (
            {"rope_scaling": {"type": "evil", "factor": 2}},
            r"rope_scaling\.rope_type: 'evil'; expected",
        ),
        ({"rope_scaling": {"type": ["x"], "factor": 2}}, r"rope_scaling\.rope_type: .*; expected one of"),
        (
            {"rope_scaling": {"type": "longrope", "short_factor": [1, "x"], "long_factor": [1]}},
            r"rope_scaling\.short_factor: .*; expected a list of positive numbers",
        ),
        ({"model_type": ["llama"]}, r"model_type: \['llama'\]; expected one of"),
    ],
)
def test_a_value_that_a_library_dies_of_is_refused_with_its_key(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=f"config.json: {message}"):
        read_config(config("llama", 10, 64, 1, 4, 8) | keys)


@pytest.mark.parametrize(
    "keys",
    [
        {"hidden_act": "silu", "rms_norm_eps": 1e-5, "torch_dtype": "bfloat16", "attention_bias": False},
        {"hidden_act": "gelu_pytorch_tanh", "hidden_activation": None, "torch_dtype": "torch.float16"},
        {"rope_scaling": {"type": "yarn", "factor": 4, "beta_fast": 32.0, "truncate": False}},
        {"rope_scaling": None, "tie_word_embeddings": None, "architectures": ["LlamaForCausalLM"]},
    ],
)
def test_what_published_models_say_is_taken(keys: dict[str, Any]) -> None:
    assert read_config(config("llama", 10, 64, 1, 4, 8) | keys).model.hidden_size == 64
