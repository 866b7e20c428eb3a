"""The charts of a run: what went on over time, and how latencies and lengths are distributed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from trtb.runner.reporting.active_time import NS_PER_S, ActiveSpan
from trtb.runner.reporting.distribution import Distribution
from trtb.runner.reporting.run_figures import RunFigures
from trtb.runner.reporting.samples import Sample
from trtb.tools.pages.axes import Axis
from trtb.tools.pages.chart_data import Bin, Histogram, Point, Rule, Series
from trtb.tools.pages.charts import bar_chart, line_chart
from trtb.tools.pages.printable import shown_count, shown_seconds
from trtb.tools.pages.svg import to_svg

MAX_POINTS = 120  # of samples in one line
NEAR = 1.15  # two lines across nearer than this, by a factor, would have their words on each other
GIB = 2**30

Reading = Callable[[Sample], float | None]


@dataclass(frozen=True, slots=True)
class Figure:
    """A drawn chart with what stands above and below it."""

    svg: Markup
    title: str
    caption: str


class Clock:
    """Maps times to seconds of work: the pauses of a resumed run are marked, and take no room."""

    def __init__(self, spans: Sequence[ActiveSpan]) -> None:
        self._spans = spans
        self._before_s = [sum(span.duration_s for span in spans[:at]) for at in range(len(spans))]

    def axis(self) -> Axis:
        """Return the axis of time."""
        title = "time at work" if len(self._spans) > 1 else "time since the first request"
        return Axis(title, "elapsed", low=0, high=sum(span.duration_s for span in self._spans))

    def at(self, time_ns: float, span: int) -> float:
        """Return the seconds of work at a time within a span."""
        return self._before_s[span] + (time_ns - self._spans[span].start_ns) / NS_PER_S

    def span_of(self, time_ns: float) -> int | None:
        """Return the span that a time lies in, or None in a pause."""
        for at, span in enumerate(self._spans):
            if span.start_ns <= time_ns <= span.end_ns:
                return at
        return None

    def pauses(self) -> list[Rule]:
        """Return a mark for each pause."""
        pairs = zip(self._spans, self._spans[1:], self._before_s[1:], strict=False)
        return [
            Rule(at, f"pause {shown_seconds((after.start_ns - before.end_ns) / NS_PER_S)}", of_x=True)
            for before, after, at in pairs
        ]


def work_figures(figures: RunFigures, concurrency: int, *, is_over: bool) -> list[Figure]:
    """Draw what went on over time; nothing where the engine answered nothing."""
    if not figures.bins:
        return []
    clock = Clock(figures.spans)
    width = shown_seconds(max(each.duration_s for each in figures.bins))

    def draw(values: Sequence[float], y: Axis, rules: Sequence[Rule] = ()) -> Markup:
        points: list[Point] = []
        for each, value in zip(figures.bins, values, strict=True):
            if points and each.start_ns == figures.spans[each.span].start_ns:
                points.append(Point(points[-1].x, None))  # no line across a pause
            points.append(Point(clock.at((each.start_ns + each.end_ns) / 2, each.span), value))
        x = clock.axis()
        return to_svg(line_chart([Series(y.title, points)], x=x, y=y, rules=[*clock.pauses(), *rules]))

    tokens = [each.output_tokens / each.duration_s for each in figures.bins]
    finished = [each.num_finished / each.duration_s for each in figures.bins]
    in_flight = [each.in_flight for each in figures.bins]
    open_end = "" if is_over else " Those that have not ended are not in it: so the end falls off."
    bound = [Rule(concurrency, f"bound {concurrency}")] if concurrency else []
    return [
        Figure(
            draw(tokens, Axis("output tokens/s")),
            "Throughput",
            f"Steps of {width}; an answer's tokens are spread evenly from its first to its last.",
        ),
        Figure(
            draw(in_flight, Axis("requests in flight"), bound),
            "Requests in flight",
            f"Means of each step, from the sending of each request to its last token.{open_end}",
        ),
        Figure(
            draw(finished, Axis("answers finished/s")),
            "Answers",
            "Answers by the engine; those taken from elsewhere are not counted.",
        ),
    ]


def distribution_figures(figures: RunFigures) -> list[Figure]:
    """Draw how latencies and lengths are distributed."""
    kinds = (
        (figures.latency, "Request latency", "From sending to the last token", True),
        (figures.ttft, "Time to first token", "As the engine tells it", True),
        (figures.prompt_length, "Prompt length", "After the chat template", False),
        (figures.answer_length, "Answer length", "Tokens generated", False),
    )
    return [
        _distribution_figure(found, title, note, is_time=is_time)
        for found, title, note, is_time in kinds
        if found is not None
    ]


def sample_figures(samples: Sequence[Sample], spans: Sequence[ActiveSpan]) -> list[Figure]:
    """Draw what client, servers and GPUs did; only what was measured."""
    clock = Clock(spans)
    placed = [
        (clock.at(sample.time_s * NS_PER_S, span), span, sample)
        for sample in samples
        if (span := clock.span_of(sample.time_s * NS_PER_S)) is not None
    ]
    step = -(-len(placed) // MAX_POINTS) or 1
    placed = placed[::step]

    def draw(title: str, caption: str, y: Axis, readings: dict[str, Reading]) -> Figure | None:
        lines = [Series(name, _points(placed, read)) for name, read in readings.items()]
        lines = [line for line in lines if any(point.y is not None for point in line.points)]
        if not lines:
            return None
        svg = to_svg(line_chart(lines, x=clock.axis(), y=y, rules=clock.pauses()))
        return Figure(svg, title, caption)

    found = [
        draw(
            "Processor time",
            "Cores kept busy; the client is this program, the servers are the run's own.",
            Axis("cores"),
            {
                "client": lambda sample: _per_s(sample.client_cpu_s, sample),
                "of it, preparing": lambda sample: _per_s(sample.prepare_s, sample),
                "servers": lambda sample: _per_s(sample.server_cpu_s, sample),
            },
        ),
        draw(
            "KV blocks",
            "Held, as the client counts what its requests may grow to; used, as the servers tell.",
            Axis("blocks"),
            {
                "held": lambda sample: sample.blocks_held,
                "used": lambda sample: sample.engine_blocks_used,
                "all": lambda sample: sample.num_blocks,
            },
        ),
        draw(
            "Requests waiting",
            "In the client: ready, but with no place in flight; in the servers: received, but not begun.",
            Axis("requests"),
            {
                "in the client": lambda sample: sample.waiting,
                "in the servers": lambda sample: sample.engine_waiting,
            },
        ),
        draw(
            "Server memory",
            "Of the run's own servers, in main memory.",
            Axis("GiB"),
            {"servers": lambda sample: _gib(sample.server_rss_bytes)},
        ),
        draw("GPU use", "Share of the time in which a kernel ran.", Axis("busy", "percent"), _busy(samples)),
        draw("GPU memory", "In use by all that runs on the GPU.", Axis("GiB"), _memory(samples)),
    ]
    return [figure for figure in found if figure is not None]


def _points(placed: Sequence[tuple[float, int, Sample]], read: Reading) -> list[Point]:
    points: list[Point] = []
    last = None
    for at, span, sample in placed:
        if last is not None and span != last:
            points.append(Point(at, None))
        last = span
        points.append(Point(at, read(sample)))
    return points


def _gpu_indices(samples: Sequence[Sample]) -> list[int]:
    return sorted({gpu.index for sample in samples for gpu in sample.gpus})


def _busy(samples: Sequence[Sample]) -> dict[str, Reading]:
    def reading(index: int) -> Reading:
        return lambda sample: next((gpu.busy_fraction for gpu in sample.gpus if gpu.index == index), None)

    return {f"GPU {index}": reading(index) for index in _gpu_indices(samples)}


def _memory(samples: Sequence[Sample]) -> dict[str, Reading]:
    def reading(index: int) -> Reading:
        return lambda sample: next(
            (_gib(gpu.memory_used_bytes) for gpu in sample.gpus if gpu.index == index), None
        )

    return {f"GPU {index}": reading(index) for index in _gpu_indices(samples)}


def _per_s(seconds: float | None, sample: Sample) -> float | None:
    return None if seconds is None or sample.span_s <= 0 else seconds / sample.span_s


def _gib(num_bytes: int | None) -> float | None:
    return None if num_bytes is None else num_bytes / GIB


def _distribution_figure(found: Distribution, title: str, note: str, *, is_time: bool) -> Figure:
    scale, unit = _time_scale(found.max) if is_time else (1, "tokens")
    has_zero = found.bins[0].low == 0
    bins = [Bin(each.low / scale, each.high / scale, each.count) for each in found.bins]
    if found.is_log and has_zero:  # a logarithmic axis has no zero
        bins[0] = Bin(found.bins[0].high / scale / 2, bins[0].high, bins[0].count)
    x = Axis(f"{title.lower()} ({unit})", "log" if found.is_log else "linear", has_zero=False)
    rules = [Rule(found.p50 / scale, "p50", of_x=True)]
    if found.p99 > NEAR * found.p50:
        rules.append(Rule(found.p99 / scale, "p99", of_x=True))
    svg = to_svg(bar_chart([Histogram(title, bins)], x=x, y=Axis("requests"), rules=rules))
    shown = shown_count if not is_time else lambda value: shown_seconds(value / NS_PER_S)
    caption = (
        f"{note}. Mean {shown(found.mean)}, p50 {shown(found.p50)}, p90 {shown(found.p90)}, "
        f"p99 {shown(found.p99)}, {shown(found.min)} to {shown(found.max)}."
    )
    return Figure(svg, title, caption)


def _time_scale(longest_ns: int) -> tuple[int, str]:
    return (NS_PER_S, "s") if longest_ns >= NS_PER_S else (1_000_000, "ms")
