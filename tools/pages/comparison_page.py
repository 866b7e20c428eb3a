"""The page of two runs side by side: the verdict, then speed, answers, lengths, and what B fails at."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from trtb.runner.reporting.comparison_bins import MIN_VALUES_CUT
from trtb.runner.reporting.comparison_differences import value_text
from trtb.runner.reporting.comparison_model import (
    Change,
    ComparedRun,
    Comparison,
    DifferentPair,
    Figure,
    PairBin,
    Value,
    ValueBin,
)
from trtb.runner.reporting.comparison_verdict import difference_text, share_text
from trtb.tools.pages.axes import Axis, as_text
from trtb.tools.pages.chart_data import Bin, Histogram
from trtb.tools.pages.charts import bar_chart
from trtb.tools.pages.page import render
from trtb.tools.pages.printable import shown_id, shown_text
from trtb.tools.pages.svg import to_svg

_COUNT = Axis("requests")


def render_comparison(found: Comparison) -> str:
    """Return the page of a comparison."""
    return render(
        "comparison.html",
        {
            "found": found,
            "headlines": list(_headlines(found)),
            "notices": [(_kind(line, found), *_parted(line)) for line in found.verdict],
            "drawings": list(_drawings(found)),
            "runs": [
                [name, a, b] for (name, a), (_, b) in zip(_identity(found.a), _identity(found.b), strict=True)
            ],
            "counts": _counts(found),
            "speed": figure_rows(found.speed.figures),
            "agreement": _agreement(found),
            "lengths": _lengths(found),
            "finish_changes": [
                [change.a, change.b, change.count] for change in found.agreement.finish_changes
            ],
            "differences": [
                [held.kind, held.name, _value(held.a), _value(held.b)] for held in found.differences
            ],
            "regressions": _changes(found.regressions),
            "repairs": _changes(found.repairs),
            "most_different": [_pair_row(pair) for pair in found.most_different],
            "texts": [
                (shown_id(pair.custom_id), shown_text(pair.text_a), shown_text(pair.text_b))
                for pair in found.most_different
                if pair.text_a is not None and pair.text_b is not None
            ],
        },
    )


def figure_rows(figures: Sequence[Figure]) -> list[list[str]]:
    """Return the measures that a run has as the cells of a table: name, unit, A, B, B / A."""
    return [
        [
            *(figure.name, figure.unit, number(figure.a), number(figure.b)),
            _ratio(figure.ratio),
        ]
        for figure in figures
        if figure.a is not None or figure.b is not None
    ]


def _ratio(value: float | None) -> str:
    """Return a ratio as text; a run that took its answers from a cache may take a thousandth of the time."""
    return "" if value is None else f"{value:.2f}" if value >= 0.1 else f"{value:.1g}"


def number(value: float | None) -> str:
    """Return a number as tables write it; empty where there is none."""
    return "" if value is None else as_text(value, Axis(""))


def _headlines(found: Comparison) -> Iterator[tuple[str, str, str]]:
    counts, equal, lengths = found.counts, found.agreement.equal, found.lengths
    speed = found.speed.figures[0]
    if found.speed.cautions or speed.ratio is None:
        yield "output tokens/s, B / A", "not compared", "more differs than the engine"
    else:
        told = f"{number(speed.a)} and {number(speed.b)} output tokens/s"
        yield "output tokens/s, B / A", f"{speed.ratio:.2f}", told
    if equal.share is not None and equal.low is not None and equal.high is not None:
        told = f"{equal.count} of {equal.of}; 95% interval {equal.low:.1%} to {equal.high:.1%}"
        yield "the same answer, byte by byte", f"{equal.share:.1%}", told
        yield (
            "likeness of the words",
            f"{found.agreement.similarity_mean:.3f}",
            "mean of all; 1 is the same words in the same order",
        )
    if lengths.ratio is not None:
        told = f"{difference_text(lengths.difference)} tokens an answer"
        yield "length, B / A", f"{lengths.ratio:.2f}", told
    yield (
        "regressions",
        str(counts.regressed),
        f"completed in A, failed in B; {counts.repaired} the other way",
    )


def _kind(line: str, found: Comparison) -> str:
    """Return the kind of notice that a line of the verdict is."""
    subject = line.partition(":")[0]
    if subject == "regressions":
        if not found.counts.in_both:
            return "warning"
        return "bad" if found.counts.regressed else "good"
    if subject in {"prompts", "JSON", "tool calls"} or line.startswith("no request"):
        return "warning"
    return "note"


def _parted(line: str) -> tuple[str, str]:
    """Return a line's subject, and what it says of it."""
    subject, colon, rest = line.partition(": ")
    return (subject[:1].upper() + subject[1:], rest) if colon else (line[:1].upper() + line[1:], "")


