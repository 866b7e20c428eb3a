"""ModelOpt makes TensorRT-LLM checkpoints on this CPU, and trtb verifies and measures what it made."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from fakes import trtllm_checkpoint as fake

from trtb.build import checkpoint, quality
from trtb.build.checkpoints import hf_export
from trtb.build.checkpoints.gguf_checkpoint import read_gguf
from trtb.build.checkpoints.hf_checkpoint import HfCheckpoint, read_hf
from trtb.build.checkpoints.safetensors_file import TensorSpec, write_safetensors
from trtb.build.errors import CheckpointUnsupportedError, ConfigError, InsufficientMemoryError
from trtb.build.quantization import get_scheme
from trtb.build.toolchain import get_toolchain
from trtb.build.trtllm.modelopt_request import WORKER_SCRIPT, ExportResult, make_request, read_result
from trtb.build.trtllm.trtllm_checkpoint import CheckpointReport, verify_checkpoint
from trtb.build.trtllm.trtllm_tensors import CheckpointOptions
from trtb.build.worker import run_worker

pytestmark = pytest.mark.slow

MODEL = "smollm2-135m-instruct"
NUM_CUT_LAYERS = 4


@pytest.fixture(scope="module")
def python(toolchain_home: Path) -> Path:
    return get_toolchain("modelopt", toolchain_home).python


@pytest.fixture(scope="module")
def smollm2(model_home: Path, tmp_path_factory: pytest.TempPathFactory) -> HfCheckpoint:
    """SmolLM2 as a Hugging Face folder."""
    folder = tmp_path_factory.mktemp("hf") / "smollm2"
    gguf = next(checkpoint.fetch(MODEL, model_home).path.glob("*.gguf"))
    hf_export.write_hf(read_gguf(gguf), folder)
    return read_hf(folder)


@pytest.fixture(scope="module")
def cut(smollm2: HfCheckpoint, tmp_path_factory: pytest.TempPathFactory) -> HfCheckpoint:
    """Its first layers: no language, but its matrices; its config.json as transformers 5 writes it."""
    folder = tmp_path_factory.mktemp("hf") / "cut"
    shutil.copytree(smollm2.path, folder, ignore=shutil.ignore_patterns("*.safetensors", "config.json"))
    config = {**smollm2.config, "num_hidden_layers": NUM_CUT_LAYERS}
    config["rope_parameters"] = {"rope_type": "default", "rope_theta": config.pop("rope_theta")}
    config.pop("rope_scaling", None)
    (folder / "config.json").write_text(json.dumps(config))
    dropped = tuple(f"model.layers.{layer}." for layer in range(NUM_CUT_LAYERS, smollm2.model.num_layers))
    kept = {name: tensor for name, tensor in smollm2.tensors.items() if not name.startswith(dropped)}
    write_safetensors(
        folder / "model.safetensors",
        [TensorSpec(name, tensor.dtype, tensor.shape) for name, tensor in kept.items()],
        lambda spec: fake.read_bits(kept[spec.name]),
    )
    return read_hf(folder)


def token_ids(source: HfCheckpoint) -> list[list[int]]:
    """Return the quality texts as ids of a checkpoint's tokenizer, or, of a tiny one, of its vocabulary."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(source.path / "tokenizer.json"))
    return [tokenizer.encode(text).ids[:160] for text in quality.quality_texts()]


def export(
    python: Path, folder: Path, source: HfCheckpoint, options: CheckpointOptions, **changes: Any
) -> ExportResult:
    """Run the worker into `folder/checkpoint`."""
    output_dir = folder / "checkpoint"
    output_dir.mkdir()
    texts = token_ids(source)
    request = make_request(
        source,
        options,
        output_dir,
        calibration_token_ids=texts[4:],
        quality_token_ids=texts[:4],
        device="cpu",
    )
    with (folder / "worker.log").open("w+") as log:
        reply = run_worker(
            python,
            WORKER_SCRIPT,
            {**request, **changes},
            log=log,
            on_progress=lambda step, detail: print(f"{step}: {detail}"),
            work=folder / "work",
        )
    print(f"peak {reply['peak_rss_bytes'] / 1e9:.2f} GB", reply["result"])
    return read_result(reply["result"])


def make_options(quant: str, **changes: Any) -> CheckpointOptions:
    group_size = 64 if quant.endswith("awq") else None
    scheme = get_scheme("tensorrt_llm", quant)
    return CheckpointOptions(scheme, **{"dtype": "bf16", "group_size": group_size, **changes})


def export_and_verify(
    python: Path, folder: Path, source: HfCheckpoint, options: CheckpointOptions, **changes: Any
) -> tuple[ExportResult, CheckpointReport]:
    result = export(python, folder, source, options, **changes)
    report = verify_checkpoint(folder / "checkpoint", source, options)
    print(report.model_dump_json(indent=1))
    assert report.is_structure_verified
    return result, report


