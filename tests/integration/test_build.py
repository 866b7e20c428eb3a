"""The real checkpoint, built for real: quality, identity, tokens, and a flipped byte."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from trtb.build import checkpoint
from trtb.build.config import make_config
from trtb.build.errors import EngineCorruptError
from trtb.build.pipeline import build_engine
from trtb.build.quantization import get_scheme
from trtb.build.store import EngineStore, StoredEngine

MODEL = "smollm2-135m-instruct"

pytestmark = [pytest.mark.triton, pytest.mark.timeout(900)]

TEXTS = [
    "Hello, world!",
    "  two  blanks   and\ttabs\r\nand lines\n\n",
    "12345 apples cost 6.78 and 007",
    "def f(x):\n    return x ** 2  # it's squared",
    "我喜欢在周末读书。日本語もあります。",
    "Ça dépend, naïve façade; Straße, Ελλάδα, Москва, עברית, हिन्दी",
    "🙂👩‍👩‍👧 zero\u200bwidth",
    "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n",
    "I'll, you've, they'd, DON'T",
]


@pytest.fixture(scope="module")
def engine(engine_home: Path) -> StoredEngine:
    return EngineStore(engine_home).resolve(f"{MODEL}-int8_wo")


def test_the_checkpoint_is_pinned_and_whole(engine_home: Path) -> None:
    pinned = checkpoint.resolve(MODEL, engine_home)
    checkpoint.verify(pinned)
    assert pinned.pin.license == "Apache-2.0"
    assert pinned.pin.total_bytes == 98362432


def test_eight_bits_cost_almost_nothing(engine: StoredEngine) -> None:
    found = engine.manifest.quality
    assert found is not None
    assert found.num_tokens > 300
    assert found.perplexity / found.base_perplexity < 1.02
    assert found.top1_agreement > 0.95
    assert 5 < found.base_perplexity < 20  # a broken conversion shows in both


def test_the_manifest_describes_the_engine(engine: StoredEngine) -> None:
    manifest = engine.manifest
    assert manifest.limits.kv_bytes_per_token == 46080
    assert (manifest.limits.max_seq_len, manifest.limits.tokens_per_block) == (8192, 32)
    assert manifest.tokens.model_dump() == {"bos": 1, "pad": 2, "eos": [2, 0]}
    assert manifest.model.vocab_size == 49152
    assert {"openvino", "openvino-genai", "gguf"} <= set(manifest.toolchain)


def test_a_second_build_returns_the_same_engine(engine_home: Path, engine: StoredEngine) -> None:
    steps: list[str] = []
    again = build_engine(MODEL, make_config(), engine_home, progress=lambda step, detail: steps.append(step))
    assert again == engine
    assert steps == ["backend", "checkpoint", "done"]


def test_every_file_verifies_and_a_flipped_byte_is_found(
    engine_home: Path, engine: StoredEngine, tmp_path: Path
) -> None:
    EngineStore(engine_home).verify(engine)
    copy = tmp_path / "engines" / engine.manifest.name / str(engine.manifest.version)
    shutil.copytree(engine.path, copy)
    store = EngineStore(tmp_path)
    store.verify(store.resolve(engine.manifest.engine_id))
    weights = copy / "openvino_model.bin"
    weights.chmod(0o644)
    with weights.open("r+b") as file:
        file.seek(weights.stat().st_size // 2)
        byte = file.read(1)[0]
        file.seek(-1, 1)
        file.write(bytes([byte ^ 1]))
    with pytest.raises(EngineCorruptError, match=r"1 of \d+ files .*openvino_model\.bin: content differs"):
        store.verify(store.resolve(engine.manifest.engine_id))


@pytest.fixture(scope="module")
def tokenizers(engine: StoredEngine) -> tuple[Any, Any]:
    sys.modules["openvino_telemetry"] = None  # type: ignore[assignment]
    import openvino_genai
    from transformers import PreTrainedTokenizerFast

    client = PreTrainedTokenizerFast.from_pretrained(engine.path / "tokenizer")
    return client, openvino_genai.Tokenizer(engine.path)


@pytest.mark.parametrize("text", TEXTS)
def test_client_and_engine_tokenise_alike(tokenizers: tuple[Any, Any], text: str) -> None:
    client, engine = tokenizers
    ids = client.encode(text, add_special_tokens=False)
    assert [int(token) for token in engine.encode(text, add_special_tokens=False).input_ids.data[0]] == ids
    assert client.decode(ids) == text
    assert engine.decode(ids, skip_special_tokens=False) == text


def test_the_chat_template_renders_as_the_model_was_trained(tokenizers: tuple[Any, Any]) -> None:
    client, _ = tokenizers
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    rendered = client.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert rendered == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )


@pytest.fixture(scope="module")
def other_home(engine_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home of its own: the engine built last is the default, and the other tests mean theirs."""
    home = tmp_path_factory.mktemp("other-home")
    shutil.copytree(engine_home / "models", home / "models")
    return home


@pytest.mark.slow
@pytest.mark.parametrize(("quant", "agreement"), [("f16", 1.0), ("fp8", 0.8), ("int4_awq", 0.65)])
def test_the_other_schemes_build_within_their_bounds(other_home: Path, quant: str, agreement: float) -> None:
    built = build_engine(MODEL, make_config(quant=quant), other_home)
    found = built.manifest.quality
    assert found is not None
    assert found.perplexity <= found.base_perplexity * get_scheme("openvino", quant).max_perplexity_ratio
    assert found.top1_agreement >= agreement
    EngineStore(other_home).verify(built)
