"""Equal requests: each is computed once, and its answer is every equal line's, under its own custom_id.

What is kept of a line that waits for another's answer is where it stands in the file: four numbers.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trtb.runner.answer import Answer
from trtb.runner.line_set import LineSet
from trtb.runner.reader import RawLine
from trtb.runner.source import Item, LinePlace


@dataclass(frozen=True, slots=True)
class Reused:
    """A line that another one's answer answers."""

    line: int
    custom_id: str
    item: Item  # the one that was computed
    answer: Answer


class EqualRequests:
    """Which lines are equal to an earlier one, and the answers that they wait for.

    Args:
        read_custom_id: Returns the custom_id of a line by its place; not needed where there are none.
    """

    def __init__(self, read_custom_id: Callable[[LinePlace], str] | None = None) -> None:
        self._read_custom_id = read_custom_id
        self.lines = LineSet()
        self._found = array("q")  # first line, line, offset, bytes; and so on
        self._by_first: NDArray[np.int64] = np.empty((0, 4), dtype=np.int64)
        self._first_lines = LineSet()
        self._answered: deque[tuple[Item, Answer, Iterator[LinePlace]]] = deque()
        self._alone: deque[Iterator[LinePlace]] = deque()
        self.num_reused = 0

    def add(self, raw: RawLine, first_line: int) -> None:
        """Note that a line is equal to an earlier one."""
        self.lines.add(raw.number)
        self._first_lines.add(first_line)
        self._found.extend((first_line, raw.number, raw.offset, raw.num_bytes))

    def settle(self) -> None:
        """Sort what was noted; call it once, before any answer."""
        found = np.frombuffer(self._found, dtype=np.int64).reshape(-1, 4)
        self._by_first = found[np.lexsort((found[:, 1], found[:, 0]))]
        self._found = array("q")

    def __len__(self) -> int:
        return len(self.lines)

    def answered(self, item: Item, answer: Answer) -> None:
        """Let an answer be that of every equal line, too."""
        if item.line in self._first_lines:
            self._answered.append((item, answer, self._places(item.line)))

    def failed(self, line: int) -> None:
        """Let the lines that are equal to a failed one be computed, each by itself."""
        if line in self._first_lines:
            self._alone.append(self._places(line))

    @property
    def has_ready(self) -> bool:
        """Say whether lines may be answered, or computed by themselves, by now."""
        return bool(self._answered or self._alone)

    def next_reused(self) -> Reused | None:
        """Return the next line that has its answer by now."""
        while self._answered:
            item, answer, places = self._answered[0]
            place = next(places, None)
            if place is not None:
                assert self._read_custom_id
                self.num_reused += 1
                return Reused(place.line, self._read_custom_id(place), item, answer)
            self._answered.popleft()
        return None

    def next_alone(self) -> LinePlace | None:
        """Return the next line whose equal one has failed."""
        while self._alone:
            place = next(self._alone[0], None)
            if place is not None:
                return place
            self._alone.popleft()
        return None

    def _places(self, first_line: int) -> Iterator[LinePlace]:
        start, end = np.searchsorted(self._by_first[:, 0], (first_line, first_line + 1)).tolist()
        for _, line, offset, num_bytes in (row.tolist() for row in self._by_first[start:end]):
            yield LinePlace(line, offset, num_bytes)
