"""CPU engines from a Hugging Face folder: exported, quantised, held against the GGUF road, and answering."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import commands
import pytest
import request_lines

from trtb.build import checkpoint, quality
from trtb.build.backends import openvino, openvino_hf
from trtb.build.backends.openvino_nncf import compress_weights
from trtb.build.backends.openvino_runtime import score_texts
from trtb.build.checkpoints import gguf_checkpoint
from trtb.build.config import CalibrationConfig, make_config
from trtb.build.errors import QuantizationError
from trtb.build.pipeline import build_engine
from trtb.build.prompt_encoder import encode_texts
from trtb.build.quantization import get_scheme
from trtb.build.store import EngineStore, StoredEngine
from trtb.model_repo.render import render_into_engine

GGUF = "smollm2-135m-instruct"
MODEL = "smollm2-135m-instruct-hf"
QUANTS = ("f16", "int8_wo", "fp8", "int4_awq")
WEIGHTS = re.compile(r'element_type="f8e4m3"[^>]* offset="(\d+)" size="(\d+)"')
# enough for every step of AWQ and scale estimation to do its work, on a machine of two cores
CALIBRATION = CalibrationConfig(num_samples=16, max_tokens=64)

pytestmark = [pytest.mark.triton, pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def home(model_home: Path, toolchain_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("openvino-hf")
    shutil.copytree(model_home / "models" / GGUF, home / "models" / GGUF)
    (home / "toolchains").symlink_to(toolchain_home / "toolchains")
    checkpoint.fetch(GGUF, home, form="hf")
    return home


@pytest.fixture(scope="module")
def engines(home: Path) -> Mapping[str, StoredEngine]:
    return {
        quant: build_engine(
            MODEL,
            make_config(quant=quant, calibration=CALIBRATION),
            home,
            backend="openvino",
            keep_steps=True,
            deploy=render_into_engine,
        )
        for quant in QUANTS
    }


@pytest.mark.parametrize(
    ("quant", "agreement", "greedy_agreement"),
    [("f16", 1.0, 1.0), ("int8_wo", 0.9, 0.2), ("fp8", 0.8, 0.1), ("int4_awq", 0.65, 0.0)],
)
def test_each_is_as_good_as_its_scheme_says(
    engines: Mapping[str, StoredEngine], quant: str, agreement: float, greedy_agreement: float
) -> None:
    found = engines[quant].manifest.quality
    assert found is not None
    assert found.num_tokens > 800
    assert 5 < found.base_perplexity < 30  # a broken export shows in both
    assert found.perplexity <= found.base_perplexity * get_scheme("openvino", quant).max_perplexity_ratio
    assert found.top1_agreement >= agreement
    assert found.greedy_agreement is not None
    assert found.greedy_agreement >= greedy_agreement


def test_fewer_bits_make_smaller_engines(engines: Mapping[str, StoredEngine]) -> None:
    sizes = {quant: (engines[quant].path / "openvino_model.bin").stat().st_size for quant in QUANTS}
    assert sizes["f16"] > 1.8 * sizes["int8_wo"]
    assert sizes["f16"] > 1.8 * sizes["fp8"]
    assert sizes["int8_wo"] > 1.5 * sizes["int4_awq"]


def test_the_quantisations_share_one_conversion(engines: Mapping[str, StoredEngine]) -> None:
    reused = {
        quant: [step.name for step in engines[quant].manifest.steps if step.is_reused] for quant in QUANTS
    }
    assert reused == {"f16": []} | {quant: ["convert", "score"] for quant in QUANTS[1:]}


def test_the_manifest_says_what_shaped_the_engine(engines: Mapping[str, StoredEngine]) -> None:
    manifest = engines["int4_awq"].manifest
    assert {"torch", "transformers", "optimum-intel", "nncf", "openvino"} <= set(manifest.toolchain)
    assert manifest.tokens.model_dump() == {"bos": 1, "pad": 2, "eos": [2, 0]}
    assert manifest.calibration is not None
    assert manifest.calibration.num_samples == CALIBRATION.num_samples
    assert engines["f16"].manifest.calibration is None
    assert manifest.peak_host_bytes > 0


def test_it_is_the_engine_that_a_gguf_file_of_the_same_weights_gives(
    engines: Mapping[str, StoredEngine], home: Path, tmp_path: Path
) -> None:
    """The folder's weights are bfloat16, so the file's are rounded alike; the fetched file's are not."""
    rounded = tmp_path / "rounded.gguf"
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(gguf_checkpoint._FILE_TYPES, "BF16", 32)
        source = gguf_checkpoint.read_gguf(checkpoint.resolve(GGUF, home).gguf_path)
        gguf_checkpoint.rewrite(source, rounded, "BF16")  # type: ignore[arg-type]
    other = build_engine(str(rounded), make_config(quant="f16"), tmp_path, backend="openvino")
    texts = encode_texts(other.path / "tokenizer", quality.quality_texts())
    assert encode_texts(engines["f16"].path / "tokenizer", quality.quality_texts()) == texts
    report = quality.compare(
        score_texts(engines["f16"].path, texts), score_texts(other.path, texts), "the GGUF road"
    )
    assert report.perplexity == pytest.approx(report.base_perplexity, rel=0.005)
    assert report.top1_agreement > 0.99
    assert report.greedy_agreement is not None
    assert report.greedy_agreement > 0.9


