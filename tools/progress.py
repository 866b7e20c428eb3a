"""Progress of a run: a live line on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import contextlib
import math
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from trtb.tools.console import duration, say

if TYPE_CHECKING:
    from trtb.runner.options import Observer, Progress

PLAIN_PERIOD_S = 10.0
WINDOW_S = 30.0
# the first answers come after all the prompts that were sent with theirs: their pace is not the run's
MIN_ENDED, MIN_SHARE, MAX_ENDED = 10, 0.05, 1000


class Rate:
    """A rate over the last half minute."""

    def __init__(self) -> None:
        self._points: list[tuple[float, int]] = []

    def update(self, count: int) -> float:
        """Take a count as of now; returns the rate per second."""
        now = time.monotonic()
        self._points.append((now, count))
        while now - self._points[0][0] > WINDOW_S and len(self._points) > 2:
            self._points.pop(0)
        started, first = self._points[0]
        return (count - first) / (now - started) if now > started else 0.0


class Line:
    """Puts a run's progress on one line."""

    def __init__(self) -> None:
        self._tokens = Rate()
        self._requests = Rate()

    def __call__(self, progress: Progress) -> str:
        """Return the line; call it about as often as it is shown."""
        if progress.phase != "running":  # the start of a server is no part of the pace
            return progress.phase
        num_ended = progress.num_completed + progress.num_failed
        token_rate = self._tokens.update(progress.num_tokens)
        request_rate = self._requests.update(num_ended)
        left = progress.total - progress.num_done
        is_told = request_rate > 0 and left and num_ended >= num_before_eta(left + num_ended)
        eta = f", ETA {duration(left / request_rate)}" if is_told else ""
        failed = f", {progress.num_failed} failed" if progress.num_failed else ""
        share = progress.num_done / progress.total if progress.total else 0.0
        return (
            f"{progress.num_done}/{progress.total} ({share:.0%}){failed}, "
            f"{progress.num_in_flight} in flight, {token_rate:.0f} tokens/s{eta}"
        )


def num_before_eta(num_to_do: int) -> int:
    """Return how many requests must have ended before their pace tells when all will have.

    >>> num_before_eta(64), num_before_eta(4_000), num_before_eta(1_000_000)
    (10, 200, 1000)
    """
    return min(max(MIN_ENDED, math.ceil(MIN_SHARE * num_to_do)), MAX_ENDED)


@contextlib.contextmanager
def shown_progress() -> Iterator[Observer]:
    """Yield an observer that shows what it hears on stderr."""
    if sys.stderr.isatty():
        with _live() as observer:
            yield observer
    else:
        yield _plain()


def _plain() -> Observer:
    line = Line()
    last_phase = ""
    next_at = 0.0

    def observe(progress: Progress) -> None:
        nonlocal last_phase, next_at
        now = time.monotonic()
        if progress.phase == last_phase and now < next_at:
            return
        text = line(progress)
        say(text if progress.phase != last_phase or progress.phase == "running" else progress.phase)
        last_phase, next_at = progress.phase, now + PLAIN_PERIOD_S

    return observe


@contextlib.contextmanager
def _live() -> Iterator[Observer]:
    from rich.console import Console
    from rich.progress import BarColumn, SpinnerColumn, TextColumn
    from rich.progress import Progress as Bar

    line = Line()
    bar = Bar(
        SpinnerColumn(),
        BarColumn(),
        TextColumn("{task.description}"),
        console=Console(stderr=True),
        transient=True,
    )
    with bar:
        task = bar.add_task("", total=None)

        def observe(progress: Progress) -> None:
            text = line(progress)
            if progress.phase == "stopping":
                text = f"stopping: {progress.num_in_flight} in flight; once more to give them up"
            bar.update(task, description=text, completed=progress.num_done, total=progress.total or None)

        yield observe