@pytest.mark.parametrize(
    ("quant", "changes"),
    [
        ("bf16", {"tp_size": 3, "pp_size": 2, "dtype": "f16"}),
        ("int8_wo", {"kv_cache_dtype": "int8"}),
        ("fp8", {}),
        ("fp8", {"kv_cache_dtype": "fp8", "tp_size": 3}),
        ("int4_awq", {"tp_size": 3}),
        ("w4a8_awq", {}),
        ("int8_sq", {"dtype": "f16"}),
        ("nvfp4", {}),
    ],
    ids=str,
)
def test_a_scheme_on_the_first_layers(
    tmp_path: Path, python: Path, cut: HfCheckpoint, quant: str, changes: Mapping[str, Any]
) -> None:
    options = make_options(quant, **changes)
    result, report = export_and_verify(python, tmp_path, cut, options, num_greedy_tokens=2)
    is_calibrated = quant not in {"bf16", "int8_wo"} or options.kv_algo is not None
    assert (result.num_calibration_batches > 0) == is_calibrated
    assert result.num_parameters == cut.num_parameters
    assert result.weights is not None
    is_exact = options.stored_algo is None
    assert (max(summary.worst_error for summary in report.errors) == 0) == is_exact
    assert result.weights.logits_cosine > (0.9999 if is_exact else 0.98)
    assert (result.simulated is None) == (quant in {"bf16", "nvfp4", "int4_awq"})
    assert any("nvfp4" in note for note in result.notes) == (quant == "nvfp4")
    assert all(path.stat().st_mode & 0o777 == 0o644 for path in (tmp_path / "checkpoint").iterdir())


def test_the_whole_model_still_thinks_what_it_thought(
    tmp_path: Path, python: Path, smollm2: HfCheckpoint
) -> None:
    result, _ = export_and_verify(python, tmp_path, smollm2, make_options("int4_awq"))
    assert result.weights is not None
    assert 5 < result.weights.base_perplexity < 40
    assert result.weights.perplexity > result.weights.base_perplexity
    assert result.quality is not None
    assert result.quality.greedy_agreement is not None
    quality.check_report(result.quality, get_scheme("tensorrt_llm", "int4_awq"))


LLAMA3_ROPE = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 128,
}


@pytest.mark.parametrize(
    ("model_type", "config"),
    [
        ("llama", {"attention_bias": True, "mlp_bias": True, "rope_scaling": LLAMA3_ROPE}),
        ("mistral", {"sliding_window": None}),
        ("qwen2", {"tie_word_embeddings": True}),
        ("qwen3", {}),
        ("gemma", {}),
    ],
    ids=["llama", "mistral", "qwen2", "qwen3", "gemma"],
)
def test_a_family(tmp_path: Path, python: Path, model_type: str, config: Mapping[str, Any]) -> None:
    """The exported weights, read back, are the model: every tensor went where it belongs."""
    source = fake.write_source(tmp_path / "hf", model_type, **config)
    result, _ = export_and_verify(python, tmp_path, source, make_options("bf16", tp_size=2))
    assert result.weights is not None
    if model_type == "gemma":  # its norms are stored with one added, which bfloat16 rounds
        assert result.weights.logits_cosine > 0.99
        return
    assert result.weights.logits_cosine > 0.99999
    assert result.weights.perplexity == pytest.approx(result.weights.base_perplexity, rel=1e-4)


def test_what_modelopt_cannot_export_is_refused_before_any_work(tmp_path: Path, python: Path) -> None:
    source = fake.write_source(tmp_path / "hf")
    config = {**source.config, "architectures": ["Gemma2ForCausalLM"], "model_type": "gemma2"}
    (source.path / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointUnsupportedError, match="Gemma2ForCausalLM") as caught:
        export(python, tmp_path, source, make_options("fp8"))
    assert "container" in caught.value.hint


def test_a_folder_that_is_not_empty_is_refused(tmp_path: Path, python: Path) -> None:
    source = fake.write_source(tmp_path / "hf")
    with pytest.raises(ConfigError, match="expected an empty folder"):
        export(python, tmp_path, source, make_options("fp8"), output_dir=str(source.path))


def test_nothing_to_calibrate_with_is_refused(tmp_path: Path, python: Path) -> None:
    source = fake.write_source(tmp_path / "hf")
    with pytest.raises(ConfigError, match="no calibration tokens"):
        export(python, tmp_path, source, make_options("fp8"), token_ids=[])
    assert not any((tmp_path / "checkpoint").iterdir())


def test_a_weight_that_is_missing_is_not_made_up(tmp_path: Path, python: Path) -> None:
    source = fake.write_source(tmp_path / "hf")
    kept = {
        name: tensor for name, tensor in source.tensors.items() if not name.endswith("0.mlp.up_proj.weight")
    }
    bits = {name: fake.read_bits(tensor) for name, tensor in kept.items()}
    write_safetensors(
        source.path / "model.safetensors",
        [TensorSpec(name, tensor.dtype, tensor.shape) for name, tensor in kept.items()],
        lambda spec: bits[spec.name],
    )
    with pytest.raises(ConfigError, match=r"missing_keys.*up_proj"):
        export(python, tmp_path, source, make_options("bf16"))


def test_a_model_larger_than_the_memory_is_refused_before_its_weights_are_read(
    tmp_path: Path, python: Path
) -> None:
    source = fake.write_source(tmp_path / "hf")
    config = {**source.config, "num_hidden_layers": 400, "hidden_size": 32768, "intermediate_size": 131072}
    (source.path / "config.json").write_text(json.dumps(config))
    with pytest.raises(InsufficientMemoryError, match="GiB needed on cpu"):
        export(python, tmp_path, source, make_options("bf16"))
