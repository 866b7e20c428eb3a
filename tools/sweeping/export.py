"""The figures of a run, from perf_analyzer's export: from each answer's own times, by our own arithmetic.

Its summary is not used: it counts throughput over whole seconds, has the latency to the last response under
the name of that to the first, and knows no tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from trtb.model_repo import contract
from trtb.tools.sweeping.point import Figures, Percentiles

NS_PER_MS = 1e6


class ExportError(ValueError):
    """The export is not what perf_analyzer writes, or tells of a run that did not end."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One request as it was answered; times in ns since the epoch."""

    sent_ns: int
    num_input: int
    num_asked: int
    times_ns: tuple[int, ...]  # of the responses that brought tokens
    num_tokens: tuple[int, ...]  # that each of them brought

    @property
    def end_ns(self) -> int:
        """Return when its last token came."""
        return self.times_ns[-1]

    @property
    def latency_ms(self) -> float:
        """Return the request latency."""
        return (self.end_ns - self.sent_ns) / NS_PER_MS

    @property
    def ttft_ms(self) -> float:
        """Return the time to the first token."""
        return (self.times_ns[0] - self.sent_ns) / NS_PER_MS

    def gaps_ms(self) -> Iterable[float]:
        """Yield the time of each token after the first response's; of several at once, each its share."""
        for before, time_ns, count in zip(
            self.times_ns, self.times_ns[1:], self.num_tokens[1:], strict=False
        ):
            yield from [(time_ns - before) / NS_PER_MS / count] * count


def read_export(path: Path) -> list[Answer]:
    """Return the answers of a run, in the order in which they were sent.

    Raises:
        ExportError: The file is no export, or a request in it has no answer.
    """
    try:
        document = orjson.loads(path.read_bytes())
        (experiment,) = document["experiments"]
        answers = [_read_request(request) for request in experiment["requests"]]
    except FileNotFoundError as exc:
        raise ExportError("perf_analyzer wrote no export") from exc
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError) as exc:
        if isinstance(exc, ExportError):
            raise
        raise ExportError(f"{path.name}: {type(exc).__name__} {exc}; expected an export of a run") from exc
    return sorted(answers, key=lambda answer: answer.sent_ns)


def figures_of(
    answers: Sequence[Answer], *, num_warmup: int, is_streamed: bool, latency_limit_ms: float | None
) -> Figures:
    """Return what a run measured; the first `num_warmup` requests sent do not count.

    Args:
        answers: In the order in which they were sent.
        num_warmup: How many of them warm the server up.
        is_streamed: Whether the answers came token by token; the times of tokens are known only then.
        latency_limit_ms: What a request may take to count for the goodput.

    Raises:
        ExportError: No request is left to count.
    """
    counted = answers[num_warmup:]
    if not counted:
        raise ExportError(f"{len(answers)} requests were answered, and {num_warmup} of them warm up")
    duration_s = (max(answer.end_ns for answer in counted) - counted[0].sent_ns) / 1e9
    if duration_s <= 0:
        raise ExportError("the run took no time; expected answers after their requests")
    latencies = sorted(answer.latency_ms for answer in counted)
    good = None
    if latency_limit_ms is not None:
        good = sum(latency <= latency_limit_ms for latency in latencies) / duration_s
    num = len(counted)
    return Figures(
        duration_s=duration_s,
        num_requests=num,
        requests_per_s=num / duration_s,
        output_tokens_per_s=sum(sum(answer.num_tokens) for answer in counted) / duration_s,
        ttft=percentiles([answer.ttft_ms for answer in counted] if is_streamed else []),
        itl=percentiles([gap for answer in counted for gap in answer.gaps_ms()] if is_streamed else []),
        latency=percentiles(latencies),
        goodput_per_s=good,
        input_tokens_mean=sum(answer.num_input for answer in counted) / num,
        output_tokens_mean=sum(sum(answer.num_tokens) for answer in counted) / num,
        asked_tokens_mean=sum(answer.num_asked for answer in counted) / num,
    )


def percentiles(values: Iterable[float]) -> Percentiles:
    """Return the percentiles of some times, in between two of them by their distance.

    >>> percentiles([4.0, 1.0, 2.0, 3.0]).p50_ms
    2.5
    """
    ordered = sorted(values)
    if not ordered:
        return Percentiles()
    p50, p90, p99 = (_percentile(ordered, share) for share in (0.5, 0.9, 0.99))
    return Percentiles(p50_ms=p50, p90_ms=p90, p99_ms=p99)


def times_of(answers: Sequence[Answer]) -> bytes:
    """Return the answers' times and lengths as they are kept: all that the figures stand on, and no text."""
    columns = ["sent_ns", "num_input", "num_asked", "times_ns", "num_tokens"]
    rows = [[getattr(answer, column) for column in columns] for answer in answers]
    return orjson.dumps({"schema_version": 1, "columns": columns, "answers": rows}) + b"\n"


def _percentile(ordered: Sequence[float], share: float) -> float:
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def _read_request(request: dict[str, Any]) -> Answer:
    inputs = request["request_inputs"]
    responses = [
        (int(time_ns), _num_tokens(outputs))
        for time_ns, outputs in zip(request["response_timestamps"], request["response_outputs"], strict=True)
    ]
    told = [(time_ns, count) for time_ns, count in responses if count]  # the last one may be an empty end
    if not told:
        raise ExportError("a request was answered without a token")
    return Answer(
        sent_ns=int(request["timestamp"]),
        num_input=int(inputs[contract.INPUT_LENGTHS.name]),
        num_asked=int(inputs[contract.REQUEST_OUTPUT_LEN.name]),
        times_ns=tuple(time_ns for time_ns, _ in told),
        num_tokens=tuple(count for _, count in told),
    )


def _num_tokens(outputs: dict[str, Any]) -> int:
    """Return how many ids a response brought.

    One id stands there as a number, and so does none, as 0: only the length beside tells the two apart.
    """
    ids = outputs.get(contract.OUTPUT_IDS.name, [])
    num_ids = len(ids) if isinstance(ids, list) else 1
    lengths = outputs.get(contract.SEQUENCE_LENGTH.name, num_ids)
    return min(num_ids, sum(lengths) if isinstance(lengths, list) else int(lengths))
