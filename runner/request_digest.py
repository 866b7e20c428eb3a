"""What a request asks for, in 32 bytes: equal requests have it in common, and no two others."""

from __future__ import annotations

import hashlib
from typing import Final

import orjson

from trtb.runner.request import ChatRequest, Request

# below this, scaled logits overflow and every engine's answer is the greedy one or garbage
GREEDY_BELOW: Final = 0.01


def is_deterministic(request: Request) -> bool:
    """Say whether a request asks for the same answer each time: it is greedy, or names a seed."""
    return request.sampling.temperature < GREEDY_BELOW or request.sampling.seed is not None


def canonical(request: Request) -> bytes:
    """Return all that decides a request's answer, as JSON.

    Keys keep their order: a chat template writes tools and contents into the prompt as they were given. The
    model's name is left out, since every accepted name means the one engine.
    """
    content: tuple[object, ...]
    if isinstance(request, ChatRequest):
        content = (request.messages, request.tools, request.template_kwargs, request.continue_final_message)
    else:
        content = (request.prompts,)
    return orjson.dumps((*content, request.sampling))


def digest(request: Request) -> str:
    """Return what equal requests have in common: a sha256 of all that decides their answers."""
    return hashlib.sha256(canonical(request)).hexdigest()
