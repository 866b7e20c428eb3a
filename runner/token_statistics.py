"""Count a file's tokens: prompt lengths, shared prefixes and KV blocks decide how it is best run.

The prompts are rendered and tokenised exactly as a run does it, so what is too long for the engine is
found here, too, with the code and the message of the run.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from trtb.build.manifest import EngineManifest, TokenIds
from trtb.runner.findings import Fault, Finding
from trtb.runner.line_set import LineSet
from trtb.runner.metrics import Histogram
from trtb.runner.options import capabilities_of
from trtb.runner.prompt import LengthLimits, PromptRenderer
from trtb.runner.schema import LineParser
from trtb.runner.source import Item, Refused, Source

# hashes of prefix blocks, 8 bytes each in a set of Python integers: about 300 MB at the most
MAX_PREFIX_BLOCKS = 4_000_000


@dataclass(slots=True)
class TokenStatistics:
    """What a file's valid requests add up to; lengths are in tokens."""

    tokens_per_block: int
    num_requests: int = 0
    num_prompts: int = 0
    prompt_tokens: int = 0
    max_output_tokens: int = 0  # the most that the answers may have
    shared_prefix_tokens: int = 0  # in whole blocks that an earlier prompt begins with, too
    kv_blocks: int = 0  # of all requests, to their last token
    is_prefix_count_partial: bool = False  # there were more different prefixes than are remembered
    findings: list[Finding] = field(default_factory=list)
    num_too_long: int = 0
    lengths: Histogram = field(default_factory=Histogram)
    blocks: Histogram = field(default_factory=Histogram)
    _seen: set[int] = field(default_factory=set)

    def add(self, item: Item) -> None:
        """Count a request."""
        self.num_requests += 1
        self.kv_blocks += item.num_blocks
        self.blocks.add(item.num_blocks)
        for prompt in item.prompts:
            self.num_prompts += 1
            self.prompt_tokens += len(prompt.input_ids)
            self.max_output_tokens += prompt.max_tokens * item.num_sequences
            self.lengths.add(len(prompt.input_ids))
            self.shared_prefix_tokens += self._count_shared(prompt.input_ids)

    def refuse(self, refused: Refused, max_findings: int) -> None:
        """Count a request that cannot be sent."""
        self.num_too_long += 1
        if len(self.findings) < max_findings:
            fault = Fault(None, refused.code, refused.message)
            self.findings.append(fault.on(refused.line, refused.custom_id))

    def _count_shared(self, ids: list[int]) -> int:
        """Return how many leading tokens stand in blocks that are known; remember the others."""
        num_shared = 0
        is_shared = True
        for key in _prefix_keys(ids, self.tokens_per_block):
            if is_shared and key in self._seen:
                num_shared += self.tokens_per_block
                continue
            is_shared = False
            if len(self._seen) < MAX_PREFIX_BLOCKS:
                self._seen.add(key)
            else:
                self.is_prefix_count_partial = True
        return num_shared

    def to_json(self) -> dict[str, Any]:
        """Return the figures as `trtb validate --tokens --json` prints them."""
        return {
            "requests": self.num_requests,
            "prompts": self.num_prompts,
            "prompt_tokens": self.prompt_tokens,
            "prompt_length": _percentiles(self.lengths),
            "max_output_tokens": self.max_output_tokens,
            "shared_prefix_share": round(self.shared_prefix_tokens / max(1, self.prompt_tokens), 4),
            "shared_prefix_is_partial": self.is_prefix_count_partial,
            "tokens_per_block": self.tokens_per_block,
            "kv_blocks_per_request": _percentiles(self.blocks),
            "too_long": self.num_too_long,
            "findings": [asdict(finding) for finding in self.findings],
        }


def count_tokens_of(
    path: Path,
    engine_dir: Path,
    manifest: EngineManifest,
    invalid: LineSet,
    *,
    default_max_tokens: int,
    max_line_bytes: int,
    max_findings: int,
) -> TokenStatistics:
    """Count a file's tokens for an engine; lines that are invalid for another reason are left out."""
    limits = manifest.limits
    return count_tokens(
        path,
        engine_dir / "tokenizer",
        LengthLimits(limits.max_seq_len, default_max_tokens),
        manifest.model.vocab_size,
        manifest.tokens,
        invalid,
        tokens_per_block=limits.tokens_per_block,
        max_line_bytes=max_line_bytes,
        max_findings=max_findings,
    )


def count_tokens(
    path: Path,
    tokenizer: Path,
    lengths: LengthLimits,
    vocab_size: int,
    tokens: TokenIds,
    invalid: LineSet,
    *,
    tokens_per_block: int,
    max_line_bytes: int,
    max_findings: int,
) -> TokenStatistics:
    """Count a file's tokens with a `tokenizer/` folder, of an engine that need not exist."""
    source = Source(
        path,
        parser=LineParser(None, strict_params=False, capabilities=capabilities_of(tokenizer.parent)),
        renderer=PromptRenderer(tokenizer, lengths, vocab_size, frozenset(tokens.eos)),
        done=invalid,
        duplicates=LineSet(),
        limit=None,
        max_line_bytes=max_line_bytes,
        tokens_per_block=tokens_per_block,
        max_blocks=None,
        seed_base="",
    )
    statistics = TokenStatistics(tokens_per_block)
    for item in source:
        if isinstance(item, Item):
            statistics.add(item)
        else:
            statistics.refuse(item, max_findings)
    return statistics


def _prefix_keys(ids: list[int], tokens_per_block: int) -> Iterator[int]:
    """Yield a key for each whole block that stands for it and all before it."""
    digest = xxhash.xxh3_64()
    data = np.array(ids, dtype="<i4")
    for end in range(tokens_per_block, len(ids) + 1, tokens_per_block):
        digest.update(data[end - tokens_per_block : end].tobytes())
        yield digest.intdigest()


def _percentiles(histogram: Histogram) -> dict[str, int | None]:
    return {
        "p50": histogram.percentile(0.5),
        "p90": histogram.percentile(0.9),
        "max": histogram.max_value if histogram.count else None,
    }
