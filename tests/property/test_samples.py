"""Whatever samples a run takes: thinning bounds them, and loses nothing that adds up."""

from __future__ import annotations

import itertools
import math

from fakes.samples import sample
from hypothesis import given
from hypothesis import strategies as st

from trtb.runner.reporting.samples import merge, read_samples, thin, write_samples

POSITIVE = st.floats(0.01, 100.0)
SAMPLES = st.lists(
    st.builds(
        sample,
        session=st.integers(1, 3),
        span_s=POSITIVE,
        client_cpu_s=st.floats(0, 100.0),
        in_flight=st.floats(0, 64.0),
        max_in_flight=st.integers(0, 64),
        max_loop_lag_s=st.floats(0, 1.0),
        server_cpu_s=st.none() | st.floats(0, 100.0),
    ),
    max_size=60,
).map(lambda found: sorted(found, key=lambda each: each.session))


@given(SAMPLES, st.integers(3, 40))
def test_thinning_bounds_their_number_and_keeps_sums_means_and_the_most(samples, limit):
    kept, _ = thin(samples, limit)
    assert len(kept) <= limit
    assert {each.session for each in kept} == {each.session for each in samples}
    for name in ("span_s", "client_cpu_s", "server_cpu_s"):
        before, after = (sum(getattr(each, name) or 0.0 for each in many) for many in (samples, kept))
        assert math.isclose(before, after, abs_tol=1e-6)
    before, after = (sum(each.in_flight * each.span_s for each in many) for many in (samples, kept))
    assert math.isclose(before, after, abs_tol=1e-6)
    for name in ("max_in_flight", "max_loop_lag_s"):
        before, after = (max((getattr(each, name) for each in many), default=0) for many in (samples, kept))
        assert before == after


@given(SAMPLES)
def test_a_mean_never_leaves_what_it_is_the_mean_of(samples):
    for first, second in itertools.pairwise(samples):
        merged = merge(first, second)
        low, high = sorted((first.in_flight, second.in_flight))
        assert low - 1e-9 <= merged.in_flight <= high + 1e-9


@given(samples=SAMPLES)
def test_they_read_back(tmp_path_factory, samples):
    folder = tmp_path_factory.mktemp("samples")
    write_samples(folder, samples)
    found = read_samples(folder)
    assert [each.session for each in found] == [each.session for each in samples]
    assert all(math.isclose(a.span_s, b.span_s, abs_tol=1e-5) for a, b in zip(found, samples, strict=True))
