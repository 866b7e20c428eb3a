"""The special ids and the tokenizer of a Hugging Face folder, as an engine gets them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from fakes.hf_folder import CONFIG, write_folder

from trtb.build.checkpoints.hf_checkpoint import read_hf, write_tokenizer
from trtb.build.checkpoints.hf_tokenizer import read_chat_template, read_tokens
from trtb.build.errors import CheckpointError, CheckpointUnsupportedError

TEMPLATE = "{{ bos_token }}{% for m in messages %}{{ m['content'] }}{{ eos_token }}{% endfor %}"
VOCAB_SIZE = CONFIG["vocab_size"]  # 264, of which the tokenizer has 259


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "model")


def change(folder: Path, name: str, **values: Any) -> None:
    path = folder / name
    path.write_text(json.dumps({**(json.loads(path.read_text()) if path.exists() else {}), **values}))


def add_tokens(folder: Path, *tokens: tuple[int, str], special: bool = True) -> None:
    path = folder / "tokenizer.json"
    data = json.loads(path.read_text())
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    data["added_tokens"] += [
        {"id": token_id, "content": content, "special": special, **flags} for token_id, content in tokens
    ]
    path.write_text(json.dumps(data))


def load(folder: Path) -> Any:
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast.from_pretrained(folder)


@pytest.mark.parametrize(
    ("generation", "config", "eos"),
    [
        ({"eos_token_id": [7, 9]}, {"eos_token_id": 5}, [7, 9, 0, 2]),
        ({"eos_token_id": 7}, {"eos_token_id": 5}, [7, 0, 2]),
        ({"eos_token_id": None}, {"eos_token_id": [5, 2]}, [5, 2, 0]),
        ({}, {"eos_token_id": 0}, [0, 2]),
        ({}, {}, [2, 0]),
    ],
)
def test_the_first_file_that_names_the_end_wins(
    folder: Path, generation: dict[str, Any], config: dict[str, Any], eos: list[int]
) -> None:
    """Control tokens that always end a generation, here 0 and 2, count in any case, as in a GGUF file."""
    change(folder, "generation_config.json", **generation)
    assert read_tokens(folder, config, VOCAB_SIZE).eos == eos


def test_the_tokenizer_names_what_no_config_does(folder: Path) -> None:
    change(folder, "tokenizer_config.json", bos_token={"content": "<|im_start|>"}, pad_token="<|endoftext|>")
    assert read_tokens(folder, {}, VOCAB_SIZE).model_dump() == {"bos": 1, "pad": 0, "eos": [2, 0]}
    assert read_tokens(folder, {"bos_token_id": 4, "pad_token_id": 5}, VOCAB_SIZE).model_dump() == {
        "bos": 4,
        "pad": 5,
        "eos": [2, 0],
    }


def test_the_older_map_of_special_tokens_is_read_where_the_config_is_silent(folder: Path) -> None:
    change(folder, "special_tokens_map.json", bos_token="<|im_start|>", eos_token="<|endoftext|>")
    assert read_tokens(folder, {}, VOCAB_SIZE).model_dump() == {"bos": 1, "pad": 2, "eos": [2, 0]}


@pytest.mark.parametrize("pad", [-1, VOCAB_SIZE])
def test_a_pad_that_is_no_id_means_none(folder: Path, pad: int) -> None:
    assert read_tokens(folder, {"pad_token_id": pad}, VOCAB_SIZE).pad == 2


@pytest.mark.parametrize("eos", [VOCAB_SIZE, -1, "2", [2, 1.5], True, {}])
def test_an_end_that_is_no_id_is_refused(folder: Path, eos: Any) -> None:
    with pytest.raises(CheckpointError, match=r"eos_token_id: .*; expected ids of the vocabulary, 0 to 263"):
        read_tokens(folder, {"eos_token_id": eos}, VOCAB_SIZE)


def test_a_checkpoint_that_never_stops_is_refused(folder: Path) -> None:
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(CheckpointError, match="no id ends an answer"):
        read_tokens(folder, {}, VOCAB_SIZE)
    with pytest.raises(CheckpointError, match="no id ends an answer"):
        read_tokens(folder, {"eos_token_id": []}, VOCAB_SIZE)


def test_an_engine_s_tokenizer_loads_and_is_the_checkpoint_s(folder: Path, tmp_path: Path) -> None:
    change(
        folder, "tokenizer_config.json", chat_template=TEMPLATE, model_max_length=10**30, auto_map={"a": "b"}
    )
    change(folder, "tokenizer_config.json", bos_token={"content": "<|im_start|>", "__type": "AddedToken"})
    write_tokenizer(read_hf(folder), tmp_path / "tokenizer")
    assert sorted(path.name for path in (tmp_path / "tokenizer").iterdir()) == [
        "chat_template.jinja",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    client, own = load(tmp_path / "tokenizer"), load(folder)
    text = "<|im_start|>naïve 🙂\n  12"
    assert client.encode(text) == own.encode(text)
    assert client.decode(client.encode(text)) == text
    assert (client.bos_token, client.eos_token, client.pad_token) == (
        "<|im_start|>",
        "<|im_end|>",
        "<|im_end|>",
    )
    assert client.model_max_length == 512
    assert client.apply_chat_template([{"role": "user", "content": "Hi"}], tokenize=False) == (
        "<|im_start|>Hi<|im_end|>"
    )
    assert "auto_map" not in (tmp_path / "tokenizer" / "tokenizer_config.json").read_text()
    generation = json.loads((tmp_path / "tokenizer" / "generation_config.json").read_text())
    assert generation == {"bos_token_id": 1, "eos_token_id": [2, 0], "pad_token_id": 2}


def test_a_template_writes_the_tokenizer_s_own_end_whichever_ends_an_answer(
    folder: Path, tmp_path: Path
) -> None:
    change(folder, "generation_config.json", eos_token_id=[0, 2])
    checkpoint = read_hf(folder)
    assert checkpoint.tokens.end == 0
    write_tokenizer(checkpoint, tmp_path / "tokenizer")
    assert load(tmp_path / "tokenizer").eos_token == "<|im_end|>"


def test_tokens_past_the_model_s_embedding_are_left_out(folder: Path, tmp_path: Path) -> None:
    add_tokens(
        folder, *((259 + index, f"<|in-{index}|>") for index in range(5)), (264, "<FILL>"), (265, "<X>")
    )
    change(folder, "tokenizer_config.json", pad_token="<X>")
    checkpoint = read_hf(folder)
    assert checkpoint.tokens.pad == 2
    write_tokenizer(checkpoint, tmp_path / "tokenizer")
    client = load(tmp_path / "tokenizer")
    assert max(client.get_vocab().values()) == 263
    assert client.encode("<|in-4|>") == [263]
    assert max(client.encode("<FILL><X>")) < 259
    assert client.pad_token == "<|im_end|>"


def test_tokens_that_only_the_configuration_declares_are_added(folder: Path, tmp_path: Path) -> None:
    decoder = {
        "259": {"content": "<think>", "special": False},
        "2": {"content": "<|im_end|>", "special": True},
        "264": {"content": "<FILL>", "special": True},
    }
    change(folder, "tokenizer_config.json", added_tokens_decoder=decoder)
    write_tokenizer(read_hf(folder), tmp_path / "tokenizer")
    client = load(tmp_path / "tokenizer")
    assert client.encode("<think>") == [259]
    assert client.decode([259], skip_special_tokens=True) == "<think>"
    assert len(client) == 260


def test_a_vocabulary_larger_than_the_model_is_refused(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "model", {"vocab_size": 250})
    with pytest.raises(CheckpointError, match="9 tokens at or past id 250"):
        write_tokenizer(read_hf(folder), tmp_path / "tokenizer")


def test_a_tokenizer_in_another_form_is_refused(folder: Path, tmp_path: Path) -> None:
    (folder / "tokenizer.json").rename(folder / "tokenizer.model")
    with pytest.raises(CheckpointUnsupportedError, match=r"no tokenizer\.json"):
        write_tokenizer(read_hf(folder), tmp_path / "tokenizer")


@pytest.mark.parametrize("text", ['{"model": {"type": "BPE", "vocab": {}}}', "{}", '{"added_tokens": [1]}'])
def test_a_damaged_tokenizer_is_refused(folder: Path, tmp_path: Path, text: str) -> None:
    checkpoint = read_hf(folder)
    (folder / "tokenizer.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"tokenizer\.json"):
        write_tokenizer(checkpoint, tmp_path / "tokenizer")


def test_the_chat_template_is_found_wherever_it_stands(folder: Path) -> None:
    assert read_chat_template(folder) is None
    change(folder, "chat_template.json", chat_template="of a processor")
    assert read_chat_template(folder) == "of a processor"
    several = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "the default"}]
    change(folder, "tokenizer_config.json", chat_template=several)
    assert read_chat_template(folder) == "the default"
    change(folder, "tokenizer_config.json", chat_template="one")
    assert read_chat_template(folder) == "one"
    (folder / "chat_template.jinja").write_text("a file\r\n", newline="")
    assert read_chat_template(folder) == "a file\r\n"
    (folder / "chat_template.jinja").unlink()
    change(folder, "tokenizer_config.json", chat_template=3)
    with pytest.raises(CheckpointError, match="chat_template: a int"):
        read_chat_template(folder)
