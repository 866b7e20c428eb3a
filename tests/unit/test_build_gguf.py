"""From a GGUF file to a stored engine, on a model of two layers that is made here."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from fakes.gguf_file import HEAD_DIM, KV_HEADS, LAYERS, TEMPLATE, write_tiny
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trtb.build import checkpoint, hardware, prepare
from trtb.build.backends.base import BuildHost
from trtb.build.checkpoints.gguf_checkpoint import check_readable, read_gguf, rewrite
from trtb.build.checkpoints.tokenizer import check_tokenizer, write_tokenizer
from trtb.build.config import make_config
from trtb.build.errors import (
    BuildError,
    CheckpointChangedError,
    CheckpointError,
    CheckpointUnsupportedError,
    ConfigError,
    EngineCorruptError,
    InsufficientMemoryError,
)
from trtb.build.pipeline import build_engine, build_prepared
from trtb.build.prepare import prepare_build
from trtb.build.store import EngineStore


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("gguf") / "Tiny-Llama.gguf")


def test_reading_gives_the_shape_and_the_special_ids(tiny: Path) -> None:
    found = read_gguf(tiny)
    assert found.model.model_dump() == {
        "architecture": "llama",
        "num_layers": 2,
        "num_heads": 2,
        "num_kv_heads": 1,
        "head_dim": 32,
        "hidden_size": 64,
        "vocab_size": 267,
        "max_position_embeddings": 512,
    }
    # the end of turn first, then every other control token that ends a generation
    assert (found.tokens.bos, found.tokens.pad, found.tokens.eos, found.tokens.end) == (1, 2, [2, 0], 2)
    assert found.chat_template == TEMPLATE


@pytest.mark.parametrize("keep", [0, 3, 10, 500, 5000, 0.5, 0.999])
def test_a_truncated_file_is_refused(tiny: Path, tmp_path: Path, keep: float) -> None:
    data = tiny.read_bytes()
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(data[: keep if isinstance(keep, int) else int(len(data) * keep)])
    with pytest.raises(CheckpointError, match=r"cut\.gguf"):
        read_gguf(cut)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(position=st.integers(4, 3000), value=st.integers(0, 255))
def test_a_damaged_byte_gives_a_checkpoint_or_an_error_of_ours(
    tiny: Path, tmp_path: Path, position: int, value: int
) -> None:
    data = bytearray(tiny.read_bytes())
    data[position] = value
    damaged = tmp_path / "damaged.gguf"
    damaged.write_bytes(data)
    try:
        found = read_gguf(damaged)
        check_readable(found)
        check_tokenizer(found)
    except CheckpointError:
        pass


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"architecture": "gemma3"}, "architecture 'gemma3'"),
        ({"changes": {"llama.rope.scaling.type": "yarn"}}, "scaled RoPE"),
        ({"extra_tensors": {"rope_freqs.weight": (16,)}}, "scaled RoPE"),
        ({"extra_tensors": {"blk.0.ffn_gate_exps.weight": (2, 32, 64)}}, "3 dimensions"),
        ({"extra_tensors": {"odd.weight": (4, 33)}}, "rows of 33"),
    ],
)
def test_what_the_engine_would_read_wrongly_is_refused(
    tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    path = write_tiny(tmp_path / "other.gguf", **options)
    with pytest.raises(CheckpointUnsupportedError, match=message):
        check_readable(read_gguf(path))


def test_a_shard_of_several_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointUnsupportedError, match="one of 3 shards"):
        read_gguf(write_tiny(tmp_path / "shard.gguf", changes={"split.count": 3}))


@pytest.mark.parametrize(
    "quant", [gguf.GGMLQuantizationType[name] for name in ("F32", "F16", "Q4_1", "Q5_0", "Q8_0", "BF16")]
)
@pytest.mark.parametrize("target_type", ["F16", "Q8_0"])
def test_a_rewrite_keeps_metadata_names_and_values(
    tmp_path: Path, quant: gguf.GGMLQuantizationType, target_type: Any
) -> None:
    source = read_gguf(write_tiny(tmp_path / "source.gguf", quant=quant))
    steps: list[str] = []
    rewrite(source, tmp_path / "target.gguf", target_type, steps.append)
    target = read_gguf(tmp_path / "target.gguf")
    assert len(steps) == len(source.tensors)
    skipped = {"GGUF.tensor_count", "GGUF.kv_count", "GGUF.version", "general.file_type"}
    assert {k: v for k, v in target.metadata.items() if k not in skipped} == {
        k: v for k, v in source.metadata.items() if k not in skipped
    }
    assert target.metadata["general.file_type"] == {"F16": 1, "Q8_0": 7}[target_type]
    for old, new in zip(source.reader.tensors, target.reader.tensors, strict=True):
        assert old.name == new.name
        assert list(old.shape) == list(new.shape)
        assert new.tensor_type.name == ("F32" if len(new.shape) == 1 else target_type)
        before = gguf.quants.dequantize(old.data, old.tensor_type)
        after = gguf.quants.dequantize(new.data, new.tensor_type)
        np.testing.assert_allclose(after, before, atol=0.006 if target_type == "Q8_0" else 5e-4)


def test_a_large_tensor_is_rewritten_in_parts_with_the_same_result(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = read_gguf(tiny)
    rewrite(source, tmp_path / "whole.gguf", "Q8_0")
    monkeypatch.setattr("trtb.build.checkpoints.gguf_checkpoint._CHUNK_VALUES", 1000)
    rewrite(source, tmp_path / "parts.gguf", "Q8_0")
    assert (tmp_path / "parts.gguf").read_bytes() == (tmp_path / "whole.gguf").read_bytes()


def load_tokenizer(folder: Path) -> Any:
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast.from_pretrained(folder)


@pytest.fixture(scope="module", params=["smollm", "gpt-2", "qwen2", "llama-bpe"])
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(read_gguf(write_tiny(folder / "model.gguf", pre=request.param)), folder / "tokenizer")
    return load_tokenizer(folder / "tokenizer")


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(st.characters(exclude_categories=["Cs"]), max_size=60))
def test_any_text_comes_back_from_its_ids(tokenizer: Any, text: str) -> None:
    ids = tokenizer.encode(text, add_special_tokens=False)
    # Qwen's tokenizer composes characters first
    import unicodedata

    assert tokenizer.decode(ids) in {text, unicodedata.normalize("NFC", text)}
    assert all(0 <= token_id < 267 for token_id in ids)


def test_control_tokens_are_one_id_each_and_special(tokenizer: Any) -> None:
    ids = tokenizer.encode("<|im_start|>the<tool><|im_end|>", add_special_tokens=False)
    assert ids == [1, 260, 266, 2]
    assert tokenizer.decode(ids, skip_special_tokens=True) == "the<tool>"
    assert (tokenizer.eos_token, tokenizer.bos_token, tokenizer.pad_token) == (
        "<|im_end|>",
        "<|im_start|>",
        "<|im_end|>",
    )
    assert tokenizer.model_max_length == 512
    assert len(tokenizer) == 267
    rendered = tokenizer.apply_chat_template([{"role": "user", "content": "in"}], tokenize=False)
    assert rendered == "<|im_start|>in<|im_end|>"


@pytest.mark.parametrize(
    ("pre", "parts"),
    [
        ("smollm", ["12", "34", "567", "x"]),
        ("llama-bpe", ["123", "4567"]),
    ],
)
def test_digits_are_split_as_the_pre_tokeniser_says(tmp_path: Path, pre: str, parts: list[str]) -> None:
    from trtb.build.checkpoints.tokenizer import _pre_tokenizer

    pieces = [piece for piece, _ in _pre_tokenizer(pre).pre_tokenize_str("".join(parts))]
    wanted = {"smollm": ["1", "2", "3", "4", "5", "6", "7", "x"], "llama-bpe": ["123", "456", "7"]}
    assert pieces == wanted[pre]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokenizer.ggml.pre": "tekken"}, "pre-tokeniser 'tekken'"),
        ({"tokenizer.ggml.model": "llama"}, "tokenizer 'llama'"),
    ],
)
def test_a_tokenizer_that_is_not_known_is_refused_by_name(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    path = write_tiny(tmp_path / "other.gguf", changes=changes)
    with pytest.raises(CheckpointUnsupportedError, match=message):
        check_tokenizer(read_gguf(path))


def test_a_build_ends_in_the_store_with_its_measured_quality(tiny: Path, tmp_path: Path) -> None:
    steps: list[tuple[str, str]] = []
    built = build_engine(
        str(tiny), make_config(max_seq_len=256), tmp_path, progress=lambda *step: steps.append(step)
    )
    manifest = built.manifest
    assert (manifest.reference, manifest.quant, manifest.backend) == (
        "tiny-llama-int8_wo@1",
        "int8_wo",
        "openvino",
    )
    assert manifest.limits.max_seq_len == 256
    assert manifest.limits.kv_bytes_per_token == 2 * LAYERS * KV_HEADS * HEAD_DIM * 4
    assert manifest.quality is not None
    assert manifest.quality.perplexity == pytest.approx(manifest.quality.base_perplexity, rel=0.02)
    assert sorted(path.name for path in built.path.iterdir()) == [
        "build.log",
        "config.json",
        "manifest.json",
        "openvino_detokenizer.bin",
        "openvino_detokenizer.xml",
        "openvino_model.bin",
        "openvino_model.xml",
        "openvino_tokenizer.bin",
        "openvino_tokenizer.xml",
        "tokenizer",
    ]
    assert {"rewrite", "convert", "verify", "tokenizer", "done"} <= {step for step, _ in steps}
    assert "perplexity" in (built.path / "build.log").read_text()

    again = build_engine(str(tiny), make_config(max_seq_len=256), tmp_path)
    assert again.path == built.path
    assert len(EngineStore(tmp_path).list()) == 1

    other = build_engine(str(tiny), make_config(max_seq_len=128), tmp_path)
    assert other.manifest.reference == "tiny-llama-int8_wo@2"
    assert other.manifest.engine_id != manifest.engine_id
    assert EngineStore(tmp_path).resolve("tiny-llama-int8_wo").manifest.version == 1


@pytest.mark.parametrize("quant", ["fp8", "int4_awq"])
def test_nncf_compresses_without_a_word_and_without_telemetry(tiny: Path, tmp_path: Path, quant: str) -> None:
    home, code = (
        tmp_path / "home",
        (
            "import sys; from pathlib import Path; from trtb.build.config import make_config; "
            "from trtb.build.pipeline import build_engine; "
            "build_engine(sys.argv[1], make_config(quant=sys.argv[2], group_size=32), Path(sys.argv[3]))"
        ),
    )
    command = [sys.executable, "-c", code, str(tiny), quant, str(tmp_path / "trtb")]
    environment = {**os.environ, "HOME": str(home)}
    ended = subprocess.run(
        command, capture_output=True, text=True, env=environment, cwd=tmp_path, check=False
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
    # openvino_telemetry would leave an id and its counts here, and send them
    assert not home.exists() or not list(home.rglob("*"))


def test_a_changed_checkpoint_is_not_built(tiny: Path, tmp_path: Path) -> None:
    copy = tmp_path / "mine.gguf"
    copy.write_bytes(tiny.read_bytes())
    pinned = checkpoint.pin_path(copy, tmp_path)
    with pinned.gguf_path.open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"\x55")
    with pytest.raises(CheckpointChangedError, match=r"mine\.gguf"):
        build_engine("mine", make_config(), tmp_path)


def test_a_changed_engine_is_not_returned_as_built(tiny: Path, tmp_path: Path) -> None:
    built = build_engine(str(tiny), make_config(quant="f16"), tmp_path)
    weights = built.path / "openvino_model.bin"
    weights.chmod(0o644)
    with weights.open("r+b") as file:
        file.write(b"\x55")
    with pytest.raises(EngineCorruptError, match=r"openvino_model\.bin"):
        build_engine(str(tiny), make_config(quant="f16"), tmp_path)


def test_options_that_do_not_fit_are_refused_before_any_work(tiny: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="max_seq_len: 4096; the model's context is 512") as caught:
        build_engine(str(tiny), make_config(max_seq_len=4096), tmp_path)
    with pytest.raises(ConfigError, match="group_size: 48") as caught:
        build_engine(str(tiny), make_config(quant="fp8", group_size=48), tmp_path)
    assert caught.value.hint == "use --group-size 32"
    with pytest.raises(ConfigError, match="has no groups"):
        build_engine(str(tiny), make_config(quant="int8_wo", group_size=64), tmp_path)
    with pytest.raises(ConfigError, match="quant: 'int8_sq'"):
        build_engine(str(tiny), make_config(quant="int8_sq"), tmp_path)
    with pytest.raises(ConfigError, match="engine name"):
        build_engine(str(tiny), make_config(), tmp_path, name="../evil")
    assert not EngineStore(tmp_path).list()


def test_a_build_that_would_not_fit_in_memory_is_refused_with_numbers(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared = prepare_build(str(tiny), make_config(), BuildHost(tmp_path))
    found = hardware.probe((tmp_path,))
    little = found.host.memory.model_copy(update={"available_bytes": 1 << 28})
    host = found.host.model_copy(update={"memory": little})
    monkeypatch.setattr(prepare, "probe", lambda _paths: found.model_copy(update={"host": host}))
    with pytest.raises(
        InsufficientMemoryError,
        match=r"host memory: 256 MiB free of .*; expected \d+ MiB for a build of tiny",
    ):
        build_prepared(prepared)
    assert not EngineStore(tmp_path).list()


def test_a_failing_library_gives_a_build_error_with_the_kept_log(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # the engine's library is given a file it cannot read
    monkeypatch.setattr(
        "trtb.build.backends.openvino_gguf.rewrite", lambda source, target, kind: target.write_bytes(b"GGUF")
    )
    with pytest.raises(BuildError, match="convert: RuntimeError") as caught:
        build_engine(str(tiny), make_config(), tmp_path)
    log = Path(caught.value.hint.removeprefix("read ").partition(";")[0])
    assert "failed: BuildError: convert: RuntimeError" in log.read_text()
    assert not EngineStore(tmp_path).list()
    assert not list((tmp_path / "engines" / ".staging").iterdir())