@pytest.mark.parametrize("quant", QUANTS)
def test_each_answers_through_a_run(
    engines: Mapping[str, StoredEngine], home: Path, tmp_path: Path, quant: str
) -> None:
    name = engines[quant].manifest.name
    path = tmp_path / "in.jsonl"
    body = {
        "model": name,
        "messages": [{"role": "user", "content": "What is the capital of France?"}],
        "max_tokens": 16,
        "temperature": 0,
    }
    line = {"custom_id": "one", "method": "POST", "url": "/v1/chat/completions", "body": body}
    path.write_text(json.dumps(line) + "\n")
    # in float32: the two likeliest beginnings of the answer are nearly as likely
    done = commands.trtb(
        home, "run", path, "--engine", name, "--num-kv-blocks", 20, "--deterministic", "--json"
    )
    assert done.code == 0, done.stderr
    assert done.json["engine_id"] == engines[quant].manifest.engine_id
    (record,) = request_lines.read(tmp_path / "in.out.jsonl")
    answer = record["response"]["body"]["choices"][0]["message"]["content"]
    assert len(answer) > 10
    assert quant != "f16" or answer == "The capital of France is Paris."


def test_damaged_weights_are_refused_with_the_figures(
    engines: Mapping[str, StoredEngine], home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One weight in 300 has its sign turned round: the engine still loads and writes sentences."""

    def damage(base_ir: Path, target: Path, *options: Any) -> None:
        compress_weights(base_ir, target, *options)
        data = bytearray((target / "openvino_model.bin").read_bytes())
        for offset, size in WEIGHTS.findall((target / "openvino_model.xml").read_text()):
            for position in range(int(offset), int(offset) + int(size), 300):
                data[position] ^= 0x80
        (target / "openvino_model.bin").write_bytes(data)

    monkeypatch.setattr(openvino, "compress_weights", damage)
    before = len(EngineStore(home).list())
    with pytest.raises(QuantizationError, match=r"fp8: perplexity [\d.]+ against [\d.]+ of f16, ratio"):
        build_engine(MODEL, make_config(quant="fp8", group_size=32), home, backend="openvino")
    assert len(EngineStore(home).list()) == before


def test_an_export_that_thinks_otherwise_than_torch_is_refused(
    engines: Mapping[str, StoredEngine], home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = openvino_hf.HfSource.read_reference
    monkeypatch.setattr(openvino_hf.HfSource, "read_reference", lambda self, base: 1.05 * own(self, base))
    with pytest.raises(QuantizationError, match=r"convert: perplexity .* of the checkpoint by torch"):
        build_engine(
            MODEL, make_config(quant="int8_wo", max_seq_len=256), home, backend="openvino", keep_steps=True
        )
