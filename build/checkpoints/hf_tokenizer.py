"""The tokenizer and the special ids of a Hugging Face folder, as an engine carries them.

An engine's `tokenizer/` holds one form whatever its checkpoint had: tokenizer.json with no id that the
model lacks, a tokenizer_config.json of the few keys that matter, and the chat template as a file. What a
checkpoint says of its special tokens in five places is decided here, once.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtb.build.checkpoints.gguf_checkpoint import END_OF_GENERATION
from trtb.build.checkpoints.json_file import load_object, read_bounded
from trtb.build.errors import CheckpointError, CheckpointUnsupportedError
from trtb.build.manifest import TokenIds

if TYPE_CHECKING:
    from trtb.build.checkpoints.hf_checkpoint import HfCheckpoint

MAX_TEMPLATE_BYTES = 1 << 20

_SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token")


def read_tokens(folder: Path, config: Mapping[str, Any], vocab_size: int) -> TokenIds:
    """Return the ids that end an answer, begin a text and fill a batch.

    generation_config.json wins over config.json, and that over the tokenizer. The control tokens that end
    a generation wherever a vocabulary has them count in any case, as they do for a GGUF file: a checkpoint
    tuned for chats often names the end of a document alone, and would never stop.

    Raises:
        CheckpointError: An id is none of the vocabulary, or nothing ends an answer.
    """
    generation = _optional_object(folder / "generation_config.json")
    tokenizer = _special_tokens(folder)
    vocabulary = _read_vocabulary(folder)

    def lookup(kind: str) -> list[int]:
        for where, source in (("generation_config.json", generation), ("config.json", config)):
            if (value := source.get(f"{kind}_token_id")) is not None:
                return _check_ids(folder / where, kind, value, vocab_size)
        token_id = vocabulary.get(tokenizer.get(f"{kind}_token", ""))
        return [] if token_id is None or token_id >= vocab_size else [token_id]

    control = _control_tokens(folder)
    ends = lookup("eos") + [control[token] for token in END_OF_GENERATION if token in control]
    eos = list(dict.fromkeys(token_id for token_id in ends if token_id < vocab_size))
    if not eos:
        raise CheckpointError(
            f"{folder}: no id ends an answer; expected eos_token_id in generation_config.json or config.json"
        )
    bos, pad = lookup("bos"), lookup("pad")
    return TokenIds(bos=bos[0] if bos else None, pad=pad[0] if pad else eos[0], eos=eos)


def write_tokenizer(checkpoint: HfCheckpoint, folder: Path) -> None:
    """Write the files that `PreTrainedTokenizerFast.from_pretrained(folder)` loads, and the chat template.

    Tokens that were added past the model's embedding are left out: their ids would be taken from a prompt
    and mean nothing to the engine.

    Raises:
        CheckpointUnsupportedError: There is no tokenizer.json.
        CheckpointError: It is damaged, or its vocabulary is larger than the model's.
    """
    source = checkpoint.path
    if not (source / "tokenizer.json").is_file():
        raise CheckpointUnsupportedError(
            f"{source}: no tokenizer.json; expected one, a tokenizer in another form is not read here",
            "write it with transformers: AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)",
        )
    data = load_object(source / "tokenizer.json")
    dropped = _fit(source / "tokenizer.json", data, checkpoint.model.vocab_size)
    _add_missing(data, _optional_object(source / "tokenizer_config.json"), checkpoint.model.vocab_size)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps(data, ensure_ascii=False), encoding="utf-8")
    names = _load_back(source, folder / "tokenizer.json", checkpoint.model.vocab_size)
    _write_json(folder / "tokenizer_config.json", _config(checkpoint, names, dropped))
    tokens = checkpoint.tokens
    _write_json(
        folder / "generation_config.json",
        {"bos_token_id": tokens.bos, "eos_token_id": tokens.eos, "pad_token_id": tokens.pad},
    )
    if (template := read_chat_template(source)) is not None:
        (folder / "chat_template.jinja").write_text(template, encoding="utf-8", newline="")


def read_chat_template(folder: Path) -> str | None:
    """Return the chat template of a Hugging Face folder, as Jinja; of several, the one named "default".

    Raises:
        CheckpointError: It is in no form that is known.
    """
    if (path := folder / "chat_template.jinja").is_file():
        try:
            return read_bounded(path, MAX_TEMPLATE_BYTES).decode()
        except UnicodeDecodeError as exc:
            raise CheckpointError(
                f"{path}: not UTF-8 at byte {exc.start + 1}; expected a Jinja template",
                "fetch the checkpoint again",
            ) from exc
    template = _optional_object(folder / "tokenizer_config.json").get("chat_template")
    if template is None:
        template = _optional_object(folder / "chat_template.json").get("chat_template")
    if isinstance(template, list):
        named = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, dict)}
        template = named.get("default")
    if template is not None and not isinstance(template, str):
        raise CheckpointError(
            f"{folder}: chat_template: a {type(template).__name__}; expected text, or a list with a default"
        )
    return template


def _fit(path: Path, data: dict[str, Any], vocab_size: int) -> set[str]:
    """Take the added tokens out of tokenizer.json that the model has no embedding for; returns them."""
    added = _added_tokens(path, data)
    dropped = {token["content"] for token in added if token["id"] >= vocab_size}
    data["added_tokens"] = [token for token in added if token["content"] not in dropped]
    model = data.get("model")
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    if isinstance(vocabulary, dict):
        # the same tokens may stand in the model's own vocabulary, too
        for token in [token for token in dropped if vocabulary.get(token, 0) >= vocab_size]:
            del vocabulary[token]
        beyond = [token for token, token_id in vocabulary.items() if token_id >= vocab_size]
    else:
        beyond = [str(piece) for piece in (vocabulary or [])[vocab_size:]]
    if beyond:
        raise CheckpointError(
            f"{path}: {len(beyond)} tokens at or past id {vocab_size}, such as {beyond[0]!r}; "
            f"expected ids below the {vocab_size} rows of the model's embedding",
            "take tokenizer and weights from one revision",
        )
    return dropped


def _add_missing(data: dict[str, Any], config: Mapping[str, Any], vocab_size: int) -> None:
    """Add what tokenizer_config.json alone declares: transformers adds it when it loads both."""
    decoder = config.get("added_tokens_decoder")
    if not isinstance(decoder, dict):
        return
    known = {token["id"] for token in data["added_tokens"]}
    flags = ("single_word", "lstrip", "rstrip", "normalized", "special")
    for key, token in decoder.items():
        if isinstance(token, dict) and key.isdecimal() and int(key) < vocab_size and int(key) not in known:
            entry = {"id": int(key), "content": token.get("content"), **dict.fromkeys(flags, False)}
            data["added_tokens"].append({**entry, **{flag: bool(token.get(flag)) for flag in flags}})
    data["added_tokens"].sort(key=lambda token: token["id"])


def _load_back(source: Path, path: Path, vocab_size: int) -> dict[int, str]:
    """Load what was written as the client will; returns each id's token."""
    from tokenizers import Tokenizer

    try:
        vocabulary = Tokenizer.from_file(str(path)).get_vocab(with_added_tokens=True)
    except Exception as exc:
        raise CheckpointError(
            f"{source / 'tokenizer.json'}: not read by tokenizers ({exc}); expected a whole tokenizer",
            "fetch the checkpoint again",
        ) from exc
    names = {token_id: token for token, token_id in vocabulary.items()}
    if not names or max(names) >= vocab_size:
        raise CheckpointError(
            f"{source / 'tokenizer.json'}: ids up to {max(names, default=-1)}; "
            f"expected them below the {vocab_size} rows of the model's embedding"
        )
    return names


