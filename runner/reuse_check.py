"""Whether a running engine computes a known prompt again: measured, with prompts that nobody has sent yet.

Three things are asked of it, several times in turn: the same request again, a prompt that begins as one
that has ended, and one that begins as one whose answer is still being written. TensorRT-LLM counts the
blocks that it reuses; for an engine that counts none it is derived from the time to the first token, against
prompts of the same length that are like no other.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Final, Literal, Protocol

from trtb.build.manifest import EngineManifest
from trtb.runner.errors import ServerError
from trtb.runner.transport import Chunk, EngineRequest, Stream

MAX_BLOCKS: Final = 32  # of a prompt: enough for its prefill to outweigh everything else
MIN_BLOCKS: Final = 4
MIN_ROUNDS: Final = 5
MAX_ROUNDS: Final = 11
REUSED_RATIO: Final = 0.5  # of the time that a new prompt takes; a known one needs its last block alone
COMPUTED_RATIO: Final = 0.8
SURE_SHARE: Final = 0.7  # of the rounds, which must be on the median's side of the middle
ANSWER_TOKENS: Final = 512  # of the answer that is still being written: long beside two prefills
REQUEST_TIMEOUT_S: Final = 300.0
CASES: Final = ("same request", "prefix of an ended request", "prefix of a request in flight")
Verdict = Literal["reused", "computed again", "cannot tell"]


class Server(Protocol):
    """What the check needs of a server."""

    def open_stream(self) -> Stream:
        """Return a stream of our own."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One round of a case: a new prompt's time to its first token, and the known one's."""

    new_ns: int
    known_ns: int
    reused_blocks: int | None  # of the known one, as the engine counts

    @property
    def ratio(self) -> float:
        """Return the known prompt's time over the new one's."""
        return self.known_ns / max(1, self.new_ns)


@dataclass(slots=True)
class ReuseCase:
    """What was seen of one of `CASES`."""

    name: str
    num_blocks: int  # that could be reused
    samples: list[Sample] = field(default_factory=list)

    @property
    def is_counted(self) -> bool:
        """Say whether the engine counts the blocks that it reuses."""
        return any(sample.reused_blocks is not None for sample in self.samples)

    @property
    def method(self) -> Literal["engine counters", "derived from prefill times"]:
        """Return how the verdict is known."""
        return "engine counters" if self.is_counted else "derived from prefill times"

    @property
    def new_ms(self) -> float:
        """Return the median time to the first token of new prompts."""
        return median(sample.new_ns for sample in self.samples) / 1e6

    @property
    def known_ms(self) -> float:
        """Return the median time to the first token of known prompts."""
        return median(sample.known_ns for sample in self.samples) / 1e6

    @property
    def ratio(self) -> float:
        """Return the median of the rounds' ratios."""
        return median(sample.ratio for sample in self.samples)

    @property
    def reused_blocks(self) -> int | None:
        """Return the median of the blocks that the engine counted."""
        counts = [sample.reused_blocks for sample in self.samples if sample.reused_blocks is not None]
        return int(median(counts)) if counts else None

    @property
    def verdict(self) -> Verdict:
        """Return what the samples show."""
        if (reused := self.reused_blocks) is not None:
            return "reused" if reused >= self.num_blocks else "cannot tell" if reused else "computed again"
        if len(self.samples) < MIN_ROUNDS:
            return "cannot tell"
        middle = (REUSED_RATIO + COMPUTED_RATIO) / 2
        num_below = sum(sample.ratio < middle for sample in self.samples)
        enough = SURE_SHARE * len(self.samples)
        if self.ratio <= REUSED_RATIO and num_below >= enough:
            return "reused"
        if self.ratio >= COMPUTED_RATIO and len(self.samples) - num_below >= enough:
            return "computed again"
        return "cannot tell"


@dataclass(frozen=True, slots=True)
class ReuseFindings:
    """What was seen of an engine's reuse."""

    cases: tuple[ReuseCase, ...]
    num_rounds: int
    prompt_tokens: int

    @property
    def verdict(self) -> Literal["works", "does not work", "cannot tell"]:
        """Return whether runs profit: what one request has computed, those after it need not.

        A prefix whose first user is still in flight decides nothing: TensorRT-LLM lends blocks only when
        their request has ended, and a run waits for that.
        """
        decisive = {case.verdict for case in self.cases[:2]}
        if decisive == {"reused"}:
            return "works"
        return "does not work" if "computed again" in decisive else "cannot tell"


