"""What there is to do: the input's lines without a ledger row, rendered and ready to send.

Nothing is read ahead: a line is read when there is a place for it, so memory does not depend on the file.
A line that can never be sent comes out as its failure.
"""

from __future__ import annotations

import io
import itertools
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import xxhash

from trtb.build.kv_cache import num_blocks_of_sequences
from trtb.runner import findings
from trtb.runner.errors import ContextLengthError, RequestError
from trtb.runner.line_set import LineSet
from trtb.runner.reader import BOM, BUFFER_BYTES, RawLine, content, open_input, read_lines
from trtb.runner.records import failure_of
from trtb.runner.request import ChatRequest, Request, SamplingParams
from trtb.runner.request_digest import GREEDY_BELOW
from trtb.runner.schema import Invalid, LineParser, ParsedLine, too_long
from trtb.runner.tool_calls import names_of

if TYPE_CHECKING:
    from trtb.runner.prompt import PromptRenderer  # a second to import

MAX_SEED = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class LinePlace:
    """Where a line stands in the input."""

    line: int
    offset: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt of a line, ready to send."""

    input_ids: list[int]
    max_tokens: int


@dataclass(slots=True)
class Item:
    """One line to answer, and what has been tried so far; its prompts are sent one after the other."""

    line: int
    custom_id: str
    prompts: list[Prompt]
    sampling: SamplingParams
    seed: int
    num_prompt_tokens: int  # of all prompts, each counted once
    num_blocks: int  # of the largest prompt, with all its sequences
    num_answer_blocks: int = 0  # how many of them only the answer can fill
    is_chat: bool = True
    tool_names: frozenset[str] = frozenset()
    attempts: int = 0
    crashes: int = 0  # times the server died while it was in flight

    @property
    def is_greedy(self) -> bool:
        """Say whether the most likely token is always taken."""
        return self.sampling.temperature < GREEDY_BELOW

    @property
    def num_sequences(self) -> int:
        """Return how many sequences the engine is asked for at once.

        Equal greedy ones are computed once; constrained ones are asked for one by one (as prompts), since
        the engine's grammar follows only one of several sequences (seen with openvino-genai 2026.4.1).
        """
        return 1 if self.is_greedy or self.sampling.guide else self.sampling.n

    @property
    def num_copies(self) -> int:
        """Return how often an answer counts: equal greedy ones are told as often as asked for."""
        return self.sampling.n if self.is_greedy else 1


@dataclass(frozen=True, slots=True)
class Refused:
    """A line that is answered without being sent."""

    line: int
    custom_id: str | None
    code: str
    message: str
    status_code: int


def requests_of(path: Path, max_line_bytes: int, limit: int | None) -> Iterator[RawLine]:
    """Yield each request line as it stands in a file, or the first so many of them."""
    with io.BufferedReader(open_input(path), BUFFER_BYTES) as file:
        yield from itertools.islice(read_lines(file, max_line_bytes), limit)


def parse_line(raw: RawLine, parser: LineParser, max_line_bytes: int) -> ParsedLine:
    """Return the request on a line, or its faults."""
    if raw.data is None:
        return too_long(raw.number, raw.num_bytes, max_line_bytes)
    return parser.parse(raw.number, raw.data)


def request_or_refusal(parsed: ParsedLine, duplicates: LineSet) -> Request | Refused:
    """Return a line's request, or the failure that it is whatever answers it."""
    if isinstance(parsed, Invalid):
        errors = [finding for finding in parsed.findings if finding.severity == "error"]
        message = "; ".join(
            f"{error.message} ({error.hint})" if error.hint else error.message for error in errors
        )
        return Refused(parsed.line, parsed.custom_id, errors[0].code, message, 400)
    request = parsed.request
    if request.line in duplicates:
        message = "custom_id: is that of an earlier line; expected each once"
        return Refused(request.line, request.custom_id, findings.DUPLICATE_CUSTOM_ID, message, 400)
    return request


