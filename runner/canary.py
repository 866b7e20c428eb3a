"""The canary of a run: its first requests go alone, and a run whose requests fail too often is stopped.

Only failures that speak of the system count: what one request asked for in vain says nothing of the next
one. The others need not wait until the first requests have ended, which would leave most places of the
engine idle for as long as an answer takes: the first token of any of them lets the others go. The verdict
is told by how the first ones end. No I/O.
"""

from __future__ import annotations

import math
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

from trtb.runner.errors import (
    CancelledRequestError,
    ConnectionLostError,
    DeadlineExceededError,
    EngineError,
    QueueFullError,
    RequestError,
)
from trtb.runner.wording import counted

SYSTEM_CODES: Final = frozenset(
    error.code
    for error in (
        CancelledRequestError,
        ConnectionLostError,
        DeadlineExceededError,
        EngineError,
        QueueFullError,
    )
)
MIN_WINDOW: Final = 20
MIN_TOLERATED: Final = 10  # failures that a window allows: fewer would let chance stop a long run
MAX_WINDOW: Final = 10**9  # requests: no file has more
MAX_SAMPLE_CHARS: Final = 200


@dataclass(frozen=True, slots=True)
class Stop:
    """Why the run does not go on."""

    rule: Literal["canary", "rate"]
    why: str


class Canary:
    """Says which lines may be sent, and whether the run may go on; one session's.

    Args:
        size: How many lines go alone; 0 lets all go.
        max_failure_rate: Of those, and of the last `window` that ended; None stops a run only where those
            have all failed, and no other line was answered meanwhile.
        clock: Seconds, monotonic.
    """

    def __init__(
        self, size: int, max_failure_rate: float | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.size = size
        self.max_failure_rate = max_failure_rate
        self.stop: Stop | None = None
        self.codes: Counter[str] = Counter()  # of the failures that count
        self.failed_lines: list[int] = []  # those failures' lines
        self.held_s = 0.0  # how long the others waited
        self._clock = clock
        self._started: float | None = None
        self._is_open = size == 0
        self._lines: set[int] = set()  # the first, without those that are excused
        self._num_first_failed = self._num_ended = 0
        self._has_answer = False
        self._recent: deque[int] = deque()  # the failures in the window, by their number among what ended

    @property
    def is_open(self) -> bool:
        """Say whether all may be sent."""
        return self._is_open

    @property
    def window(self) -> int | None:
        """Return of how many requests, the last ones that ended, the failure rate is; None without one."""
        if self.max_failure_rate is None:
            return None
        rate = self.max_failure_rate
        wanted = math.ceil(min(MIN_TOLERATED / rate, MAX_WINDOW)) if rate else 0
        return max(MIN_WINDOW, self.size, wanted)

    def may_send(self, line: int) -> bool:
        """Say whether a line may be sent now."""
        return self._is_open or line in self._lines or len(self._lines) < self.size

    def let_through(self, line: int) -> bool:
        """Note that a line is sent; says whether others wait for its first token."""
        assert self.may_send(line)
        if len(self._lines) < self.size:
            self._lines.add(line)
        if self._started is None:
            self._started = self._clock()
        return not self._is_open

    def open(self) -> bool:
        """Let the others go: the engine generates. Says whether they had to wait until now."""
        if self._is_open:
            return False
        self._is_open = True
        if self._started is not None:
            self.held_s = self._clock() - self._started
        return True

    def excuse(self, line: int) -> None:
        """Take a line out that says nothing of the system; another one goes in its place."""
        self._lines.discard(line)

    def answered(self) -> None:
        """Note that a line was answered."""
        self._num_ended += 1
        self._has_answer = True
        self.open()

    def failed(self, line: int, error: RequestError) -> Stop | None:
        """Note that a line failed for good; returns why the run must not go on, the first time that it must.

        What failed before is in `failed_lines`.
        """
        if error.code not in SYSTEM_CODES:
            self.excuse(line)
            return None
        self._num_ended += 1
        self.codes[error.code] += 1
        self.failed_lines.append(line)
        self._num_first_failed += line in self._lines
        if self.stop is not None:
            return None
        reason = self._judge_first(line) or self._judge_rate()
        if reason is None:
            if self._num_first_failed == self.size:  # as was allowed
                self.open()
            return None
        rule, found = reason
        self.stop = Stop(rule, f"{found} ({_listed(self.codes)}), such as line {line}: {_shortened(error)}")
        return self.stop

    def _judge_first(self, line: int) -> tuple[Literal["canary"], str] | None:
        """Return what is wrong with the first lines."""
        rate = self.max_failure_rate
        allowed = self.size - 1 if rate is None else rate * self.size
        if rate and self.size > 1:
            allowed = max(allowed, 1)  # one bad request would stop each resume of a small canary
        if (
            line not in self._lines
            or self._num_first_failed <= allowed
            or (rate is None and self._has_answer)
        ):
            return None
        if self._num_first_failed == self.size:
            return (
                "canary",
                f"{'all of ' if self.size > 1 else ''}the first {counted(self.size, 'request')} failed",
            )
        bound = f"; at most {rate:.1%} may" if rate is not None else ""
        return (
            "canary",
            f"{self._num_first_failed} of the first {counted(self.size, 'request')} failed{bound}",
        )

    def _judge_rate(self) -> tuple[Literal["rate"], str] | None:
        """Return what is wrong with the last lines that ended."""
        rate, window = self.max_failure_rate, self.window
        if rate is None or window is None:
            return None
        self._recent.append(self._num_ended)
        while self._recent[0] <= self._num_ended - window:
            self._recent.popleft()
        if len(self._recent) <= rate * window + 1e-9:
            return None
        # more than a whole window allows: what is still missing of one cannot mend it
        seen = min(window, self._num_ended)
        return (
            "rate",
            f"{len(self._recent)} of the last {counted(seen, 'request')} failed; at most {rate:.1%} may",
        )


def _listed(codes: Counter[str]) -> str:
    return ", ".join(f"{count} {code}" for code, count in codes.most_common())


def _shortened(error: RequestError) -> str:
    first = error.message.partition("\n")[0]
    return first if len(first) <= MAX_SAMPLE_CHARS else first[:MAX_SAMPLE_CHARS] + "…"
