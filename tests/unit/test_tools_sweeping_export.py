"""Figures from perf_analyzer's export: of a real one, and by hand."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from trtb.tools.sweeping.export import Answer, ExportError, figures_of, percentiles, read_export, times_of

STREAMED = Path(__file__).parents[1] / "data" / "perf_analyzer" / "streamed.json"
MS = 1_000_000


def answer(sent_ms: float, *times_ms: float, num_tokens: tuple[int, ...] = ()) -> Answer:
    return Answer(
        sent_ns=int(sent_ms * MS),
        num_input=4,
        num_asked=8,
        times_ns=tuple(int(time * MS) for time in times_ms),
        num_tokens=num_tokens or (1,) * len(times_ms),
    )


def test_an_export_of_perf_analyzer_is_read_without_its_empty_last_responses():
    """Three requests of three tokens, each ended by an empty response that says 0 where there is no id."""
    answers = read_export(STREAMED)
    assert [one.num_tokens for one in answers] == [(1, 1, 1)] * 3
    assert [(one.num_input, one.num_asked) for one in answers] == [(3, 3)] * 3
    assert [one.sent_ns for one in answers] == sorted(one.sent_ns for one in answers)
    raw = orjson.loads(STREAMED.read_bytes())["experiments"][0]["requests"]
    assert all(len(request["response_timestamps"]) == 4 for request in raw)
    first = min(raw, key=lambda request: request["timestamp"])
    assert answers[0].ttft_ms == (first["response_timestamps"][0] - first["timestamp"]) / 1e6
    assert answers[0].latency_ms == (first["response_timestamps"][2] - first["timestamp"]) / 1e6


def test_figures_are_of_the_real_span_and_leave_the_warm_up_out():
    answers = [answer(0, 900), answer(100, 300, 400), answer(200, 400, 1100)]
    figures = figures_of(answers, num_warmup=1, is_streamed=True, latency_limit_ms=500)
    assert figures.duration_s == 1.0  # from 100 to 1100 ms
    assert (figures.num_requests, figures.requests_per_s, figures.output_tokens_per_s) == (2, 2.0, 4.0)
    assert (figures.ttft.p50_ms, figures.latency.p50_ms, figures.itl.p50_ms) == (200, 600, 400)
    assert figures.goodput_per_s == 1.0
    assert (figures.input_tokens_mean, figures.output_tokens_mean, figures.asked_tokens_mean) == (4, 2, 8)


def test_tokens_that_come_together_share_their_time():
    figures = figures_of(
        [answer(0, 100, 160, num_tokens=(1, 3))], num_warmup=0, is_streamed=True, latency_limit_ms=None
    )
    assert (figures.itl.p50_ms, figures.itl.p99_ms) == (20, 20)
    assert figures.goodput_per_s is None
    assert figures.output_tokens_mean == 4


def test_without_streaming_the_times_of_tokens_are_not_known():
    figures = figures_of([answer(0, 100)], num_warmup=0, is_streamed=False, latency_limit_ms=None)
    assert (figures.ttft.p50_ms, figures.itl.p50_ms, figures.latency.p50_ms) == (None, None, 100)


def test_nothing_but_warm_up_is_no_measurement():
    with pytest.raises(ExportError, match="2 requests were answered, and 2 of them warm up"):
        figures_of([answer(0, 1), answer(1, 2)], num_warmup=2, is_streamed=True, latency_limit_ms=None)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "expected an export"),
        (b'{"experiments": []}', "expected an export"),
        (b'{"experiments": [{"requests": [{"timestamp": 1}]}]}', "KeyError"),
    ],
)
def test_what_is_no_export_is_refused(tmp_path: Path, text: bytes, message: str):
    path = tmp_path / "export.json"
    path.write_bytes(text)
    with pytest.raises(ExportError, match=message):
        read_export(path)


def test_a_request_without_a_token_is_no_answer(tmp_path: Path):
    export = orjson.loads(STREAMED.read_bytes())
    request = export["experiments"][0]["requests"][0]
    request["response_timestamps"], request["response_outputs"] = [], []
    (tmp_path / "export.json").write_bytes(orjson.dumps(export))
    with pytest.raises(ExportError, match="without a token"):
        read_export(tmp_path / "export.json")


def test_what_is_kept_holds_times_and_lengths_and_no_ids():
    kept = orjson.loads(times_of(read_export(STREAMED)))
    assert kept["columns"] == ["sent_ns", "num_input", "num_asked", "times_ns", "num_tokens"]
    assert [row[1:3] for row in kept["answers"]] == [[3, 3]] * 3
    assert b"1001" not in times_of([answer(0, 1)])


def test_percentiles_lie_between_their_neighbours():
    assert percentiles([]).p50_ms is None
    found = percentiles(float(value) for value in range(101))
    assert (found.p50_ms, found.p90_ms, found.p99_ms) == (50, 90, 99)
