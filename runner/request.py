"""One request as the run works with it: checked once at the edge, trusted after that."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from trtb.runner.guiding.guides import Guide
from trtb.runner.tool_calls import ToolStyle


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a chosen engine can do beyond sampling text."""

    tool_style: ToolStyle | None = "hermes"  # how its chat template has tools called; None: not at all
    guided: bool = True  # whether answers can be constrained to a grammar


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How tokens are chosen and when to stop; None means that the request does not say."""

    max_tokens: int | None = None  # without it, the run's own default applies
    temperature: float = 1.0  # 0 is greedy
    top_p: float = 1.0
    top_k: int | None = None  # None: off
    min_tokens: int = 0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    n: int = 1  # answers to each prompt
    log_probs: bool = False  # of the chosen tokens
    guide: Guide | None = None  # what the answer is constrained to


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A valid line of the chat endpoint."""

    line: int  # physical line number, from 1
    custom_id: str
    model: str
    messages: list[dict[str, Any]]
    sampling: SamplingParams
    tools: list[dict[str, Any]] = field(default_factory=list)
    template_kwargs: dict[str, Any] = field(default_factory=dict)
    continue_final_message: bool = False  # the answer goes on with the last message, an assistant's


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    """A valid line of the completions endpoint: each prompt is text or token ids; no chat template."""

    line: int
    custom_id: str
    model: str
    prompts: tuple[str | list[int], ...]
    sampling: SamplingParams


Request = ChatRequest | CompletionRequest
