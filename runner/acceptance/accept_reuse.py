"""The step of an acceptance that shows the KV cache at work: a known prompt is not computed again.

TensorRT-LLM counts the blocks that each request is given and those it reuses. The CPU engine counts none,
so there it is derived from the time from arrival to first token, which is nearly all of a long prompt's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pydantic import JsonValue

from trtb.build.manifest import EngineManifest
from trtb.runner.acceptance.accept_state import AcceptState
from trtb.runner.acceptance.accept_step import Figures, NotApplicable, StepFailedError
from trtb.runner.reuse_check import word_ids
from trtb.runner.transport import Chunk, EngineRequest

NUM_BLOCKS: Final = 16  # of the prompt
NUM_REPEATS: Final = 3
MIN_SAVED: Final = 0.5  # of the time of a prompt that needs no more than its last block


def kv_reuse(state: AcceptState, figures: Figures) -> NotApplicable | None:
    """Send one prompt several times, past the runner, and look at the blocks of each.

    Raises:
        StepFailedError: The engine counts blocks, and reuses fewer than the prompt fills.
    """
    assert state.served
    manifest = state.served.engine.manifest
    ids = unlike_prompt(manifest)
    requests = [
        EngineRequest(
            request_id=f"reuse-{number}",
            input_ids=ids,
            max_tokens=1,
            end_id=manifest.tokens.end,
            pad_id=manifest.tokens.pad,
            top_k=1,
            block_counts=True,
        )
        for number in range(1 + NUM_REPEATS)
    ]
    told = state.ask(state.served.endpoint, requests)
    tokens_per_block = manifest.limits.tokens_per_block
    rows: list[JsonValue] = [
        {
            "reused_blocks": chunk.reused_blocks,
            "new_blocks": chunk.new_blocks,
            "total_blocks": chunk.total_blocks,
            "prefill_ms": round((chunk.first_token_ns - chunk.arrival_ns) / 1e6, 3),
        }
        for chunk in told
    ]
    figures.update(prompt_tokens=len(ids), tokens_per_block=tokens_per_block, requests=rows)
    if any(chunk.reused_blocks is not None for chunk in told):
        figures["seen_by"] = "engine counters"
        check_counts(told, len(ids) // tokens_per_block)
        return None
    saved = saved_share(told)
    figures.update(seen_by="derived from prefill times", saved_share=saved and round(saved, 3))
    if saved is None:
        return NotApplicable("the engine counts no blocks and tells no times")
    if saved < MIN_SAVED:
        return NotApplicable(
            f"the engine counts no blocks, and its times do not show it: a repeated prompt saved {saved:.0%} "
            f"of its time, expected {MIN_SAVED:.0%}; other work on this machine may have slowed it"
        )
    return None


def unlike_prompt(manifest: EngineManifest) -> list[int]:
    """Return a prompt of whole blocks and a part of one, which begins as no other prompt here does."""
    tokens_per_block = manifest.limits.tokens_per_block
    length = NUM_BLOCKS * tokens_per_block - tokens_per_block // 4
    length = min(length, manifest.limits.max_seq_len // 2)
    usable = word_ids(manifest)
    return [usable[7 * position % len(usable)] for position in range(length)]


def check_counts(told: Sequence[Chunk], num_full_blocks: int) -> None:
    """Check that the first request reused nothing and every other one all blocks that the prompt fills.

    Raises:
        StepFailedError: It is not so.
    """
    first, *others = told
    if first.reused_blocks:
        raise StepFailedError(
            f"the first of equal prompts reused {first.reused_blocks} blocks; expected 0: it is like no other"
        )
    for chunk in others:
        if (chunk.reused_blocks or 0) < num_full_blocks:
            raise StepFailedError(
                f"a repeated prompt reused {chunk.reused_blocks} blocks; expected at least {num_full_blocks}",
                "build with use_paged_context_fmha, and serve with enable_kv_cache_reuse=true",
            )
        if chunk.new_blocks is not None and chunk.new_blocks >= (first.new_blocks or 0):
            raise StepFailedError(
                f"a repeated prompt was given {chunk.new_blocks} new blocks, the first one "
                f"{first.new_blocks}; expected fewer"
            )


def saved_share(told: Sequence[Chunk]) -> float | None:
    """Return the share of the first request's time to its first token that the best other one saved."""
    times = [chunk.first_token_ns - chunk.arrival_ns for chunk in told if chunk.first_token_ns]
    if len(times) < len(told) or times[0] <= 0:
        return None
    return 1 - min(times[1:]) / times[0]
