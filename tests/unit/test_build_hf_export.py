"""From a GGUF file to a Hugging Face folder: the same model, to the rounding of bfloat16."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from fakes.gguf_file import FFN, HEAD_DIM, HEADS, HIDDEN, KV_HEADS, TEMPLATE, write_tiny
from hypothesis import given
from hypothesis import strategies as st

from trtb.build.checkpoints import hf_export
from trtb.build.checkpoints.gguf_checkpoint import read_gguf
from trtb.build.checkpoints.hf_checkpoint import load_tensor, read_hf, write_tokenizer
from trtb.build.checkpoints.hf_export import unpermute, write_hf
from trtb.build.checkpoints.safetensors_file import from_bf16, to_bf16
from trtb.build.errors import CheckpointError, CheckpointUnsupportedError
from trtb.build.files import sha256_file

BIASES = {
    f"blk.{layer}.attn_{name}.bias": (size,)
    for layer in range(2)
    for name, size in (("q", HIDDEN), ("k", KV_HEADS * HEAD_DIM), ("v", KV_HEADS * HEAD_DIM))
}
NORMS = {f"blk.{layer}.attn_{name}_norm.weight": (HEAD_DIM,) for layer in range(2) for name in ("q", "k")}
OUTPUT = {"output.weight": (267, HIDDEN)}


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("export")
    source = write_tiny(folder / "tiny.gguf")
    write_hf(read_gguf(source), folder / "hf")
    return source, folder / "hf"


def permute(rows: np.ndarray[Any, Any], num_heads: int) -> np.ndarray[Any, Any]:
    """What llama.cpp's converter does to Q and K."""
    heads = rows.reshape(num_heads, 2, rows.shape[0] // num_heads // 2, *rows.shape[1:])
    return heads.swapaxes(1, 2).reshape(rows.shape)


@given(st.integers(1, 5), st.integers(1, 6), st.integers(0, 3))
def test_the_order_of_rows_goes_there_and_back(num_heads: int, half: int, columns: int) -> None:
    shape = (num_heads * half * 2, columns) if columns else (num_heads * half * 2,)
    rows = np.arange(np.prod(shape)).reshape(shape)
    assert np.array_equal(unpermute(permute(rows, num_heads), num_heads), rows)
    assert np.array_equal(permute(unpermute(rows, num_heads), num_heads), rows)


def rotated(x: np.ndarray[Any, Any], position: int, *, is_interleaved: bool) -> np.ndarray[Any, Any]:
    """Apply RoPE to one head: pairs of neighbours as llama.cpp has it, or of both halves as transformers."""
    half = len(x) // 2
    angle = position * 10000.0 ** (-np.arange(half) / half)
    first, second = (x[0::2], x[1::2]) if is_interleaved else (x[:half], x[half:])
    turned = first * np.cos(angle) - second * np.sin(angle), first * np.sin(angle) + second * np.cos(angle)
    return np.stack(turned, 1).reshape(-1) if is_interleaved else np.concatenate(turned)


def test_attention_scores_are_those_of_the_gguf_file(exported: tuple[Path, Path]) -> None:
    source, folder = exported
    tensors = {tensor.name: tensor for tensor in read_gguf(source).reader.tensors}
    checkpoint = read_hf(folder)
    x, y = np.random.default_rng(1).standard_normal((2, HIDDEN))
    scores = []
    for is_interleaved in (True, False):
        if is_interleaved:
            names = ("blk.0.attn_q.weight", "blk.0.attn_k.weight")
            query, key = (gguf.quants.dequantize(tensors[n].data, tensors[n].tensor_type) for n in names)
        else:
            prefix = "model.layers.0.self_attn"
            query, key = (load_tensor(checkpoint, f"{prefix}.{name}_proj.weight") for name in ("q", "k"))
        queries = (query @ x).reshape(HEADS, HEAD_DIM)
        keys = (key @ y).reshape(KV_HEADS, HEAD_DIM)
        scores.append(
            [
                rotated(head, 7, is_interleaved=is_interleaved)
                @ rotated(keys[0], 3, is_interleaved=is_interleaved)
                for head in queries
            ]
        )
    assert scores[0] == pytest.approx(scores[1], rel=0.02)


def test_every_tensor_is_the_dequantised_one_rounded(exported: tuple[Path, Path]) -> None:
    source, folder = exported
    checkpoint = read_hf(folder)
    tensors = read_gguf(source).reader.tensors
    assert len(tensors) == len(checkpoint.tensors)
    for tensor in tensors:
        wanted = from_bf16(to_bf16(gguf.quants.dequantize(tensor.data, tensor.tensor_type)))
        if "attn_q" in tensor.name or "attn_k" in tensor.name:
            heads = HEADS if "attn_q" in tensor.name else KV_HEADS
            wanted = wanted.reshape(heads, HEAD_DIM // 2, 2, HIDDEN).swapaxes(1, 2).reshape(-1, HIDDEN)
        found = load_tensor(checkpoint, hf_export.hf_name(read_gguf(source), tensor.name))
        assert np.array_equal(found, wanted), tensor.name


def test_the_folder_is_the_same_checkpoint(exported: tuple[Path, Path]) -> None:
    source, folder = exported
    wanted, found = read_gguf(source), read_hf(folder)
    assert (found.model, found.tokens) == (wanted.model, wanted.tokens)
    assert (found.num_parameters, found.dtype) == (wanted.num_parameters, "bf16")
    assert (found.intermediate_size, found.has_tied_embeddings) == (FFN, True)
    assert found.config["rms_norm_eps"] == 1e-5
    assert found.config["rope_theta"] == 10000.0
    assert found.config["rope_scaling"] is None
    tokenizer = json.loads((folder / "tokenizer_config.json").read_text())
    assert (tokenizer["eos_token"], tokenizer["chat_template"]) == ("<|im_end|>", TEMPLATE)
    assert tokenizer["model_input_names"] == ["input_ids", "attention_mask"]


def test_the_same_file_gives_the_same_bytes(exported: tuple[Path, Path], tmp_path: Path) -> None:
    source, folder = exported
    write_hf(read_gguf(source), tmp_path)
    assert [sha256_file(path) for path in sorted(tmp_path.iterdir())] == [
        sha256_file(path) for path in sorted(folder.iterdir())
    ]


def test_a_large_tensor_is_converted_in_parts_with_the_same_result(
    exported: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, folder = exported
    monkeypatch.setattr(hf_export, "_CHUNK_VALUES", 3 * HIDDEN)
    write_hf(read_gguf(source), tmp_path)
    assert sha256_file(tmp_path / "model.safetensors") == sha256_file(folder / "model.safetensors")


def test_an_engine_s_tokenizer_is_the_same_by_either_road(
    exported: tuple[Path, Path], tmp_path: Path
) -> None:
    from trtb.build.checkpoints.tokenizer import write_tokenizer as write_gguf_tokenizer

    source, folder = exported
    write_gguf_tokenizer(read_gguf(source), tmp_path / "gguf")
    write_tokenizer(read_hf(folder), tmp_path / "hf")
    names = sorted(path.name for path in (tmp_path / "gguf").iterdir())
    assert names == sorted(path.name for path in (tmp_path / "hf").iterdir())
    for name in names:
        read = [(tmp_path / form / name).read_text() for form in ("gguf", "hf")]
        if name.endswith(".json"):
            read = [json.loads(text) for text in read]
        assert read[0] == read[1], name


@pytest.mark.parametrize(
    ("architecture", "extra", "is_biased", "is_tied"),
    [("qwen2", BIASES, True, True), ("qwen3", NORMS, False, True), ("llama", OUTPUT, False, False)],
)
def test_other_families_are_exported(
    tmp_path: Path, architecture: str, extra: dict[str, tuple[int, ...]], is_biased: bool, is_tied: bool
) -> None:
    changes = {f"{architecture}.attention.key_length": HEAD_DIM}
    source = write_tiny(tmp_path / "a.gguf", architecture=architecture, changes=changes, extra_tensors=extra)
    write_hf(read_gguf(source), tmp_path / "hf")
    found = read_hf(tmp_path / "hf")
    assert found.model == read_gguf(source).model
    assert (found.config["attention_bias"], found.has_tied_embeddings) == (is_biased, is_tied)
    tensor = next(
        tensor for tensor in read_gguf(source).reader.tensors if tensor.name == "blk.0.attn_q.weight"
    )
    straight = from_bf16(to_bf16(gguf.quants.dequantize(tensor.data, tensor.tensor_type)))
    query = load_tensor(found, "model.layers.0.self_attn.q_proj.weight")
    # only Llama's rows are in another order
    assert np.array_equal(query, straight) is (architecture != "llama")


def test_a_file_that_lacks_a_tensor_is_refused(exported: tuple[Path, Path], tmp_path: Path) -> None:
    source = read_gguf(write_tiny(tmp_path / "a.gguf", extra_tensors={"blk.2.attn_norm.weight": (HIDDEN,)}))
    with pytest.raises(CheckpointUnsupportedError, match=r"layers\.2\.input_layernorm"):
        write_hf(source, tmp_path / "hf")
    source = read_gguf(write_tiny(tmp_path / "b.gguf", changes={"llama.block_count": 3}))
    with pytest.raises(CheckpointError, match=r"no tensor model\.layers\.2"):
        write_hf(source, tmp_path / "hf")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"architecture": "gemma3"}, "architecture 'gemma3'"),
        ({"changes": {"llama.rope.scaling.type": "yarn"}}, "scaled RoPE .yarn."),
        ({"extra_tensors": {"rope_freqs.weight": (16,)}}, "scaled RoPE"),
        ({"extra_tensors": {"blk.0.ffn_gate_inp.weight": (2, 64)}}, r"tensor blk\.0\.ffn_gate_inp\.weight"),
        ({"pre": "deepseek-llm"}, "pre-tokeniser 'deepseek-llm'"),
    ],
)
def test_what_a_folder_would_not_hold_is_refused(
    tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    source = read_gguf(write_tiny(tmp_path / "other.gguf", **options))
    with pytest.raises(CheckpointUnsupportedError, match=message):
        write_hf(source, tmp_path / "hf")
