"""The vocabulary file that TensorRT-LLM's guided decoding reads, made from an engine's tokenizer.json.

NVIDIA makes it with a script of its container, from the same file; here it needs neither container nor
GPU. Format: an object of `encoded_vocab` (every token, by its id), `tokenizer_str` (the tokenizer.json) and
`stop_token_ids`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trtb.build import files
from trtb.build.errors import EngineCorruptError
from trtb.model_repo.trtllm_engine import TOKENIZER_INFO


def write_tokenizer_info(engine_dir: Path, stop_token_ids: list[int]) -> bool:
    """Write the file into an engine that is being made; False where its vocabulary has no such form.

    An id without a token would shift every later one, so a vocabulary with gaps is not written.

    Raises:
        EngineCorruptError: tokenizer.json is missing or damaged.
    """
    path = engine_dir / "tokenizer" / "tokenizer.json"
    try:
        text = path.read_text(encoding="utf-8")
        vocabulary = _read_vocabulary(json.loads(text))
    except FileNotFoundError as exc:
        raise EngineCorruptError(f"{path}: not found; expected the tokenizer of the engine") from exc
    except (ValueError, KeyError, TypeError, AttributeError) as exc:
        raise EngineCorruptError(
            f"{path}: {type(exc).__name__}: {exc}; expected the tokenizer.json of a fast tokenizer"
        ) from exc
    if sorted(vocabulary) != list(range(len(vocabulary))):
        return False
    info = {
        "encoded_vocab": [vocabulary[token_id] for token_id in range(len(vocabulary))],
        "tokenizer_str": text,
        "stop_token_ids": stop_token_ids,
    }
    files.write_atomic(engine_dir / TOKENIZER_INFO, json.dumps(info, ensure_ascii=False).encode())
    return True


def _read_vocabulary(tokenizer: Mapping[str, Any]) -> dict[int, str]:
    """Return every token by its id, those that were added included."""
    vocab = tokenizer["model"]["vocab"]
    if isinstance(vocab, list):  # of a Unigram model: tokens with their scores, in order
        by_id = {token_id: str(token) for token_id, (token, _) in enumerate(vocab)}
    else:
        by_id = {int(token_id): str(token) for token, token_id in vocab.items()}
    added = tokenizer.get("added_tokens") or []
    return by_id | {int(entry["id"]): str(entry["content"]) for entry in added}
