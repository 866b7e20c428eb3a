"""Count the pairs of two runs, one after the other, in memory that does not grow with them."""

from __future__ import annotations

import heapq
from collections import Counter

from trtb.runner.ledger import ResultRow
from trtb.runner.reporting.answer_texts import AnswerText, answer_of, calls_agree, difference, json_of
from trtb.runner.reporting.comparison_bins import TimePairs, pair_bins, percentile, value_bins
from trtb.runner.reporting.comparison_model import (
    Agreement,
    Change,
    DifferentPair,
    Distributions,
    Figure,
    FinishChange,
    JsonAgreement,
    Lengths,
    LengthsOfRun,
)
from trtb.runner.reporting.intervals import DifferenceCount, share_of

NUM_CHANGES = 20  # of each kind, by name
NUM_MOST_DIFFERENT = 10
MAX_TEXT = 4_000  # characters of an answer that is shown
SIMILARITY_STEPS = 1_000


class PairFigures:
    """What the pairs add up to.

    Args:
        include_text: Keep the texts of the answers that agree the least.
    """

    def __init__(self, *, include_text: bool) -> None:
        self._include_text = include_text
        self.num_pairs = self.num_completed = self.num_failed = 0
        self.num_regressed = self.num_repaired = 0
        self.regressions: list[Change] = []
        self.repairs: list[Change] = []
        self.num_reused = Counter[str](), Counter[str]()  # by whose answers they are
        self._latency, self._ttft = TimePairs(), TimePairs()
        self._lengths = Counter[int](), Counter[int]()
        self._num_cut = [0, 0]
        self._length_difference = DifferenceCount()
        self._finishes = Counter[tuple[str, str]]()
        self._num_prompts_differ = 0
        self._num_equal = self._num_begun_alike = 0
        self._similarities_of_different = Counter[int]()
        self._differences_of_different = Counter[int]()  # in output tokens
        self._sum_similarity = self._sum_beginning = 0.0
        self._first_differences = Counter[int]()
        self._num_json = {"both": 0, "a": 0, "b": 0, "equal": 0}
        self._num_calling = self._num_calls_agree = 0
        # a heap: the most alike comes first
        self._most_different: list[tuple[float, int, DifferentPair]] = []

    def add(self, a: ResultRow, b: ResultRow) -> None:
        """Count a pair."""
        self.num_pairs += 1
        is_completed = a.status == "completed", b.status == "completed"
        if is_completed == (True, True):
            self.num_completed += 1
            self._add_figures(a, b)
            self._add_answers(a, b)
        elif is_completed == (True, False):
            self.num_regressed += 1
            _keep(self.regressions, b)
        elif is_completed == (False, True):
            self.num_repaired += 1
            _keep(self.repairs, a)
        else:
            self.num_failed += 1

    def _add_figures(self, a: ResultRow, b: ResultRow) -> None:
        for side, row in enumerate((a, b)):
            if row.reused_from is not None:
                self.num_reused[side][row.reused_from] += 1
            self._lengths[side][row.completion_tokens] += 1
            self._num_cut[side] += row.finish_reason == "length"
        if a.reused_from is None and b.reused_from is None:
            for times, ns_a, ns_b in (
                (self._latency, a.latency_ns, b.latency_ns),
                (self._ttft, a.ttft_ns, b.ttft_ns),
            ):
                if ns_a is not None and ns_b is not None and min(ns_a, ns_b) > 0:  # a damaged one may be less
                    times.add(ns_a, ns_b)
        self._length_difference.add(b.completion_tokens - a.completion_tokens)
        self._num_prompts_differ += a.prompt_tokens != b.prompt_tokens
        if a.finish_reason != b.finish_reason:
            self._finishes[a.finish_reason or "unknown", b.finish_reason or "unknown"] += 1

    def _add_answers(self, a: ResultRow, b: ResultRow) -> None:
        answer_a, answer_b = answer_of(a.record), answer_of(b.record)
        self._add_structure(answer_a, answer_b)
        if answer_a == answer_b:
            self._num_equal += 1
            self._sum_similarity += 1
            self._sum_beginning += 1
            return
        found = difference(answer_a, answer_b)
        self._num_begun_alike += found.kind == "prefix"
        # down, so that only equal words make 1
        self._similarities_of_different[int(found.similarity * SIMILARITY_STEPS)] += 1
        self._differences_of_different[b.completion_tokens - a.completion_tokens] += 1
        self._sum_similarity += found.similarity
        self._sum_beginning += found.same_beginning
        self._first_differences[found.num_same_words] += 1
        heap = self._most_different
        if len(heap) == NUM_MOST_DIFFERENT and -found.similarity < heap[0][0]:
            return
        pair = DifferentPair(
            custom_id=a.custom_id or "",
            line_a=a.line,
            line_b=b.line,
            similarity=round(found.similarity, 4),
            words_alike=found.num_same_words,
            words_a=found.num_words[0],
            words_b=found.num_words[1],
            text_a=_shown(answer_a) if self._include_text else None,
            text_b=_shown(answer_b) if self._include_text else None,
        )
        put = heapq.heappush if len(heap) < NUM_MOST_DIFFERENT else heapq.heappushpop
        put(heap, (-found.similarity, -a.line, pair))

    def _add_structure(self, a: AnswerText, b: AnswerText) -> None:
        if a.has_calls or b.has_calls:
            self._num_calling += 1
            self._num_calls_agree += calls_agree(a, b)
        value_a, value_b = json_of(a), json_of(b)
        if value_a is not None and value_b is not None:
            self._num_json["both"] += 1
            self._num_json["equal"] += value_a == value_b
        elif value_a is not None or value_b is not None:
            self._num_json["a" if value_b is None else "b"] += 1

    def most_different(self) -> list[DifferentPair]:
        """Return the answers that agree the least, these first."""
        return [pair for *_, pair in sorted(self._most_different, key=lambda held: held[:2], reverse=True)]

    def times(self) -> tuple[list[Figure], float | None]:
        """Return latency and TTFT of pairs that the engine answered itself in both; and the mean ratio."""
        made = []
        for name, times in (("request latency", self._latency), ("TTFT", self._ttft)):
            times.flush()
            for label, fraction in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99)):
                made.append(figure(f"{name} {label}", "ms", *times.percentiles_ms(fraction)))
        return made, self._latency.mean_ratio

    def lengths(self) -> Lengths:
        """Return how long the answers are."""
        totals = [sum(value * count for value, count in counts.items()) for counts in self._lengths]
        a, b = (
            LengthsOfRun(
                mean=total / self.num_completed if self.num_completed else None,
                p50=percentile(counts, 0.5),
                p90=percentile(counts, 0.9),
                p99=percentile(counts, 0.99),
                truncated=share_of(num_cut, self.num_completed),
            )
            for total, counts, num_cut in zip(totals, self._lengths, self._num_cut, strict=True)
        )
        return Lengths(a=a, b=b, ratio=ratio(*totals), difference=self._length_difference.made())

    def agreement(self) -> Agreement:
        """Return how far the answers agree."""
        num = self.num_completed
        similarities = self._similarities_of_different + Counter({SIMILARITY_STEPS: self._num_equal})
        least = percentile(similarities, 0.1)
        return Agreement(
            equal=share_of(self._num_equal, num),
            begun_alike=self._num_begun_alike,
            similarity_mean=self._sum_similarity / num if num else None,
            similarity_p10=None if least is None else least / SIMILARITY_STEPS,
            same_beginning_mean=self._sum_beginning / num if num else None,
            first_difference_p10=percentile(self._first_differences, 0.1),
            first_difference_p50=percentile(self._first_differences, 0.5),
            first_difference_p90=percentile(self._first_differences, 0.9),
            prompts_differ=self._num_prompts_differ,
            finish_changes=[
                FinishChange(a=a, b=b, count=count) for (a, b), count in self._finishes.most_common()
            ],
            json_answers=JsonAgreement(
                in_both=self._num_json["both"],
                only_a=self._num_json["a"],
                only_b=self._num_json["b"],
                equal=share_of(self._num_json["equal"], self._num_json["both"]),
            ),
            tool_calls=share_of(self._num_calls_agree, self._num_calling),
        )

    def distributions(self) -> Distributions:
        """Return what the charts are drawn from; call `times` first."""
        return Distributions(
            request_latency_ms=self._latency.bins_ms(),
            ttft_ms=self._ttft.bins_ms(),
            output_tokens=pair_bins(*self._lengths),
            length_difference=value_bins(self._differences_of_different),
            first_difference=value_bins(self._first_differences),
            similarity=value_bins(self._similarities_of_different, 1 / SIMILARITY_STEPS),
        )


def figure(name: str, unit: str, a: float | None, b: float | None) -> Figure:
    """Return a measure of both runs."""
    return Figure(name=name, unit=unit, a=a, b=b, ratio=ratio(a, b))


def ratio(a: float | None, b: float | None) -> float | None:
    """Return b / a, or None where that is not a number."""
    return b / a if a and b is not None else None


def _keep(changes: list[Change], failed: ResultRow) -> None:
    if len(changes) < NUM_CHANGES:
        changes.append(Change(custom_id=failed.custom_id or "", code=failed.code or "unknown"))


def _shown(answer: AnswerText) -> str:
    text = answer.whole
    return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]} [{len(text) - MAX_TEXT} characters more]"
