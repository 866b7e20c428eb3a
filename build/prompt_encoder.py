"""Encode texts and chats as a checkpoint's own tokenizer and chat template do, for calibration.

transformers takes a second to import, so it loads when an encoder is made.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from trtb.build.chat_template import ChatTemplate
from trtb.build.errors import CheckpointError

# of English a token has about four; a text is cut before it is tokenised, or one long line takes minutes
_MAX_CHARACTERS_PER_TOKEN: Final = 32


class PromptEncoder:
    """Turns prompts into token ids; close it, or the process that renders chats goes on.

    Args:
        folder: A `tokenizer/` folder of an engine.

    Raises:
        CheckpointError: It has no tokenizer that loads.
    """

    def __init__(self, folder: Path) -> None:
        os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")  # it remarks on the absence of torch
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
        os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
        from transformers import PreTrainedTokenizerFast

        try:
            self._tokenizer: Any = PreTrainedTokenizerFast.from_pretrained(folder)
        except (OSError, ValueError) as exc:
            raise CheckpointError(
                f"{folder}: no usable tokenizer: {exc}", "give a checkpoint with its tokenizer.json"
            ) from exc
        self._folder = folder
        self._template: ChatTemplate | None = None

    def close(self) -> None:
        """End the process that renders chats, where there is one."""
        if self._template is not None:
            self._template.close()

    def encode_text(self, text: str, max_tokens: int) -> list[int]:
        """Return at most `max_tokens` ids, with the special tokens that the tokenizer adds by itself."""
        return self._encode(text, max_tokens, add_special_tokens=True)

    def encode_chat(self, messages: list[dict[str, Any]], max_tokens: int) -> list[int]:
        """Return at most `max_tokens` ids of a chat, up to where the assistant is to speak.

        Without a chat template the contents follow each other, a blank line between them.

        Raises:
            ValueError: The chat template refuses the messages; it says why.
            CheckpointError: It takes too long, or too much memory.
        """
        if not self._tokenizer.chat_template:
            return self.encode_text("\n\n".join(message["content"] for message in messages), max_tokens)
        if self._template is None:
            self._template = ChatTemplate(self._folder)
        text = self._template.render(messages)
        # the template has written the special tokens that the model wants; more would double them
        return self._encode(text, max_tokens, add_special_tokens=False)

    def _encode(self, text: str, max_tokens: int, *, add_special_tokens: bool) -> list[int]:
        cut = text[: max_tokens * _MAX_CHARACTERS_PER_TOKEN]
        encoded = self._tokenizer.backend_tokenizer.encode(cut, add_special_tokens=add_special_tokens)
        ids: list[int] = encoded.ids
        return ids[:max_tokens]


def encode_texts(tokenizer: Path, texts: Iterable[str]) -> list[list[int]]:
    """Return the texts' token ids, with the token that the model expects at the beginning of a text."""
    from tokenizers import Tokenizer

    fast = Tokenizer.from_file(str(tokenizer / "tokenizer.json"))
    return [fast.encode(text).ids for text in texts]
