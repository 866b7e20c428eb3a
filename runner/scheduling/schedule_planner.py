"""The planner: from a run's input and options to the feed that its workers take from.

A first look at the file (only where something depends on it), then, for an order other than the file's, its
index; what it found and chose is kept for the report.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import orjson

from trtb.runner.admission import Admission
from trtb.runner.canary import Canary
from trtb.runner.scheduling.prefix_tree import PrefixTree
from trtb.runner.scheduling.schedule import Choice, Look, Order, PlanFigures, choose_by_look, choose_by_plan
from trtb.runner.scheduling.schedule_equal import EqualRequests
from trtb.runner.scheduling.schedule_feed import Feed
from trtb.runner.scheduling.schedule_index import LineIndex, Planned
from trtb.runner.scheduling.schedule_survey import Survey
from trtb.runner.source import Item, LinePlace, Refused, Source
from trtb.runner.wording import counted


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """What a plan depends on, beside the file."""

    order: Order
    is_dedup: bool
    queue_size: int
    concurrency: int
    default_max_tokens: int
    tokens_per_block: int
    folder: Path  # for files without a name
    is_reusing: bool = True  # the engine computes a shared prefix once


class Planner:
    """Plans one session of a run.

    Args:
        options: The settings.
        source: The lines that are to do.
        on_refused: Hears of lines that cannot be sent, as far as the plan finds them.
    """

    def __init__(self, options: PlanOptions, source: Source, on_refused: Callable[[Refused], None]) -> None:
        self._options = options
        self._source = source
        self._on_refused = on_refused
        self._index: LineIndex | None = None
        self.look: Look | None = None
        self.equal = EqualRequests()
        self.choice = Choice("input", "asked for")
        self.figures: PlanFigures | None = None  # where the lines have been counted
        self.duration_s = 0.0

    def steps(self) -> Iterator[None]:
        """Make the plan; yields now and then, so that others have their turn."""
        started = time.monotonic()
        options = self._options
        choice = None if options.order == "auto" else Choice(options.order, "asked for")
        if choice is None or options.is_dedup:
            survey = Survey(
                self._source,
                options.default_max_tokens,
                options.folder if options.is_dedup else None,
                self._read_custom_id,
            )
            yield from survey.steps()
            self.look = survey.look()
            self.equal = survey.equal
            for line in self.equal.lines:
                self._source.skip(line)
            choice = choice or choose_by_look(self.look, options.concurrency, is_reusing=options.is_reusing)
        if choice is None or choice.order != "input":
            yield from self._make_index(choice)
            choice = choice or choose_by_plan(self._counted)
        self.choice = choice
        if choice.order == "input":
            self._drop_index()
        self.duration_s = time.monotonic() - started

    def feed(self, admission: Admission, is_up: Callable[[int], bool], canary: Canary | None = None) -> Feed:
        """Return the feed of the plan that was made."""
        entries: Iterator[Item | Refused] | Iterator[Planned] = iter(self._source)
        tree: PrefixTree | None = None
        if self._index is not None:
            entries, tree = iter(self._index), self._index.tree
        return Feed(
            entries,
            admission,
            prepare=self._prepare,
            is_up=is_up,
            queue_size=self._options.queue_size,
            tree=tree,
            equal=self.equal,
            tokens_per_block=self._options.tokens_per_block,
            canary=canary,
        )

    def describe(self) -> str:
        """Return the plan in a sentence."""
        text = f"order {self.choice.order} ({self.choice.why})"
        figures = self.figures
        if self.choice.order == "prefix" and figures is not None:
            text += (
                f": {figures.num_grouped} of {counted(figures.num_lines, 'request')} share "
                f"{counted(figures.num_prefixes, 'prefix', 'prefixes')}, "
                f"expected reuse {figures.reuse_share:.1%} of {figures.prompt_tokens} prompt tokens"
            )
        if self.equal:
            are = "is" if len(self.equal) == 1 else "are"
            text += f"; {counted(len(self.equal), 'request')} {are} equal to an earlier one"
        return text

    def close(self) -> None:
        """Close what is open."""
        self._drop_index()
        self._source.close()

    @property
    def _counted(self) -> PlanFigures:
        assert self.figures
        return self.figures

    def _make_index(self, choice: Choice | None) -> Iterator[None]:
        options = self._options
        order = "prefix" if choice is None else choice.order
        self._index = LineIndex(self._source, order, options.tokens_per_block, options.folder)
        yield from self._index.steps(self._refuse)
        self.figures = self._index.figures

    def _refuse(self, refused: Refused) -> None:
        self._source.skip(refused.line)
        self.equal.failed(refused.line)
        self._on_refused(refused)

    def _drop_index(self) -> None:
        if self._index is not None:
            self._index.close()
            self._index = None

    def _prepare(self, place: LinePlace) -> Item | Refused:
        return self._source.prepare(self._source.read(place))

    def _read_custom_id(self, place: LinePlace) -> str:
        line = orjson.loads(self._source.read(place).data or b"")
        return str(line["custom_id"])
