"""An answer is put together from its chunks: sequences told apart, stop strings cut, the end told."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from trtb.runner.request import SamplingParams
from trtb.runner.tool_calls import ToolCall
from trtb.runner.transport import Chunk

if TYPE_CHECKING:
    from trtb.runner.detokenize import StopMatcher
    from trtb.runner.prompt import PromptRenderer  # a second to import

FinishReason = Literal["stop", "length", "tool_calls"]


@dataclass(frozen=True, slots=True)
class TokenLogProb:
    """One chosen token, with the natural logarithm of its probability."""

    text: str
    data: bytes
    log_prob: float


@dataclass(frozen=True, slots=True)
class Choice:
    """One answer to one prompt; `text` is None where it is all tool calls."""

    text: str | None
    finish_reason: FinishReason
    num_tokens: int
    log_probs: tuple[TokenLogProb, ...] | None = None
    tool_calls: tuple[ToolCall, ...] = ()


@dataclass(frozen=True, slots=True)
class Answer:
    """All answers of a line: those to its first prompt, then those to its second, and so on."""

    choices: list[Choice]
    latency_ns: int  # from sending to the last chunk
    ttft_ns: int  # of the first prompt, by the engine's clock; 0 where it does not tell
    arrival_ns: int = 0  # of the first prompt, by that clock
    first_token_ns: int = 0
    reused_blocks: int | None = None  # KV blocks of all prompts; None where the engine does not count

    @property
    def num_tokens(self) -> int:
        """Return the output tokens of all choices."""
        return sum(choice.num_tokens for choice in self.choices)

    @property
    def finish_reason(self) -> FinishReason:
        """Return why the line's answer ended: length where any choice was cut, else the first choice's."""
        reasons = [choice.finish_reason for choice in self.choices]
        return "length" if "length" in reasons else reasons[0]


@dataclass(slots=True)
class _Sequence:
    ids: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)


class AnswerReader:
    """Reads the chunks of one prompt's answers.

    `is_done` says that no more chunks are needed, `is_drained` that none will come.

    Args:
        renderer: Decodes tokens.
        sampling: What the request asked for.
        max_tokens: The bound that was sent.
        num_sequences: How many sequences the engine was asked for.
        num_copies: How often each answer counts.
        tool_names: Of the tools that the answer may call.
    """

    def __init__(
        self,
        renderer: PromptRenderer,
        sampling: SamplingParams,
        max_tokens: int,
        num_sequences: int,
        num_copies: int,
        tool_names: frozenset[str],
    ) -> None:
        self._renderer = renderer
        self._sampling = sampling
        self._max_tokens = max_tokens
        self._num_copies = num_copies
        self._tool_names = tool_names
        self._sequences: dict[int, _Sequence] = {}
        # several sequences come whole: their stop strings are looked for at the end
        is_matched = bool(sampling.stop) and num_sequences == 1
        self._matcher = renderer.stop_matcher(sampling.stop) if is_matched else None
        self.is_done = False
        self.is_drained = False
        self.ttft_ns = self.arrival_ns = self.first_token_ns = 0
        self.reused_blocks: int | None = None

    def take(self, chunk: Chunk) -> None:
        """Take the next chunk."""
        if chunk.first_token_ns and not self.ttft_ns:
            self.ttft_ns = chunk.first_token_ns - chunk.arrival_ns
            self.arrival_ns, self.first_token_ns = chunk.arrival_ns, chunk.first_token_ns
        if chunk.reused_blocks is not None:
            self.reused_blocks = chunk.reused_blocks
        self.is_drained = self.is_done = chunk.is_final
        if not chunk.token_ids:
            return
        sequence = self._sequences.setdefault(chunk.sequence, _Sequence())
        sequence.ids += chunk.token_ids
        sequence.log_probs += chunk.log_probs
        if self._matcher is not None and self._matcher.push(chunk.token_ids) is not None:
            self.is_done = True

    def choices(self) -> list[Choice]:
        """Return the answers, in the order of their sequences."""
        sequences = [self._sequences[key] for key in sorted(self._sequences)] or [_Sequence()]
        return [choice for sequence in sequences for choice in [self._choice(sequence)] * self._num_copies]

    def _choice(self, sequence: _Sequence) -> Choice:
        ids = sequence.ids
        if self._sampling.stop:
            matcher = self._matcher or self._matched(ids)
            text = matcher.finish()
            if matcher.has_stopped:
                ids = ids[: matcher.num_tokens]
                return self._called(
                    text, Choice(text, "stop", len(ids), self._log_probs(ids, sequence, text))
                )
        kept = self._renderer.strip_stop_ids(ids)
        reason: FinishReason = "length" if len(ids) >= self._max_tokens and len(kept) == len(ids) else "stop"
        text = self._renderer.decode(kept)
        return self._called(text, Choice(text, reason, len(kept), self._log_probs(kept, sequence, text)))

    def _matched(self, ids: list[int]) -> StopMatcher:
        matcher = self._renderer.stop_matcher(self._sampling.stop)
        matcher.push(ids)
        return matcher

    def _called(self, text: str, choice: Choice) -> Choice:
        """Return a choice with its tool calls read, where it may have any."""
        if not self._tool_names:
            return choice
        content, calls = self._renderer.parse_tool_calls(text, self._tool_names)
        if not calls:
            return choice
        reason: FinishReason = "length" if choice.finish_reason == "length" else "tool_calls"
        return Choice(content, reason, choice.num_tokens, choice.log_probs, calls)

    def _log_probs(self, ids: list[int], sequence: _Sequence, text: str) -> tuple[TokenLogProb, ...] | None:
        """Return the tokens that the text is made of, with their log probabilities."""
        if not self._sampling.log_probs:
            return None
        left = len(text.encode())
        made = []
        for token, value in zip(ids, sequence.log_probs, strict=False):
            if left <= 0:
                break
            token_text, data = self._renderer.token_text(token)
            left -= len(data)
            made.append(TokenLogProb(token_text, data, value))
        return tuple(made)
