"""A right TensorRT-LLM checkpoint verifies; one wrong field, tensor, scale or value of it is named."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes import trtllm_checkpoint as fake

from trtb.build.checkpoints.hf_checkpoint import HfCheckpoint
from trtb.build.checkpoints.weight_values import check_finite
from trtb.build.errors import CheckpointError, ConfigError, QuantizationError
from trtb.build.quantization import get_scheme
from trtb.build.trtllm.trtllm_checkpoint import CheckpointReport, verify_checkpoint
from trtb.build.trtllm.trtllm_tensors import CheckpointOptions

FIRST = "transformer.layers.0"
QKV = f"{FIRST}.attention.qkv"
Checkpoint = tuple[dict[str, Any], list[fake.Tensors]]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> HfCheckpoint:
    return fake.write_source(tmp_path_factory.mktemp("hf") / "llama")


def make_options(quant: str, **changes: Any) -> CheckpointOptions:
    group_size = fake.GROUP_SIZE if quant.endswith("awq") else None
    scheme = get_scheme("tensorrt_llm", quant)
    return CheckpointOptions(scheme, **{"dtype": "bf16", "group_size": group_size, **changes})


def verify(
    folder: Path, source: HfCheckpoint, checkpoint: Checkpoint, options: CheckpointOptions
) -> CheckpointReport:
    return verify_checkpoint(fake.write(folder / "checkpoint", *checkpoint), source, options)


@pytest.mark.parametrize("quant", fake.ALGOS)
def test_a_right_checkpoint_verifies(tmp_path: Path, source: HfCheckpoint, quant: str) -> None:
    report = verify(tmp_path, source, fake.export(source, quant), make_options(quant))
    assert report.is_structure_verified
    assert {summary.kind for summary in report.errors} == {
        *("attention.qkv", "attention.dense", "mlp.fc", "mlp.gate", "mlp.proj"),
    }
    worst = max(summary.worst_error for summary in report.errors)
    assert (worst == 0) == (quant in {"bf16", "int8_wo"})
    assert CheckpointReport.model_validate_json(report.model_dump_json()) == report


@pytest.mark.parametrize("quant", ["bf16", "fp8", "int4_awq", "w4a8_awq", "int8_sq", "nvfp4"])
@pytest.mark.parametrize(("tp_size", "pp_size"), [(2, 1), (2, 2)])
def test_a_split_checkpoint_verifies(
    tmp_path: Path, source: HfCheckpoint, quant: str, tp_size: int, pp_size: int
) -> None:
    checkpoint = fake.export(source, quant, tp_size=tp_size, pp_size=pp_size)
    report = verify(tmp_path, source, checkpoint, make_options(quant, tp_size=tp_size, pp_size=pp_size))
    assert report.errors[0].num_matrices == 2 * tp_size * 3  # layers, ranks, and query, key and value apart


@pytest.mark.parametrize("model_type", ["mistral", "qwen2", "qwen3", "gemma"])
def test_the_families_verify(tmp_path: Path, model_type: str) -> None:
    source = fake.write_source(tmp_path / "hf", model_type, sliding_window=None)
    assert verify(tmp_path, source, fake.export(source, "fp8"), make_options("fp8")).is_structure_verified


def test_biases_of_all_matrices_verify_on_two_ranks(tmp_path: Path) -> None:
    source = fake.write_source(tmp_path / "hf", attention_bias=True, mlp_bias=True)
    config, ranks = fake.export(source, "fp8", tp_size=2)
    verify(tmp_path, source, (config, ranks), make_options("fp8", tp_size=2))
    ranks[1][f"{FIRST}.attention.dense.bias"][1][3] += 1
    with pytest.raises(QuantizationError, match=r"rank1.*dense\.bias: row 3 differs"):
        verify(tmp_path, source, (config, ranks), make_options("fp8", tp_size=2))


def test_more_ranks_than_kv_heads_hold_the_same_head(tmp_path: Path, source: HfCheckpoint) -> None:
    checkpoint = fake.export(source, "fp8", tp_size=4)
    verify(tmp_path, source, checkpoint, make_options("fp8", tp_size=4))


def test_an_unknown_family_is_not_vouched_for(tmp_path: Path) -> None:
    source = fake.write_source(tmp_path / "hf", "mixtral", num_local_experts=2)
    config, ranks = fake.export(fake.write_source(tmp_path / "llama"), "fp8")
    report = verify(tmp_path, source, (config, ranks), make_options("fp8"))
    assert not report.is_structure_verified
    assert report.errors == []
    assert any("structure not verified" in note for note in report.notes)
    ranks[0][f"{QKV}.activation_scaling_factor"][1][0] = np.nan
    with pytest.raises(QuantizationError, match="activation_scaling_factor"):
        verify(tmp_path, source, (config, ranks), make_options("fp8"))


def test_kv_scales_verify_and_are_missed(tmp_path: Path, source: HfCheckpoint) -> None:
    options = make_options("fp8", kv_cache_dtype="fp8")
    config, ranks = fake.export(source, "fp8", kv_algo="FP8")
    verify(tmp_path, source, (config, ranks), options)
    del ranks[0][f"{FIRST}.attention.v_cache_scaling_factor"]
    with pytest.raises(QuantizationError, match=r"v_cache_scaling_factor: missing; expected F32 \[1\]"):
        verify(tmp_path, source, (config, ranks), options)


def test_weights_quantised_at_engine_time_are_noted(tmp_path: Path, source: HfCheckpoint) -> None:
    report = verify(tmp_path, source, fake.export(source, "int8_wo"), make_options("int8_wo"))
    assert report.notes == ["int8_wo quantises the weights while the engine is built"]


def test_gemma_without_a_head_cannot_be_split_into_stages(tmp_path: Path) -> None:
    source = fake.write_source(tmp_path / "hf", "gemma")
    checkpoint = fake.export(source, "fp8", pp_size=2)
    with pytest.raises(ConfigError, match="pp_size: 2"):
        verify(tmp_path, source, checkpoint, make_options("fp8", pp_size=2))


Change = Callable[[dict[str, Any], fake.Tensors], None]


def drop(name: str) -> Change:
    return lambda _config, rank: rank.__delitem__(name) and None


def replace(name: str, dtype: str, make: Callable[[np.ndarray], np.ndarray]) -> Change:
    return lambda _config, rank: rank.__setitem__(name, (dtype, make(rank[name][1])))


def put(name: str, index: Any, value: Any) -> Change:
    return lambda _config, rank: rank[name][1].__setitem__(index, value)


def field(path: str, value: Any) -> Change:
    def change(config: dict[str, Any], _rank: fake.Tensors) -> None:
        *parents, key = path.split(".")
        for parent in parents:
            config = config[parent]
        config[key] = value

    return change


def exchange(first: str, second: str) -> Change:
    """Exchange two matrices with all their companions."""

    def change(_config: dict[str, Any], rank: fake.Tensors) -> None:
        for name in [name for name in rank if name.startswith(f"{first}.")]:
            other = second + name[len(first) :]
            rank[name], rank[other] = rank[other], rank[name]

    return change


def swap_nibbles(packed: np.ndarray) -> np.ndarray:
    bits = packed.view(np.uint8)
    return ((bits >> 4) | (bits << 4)).astype(np.uint8).view(packed.dtype)


FAULTS: list[tuple[str, Change, str]] = [
    ("int4_awq", replace(f"{QKV}.weight", "I8", swap_nibbles), r"qkv\.weight .*relative error 1\.\d+"),
    ("nvfp4", replace(f"{QKV}.weight", "U8", swap_nibbles), r"qkv\.weight .*relative error 1\.\d+"),
    ("int4_awq", drop(f"{QKV}.prequant_scaling_factor"), r"qkv\.prequant_scaling_factor: missing"),
    ("int4_awq", drop(f"{QKV}.weights_scaling_factor"), r"qkv\.weights_scaling_factor: missing"),
    ("w4a8_awq", drop(f"{QKV}.weights_scaling_factor_2"), r"qkv\.weights_scaling_factor_2: missing"),
    ("fp8", drop(f"{QKV}.activation_scaling_factor"), r"qkv\.activation_scaling_factor: missing"),
    ("fp8", drop("lm_head.weight"), r"lm_head\.weight: missing; expected BF16 \[264, 64\]"),
    (
        "fp8",
        drop("transformer.layers.1.input_layernorm.weight"),
        r"layers\.1\.input_layernorm\.weight: missing",
    ),
    # unquantised weights under a quantised label
    (
        "int4_awq",
        replace(f"{QKV}.weight", "BF16", lambda _: np.zeros((256, 64), np.uint16)),
        r"qkv\.weight: BF16",
    ),
    (
        "fp8",
        replace(f"{QKV}.weight", "I8", lambda v: v.view(np.int8)),
        r"qkv\.weight: I8 .*; expected F8_E4M3",
    ),
    (
        "fp8",
        replace(f"{FIRST}.mlp.fc.weight", "F8_E4M3", lambda v: v[:64]),
        r"mlp\.fc\.weight: F8_E4M3 \[64, 64\]",
    ),
    (
        "int8_sq",
        replace(f"{QKV}.weights_scaling_factor", "F32", lambda v: v[:1]),
        r"F32 \[1\]; expected F32 \[256\]",
    ),
    ("fp8", put(f"{QKV}.weights_scaling_factor", 0, np.nan), r"qkv\.weights_scaling_factor: nan"),
    ("fp8", put(f"{QKV}.activation_scaling_factor", 0, 0.0), r"qkv\.activation_scaling_factor: 0\.0"),
    ("int4_awq", put(f"{QKV}.weights_scaling_factor", (3, 0), -1.0), r"qkv\.weights_scaling_factor: -1\.0"),
    ("int4_awq", put(f"{QKV}.prequant_scaling_factor", 5, 0x7FC0), r"qkv\.prequant_scaling_factor: nan"),
    ("nvfp4", put(f"{QKV}.weights_scaling_factor", (0, 0), 0x7F), r"qkv\.weights_scaling_factor: nan"),
    ("nvfp4", put(f"{QKV}.weights_scaling_factor_2", (), 0.0), r"qkv\.weights_scaling_factor_2: 0\.0"),
    ("fp8", put(f"{QKV}.weight", (9, 9), 0x7F), r"qkv\.weight: not a number"),
    ("fp8", put(f"{QKV}.weight", ..., 0), r"qkv\.weight .*relative error 1\.000"),
    ("bf16", put(f"{QKV}.weight", (130, 7), 0x3F80), r"qkv\.weight: row 130 differs .*k_proj"),
    ("fp8", put("transformer.ln_f.weight", 1, 0x3F80), r"ln_f\.weight: row 1 differs .*model\.norm"),
    ("fp8", put("transformer.vocab_embedding.weight", (263, 0), 0), r"vocab_embedding\.weight: row 263"),
    ("int4_awq", put("lm_head.weight", (300, 0), 0x3F80), r"lm_head\.weight: row 300"),
    *(
        (quant, exchange(f"{FIRST}.mlp.fc", f"{FIRST}.mlp.gate"), r"mlp\.\w+\.weight .*relative error 1\.")
        for quant in ("fp8", "int4_awq", "w4a8_awq", "int8_sq", "nvfp4")
    ),
    ("bf16", exchange(f"{FIRST}.mlp.fc", f"{FIRST}.mlp.gate"), r"mlp\.fc\.weight: row 0 differs .*gate_proj"),
    ("fp8", exchange(FIRST, "transformer.layers.1"), r"layers\.0\.\w+\.weight: row 0 differs"),
    ("fp8", lambda _c, rank: rank.__setitem__(f"{FIRST}.extra", ("F32", np.ones(1, np.float32))), "extra"),
    ("fp8", field("rotary_base", 10000.0), r"rotary_base: 10000\.0; expected 100000\.0"),
    ("fp8", lambda config, _: config.pop("rotary_base"), r"rotary_base: null; expected 100000\.0"),
    ("fp8", field("rotary_scaling", {"rope_type": "linear", "factor": 2.0}), r"rotary_scaling"),
    ("int4_awq", field("quantization.group_size", 128), r"quantization\.group_size: 128; expected 64"),
    ("int4_awq", field("quantization.pre_quant_scale", False), r"pre_quant_scale: false; expected true"),
    ("fp8", field("quantization.quant_algo", None), r'quant_algo: null; expected "FP8"'),
    ("fp8", field("quantization.kv_cache_quant_algo", "FP8"), r'kv_cache_quant_algo: "FP8"; expected null'),
    ("int8_wo", field("quantization.exclude_modules", ["lm_head"]), r"exclude_modules"),
    ("fp8", field("architecture", "MistralForCausalLM"), r"architecture"),
    ("fp8", field("mapping.tp_size", 2), r"mapping\.tp_size: 2; expected 1"),
    ("fp8", field("vocab_size", 320), r"vocab_size: 320; expected 264"),
    ("fp8", field("norm_epsilon", 1e-6), r"norm_epsilon"),
    ("fp8", field("attn_bias", True), r"attn_bias: true; expected false"),
    ("fp8", field("dtype", "float16"), r'dtype: "float16"; expected "bfloat16"'),
]


@pytest.mark.parametrize(("quant", "change", "message"), FAULTS, ids=[f"{q}-{m}" for q, _, m in FAULTS])
def test_one_fault_is_named(
    tmp_path: Path, source: HfCheckpoint, quant: str, change: Change, message: str
) -> None:
    config, ranks = copy.deepcopy(fake.export(source, quant))
    change(config, ranks[0])
    with pytest.raises(QuantizationError, match=message):
        verify(tmp_path, source, (config, ranks), make_options(quant))


@pytest.mark.parametrize("quant", ["bf16", "fp8"])
def test_a_source_that_is_no_number_is_the_checkpoint_s_fault(tmp_path: Path, quant: str) -> None:
    source = fake.write_source(tmp_path / "hf")
    checkpoint = fake.export(source, quant)
    tensor = source.tensors["model.layers.0.mlp.gate_proj.weight"]
    with tensor.path.open("r+b") as file:
        file.seek(tensor.offset)
        file.write(b"\xff" * 4)
    with pytest.raises(CheckpointError, match=r"mlp\.gate_proj\.weight: NaN or infinity in the"):
        verify(tmp_path, source, checkpoint, make_options(quant))
    with pytest.raises(CheckpointError, match=r"mlp\.gate_proj\.weight: NaN or infinity"):
        check_finite(source.tensors.values())


def test_rope_scaling_is_held_against_the_checkpoint(tmp_path: Path) -> None:
    scaling = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 128,
    }
    source = fake.write_source(tmp_path / "hf", rope_scaling=scaling)
    config, ranks = fake.export(source, "fp8")
    verify(tmp_path, source, (config, ranks), make_options("fp8"))
    del config["rotary_scaling"]
    with pytest.raises(QuantizationError, match=r"rotary_scaling: null; expected .*llama3"):
        verify(tmp_path, source, (config, ranks), make_options("fp8"))


def test_a_missing_rank_a_spare_one_and_other_files_are_named(tmp_path: Path, source: HfCheckpoint) -> None:
    config, ranks = fake.export(source, "fp8", tp_size=2)
    options = make_options("fp8", tp_size=2)
    folder = fake.write(tmp_path / "missing", config, ranks[:1])
    with pytest.raises(QuantizationError, match=r"rank1\.safetensors: not found"):
        verify_checkpoint(folder, source, options)
    folder = fake.write(tmp_path / "spare", config, [*ranks, ranks[0]])
    with pytest.raises(QuantizationError, match=r"rank2\.safetensors: not expected"):
        verify_checkpoint(folder, source, options)
    folder = fake.write(tmp_path / "other", config, ranks)
    (folder / "quant_cfg.json").write_text("{}")
    with pytest.raises(QuantizationError, match=r"quant_cfg\.json: not expected"):
        verify_checkpoint(folder, source, options)


def test_exchanged_ranks_are_named(tmp_path: Path, source: HfCheckpoint) -> None:
    config, ranks = fake.export(source, "int4_awq", tp_size=2)
    with pytest.raises(QuantizationError, match=r"rank0\.safetensors: transformer"):
        verify(tmp_path, source, (config, ranks[::-1]), make_options("int4_awq", tp_size=2))


def test_a_truncated_rank_and_a_broken_config_are_named(tmp_path: Path, source: HfCheckpoint) -> None:
    folder = fake.write(tmp_path / "checkpoint", *fake.export(source, "fp8"))
    path = folder / "rank0.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    with pytest.raises(QuantizationError, match=re.escape(f"{len(whole) - 1} bytes; expected {len(whole)}")):
        verify_checkpoint(folder, source, make_options("fp8"))
    path.write_bytes(whole)
    for text, message in (('{"a": 1, "a": 2}', "twice"), ("[]", "a list"), ("{", "not JSON")):
        (folder / "config.json").write_text(text)
        with pytest.raises(QuantizationError, match=message):
            verify_checkpoint(folder, source, make_options("fp8"))
    (folder / "config.json").unlink()
    with pytest.raises(QuantizationError, match="not found"):
        verify_checkpoint(folder, source, make_options("fp8"))


def test_a_whole_kind_that_is_too_coarse_is_named(tmp_path: Path, source: HfCheckpoint) -> None:
    config, ranks = fake.export(source, "fp8")
    for name, (dtype, values) in ranks[0].items():
        if name.endswith("mlp.proj.weight"):  # a bit less: each is bad, none is another matrix
            ranks[0][name] = (dtype, values & 0xFE)
    with pytest.raises(QuantizationError, match=r"mlp\.proj: median relative error 0\.0[5-7]"):
        verify(tmp_path, source, (config, ranks), make_options("fp8"))