def word_ids(manifest: EngineManifest) -> list[int]:
    """Return token ids that are safe in any prompt: no special ones.

    In the middle of a vocabulary stand words; its begin and its end hold what is special.
    """
    tokens = manifest.tokens
    special = {tokens.bos, tokens.pad, *tokens.eos}
    words = range(manifest.model.vocab_size // 2, manifest.model.vocab_size)
    return [token for token in words if token not in special][:997]


async def check_reuse(server: Server, manifest: EngineManifest, num_kv_blocks: int | None) -> ReuseFindings:
    """Ask a server, until its answers decide or `MAX_ROUNDS` is reached.

    Args:
        server: It should have nothing else to do.
        manifest: Its engine's.
        num_kv_blocks: Its pool, where it tells.

    Raises:
        RequestError: A request failed.
        ServerError: Its pool is too small for two prompts that could show anything.
    """
    prober = _Prober(server, manifest, num_kv_blocks)
    rounds = 0
    while rounds < MAX_ROUNDS:
        await asyncio.wait_for(prober.round(), REQUEST_TIMEOUT_S)
        rounds += 1
        if rounds >= MIN_ROUNDS and all(case.verdict != "cannot tell" for case in prober.cases):
            break
    return ReuseFindings(prober.cases, rounds, prober.num_tokens)


class _Prober:
    """Sends the rounds of one check."""

    def __init__(self, server: Server, manifest: EngineManifest, num_kv_blocks: int | None) -> None:
        self._server = server
        self._manifest = manifest
        limits = manifest.limits
        self._width = limits.tokens_per_block
        bounds = [MAX_BLOCKS, limits.max_seq_len // 2 // self._width]
        bounds += [limits.max_num_tokens // self._width]  # a prompt in one step, where it is computed in one
        if num_kv_blocks is not None:
            bounds.append((num_kv_blocks - 1) // 3)
        num_blocks = min(bounds)
        if num_blocks < MIN_BLOCKS:
            raise ServerError(
                f"room for prompts of {num_blocks} KV blocks; expected at least {MIN_BLOCKS}",
                "serve with a larger pool: trtb serve --num-kv-blocks",
            )
        room = limits.max_seq_len - num_blocks * self._width
        if num_kv_blocks is not None:
            room = min(room, num_blocks * self._width)
        self._answer_tokens = max(1, min(ANSWER_TOKENS, room - 1))
        # the last block is not full: the last token is always computed, and so is its block
        self.num_tokens = num_blocks * self._width - self._width // 4
        self._num_shared = num_blocks - 1
        self._words = word_ids(manifest)
        self._random = random.Random()
        self._number = 0
        self.cases = tuple(ReuseCase(name, self._num_shared) for name in CASES)

    async def round(self) -> None:
        """Take one sample of each case."""
        stream = self._server.open_stream()
        same, ended, in_flight = self.cases
        prompt = self._new_prompt()
        new_ns, _ = await self._ask(stream, prompt)
        known_ns, chunk = await self._ask(stream, prompt)
        same.samples.append(Sample(new_ns, known_ns, chunk.reused_blocks))
        known_ns, chunk = await self._ask(stream, self._alike(prompt))
        ended.samples.append(Sample(new_ns, known_ns, chunk.reused_blocks))
        prompt = self._new_prompt()
        holder = self._server.open_stream()
        try:
            await holder.send(self._request(prompt, self._answer_tokens))
            await holder.receive()
            # both beside the answer that is being written, which takes its share of every step
            known_ns, chunk = await self._ask(stream, self._alike(prompt))
            new_ns, _ = await self._ask(stream, self._new_prompt())
        finally:
            holder.cancel()
        in_flight.samples.append(Sample(new_ns, known_ns, chunk.reused_blocks))

    async def _ask(self, stream: Stream, ids: Sequence[int]) -> tuple[int, Chunk]:
        """Return the time to the first token, as the engine tells it or as it is seen, and the last chunk."""
        sent_ns = time.monotonic_ns()
        await stream.send(self._request(ids, 1))
        chunk = await stream.receive()
        seen_ns = time.monotonic_ns() - sent_ns
        told = chunk
        while not chunk.is_final:
            chunk = await stream.receive()
            told = chunk if chunk.first_token_ns or chunk.reused_blocks is not None else told
        return (told.first_token_ns - told.arrival_ns if told.first_token_ns else seen_ns), told

    def _request(self, ids: Sequence[int], max_tokens: int) -> EngineRequest:
        self._number += 1
        tokens = self._manifest.tokens
        return EngineRequest(
            request_id=f"reuse-{self._number}",
            input_ids=list(ids),
            max_tokens=max_tokens,
            min_tokens=max_tokens,
            end_id=tokens.end,
            pad_id=tokens.pad,
            top_k=1,
            streaming=max_tokens > 1,
            block_counts=True,
        )

    def _new_prompt(self) -> list[int]:
        return self._random.choices(self._words, k=self.num_tokens)

    def _alike(self, prompt: list[int]) -> list[int]:
        """Return a prompt that shares all whole blocks and goes on otherwise."""
        shared = self._num_shared * self._width
        return prompt[:shared] + self._random.choices(self._words, k=len(prompt) - shared)