class Source:
    """Iterates over what is to do, in input order.

    Args:
        path: The input file.
        parser: Parses and checks a line.
        renderer: Turns messages into ids.
        done: The lines that have a ledger row.
        duplicates: Lines whose custom_id an earlier line has.
        limit: Only the first so many requests of the file, or None.
        max_line_bytes: Longer lines are refused.
        tokens_per_block: Of the engine's KV cache.
        max_blocks: The most KV blocks that one line can have; None where that is not known.
        seed_base: Seeds of requests that name none are derived from this and their line.
    """

    def __init__(
        self,
        path: Path,
        *,
        parser: LineParser,
        renderer: PromptRenderer,
        done: LineSet,
        duplicates: LineSet,
        limit: int | None,
        max_line_bytes: int,
        tokens_per_block: int,
        max_blocks: int | None,
        seed_base: str,
    ) -> None:
        self._path = path
        self._file: io.FileIO | None = None  # for lines out of order
        self._skipped = LineSet()
        self._parser = parser
        self._renderer = renderer
        self._done = done
        self._duplicates = duplicates
        self._limit = limit
        self._max_line_bytes = max_line_bytes
        self._tokens_per_block = tokens_per_block
        self._max_blocks = max_blocks
        self._seed_base = seed_base
        self.prepare_ns = 0  # spent in `prepare`

    def __iter__(self) -> Iterator[Item | Refused]:
        """Yield each line to do, in input order."""
        return map(self.prepare, self.lines())

    def lines(self) -> Iterator[RawLine]:
        """Yield each line to do as it stands in the file, from its beginning."""
        for raw in requests_of(self._path, self._max_line_bytes, self._limit):
            if raw.number not in self._done and raw.number not in self._skipped:
                yield raw

    def skip(self, line: int) -> None:
        """Leave a line out from now on: it is answered otherwise."""
        self._skipped.add(line)

    def read(self, place: LinePlace) -> RawLine:
        """Return a line by its place."""
        if self._file is None:
            self._file = open_input(self._path)
        data = os.pread(self._file.fileno(), place.num_bytes, place.offset)
        had_bom = place.offset == 0 and data.startswith(BOM)
        return RawLine(
            place.line, place.offset, place.num_bytes, content(data, had_bom=had_bom), had_bom=had_bom
        )

    def close(self) -> None:
        """Close the file that `read` has opened."""
        if self._file is not None:
            self._file.close()

    def parse(self, raw: RawLine) -> Request | Refused:
        """Return the request on a line, or the failure that it is whatever answers it."""
        return request_or_refusal(parse_line(raw, self._parser, self._max_line_bytes), self._duplicates)

    def prepare(self, raw: RawLine) -> Item | Refused:
        """Return a line ready to send, or as the failure that it is."""
        started_ns = time.perf_counter_ns()
        prepared = self._prepare(raw)
        self.prepare_ns += time.perf_counter_ns() - started_ns
        return prepared

    def _prepare(self, raw: RawLine) -> Item | Refused:
        request = self.parse(raw)
        if isinstance(request, Refused):
            return request
        try:
            return self._render(request)
        except RequestError as exc:
            return Refused(raw.number, request.custom_id, *failure_of(exc))

    def _render(self, request: Request) -> Item:
        if isinstance(request, ChatRequest):
            rendered = [self._renderer.render_chat(request)]
            tool_names = names_of(request.tools)
        else:
            rendered = [self._renderer.render_prompt(prompt) for prompt in request.prompts]
            tool_names = frozenset()
        sampling = request.sampling
        prompts = [
            Prompt(ids, self._renderer.answer_length(len(ids), sampling.max_tokens)) for ids in rendered
        ]
        if sampling.guide and sampling.temperature >= GREEDY_BELOW:
            prompts = [prompt for prompt in prompts for _ in range(sampling.n)]
        seed = sampling.seed
        if seed is None:
            seed = xxhash.xxh3_64_intdigest(f"{self._seed_base}:{request.line}".encode())
        item = Item(
            line=request.line,
            custom_id=request.custom_id,
            prompts=prompts,
            sampling=sampling,
            seed=seed & MAX_SEED,
            num_prompt_tokens=sum(map(len, rendered)),
            num_blocks=0,
            is_chat=isinstance(request, ChatRequest),
            tool_names=tool_names,
        )
        item.num_blocks = max(
            num_blocks_of_sequences(
                len(prompt.input_ids), prompt.max_tokens, self._tokens_per_block, item.num_sequences
            )
            for prompt in prompts
        )
        longest = max(prompt.max_tokens for prompt in prompts)
        item.num_answer_blocks = longest * item.num_sequences // self._tokens_per_block
        if self._max_blocks is not None and item.num_blocks > self._max_blocks:
            raise ContextLengthError(
                f"body.n: {sampling.n} answers of this length take {item.num_blocks} KV blocks; "
                f"the engine has {self._max_blocks}"
            )
        return item