def _drawings(found: Comparison) -> Iterator[tuple[str, object, str]]:
    data = found.distributions
    for title, name, pairs in (
        ("Request latency", "request latency (ms)", data.request_latency_ms),
        ("Time to first token", "TTFT (ms)", data.ttft_ms),
    ):
        if pairs:
            x = Axis(name, "log", has_zero=False)
            told = "Of the requests that the engine answered itself in both runs, on a logarithmic axis."
            yield title, to_svg(bar_chart(_overlaid(pairs), x=x, y=_COUNT)), told
    if data.output_tokens:
        chart = bar_chart(_overlaid(data.output_tokens), x=Axis("output tokens", has_zero=False), y=_COUNT)
        yield (
            "Answer length",
            to_svg(chart),
            f"Of the requests completed in both.{_cut(sum(held.a for held in data.output_tokens))}",
        )
    cut = _cut(sum(held.count for held in data.first_difference))
    for title, bins, axis, told in (
        (
            "Difference in length",
            data.length_difference,
            Axis("output tokens, B less A", has_zero=False),
            f"Of the answers that differ; right of zero B's is the longer one.{cut}",
        ),
        (
            "Likeness of the answers",
            data.similarity,
            Axis("likeness (1: the same words)", low=0.0, high=1.05),
            "Of the answers that differ: twice the words in common, in order, by those of both (ROUGE-L F1).",
        ),
        (
            "Where answers part",
            data.first_difference,
            Axis("words before the first difference", has_zero=False),
            f"Of the answers that differ.{cut}",
        ),
    ):
        if bins:
            yield title, to_svg(bar_chart([_single(bins)], x=axis, y=_COUNT)), told


def _cut(num_values: int) -> str:
    return (
        " The outermost bars also hold the 1% of values beyond them." if num_values >= MIN_VALUES_CUT else ""
    )


def _overlaid(bins: Sequence[PairBin]) -> list[Histogram]:
    return [
        Histogram("A", [Bin(held.low, held.high, held.a) for held in bins]),
        Histogram("B", [Bin(held.low, held.high, held.b) for held in bins]),
    ]


def _single(bins: Sequence[ValueBin]) -> Histogram:
    return Histogram("pairs", [Bin(held.low, held.high, held.count) for held in bins])


def _identity(run: ComparedRun) -> list[tuple[str, str]]:
    return [
        ("output", run.output),
        ("engine", run.engine),
        ("engine_id", run.engine_id),
        ("state", run.state),
        ("requests", f"{run.total}: {run.completed} completed, {run.failed} failed"),
        ("input", run.input_path),
        ("input sha256", run.input_sha256),
        ("host", run.host),
        ("begun", run.created_at),
        ("run", run.run_id),
    ]


def _counts(found: Comparison) -> list[tuple[str, str]]:
    counts = found.counts

    def with_samples(num: int, samples: Sequence[str]) -> str:
        named = ", ".join(shown_id(sample) for sample in samples)
        return f"{num}{f', such as {named}' if named else ''}"

    rows = [
        ("with a result in both", str(counts.in_both)),
        ("completed in both", str(counts.completed_in_both)),
        ("failed in both", str(counts.failed_in_both)),
        ("completed in A alone", f"{counts.regressed}, failed in B"),
        ("completed in B alone", f"{counts.repaired}, failed in A"),
        ("result in A alone", with_samples(counts.only_a, counts.only_a_samples)),
        ("result in B alone", with_samples(counts.only_b, counts.only_b_samples)),
    ]
    if counts.without_id_a or counts.without_id_b:
        rows.append(("lines without custom_id", f"{counts.without_id_a} in A, {counts.without_id_b} in B"))
    return rows


def _agreement(found: Comparison) -> list[tuple[str, str]]:
    agreement = found.agreement
    if not agreement.equal.of:
        return []
    rows = [
        ("the same byte by byte", share_text(agreement.equal)),
        ("one begins the other", str(agreement.begun_alike)),
        ("likeness, mean", number(agreement.similarity_mean)),
        ("likeness, p10", number(agreement.similarity_p10)),
        ("same beginning, mean", f"{agreement.same_beginning_mean:.1%} of the longer answer"),
    ]
    if agreement.first_difference_p50 is not None:
        parts = (
            agreement.first_difference_p10,
            agreement.first_difference_p50,
            agreement.first_difference_p90,
        )
        told = f"after {' / '.join(map(str, parts))} words (p10 / p50 / p90)"
        rows.append(("answers that differ part", told))
    values = agreement.json_answers
    if values.in_both or values.only_a or values.only_b:
        rows.append(("JSON in both, and equal", share_text(values.equal)))
        rows.append(("JSON in one alone", f"{values.only_a} in A, {values.only_b} in B"))
    if agreement.tool_calls.of:
        rows.append(("the same tool calls", share_text(agreement.tool_calls)))
    rows.append(("prompts of other length", f"{agreement.prompts_differ}, in tokens"))
    return rows


def _lengths(found: Comparison) -> list[list[str]]:
    lengths = found.lengths
    rows = [
        [name, number(getattr(lengths.a, name)), number(getattr(lengths.b, name))]
        for name in ("mean", "p50", "p90", "p99")
    ]
    return [*rows, ["cut by max_tokens", share_text(lengths.a.truncated), share_text(lengths.b.truncated)]]


def _changes(changes: Sequence[Change]) -> list[list[str]]:
    named: dict[str, list[str]] = {}
    for change in changes:
        named.setdefault(change.code, []).append(shown_id(change.custom_id))
    return [[code, ", ".join(ids)] for code, ids in named.items()]


def _pair_row(pair: DifferentPair) -> list[str]:
    return [
        shown_id(pair.custom_id),
        f"{pair.line_a}, {pair.line_b}",
        f"{pair.similarity:.3f}",
        str(pair.words_alike),
        f"{pair.words_a}, {pair.words_b}",
    ]


def _value(value: Value) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, itertools.islice(value, 20))) or "none"
    return "" if value is None else value_text(value)
