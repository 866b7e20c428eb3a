"""When to try again, and how long to wait before."""

from __future__ import annotations

import inspect
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtb.runner import errors
from trtb.runner.errors import ConnectionLostError, EngineError, QueueFullError, RequestError
from trtb.runner.findings import REQUEST_CODES
from trtb.runner.retry import RetryPolicy, delay_s

REQUEST_ERRORS = [
    kind
    for _, kind in inspect.getmembers(errors, inspect.isclass)
    if issubclass(kind, RequestError) and kind is not RequestError
]


@given(st.integers(1, 40), st.floats(0, 1), st.floats(0.01, 5), st.floats(5, 60))
def test_a_wait_doubles_up_to_its_bound_and_is_half_random(num_attempts, jitter, base_s, max_s):
    policy = RetryPolicy(max_attempts=50, base_s=base_s, max_s=max_s)
    wait = delay_s(policy, QueueFullError("no room"), num_attempts, jitter)
    full = min(max_s, base_s * 2 ** (num_attempts - 1))
    assert full / 2 <= wait <= full


def test_the_last_attempt_is_the_last():
    policy = RetryPolicy(max_attempts=3)
    waits = [delay_s(policy, ConnectionLostError("gone"), number, 0.0) for number in (1, 2, 3, 4)]
    assert waits == [0.125, 0.25, None, None]


@pytest.mark.parametrize("kind", REQUEST_ERRORS, ids=lambda kind: kind.__name__)
def test_a_request_error_is_documented_survives_pickling_and_is_retried_only_if_it_can_heal(kind):
    error = pickle.loads(pickle.dumps(kind("what went wrong", "what to do")))
    assert (type(error), error.message, error.hint) == (kind, "what went wrong", "what to do")
    assert error.code in REQUEST_CODES
    assert 400 <= error.status_code < 600
    assert (delay_s(RetryPolicy(), error, 1, 0.5) is not None) == error.retryable


def test_what_can_heal():
    retryable = {kind.code for kind in REQUEST_ERRORS if kind.retryable}
    assert retryable == {"connection_lost", "queue_full", "cancelled"}
    assert not EngineError.retryable
