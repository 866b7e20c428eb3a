"""A Hugging Face folder as a checkpoint: its facts, its tensors, and what does not fit together."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from fakes.hf_folder import CONFIG, Tensors, write_folder, write_shard

from trtb.build.checkpoints.hf_checkpoint import Linear, load_tensor, read_hf
from trtb.build.checkpoints.hf_config import FAMILIES, expected_tensors, read_config
from trtb.build.errors import CheckpointError, CheckpointUnsupportedError


def llama_tensors(dtype: str = "BF16", **changes: tuple[str, tuple[int, ...]] | None) -> Tensors:
    """The tensors of CONFIG's model; `changes` replaces some, or leaves them out."""
    tensors = {name: (dtype, shape) for name, shape in expected_tensors("", CONFIG).items()}
    return {name: value for name, value in {**tensors, **changes}.items() if value is not None}


@pytest.mark.parametrize("num_shards", [1, 3])
def test_the_facts_come_from_the_headers(tmp_path: Path, num_shards: int) -> None:
    folder = write_folder(tmp_path / "model", num_shards=num_shards)
    found = read_hf(folder)
    embedding = 2 * 264 * 16
    layer = 2 * 16 * 16 + 2 * 16 * 8 + 3 * 16 * 24 + 2 * 16
    assert found.num_parameters == embedding + 2 * layer + 16 == read_config(CONFIG).num_parameters
    assert found.weight_bytes == 2 * found.num_parameters
    assert (found.dtype, found.has_tied_embeddings, found.intermediate_size) == ("bf16", False, 24)
    assert (found.rope_theta, found.rope_scaling) == (10000.0, None)
    assert found.model.head_dim == 4
    assert len(found.weight_files) == num_shards
    assert found.config == CONFIG
    assert found.tokens.model_dump() == {"bos": None, "pad": 2, "eos": [2, 0]}
    norm = load_tensor(found, "model.norm.weight")
    assert norm.dtype == "float32"
    assert norm.shape == (16,)
    with pytest.raises(CheckpointError, match=r"no tensor model\.norm\.bias"):
        load_tensor(found, "model.norm.bias")


@pytest.mark.parametrize("model_type", FAMILIES)
def test_every_family_is_read(tmp_path: Path, model_type: str) -> None:
    folder = write_folder(tmp_path / "model", {"model_type": model_type, "head_dim": 4}, dtype="F16")
    found = read_hf(folder)
    assert (found.model.architecture, found.dtype) == (model_type, "f16")
    assert found.num_parameters == read_config(folder).num_parameters
    assert sum(tensor.size_bytes for tensor in found.tensors.values()) == found.weight_bytes


def test_the_kinds_of_matrices_are_those_of_a_layer(tmp_path: Path) -> None:
    assert read_hf(write_folder(tmp_path / "model")).linears() == (
        Linear("attention.qkv", 16, 16 + 8 + 8, is_row_parallel=False),
        Linear("attention.dense", 16, 16, is_row_parallel=True),
        Linear("mlp.fc", 16, 24, is_row_parallel=False),
        Linear("mlp.gate", 16, 24, is_row_parallel=False),
        Linear("mlp.proj", 24, 16, is_row_parallel=True),
    )


def test_a_second_copy_of_a_tied_embedding_does_not_count(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "model", {"tie_word_embeddings": True})
    alone = read_hf(folder)
    write_shard(folder / "model.safetensors", llama_tensors())
    both = read_hf(folder)
    assert "lm_head.weight" in both.tensors
    assert (both.num_parameters, both.weight_bytes) == (alone.num_parameters, alone.weight_bytes)


def test_a_few_norms_of_another_type_do_not_make_the_dtype(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "model")
    write_shard(folder / "model.safetensors", llama_tensors(**{"model.norm.weight": ("F32", (16,))}))
    assert read_hf(folder).dtype == "bf16"


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"model.norm.weight": None}, CheckpointError, r"no tensor model\.norm\.weight; .* shape \[16\]"),
        ({"model.norm.weight": ("BF16", (8,))}, CheckpointError, r"shape \[8\]; config\.json expects \[16\]"),
        (
            {"model.layers.0.self_attn.q_proj.bias": ("BF16", (16,))},
            CheckpointUnsupportedError,
            r"q_proj\.bias \(1 such\): no part of a model",
        ),
        (
            {"model.layers.2.input_layernorm.weight": ("BF16", (16,))},
            CheckpointUnsupportedError,
            r"layers\.2\.input_layernorm",
        ),
        ({"model.norm.weight": ("I8", (16,))}, CheckpointUnsupportedError, "type I8; expected one of BF16"),
    ],
)
def test_weights_that_are_not_the_config_s_are_refused(
    tmp_path: Path, changes: dict[str, Any], error: type[CheckpointError], message: str
) -> None:
    folder = write_folder(tmp_path / "model")
    write_shard(folder / "model.safetensors", llama_tensors(**changes))
    with pytest.raises(error, match=message):
        read_hf(folder)


def test_buffers_that_can_be_computed_are_let_be(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "model")
    buffer = {"model.layers.0.self_attn.rotary_emb.inv_freq": ("F32", (2,))}
    write_shard(folder / "model.safetensors", llama_tensors(**buffer))
    assert read_hf(folder).num_parameters == read_config(CONFIG).num_parameters


def test_weights_that_are_quantised_already_are_refused(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "model", {"quantization_config": {"quant_method": "gptq"}})
    with pytest.raises(CheckpointUnsupportedError, match="quantised already"):
        read_hf(folder)


def test_the_portable_config_has_the_keys_of_both_versions(tmp_path: Path) -> None:
    rope = {"rope_theta": 5e5, "rope_type": "linear", "factor": 2.0}
    folder = write_folder(
        tmp_path / "model", {"rope_parameters": rope, "dtype": "bfloat16", "auto_map": {"a": "b"}}
    )
    found = read_hf(folder).portable_config()
    assert not {"rope_parameters", "dtype", "auto_map"} & set(found)
    assert found["torch_dtype"] == "bfloat16"
    assert (found["rope_theta"], found["rope_scaling"]) == (5e5, {"rope_type": "linear", "factor": 2.0})
    assert (found["head_dim"], found["num_key_value_heads"], found["tie_word_embeddings"]) == (4, 2, False)
    assert (found["eos_token_id"], found["pad_token_id"]) == ([2, 0], 2)
    (folder / "config.json").write_text(json.dumps(found))
    assert read_hf(folder).portable_config() == found
