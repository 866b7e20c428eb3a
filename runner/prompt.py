"""Text in and text out of token ids, with the checkpoint's own tokenizer and chat template.

The chat template is rendered by transformers, in its sandbox; the ids come from the same checkpoint's
tokenizer.json. transformers takes a second to import, so the run imports this while the server starts.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")  # it remarks on the absence of torch
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")

import jinja2
from transformers import PreTrainedTokenizerFast
from transformers.utils import chat_template_utils

from trtb.build.errors import EngineCorruptError
from trtb.runner import detokenize, tool_calls
from trtb.runner.detokenize import StopMatcher
from trtb.runner.errors import ContextLengthError, InvalidRequestError
from trtb.runner.request import ChatRequest
from trtb.runner.tool_calls import ToolCall
from trtb.runner.word_cache import WordCache


@dataclass(frozen=True, slots=True)
class LengthLimits:
    """What fits the engine, in tokens."""

    max_seq_len: int  # prompt and answer together
    default_max_tokens: int  # where a request names no bound of its own
    bound_by: str = "the engine"  # what takes no more


class PromptRenderer:
    """Renders chats to token ids, and decodes answers.

    Args:
        folder: The engine's `tokenizer/` folder.
        limits: The engine's limits.
        vocab_size: The engine's; ids at or above it do not exist.
        stop_ids: The ids that end an answer; they are no part of its text.
    """

    def __init__(self, folder: Path, limits: LengthLimits, vocab_size: int, stop_ids: frozenset[int]) -> None:
        try:
            self._tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
        except (OSError, ValueError) as exc:
            raise EngineCorruptError(
                f"{folder}: no usable tokenizer: {exc}", "check the engine with: trtb engines verify"
            ) from exc
        self._backend = self._tokenizer.backend_tokenizer
        self._words = WordCache(self._backend)
        self._template = _compile(str(self._tokenizer.chat_template or ""))
        self._template_settings = {"add_generation_prompt": True, **self._tokenizer.special_tokens_map}
        self._limits = limits
        self._vocab_size = vocab_size
        self._stop_ids = stop_ids
        self._tool_style = tool_calls.style_of_template(str(self._tokenizer.chat_template or ""))
        self._longest_token = max(len(token) for token in self._tokenizer.get_vocab())

    @property
    def limits(self) -> LengthLimits:
        """Return what fits the engine."""
        return self._limits

    def render_chat(self, request: ChatRequest) -> list[int]:
        """Return a chat's prompt ids, ending where the assistant is to speak, or to go on.

        Raises:
            InvalidRequestError: The chat template refuses the messages.
            ContextLengthError: The text alone is longer than the engine's limit.
        """
        try:
            text = self._render(request)
        except (jinja2.TemplateError, TypeError, ValueError, LookupError, AttributeError) as exc:
            # a template is the checkpoint's own program: what it raises is its verdict on the messages
            raise InvalidRequestError(
                f"body.messages: the model's chat template refuses them: {exc}"
            ) from exc
        # the template has written the special tokens that the model wants; more would double them
        return self._encode(text, add_special_tokens=False)

    def _render(self, request: ChatRequest) -> str:
        is_plain = not (request.tools or request.template_kwargs or request.continue_final_message)
        if is_plain and self._template and all(message["content"] for message in request.messages):
            # what apply_chat_template comes down to for texts alone, without its 50 us of preparation
            text: str = self._template.render(
                messages=request.messages, tools=None, documents=None, **self._template_settings
            )
            return text
        # an assistant's turn without content is legal, and most templates can only join texts
        messages = [
            message
            if message["content"] is not None or "tool_calls" in message
            else {**message, "content": ""}
            for message in request.messages
        ]
        rendered: str = self._tokenizer.apply_chat_template(
            messages,
            tools=request.tools or None,
            tokenize=False,
            add_generation_prompt=not request.continue_final_message,
            continue_final_message=request.continue_final_message,
            **request.template_kwargs,
        )
        return rendered

    def render_prompt(self, prompt: str | list[int]) -> list[int]:
        """Return a completion prompt's ids; text gets the special tokens that the tokenizer adds by itself.

        Raises:
            InvalidRequestError: An id is not in the vocabulary, or the text has no token.
            ContextLengthError: The text alone is longer than the engine's limit.
        """
        if isinstance(prompt, str):
            return self._encode(prompt, add_special_tokens=True)
        if max(prompt) >= self._vocab_size:
            raise InvalidRequestError(
                f"body.prompt: token id {max(prompt)}; expected ids below {self._vocab_size}"
            )
        return prompt

    def _encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        # no token is longer than the vocabulary's longest: a hopeless text is not worth tokenising
        if len(text) > self._longest_token * self._limits.max_seq_len:
            at_least = len(text) // self._longest_token
            raise ContextLengthError(
                f"the prompt has more than {at_least} tokens; the engine takes {self._limits.max_seq_len} "
                "for prompt and answer together"
            )
        if not add_special_tokens:
            return self._words.encode(text)
        ids: list[int] = self._backend.encode(text, add_special_tokens=add_special_tokens).ids
        return ids

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
                f"{num_prompt_tokens + max(wanted, 1)}; {self._limits.bound_by} takes "
                f"{self._limits.max_seq_len} for both"
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

    def stop_word_ids(self, stop: tuple[str, ...]) -> tuple[tuple[int, ...], ...]:
        """Return stop strings as ids, so that the engine may stop by itself.

        Tokenised alone, they miss what falls across token borders: the text is matched all the same.
        """
        words = (self._backend.encode(word, add_special_tokens=False).ids for word in stop)
        return tuple(tuple(ids) for ids in words if ids)

    def token_text(self, token: int) -> tuple[str, bytes]:
        """Return a token's text and bytes; a part of a character is U+FFFD as text, exact as bytes."""
        data = detokenize.token_bytes(self._backend, token)
        return data.decode(errors="replace"), data

    def parse_tool_calls(
        self, text: str, tool_names: frozenset[str]
    ) -> tuple[str | None, tuple[ToolCall, ...]]:
        """Return an answer's content and its tool calls, in the form of the model's chat template."""
        if self._tool_style is None:
            return text, ()
        return tool_calls.parse(text, self._tool_style, tool_names)

    def stop_matcher(self, stop: tuple[str, ...]) -> StopMatcher:
        """Return a matcher of an answer's stop strings."""
        return StopMatcher(detokenize.Detokenizer(self._backend), stop)


def _compile(chat_template: str) -> Any:
    """Return a chat template as transformers compiles it; None where that is not to be had.

    The function is transformers' own affair; without it every chat takes the longer way.
    """
    compile_template = getattr(chat_template_utils, "_compile_jinja_template", None)
    try:
        return compile_template(chat_template) if compile_template and chat_template else None
    except jinja2.TemplateError:
        return None
