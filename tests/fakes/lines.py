"""A source of lines whose prompts are given as ids: no file, and no tokenizer."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from trtb.runner.errors import ContextLengthError
from trtb.runner.line_set import LineSet
from trtb.runner.reader import RawLine
from trtb.runner.request import ChatRequest, SamplingParams
from trtb.runner.scheduling.schedule_index import LineIndex, Planned
from trtb.runner.schema import LineParser
from trtb.runner.source import Item, LinePlace, Prompt, Refused, Source


@dataclass
class FakeSource:
    """Line n, from 1, has the n-th prompt; an empty one is refused."""

    prompts: list[list[int]]
    max_tokens: list[int] | int = 4
    tokens_per_block: int = 2
    skipped: set[int] = field(default_factory=set)

    def lines(self) -> Iterator[RawLine]:
        """Yield what is to do."""
        for number in range(1, len(self.prompts) + 1):
            if number not in self.skipped:
                yield RawLine(number, 100 * number, 100, b"{}")

    def prepare(self, raw: RawLine) -> Item | Refused:
        """Return a line's item."""
        return self.at(LinePlace(raw.number, raw.offset, raw.num_bytes))

    def at(self, place: LinePlace) -> Item | Refused:
        """Return the item of a line by its place."""
        assert (place.offset, place.num_bytes) == (100 * place.line, 100)
        ids = self.prompts[place.line - 1]
        if not ids:
            return Refused(place.line, f"c-{place.line}", "invalid_request", "empty", 400)
        max_tokens = self.max_tokens if isinstance(self.max_tokens, int) else self.max_tokens[place.line - 1]
        return Item(
            place.line, f"c-{place.line}", [Prompt(ids, max_tokens)], SamplingParams(), seed=0,
            num_prompt_tokens=len(ids), num_blocks=-(-(len(ids) + max_tokens) // self.tokens_per_block),
            num_answer_blocks=max_tokens // self.tokens_per_block,
        )  # fmt: skip


def indexed(
    source: FakeSource, folder: Path, order: str = "prefix", **options: int
) -> tuple[LineIndex, list[Planned], list[int]]:
    """Return an index that has been made, its lines in order, and the lines that were refused."""
    index = LineIndex(source, order, source.tokens_per_block, folder, **options)  # type: ignore[arg-type]
    refused: list[int] = []
    for _ in index.steps(lambda each: refused.append(each.line)):
        pass
    with contextlib.closing(index):
        return index, list(index), refused


class LetterRenderer:
    """Renders a chat to the code points of its letters, cut to the fake server's vocabulary."""

    def render_chat(self, request: ChatRequest) -> list[int]:
        """Return a chat's ids."""
        return [ord(letter) % 900 for message in request.messages for letter in message["content"]]

    def answer_length(self, num_prompt_tokens: int, max_tokens: int | None) -> int:
        """Return how many tokens an answer may have; 1,000 tokens fit in all."""
        wanted = 4 if max_tokens is None else max_tokens
        if num_prompt_tokens + wanted > 1000:
            raise ContextLengthError("too long")
        return wanted


def fake_renderer_source(path: Path, *, duplicates: Iterable[int] = ()) -> Source:
    """Return the real source of a file, with that renderer; `duplicates` have an earlier line's custom_id."""
    repeated = LineSet()
    for line in duplicates:
        repeated.add(line)
    return Source(
        path, parser=LineParser(None, strict_params=False), renderer=LetterRenderer(),  # type: ignore[arg-type]
        done=LineSet(), duplicates=repeated, limit=None, max_line_bytes=1 << 20, tokens_per_block=2,
        max_blocks=None, seed_base="",
    )  # fmt: skip
