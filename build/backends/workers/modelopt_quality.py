"""How a model answers on fixed texts, and how far another is from it: perplexity, top-1, logits, greedy.

Both sides are computed in the same precision: bfloat16 rounding alone changes a perplexity by as much as
an 8-bit quantisation does.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Scores:
    """A model's view of the texts; on the CPU."""

    log_probs: torch.Tensor  # (num_predicted,) of the tokens that stand in the texts
    logits: list[torch.Tensor]  # of each text, (num_predicted, vocab_size), float16
    greedy: torch.Tensor  # (num_prompts, num_greedy_tokens)


def score(model: Any, texts: list[list[int]], num_prompt_tokens: int, num_greedy_tokens: int) -> Scores:
    """Run a model over the texts, and let it go on greedily from their first `num_prompt_tokens`.

    All texts go through the layers at once: a simulated quantisation rounds every weight again in each
    pass. What pads the shorter ones stands after them, where a decoder does not look back from.
    """
    width = max(map(len, texts))
    padded = torch.tensor([[*ids, *[ids[-1]] * (width - len(ids))] for ids in texts], device=model.device)
    log_probs, logits = [], []
    with torch.inference_mode():
        hidden = model.base_model(input_ids=padded, use_cache=False).last_hidden_state
        head = model.get_output_embeddings()
        for number, ids in enumerate(texts):
            # the logits of one text are as large as all hidden states
            rows = head(hidden[number, : len(ids) - 1]).float()
            targets = padded[number, 1 : len(ids), None].to(rows.device)
            log_probs.append(rows.log_softmax(-1).gather(1, targets)[:, 0].cpu())
            logits.append(rows.to(torch.float16).cpu())
        prompts = [ids[:num_prompt_tokens] for ids in texts if len(ids) >= num_prompt_tokens]
        greedy = _continue(model, prompts, num_greedy_tokens)
    return Scores(torch.cat(log_probs), logits, greedy)


def compare(model: Scores, base: Scores) -> dict[str, Any]:
    """Return the figures of a model against its base.

    `greedy_agreement` is the mean share of an answer before its first other token: after it, two answers
    need have nothing in common.
    """
    num_tokens, same_top1, cosines = len(base.log_probs), 0, 0.0
    for ours, theirs in zip(model.logits, base.logits, strict=True):
        same_top1 += int((ours.argmax(-1) == theirs.argmax(-1)).sum())
        cosines += float(torch.nn.functional.cosine_similarity(ours.float(), theirs.float(), dim=-1).sum())
    is_answered = len(base.greedy) > 0 and model.greedy.shape == base.greedy.shape
    same = (model.greedy == base.greedy).int() if is_answered else None
    return {
        "num_tokens": num_tokens,
        "perplexity": float(torch.exp(-model.log_probs.mean())),
        "base_perplexity": float(torch.exp(-base.log_probs.mean())),
        "top1_agreement": same_top1 / num_tokens,
        "logits_cosine": cosines / num_tokens,
        "greedy_agreement": None if same is None else float(same.cumprod(dim=1).float().mean()),
    }


@contextlib.contextmanager
def in_float32(model: Any, *, is_wanted: bool) -> Iterator[None]:
    """Compute in float32 with a model's weights, and give them back as they were, bit for bit.

    Only parameters are converted: a rotary frequency that passed through bfloat16 would not come back.
    """
    if not is_wanted:
        yield
        return
    kept = {parameter: parameter.dtype for parameter in model.parameters()}
    for parameter in kept:
        parameter.data = parameter.data.float()
    try:
        yield
    finally:
        for parameter, dtype in kept.items():
            parameter.data = parameter.data.to(dtype)


def _continue(model: Any, prompts: list[list[int]], num_tokens: int) -> torch.Tensor:
    """Return the answers to prompts of one length, whatever the model would have ended with."""
    if not prompts or not num_tokens:
        return torch.empty((0, num_tokens), dtype=torch.long)
    tokens, cache = torch.tensor(prompts, device=model.device), None
    answer = []
    for _ in range(num_tokens):
        output = model(input_ids=tokens, past_key_values=cache, use_cache=True)
        cache, tokens = output.past_key_values, output.logits[:, -1:].argmax(-1)
        answer.append(tokens.cpu())
    return torch.cat(answer, dim=1)
