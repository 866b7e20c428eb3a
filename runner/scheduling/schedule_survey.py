"""The first look at a file: which requests begin alike, and which are equal, without tokenising any.

One pass in flat memory. Beginnings are counted by a sample that takes all or none of the requests that
begin alike, so their share is that of the file however they are strewn over it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import orjson
import xxhash

from trtb.runner.duplicates import DuplicateFinder
from trtb.runner.plain import PlainLine, read_plain
from trtb.runner.reader import RawLine
from trtb.runner.request import ChatRequest, Request
from trtb.runner.request_digest import digest, is_deterministic
from trtb.runner.scheduling.schedule import CHARS_PER_TOKEN, Look
from trtb.runner.scheduling.schedule_equal import EqualRequests
from trtb.runner.source import LinePlace, Refused, Source

BEGINNING_BYTES: Final = 160  # some 64 tokens, the least that is worth sharing
MAX_BEGINNINGS: Final = 1 << 15
LINES_PER_TURN: Final = 2000


class BeginningSketch:
    """Counts the texts that begin as an earlier one does, from a sample of the beginnings."""

    def __init__(self, max_beginnings: int = MAX_BEGINNINGS) -> None:
        self._max_beginnings = max_beginnings
        self._mask = 0  # a beginning is in the sample where its hash has none of these bits
        self._counts: dict[int, int] = {}
        self._num_long = 0

    def add(self, beginning: bytes) -> None:
        """Take the next text; one shorter than a beginning shares nothing."""
        if len(beginning) < BEGINNING_BYTES:
            return
        self._num_long += 1
        key = xxhash.xxh3_64_intdigest(beginning)
        if key & self._mask:
            return
        self._counts[key] = self._counts.get(key, 0) + 1
        while len(self._counts) > self._max_beginnings:  # a bit may leave all of them
            self._mask = self._mask << 1 | 1
            self._counts = {key: count for key, count in self._counts.items() if not key & self._mask}

    @property
    def num_alike(self) -> int:
        """Return how many texts begin as an earlier one does, as the sample has it."""
        in_sample = sum(self._counts.values())
        if not in_sample:
            return 0
        return round(self._num_long * (in_sample - len(self._counts)) / in_sample)


class Survey:
    """A first look at the lines that are to do.

    Args:
        source: The lines.
        default_max_tokens: Of requests that name no bound.
        equal_folder: Where the search for equal requests may put files; None does not search.
        read_custom_id: For the equal requests that are found.
    """

    def __init__(
        self,
        source: Source,
        default_max_tokens: int,
        equal_folder: Path | None,
        read_custom_id: Callable[[LinePlace], str],
    ) -> None:
        self._source = source
        self._default_max_tokens = default_max_tokens
        self._finder = DuplicateFinder(equal_folder) if equal_folder else None
        self._sketch = BeginningSketch()
        self._num_lines = self._work = self._max_work = 0
        self._last: RawLine | None = None
        self.equal = EqualRequests(read_custom_id)

    def steps(self) -> Iterator[None]:
        """Look at every line; yields now and then, so that others have their turn."""
        for number, raw in enumerate(self._source.lines(), start=1):
            self._look_at(raw)
            if not number % LINES_PER_TURN:
                yield
        if self._finder:
            for number, found in enumerate(self._finder.find(self._digests), start=1):
                assert self._last
                self.equal.add(self._last, found.first_line)
                if not number % LINES_PER_TURN:
                    yield
            self.equal.settle()

    def look(self) -> Look:
        """Return what has been seen."""
        return Look(self._num_lines, self._sketch.num_alike, self._work, self._max_work)

    def _look_at(self, raw: RawLine) -> None:
        if raw.data is None:
            return
        # its model's name is not looked at: that is the validation's affair, and the run's
        plain = read_plain(raw.data, None)
        if plain is not None and self._finder is None:
            body = plain.body
            self._count(
                _beginning_of_plain(plain), raw.num_bytes, body.max_completion_tokens or body.max_tokens
            )
            return
        request = self._source.parse(raw)
        if isinstance(request, Refused):  # its custom_id may be an earlier line's
            return
        self._count(beginning(request), raw.num_bytes, request.sampling.max_tokens)
        if self._finder and is_deterministic(request):
            self._finder.add(digest(request))

    def _count(self, text: bytes, num_bytes: int, max_tokens: int | None) -> None:
        self._sketch.add(text)
        work = num_bytes // CHARS_PER_TOKEN + (max_tokens or self._default_max_tokens)
        self._num_lines += 1
        self._work += work
        self._max_work = max(self._max_work, work)

    def _digests(self) -> Iterator[tuple[int, str]]:
        for raw in self._source.lines():
            request = self._source.parse(raw)
            if not isinstance(request, Refused) and is_deterministic(request):
                self._last = raw
                yield raw.number, digest(request)


def beginning(request: Request) -> bytes:
    """Return the first bytes of a request's prompt, as far as they say what it shares."""
    if isinstance(request, ChatRequest):
        tools = orjson.dumps(request.tools)[:BEGINNING_BYTES] if request.tools else b""
        contents = (message["content"] for message in request.messages)
        return _joined((content for content in contents if isinstance(content, str)), tools)
    first = request.prompts[0]
    return _joined([first if isinstance(first, str) else " ".join(map(str, first[:BEGINNING_BYTES]))], b"")


def _beginning_of_plain(line: PlainLine) -> bytes:
    contents = (message.content for message in line.body.messages)
    return _joined((text if isinstance(text, str) else text[0].text for text in contents), b"")


def _joined(texts: Iterator[str] | list[str], start: bytes) -> bytes:
    for text in texts:
        start += b"\0" + text[:BEGINNING_BYTES].encode()
        if len(start) >= BEGINNING_BYTES:
            return start[:BEGINNING_BYTES]
    return start
