"""The best of any points, and the spread and median of any runs."""

from __future__ import annotations

import statistics

import pytest
from fakes.sweeps import fake_run
from hypothesis import given
from hypothesis import strategies as st

from trtb.build.errors import ConfigError
from trtb.tools.sweeping.best import check_rule, choose_best
from trtb.tools.sweeping.export import Answer, figures_of
from trtb.tools.sweeping.point import Figures, Percentiles, SweepPoint, median_of, spread_of

positive = st.floats(min_value=0.1, max_value=1e6, allow_nan=False)
points = st.builds(
    lambda value, tokens, p99, goodput, state: SweepPoint(
        name=f"c{value}",
        settings={},
        mode="concurrency",
        value=value,
        state=state,
        median=None if state == "failed" else figures(tokens, p99, goodput),
    ),
    st.integers(min_value=1, max_value=64).map(float),
    positive,
    st.none() | positive,
    st.none() | positive,
    st.sampled_from(["ok", "ok", "unstable", "failed"]),
)


def figures(tokens: float, p99: float | None, goodput: float | None) -> Figures:
    latency = Percentiles(p50_ms=p99, p90_ms=p99, p99_ms=p99)
    run = fake_run(4)
    values = {name: getattr(run, name) for name in Figures.model_fields}
    return Figures(**{**values, "output_tokens_per_s": tokens, "latency": latency, "goodput_per_s": goodput})


@given(st.lists(points), st.sampled_from(["throughput", "goodput", "latency"]), positive)
def test_the_best_is_stable_and_none_that_may_be_chosen_beats_it(given_points, rule, limit_ms):
    best = choose_best(given_points, rule, limit_ms)

    def score(point):
        if point.state != "ok":
            return None
        if rule == "throughput":
            return point.median.output_tokens_per_s
        if rule == "goodput":
            return point.median.goodput_per_s
        p99_ms = point.median.latency.p99_ms
        return point.median.output_tokens_per_s if p99_ms is not None and p99_ms <= limit_ms else None

    eligible = [point for point in given_points if score(point) is not None]
    assert (best is None) == (not eligible)
    if best is not None:
        assert best.state == "ok"
        assert score(best) == max(map(score, eligible))
        assert best.value == min(point.value for point in eligible if score(point) == score(best))


@given(st.lists(points, min_size=1))
def test_the_order_of_the_points_does_not_matter(given_points):
    one = choose_best(given_points, "throughput", None)
    other = choose_best(list(reversed(given_points)), "throughput", None)
    assert (one is None) == (other is None)
    if one is not None and other is not None:
        assert (one.value, one.median.output_tokens_per_s) == (other.value, other.median.output_tokens_per_s)


@given(st.lists(positive, min_size=2, max_size=8), st.floats(min_value=0.01, max_value=100))
def test_a_spread_has_no_unit_and_equal_runs_have_none(values, factor):
    assert spread_of([values[0]] * 3) == pytest.approx(0, abs=1e-9)
    assert spread_of(values) == pytest.approx(spread_of([value * factor for value in values]), abs=1e-6)
    assert spread_of(values[:1]) is None


@given(st.lists(positive, min_size=1, max_size=7))
def test_a_median_is_of_each_figure_and_within_the_runs(values):
    found = median_of([figures(value, value, None) for value in values])
    assert found is not None
    assert found.output_tokens_per_s == statistics.median(values)
    assert found.latency.p99_ms == statistics.median(values)
    assert found.goodput_per_s is None
    assert median_of([]) is None


@given(
    st.lists(
        st.tuples(st.integers(0, 10**9), st.lists(st.integers(1, 10**9), min_size=1, max_size=5)),
        min_size=1,
        max_size=20,
    ),
    st.data(),
)
def test_tokens_and_requests_are_those_that_are_counted(raw, data):
    answers = []
    for sent_ns, gaps in sorted(raw):
        times = [sent_ns + sum(gaps[: index + 1]) for index in range(len(gaps))]
        answers.append(Answer(sent_ns, 3, 8, tuple(times), (1,) * len(times)))
    num_warmup = data.draw(st.integers(0, len(answers) - 1))
    found = figures_of(answers, num_warmup=num_warmup, is_streamed=True, latency_limit_ms=1e9)
    counted = answers[num_warmup:]
    assert found.num_requests == len(counted)
    assert found.output_tokens_per_s * found.duration_s == pytest.approx(
        sum(len(answer.times_ns) for answer in counted)
    )
    assert found.goodput_per_s == pytest.approx(found.requests_per_s)  # all are within a huge limit
    assert found.ttft.p99_ms <= found.latency.p99_ms


def test_a_rule_needs_its_limit():
    assert check_rule("throughput", None) == "throughput"
    with pytest.raises(ConfigError, match="expected --latency-limit"):
        check_rule("latency", None)
    with pytest.raises(ConfigError, match="'speed'; expected"):
        check_rule("speed", 1.0)
