"""Retry: how long to wait before another attempt, or not to try again. No I/O."""

from __future__ import annotations

from dataclasses import dataclass

from trtb.runner.errors import RequestError


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Attempts in all, and the wait between them: doubling from `base_s`, at most `max_s`."""

    max_attempts: int = 3
    base_s: float = 0.25
    max_s: float = 30.0


def delay_s(policy: RetryPolicy, error: RequestError, num_attempts: int, jitter: float) -> float | None:
    """Return the wait before the next attempt, or None to give up.

    Args:
        policy: The bounds.
        error: Why the last attempt failed; only errors that can heal are tried again.
        num_attempts: Attempts made so far, at least 1.
        jitter: A random number from 0 to 1; the wait is half fixed, half random, so that requests which
            failed together do not come back together.

    >>> from trtb.runner.errors import ConnectionLostError
    >>> delay_s(RetryPolicy(), ConnectionLostError("gone"), num_attempts=2, jitter=1.0)
    0.5
    """
    if not error.retryable or num_attempts >= policy.max_attempts:
        return None
    wait: float = min(policy.max_s, policy.base_s * 2 ** (num_attempts - 1))
    return wait * (0.5 + 0.5 * jitter)
