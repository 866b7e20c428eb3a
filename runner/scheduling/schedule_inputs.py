"""What a plan is made from, by a run's options: the renderer, the source and the planner's settings."""

from __future__ import annotations

from pathlib import Path

from trtb.runner.line_set import LineSet
from trtb.runner.options import RunOptions
from trtb.runner.prompt import LengthLimits, PromptRenderer
from trtb.runner.scheduling.schedule_planner import PlanOptions
from trtb.runner.schema import LineParser
from trtb.runner.source import Source


def make_renderer(options: RunOptions, pool: int | None) -> PromptRenderer:
    """Return the renderer of an engine's prompts; `pool` is its KV blocks, None where that is not known."""
    manifest = options.manifest
    max_seq_len, bound_by = manifest.limits.max_seq_len, "the engine"
    # one block stays free in the engine for the token that a step is about to make
    if pool is not None and (room := (pool - 1) * manifest.limits.tokens_per_block) < max_seq_len:
        max_seq_len, bound_by = room, f"the server's KV pool of {pool} blocks"
    return PromptRenderer(
        options.engine_dir / "tokenizer",
        LengthLimits(max_seq_len, options.default_max_tokens, bound_by),
        manifest.model.vocab_size,
        frozenset(manifest.tokens.eos),
    )


def make_source(
    options: RunOptions,
    renderer: PromptRenderer,
    done: LineSet,
    duplicates: LineSet,
    pool: int | None,
    *,
    seed_base: str,
) -> Source:
    """Return the lines of the input that are to do."""
    return Source(
        options.input_path,
        parser=LineParser(options.model_names, options.strict_params, options.capabilities()),
        renderer=renderer,
        done=done,
        duplicates=duplicates,
        limit=options.limit,
        max_line_bytes=options.max_line_bytes,
        tokens_per_block=options.manifest.limits.tokens_per_block,
        max_blocks=None if pool is None else pool - 1,
        seed_base=seed_base,
    )


def make_plan_options(options: RunOptions, folder: Path, *, is_exact: bool, is_reusing: bool) -> PlanOptions:
    """Return the planner's settings.

    Equal requests are looked for where asked for, where answers are exact, and where they go into the result
    cache, which has one answer for all of them.
    """
    return PlanOptions(
        order=options.order,
        is_dedup=is_exact or options.cache if options.dedup is None else options.dedup,
        queue_size=options.queue_size,
        concurrency=options.concurrency,
        default_max_tokens=options.default_max_tokens,
        tokens_per_block=options.manifest.limits.tokens_per_block,
        folder=folder,
        is_reusing=is_reusing,
    )
