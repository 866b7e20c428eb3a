"""KV-cache arithmetic: bytes per token, blocks per budget, blocks per request. No I/O."""

from __future__ import annotations

BYTES_PER_ELEMENT = {"f32": 4, "f16": 2, "bf16": 2, "fp8": 1, "int8": 1}


def num_bytes_per_token(num_layers: int, num_kv_heads: int, head_dim: int, dtype: str) -> int:
    """Return the bytes that one token's keys and values take in all layers.

    >>> num_bytes_per_token(num_layers=30, num_kv_heads=3, head_dim=64, dtype="f32")
    46080
    """
    return 2 * num_layers * num_kv_heads * head_dim * BYTES_PER_ELEMENT[dtype]


def num_bytes_per_token_quantised(
    num_layers: int, num_kv_heads: int, head_dim: int, tokens_per_block: int
) -> int:
    """Return the same of OpenVINO's cache of 8 bits, with its scales and zero points in f32.

    Keys have a pair for each channel of a block, values one for each token.

    >>> num_bytes_per_token_quantised(num_layers=30, num_kv_heads=3, head_dim=64, tokens_per_block=32)
    13680
    """
    scales_of_keys = -(-head_dim * 8 // tokens_per_block)
    return num_layers * num_kv_heads * (head_dim + scales_of_keys + head_dim + 8)


def num_blocks_needed(num_prompt_tokens: int, max_tokens: int, tokens_per_block: int) -> int:
    """Return the most KV blocks a request can grow to.

    >>> num_blocks_needed(num_prompt_tokens=33, max_tokens=31, tokens_per_block=32)
    2
    """
    return -(-(num_prompt_tokens + max_tokens) // tokens_per_block)


def num_blocks_of_sequences(
    num_prompt_tokens: int, max_tokens: int, tokens_per_block: int, num_sequences: int
) -> int:
    """Return the most KV blocks that several answers to one prompt take; its full blocks are shared.

    >>> num_blocks_of_sequences(num_prompt_tokens=33, max_tokens=31, tokens_per_block=32, num_sequences=4)
    5
    """
    shared = num_prompt_tokens // tokens_per_block
    own = num_blocks_needed(num_prompt_tokens, max_tokens, tokens_per_block) - shared
    return shared + own * num_sequences


def num_blocks_in(budget_bytes: int, bytes_per_block: int) -> int:
    """Return how many whole blocks a budget holds.

    >>> num_blocks_in(budget_bytes=10_000_000, bytes_per_block=1_474_560)
    6
    """
    return budget_bytes // bytes_per_block


def default_num_blocks(
    available_bytes: int,
    bytes_per_block: int,
    num_blocks_useful: int,
    *,
    fraction: float = 0.3,
    max_bytes: int = 4 << 30,
) -> int:
    """Return a KV pool for a machine: a fraction of its free memory, within what makes sense.

    The pool is taken whole when the engine starts, so it is bounded by `max_bytes` too: others run here.
    Both bounds are of the type that `bytes_per_block` counts in: of f32, a 16-bit cache takes half of them.
    `num_blocks_useful` is what the largest batch of the longest requests would fill.

    >>> default_num_blocks(available_bytes=8 << 30, bytes_per_block=1_474_560, num_blocks_useful=32_768)
    1747
    >>> default_num_blocks(available_bytes=80 << 30, bytes_per_block=1_474_560, num_blocks_useful=32_768)
    2912
    """
    budget_bytes = min(int(available_bytes * fraction), max_bytes)
    return max(2, min(num_blocks_useful, num_blocks_in(budget_bytes, bytes_per_block)))