def _config(checkpoint: HfCheckpoint, names: dict[int, str], dropped: set[str]) -> dict[str, Any]:
    found = _optional_object(checkpoint.path / "tokenizer_config.json")
    tokens = checkpoint.tokens
    by_id = {"bos_token": tokens.bos, "eos_token": tokens.end, "pad_token": tokens.pad}
    special = {key: names[token_id] for key, token_id in by_id.items() if token_id in names}
    # a chat template writes the tokenizer's own tokens, whichever ends an answer
    special |= {key: token for key, token in _special_tokens(checkpoint.path).items() if token not in dropped}
    longest = found.get("model_max_length")
    length = checkpoint.model.max_position_embeddings
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": min(longest, length) if isinstance(longest, int) and longest > 0 else length,
        "clean_up_tokenization_spaces": False,
        **{key: found[key] for key in ("add_bos_token", "add_eos_token") if isinstance(found.get(key), bool)},
        **{key: special[key] for key in _SPECIAL_TOKENS if special.get(key) in names.values()},
    }


def _special_tokens(folder: Path) -> dict[str, str]:
    """Return the tokens that a tokenizer's files name, as text; the older file where the newer is silent."""
    found: dict[str, str] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        source = _optional_object(folder / name)
        for key in _SPECIAL_TOKENS:
            token = source.get(key)
            content = token.get("content") if isinstance(token, dict) else token
            if isinstance(content, str):
                found[key] = content
    return found


def _read_vocabulary(folder: Path) -> dict[str, int]:
    data = _optional_object(folder / "tokenizer.json")
    model = data.get("model")
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    if isinstance(vocabulary, list):  # Unigram: pieces with their scores
        vocabulary = {piece[0]: index for index, piece in enumerate(vocabulary)}
    added = {token["content"]: token["id"] for token in _added_tokens(folder / "tokenizer.json", data)}
    return {**(vocabulary or {}), **added}


def _control_tokens(folder: Path) -> dict[str, int]:
    path = folder / "tokenizer.json"
    tokens = _added_tokens(path, _optional_object(path))
    return {token["content"]: token["id"] for token in tokens if token.get("special")}


def _added_tokens(path: Path, data: Mapping[str, Any]) -> list[dict[str, Any]]:
    added = data.get("added_tokens") or []
    if not isinstance(added, list) or not all(
        isinstance(token, dict) and type(token.get("id")) is int and isinstance(token.get("content"), str)
        for token in added
    ):
        raise CheckpointError(f"{path}: added_tokens: expected a list of objects with id and content")
    return added


def _check_ids(path: Path, kind: str, value: Any, vocab_size: int) -> list[int]:
    ids = value if isinstance(value, list) else [value]
    if kind == "pad" and any(type(token_id) is int and not 0 <= token_id < vocab_size for token_id in ids):
        return []  # -1, or one past the embedding: older checkpoints say so that they have none
    if not all(type(token_id) is int and 0 <= token_id < vocab_size for token_id in ids):
        raise CheckpointError(
            f"{path}: {kind}_token_id: {value!r}; expected ids of the vocabulary, 0 to {vocab_size - 1}",
            "take config.json and weights from one revision",
        )
    return ids


def _optional_object(path: Path) -> dict[str, Any]:
    return load_object(path) if path.is_file() else {}


def _write_json(path: Path, data: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(data, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
