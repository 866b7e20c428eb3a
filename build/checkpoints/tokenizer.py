"""The client's tokenizer, built from a GGUF file's own vocabulary: a Hugging Face folder, without torch.

transformers can read a GGUF tokenizer too, but only where torch is installed; the runtime has none.
What a GGUF file does not carry is the pre-tokeniser: it names one, and the names known here are those
whose splitting rule is known exactly. A guess would shift every token after the first odd blank.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from trtb.build.checkpoints.gguf_checkpoint import CONTROL_TOKEN, USER_DEFINED_TOKEN, GgufCheckpoint
from trtb.build.errors import CheckpointError, CheckpointUnsupportedError

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
# digits stand alone in Qwen's vocabulary and go in threes in Llama 3's
_QWEN2_SPLIT = rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}|{_REST}"
_LLAMA3_SPLIT = rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}{{1,3}}|{_REST}"

PRE_TOKENIZERS = ("smollm", "gpt-2", "qwen2", "llama-bpe")


def check_tokenizer(checkpoint: GgufCheckpoint) -> None:
    """Refuse a vocabulary whose tokenizer cannot be built exactly.

    Raises:
        CheckpointUnsupportedError: It is not byte-level BPE, or its pre-tokeniser is not known.
        CheckpointError: Its vocabulary is damaged.
    """
    path, metadata = checkpoint.path, checkpoint.metadata
    model = metadata.get("tokenizer.ggml.model")
    if model != "gpt2":
        raise CheckpointUnsupportedError(f"{path}: tokenizer {model!r}; expected byte-level BPE ('gpt2')")
    pre = metadata.get("tokenizer.ggml.pre", "gpt-2")
    if pre not in PRE_TOKENIZERS:
        raise CheckpointUnsupportedError(
            f"{path}: pre-tokeniser {pre!r}; expected one of {', '.join(PRE_TOKENIZERS)}",
            "use a Hugging Face folder of this checkpoint, which carries its tokenizer.json",
        )
    tokens = metadata["tokenizer.ggml.tokens"]
    if len(set(tokens)) != len(tokens):
        raise CheckpointError(f"{path}: tokenizer.ggml.tokens: repeated tokens; expected distinct ones")
    if len(tokens) > checkpoint.model.vocab_size:
        raise CheckpointError(
            f"{path}: {len(tokens)} tokens; expected at most the {checkpoint.model.vocab_size} rows "
            "of the embedding"
        )
    if not isinstance(metadata.get("tokenizer.ggml.merges"), list):
        raise CheckpointError(f"{path}: no tokenizer.ggml.merges; expected the merges of the BPE")


def write_tokenizer(checkpoint: GgufCheckpoint, folder: Path) -> None:
    """Write the files that `PreTrainedTokenizerFast.from_pretrained(folder)` loads, and the chat template."""
    check_tokenizer(checkpoint)
    folder.mkdir(parents=True, exist_ok=True)
    _build(checkpoint).save(str(folder / "tokenizer.json"), pretty=False)
    _write_json(folder / "tokenizer_config.json", _config(checkpoint))
    tokens = checkpoint.tokens
    _write_json(
        folder / "generation_config.json",
        {"bos_token_id": tokens.bos, "eos_token_id": tokens.eos, "pad_token_id": tokens.pad},
    )
    if checkpoint.chat_template is not None:
        (folder / "chat_template.jinja").write_text(checkpoint.chat_template, encoding="utf-8", newline="")


def _build(checkpoint: GgufCheckpoint) -> Any:
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, processors

    metadata = checkpoint.metadata
    tokens: list[str] = metadata["tokenizer.ggml.tokens"]
    pre: str = metadata.get("tokenizer.ggml.pre", "gpt-2")
    try:
        merges = [_split_merge(merge) for merge in metadata["tokenizer.ggml.merges"]]
        bpe = models.BPE(
            vocab={token: index for index, token in enumerate(tokens)},
            merges=merges,
            fuse_unk=False,
            # Llama 3's words that are tokens as a whole are not reachable by its merges alone
            ignore_merges=pre == "llama-bpe",
        )
    except Exception as exc:
        raise CheckpointError(
            f"{checkpoint.path}: tokenizer.ggml.merges: {exc}; expected known tokens"
        ) from exc
    tokenizer = Tokenizer(bpe)
    if pre == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = _pre_tokenizer(pre)
    tokenizer.decoder = decoders.ByteLevel()
    added = [
        AddedToken(token, special=kind == CONTROL_TOKEN, normalized=False)
        for token, kind in zip(tokens, metadata["tokenizer.ggml.token_type"], strict=True)
        if kind in {CONTROL_TOKEN, USER_DEFINED_TOKEN}
    ]
    tokenizer.add_tokens(added)
    bos = checkpoint.tokens.bos
    if metadata.get("tokenizer.ggml.add_bos_token", pre == "llama-bpe") and bos is not None:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{tokens[bos]}:0 $A:0",
            pair=f"{tokens[bos]}:0 $A:0 {tokens[bos]}:1 $B:1",
            special_tokens=[(tokens[bos], bos)],
        )
    return tokenizer


def _split_merge(merge: str) -> tuple[str, str]:
    left, _, right = merge.partition(" ")
    return left, right


def _pre_tokenizer(pre: str) -> Any:
    from tokenizers import Regex, pre_tokenizers

    if pre == "gpt-2":
        return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    if pre == "smollm":
        return pre_tokenizers.Sequence(
            [
                pre_tokenizers.Digits(individual_digits=True),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
            ]
        )
    split = _QWEN2_SPLIT if pre == "qwen2" else _LLAMA3_SPLIT
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(split), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def _config(checkpoint: GgufCheckpoint) -> dict[str, Any]:
    tokens = checkpoint.metadata["tokenizer.ggml.tokens"]
    unknown = checkpoint.metadata.get("tokenizer.ggml.unknown_token_id")
    ids = {
        "bos_token": checkpoint.tokens.bos,
        "eos_token": checkpoint.tokens.end,
        "pad_token": checkpoint.tokens.pad,
        "unk_token": unknown,
    }
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": checkpoint.model.max_position_embeddings,
        "clean_up_tokenization_spaces": False,
        **{name: tokens[token_id] for name, token_id in ids.items() if token_id is not None},
    }


def _write_json(path: Path, data: dict[str, Any]) -> None:
    path.write_text(json.dumps(data, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
