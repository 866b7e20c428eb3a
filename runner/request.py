"""One request as the run works with it: checked once at the edge, trusted after that."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


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


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A valid line of the input file; each message is exactly {"role", "content": str or None}."""

    line: int  # physical line number, from 1
    custom_id: str
    model: str
    messages: list[dict[str, Any]]
    sampling: SamplingParams
