"""What is sent for one prompt of a task, in the terms of the wire contract. No I/O."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from trtb.runner.scheduling.schedule_task import Task
from trtb.runner.source import MAX_SEED
from trtb.runner.transport import EngineRequest, Retention

StopWords = tuple[tuple[int, ...], ...]

# TensorRT-LLM's scale is 0 to 100, and what nobody speaks of has 35. What many requests share outlives
# that; a line's own part and its answer are of no use to others, and go first
SHARED_PRIORITY: Final = 80
OWN_PRIORITY: Final = 10


@dataclass(frozen=True, slots=True)
class RequestTerms:
    """What all requests of a run have in common.

    `tokens_per_block` is of the engine's KV cache; with `is_retaining` requests say which of their blocks
    the engine should keep.
    """

    run_id: str
    end_id: int
    pad_id: int
    stop_words: StopWords = ()  # end-of-answer ids besides `end_id`, one each
    tokens_per_block: int = 1
    is_retaining: bool = False


def engine_request(
    terms: RequestTerms, task: Task, index: int, stop_word_ids: Callable[[tuple[str, ...]], StopWords]
) -> EngineRequest:
    """Return the next attempt at one of a task's prompts.

    Args:
        terms: Of the run.
        task: A line, or the leader of a prefix.
        index: Of the prompt, from 0.
        stop_word_ids: Returns what the engine can be told of stop strings.
    """
    item = task.item
    sampling = item.sampling
    prompt = item.prompts[index]
    part = f"prefix{task.leads}" if task.is_leader else index
    greedy = item.is_greedy
    guide = sampling.guide
    # a streamed token costs more than all of them at once; and a cancel of a stream with
    # log probabilities has crashed TensorRT-LLM (its issue 10810)
    wants_stream = task.is_canary or bool(sampling.stop)
    return EngineRequest(
        request_id=f"{terms.run_id}-{item.line}-{part}-{item.attempts}",
        input_ids=prompt.input_ids,
        max_tokens=prompt.max_tokens,
        end_id=terms.end_id,
        pad_id=terms.pad_id,
        stop_words=terms.stop_words + (stop_word_ids(sampling.stop) if sampling.stop else ()),
        temperature=1.0 if greedy else sampling.temperature,
        top_k=1 if greedy else sampling.top_k or 0,
        top_p=1.0 if greedy else sampling.top_p,
        repetition_penalty=sampling.repetition_penalty,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        min_tokens=sampling.min_tokens,
        seed=None if greedy else (item.seed + index) & MAX_SEED,
        streaming=wants_stream and item.num_sequences == 1 and not sampling.log_probs,
        num_sequences=item.num_sequences,
        log_probs=sampling.log_probs,
        guide=None if guide is None else (guide.kind, guide.text),
        retention=_retention(terms, task, len(prompt.input_ids)) if terms.is_retaining else None,
    )


def _retention(terms: RequestTerms, task: Task, num_prompt_tokens: int) -> Retention | None:
    """Return how long a task's blocks should stay; None where it shares nothing, and the default is right."""
    num_shared = min(num_prompt_tokens, task.num_shared_blocks * terms.tokens_per_block)
    if not num_shared:
        return None
    ranges = [(0, num_shared, SHARED_PRIORITY)]
    if num_shared < num_prompt_tokens:
        ranges.append((num_shared, num_prompt_tokens, OWN_PRIORITY))
    return Retention(tuple(ranges), OWN_PRIORITY)
