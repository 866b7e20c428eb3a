"""What the run needs of a server: a stream that answers one request at a time.

A stream is one worker's own. Cancelling it harms nobody else, and an error on it can only belong to the
request that was sent on it; a shared stream offers neither.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Retention:
    """What of a request the engine should keep for others: the higher a priority, 0 to 100, the longer.

    Each range of prompt tokens is its first, the one after its last, and its priority; they are in order
    and do not overlap.
    """

    ranges: tuple[tuple[int, int, int], ...]
    decode_priority: int  # of what the answer fills


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """One attempt at one prompt, in the terms of the wire contract.

    `request_id` is ours and unique for each attempt. `top_k` 1 is greedy; `seed` None leaves it to the
    engine. With `streaming` each step's new tokens come as they are made, else all at the end. Of several
    sequences each comes in a chunk of its own. `block_counts` asks for the KV blocks that were given to the
    prompt, beside those it reused.
    """

    request_id: str
    input_ids: list[int]
    max_tokens: int
    end_id: int
    pad_id: int
    stop_words: tuple[tuple[int, ...], ...] = ()
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    min_tokens: int = 0
    seed: int | None = None
    streaming: bool = False
    num_sequences: int = 1
    log_probs: bool = False
    guide: tuple[str, str] | None = None  # kind and text, as in the contract's guide tensors
    block_counts: bool = False
    retention: Retention | None = None  # only to a model that declares its tensors


@dataclass(frozen=True, slots=True)
class Chunk:
    """Some output tokens of one sequence, with their log probabilities where they were asked for.

    A sequence's last chunk also tells the engine's own times, in ns, 0 where not told, and how many KV
    blocks of the prompt it reused, None where not told; the request's last chunk is final, and may be empty.
    """

    token_ids: list[int]
    is_final: bool
    sequence: int = 0
    log_probs: tuple[float, ...] = ()
    arrival_ns: int = 0
    first_token_ns: int = 0
    reused_blocks: int | None = None
    new_blocks: int | None = None  # with `block_counts`, as the next
    total_blocks: int | None = None


class Stream(Protocol):
    """One request at a time, over a connection of its own."""

    async def send(self, request: EngineRequest) -> None:
        """Send a request; the previous one has had its final chunk, or the stream was cancelled.

        Raises:
            ConnectionLostError: The server cannot be reached.
        """

    async def receive(self) -> Chunk:
        """Wait for the next chunk of the request that was sent.

        Raises:
            EngineError, InvalidRequestError, QueueFullError: The server's answer is an error.
            ConnectionLostError: The connection broke, or `cancel` was called meanwhile.
        """

    def cancel(self) -> None:
        """Give the request up: the server sees it and stops working on it. The stream stays usable."""


class Transport(Protocol):
    """A server, or several."""

    def open_stream(self) -> Stream:
        """Return a stream; nothing is sent before its first request."""

    async def close(self) -> None:
        """Close all connections."""
