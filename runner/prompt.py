"""Text in and text out of token ids, with the checkpoint's own tokenizer and chat template.

The chat template is rendered by transformers, in its sandbox; the ids come from the same checkpoint's
tokenizer.json. transformers takes a second to import, so the run imports this while the server starts.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")  # it remarks on the absence of torch
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")

import jinja2
from tokenizers.decoders import DecodeStream
from transformers import PreTrainedTokenizerFast

from trtb.build.errors import EngineCorruptError
from trtb.runner.errors import ContextLengthError, InvalidRequestError


@dataclass(frozen=True, slots=True)
class LengthLimits:
    """What fits the engine, in tokens."""

    max_seq_len: int  # prompt and answer together
    default_max_tokens: int  # where a request names no bound of its own


class PromptRenderer:
    """Renders chats to token ids, and decodes answers.

    Args:
        folder: The engine's `tokenizer/` folder.
        limits: The engine's limits.
        stop_ids: The ids that end an answer; they are no part of its text.
    """

    def __init__(self, folder: Path, limits: LengthLimits, stop_ids: frozenset[int]) -> None:
        try:
            self._tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
        except (OSError, ValueError) as exc:
            raise EngineCorruptError(
                f"{folder}: no usable tokenizer: {exc}", "check the engine with: trtb engines verify"
            ) from exc
        self._backend = self._tokenizer.backend_tokenizer
        self._limits = limits
        self._stop_ids = stop_ids
        self._longest_token = max(len(token) for token in self._tokenizer.get_vocab())

    @property
    def limits(self) -> LengthLimits:
        """Return what fits the engine."""
        return self._limits

    def render(self, messages: list[dict[str, Any]]) -> list[int]:
        """Return the prompt's ids, ending where the assistant is to speak.

        Raises:
            InvalidRequestError: The chat template refuses the messages.
            ContextLengthError: The text alone is longer than the engine's limit.
        """
        try:
            text = self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        except jinja2.TemplateError as exc:
            raise InvalidRequestError(
                f"body.messages: the model's chat template refuses them: {exc}"
            ) from exc
        # no token is longer than the vocabulary's longest: a hopeless text is not worth tokenising
        if len(text) > self._longest_token * self._limits.max_seq_len:
            at_least = len(text) // self._longest_token
            raise ContextLengthError(
                f"the prompt has more than {at_least} tokens; the engine takes {self._limits.max_seq_len} "
                "for prompt and answer together"
            )
        # the template has written the special tokens that the model wants; more would double them
        return self._backend.encode(text, add_special_tokens=False).ids  # type: ignore[no-any-return]

    def answer_length(self, num_prompt_tokens: int, max_tokens: int | None) -> int:
        """Return how many tokens an answer may have.

        Raises:
            ContextLengthError: The prompt leaves no room, or less than the request asks for.
        """
        room = self._limits.max_seq_len - num_prompt_tokens
        wanted = max_tokens if max_tokens is not None else min(self._limits.default_max_tokens, room)
        if wanted > room or room < 1:
            raise ContextLengthError(
                f"prompt of {num_prompt_tokens} tokens and max_tokens {max(wanted, 1)} make "
                f"{num_prompt_tokens + max(wanted, 1)}; the engine takes {self._limits.max_seq_len} for both"
            )
        return wanted

    def decode(self, ids: list[int]) -> str:
        """Return an answer's text, without special tokens."""
        return self._backend.decode(ids, skip_special_tokens=True)  # type: ignore[no-any-return]

    def strip_stop_ids(self, ids: list[int]) -> list[int]:
        """Return an answer without the end-of-answer ids at its end."""
        end = len(ids)
        while end and ids[end - 1] in self._stop_ids:
            end -= 1
        return ids[:end]

    def stop_matcher(self, stop: tuple[str, ...]) -> StopMatcher:
        """Return a matcher of an answer's stop strings."""
        return StopMatcher(self._backend, stop)


class StopMatcher:
    """Decodes an answer as it comes and finds the first stop string, wherever token borders fall."""

    def __init__(self, backend: Any, stop: tuple[str, ...]) -> None:
        self._backend = backend
        self._stream = DecodeStream(skip_special_tokens=True)
        self._stop = stop
        self._longest = max(len(word) for word in stop)
        self._text = ""

    def push(self, ids: list[int]) -> str | None:
        """Take new ids; return the text before the first stop string once one is there, else None."""
        searched = max(0, len(self._text) - self._longest + 1)
        for token in ids:
            self._text += self._stream.step(self._backend, token) or ""
        found = [at for word in self._stop if (at := self._text.find(word, searched)) >= 0]
        return self._text[: min(found)] if found else None


def read_token_ids(folder: Path) -> tuple[int, ...]:
    """Return every end-of-answer id of a tokenizer folder's generation_config.json."""
    value = json.loads((folder / "generation_config.json").read_text())["eos_token_id"]
    return tuple(value) if isinstance(value, list) else (value,)
