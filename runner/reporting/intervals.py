"""What a sample says of the whole: shares with their interval, paired differences with theirs.

Wilson's interval, since shares here are often 0 or 1, where the usual one has no width. Differences are taken
in pairs, so that what makes one request longer than another falls out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict

Z_95 = 1.959964  # the normal distribution's, two-sided
MIN_PAIRS_OF_INTERVAL = 30  # fewer differences need not be near to normal in the mean
_MAX_EXACT_PAIRS = 1_000


class Share(BaseModel):
    """How many of a number, and between which shares that of any such sample is expected, at 95 %."""

    model_config = ConfigDict(strict=True, extra="forbid")

    count: int
    of: int
    share: float | None  # null of nothing
    low: float | None
    high: float | None


class PairedDifference(BaseModel):
    """What B has more than A, over the pairs."""

    model_config = ConfigDict(strict=True, extra="forbid")

    num_pairs: int
    mean: float | None  # null without pairs
    low: float | None  # of the mean, at 95 %; null of few pairs
    high: float | None
    num_more: int  # pairs in which B has more
    num_less: int
    num_same: int
    # of as uneven a split into more and less by chance, where neither is likelier; null without either
    sign_p: float | None


def share_of(count: int, of: int) -> Share:
    """Return a share with its Wilson interval.

    >>> made = share_of(100, 100)
    >>> made.share, round(made.low, 3), made.high
    (1.0, 0.963, 1.0)
    """
    assert 0 <= count <= of
    if not of:
        return Share(count=0, of=0, share=None, low=None, high=None)
    share, square = count / of, Z_95**2
    centre = share + square / (2 * of)
    half = Z_95 * math.sqrt(share * (1 - share) / of + square / (4 * of**2))
    low, high = ((centre + sign * half) / (1 + square / of) for sign in (-1, 1))
    # at the ends they are 0 and 1, but for rounding
    return Share(
        count=count,
        of=of,
        share=share,
        low=low if count else 0.0,
        high=high if count < of else 1.0,
    )


def sign_test(num_more: int, num_less: int) -> float | None:
    """Return the probability of as uneven a split by chance; of many pairs by the normal distribution.

    >>> sign_test(5, 0), sign_test(3, 3), sign_test(0, 0)
    (0.0625, 1.0, None)
    """
    num = num_more + num_less
    if not num:
        return None
    smaller: int = min(num_more, num_less)
    if num <= _MAX_EXACT_PAIRS:
        tail = sum(math.comb(num, count) for count in range(smaller + 1))
        return min(1.0, float(2 * tail / 2**num))
    distance = (num / 2 - smaller - 0.5) / math.sqrt(num / 4)
    return min(1.0, math.erfc(max(distance, 0.0) / math.sqrt(2)))


@dataclass(slots=True)
class DifferenceCount:
    """Adds up differences of pairs, which are whole numbers: exactly."""

    num_more: int = 0
    num_less: int = 0
    num_same: int = 0
    total: int = 0
    total_of_squares: int = 0

    def add(self, difference: int) -> None:
        """Count a pair, in which B has so much more."""
        self.total += difference
        self.total_of_squares += difference * difference
        if difference > 0:
            self.num_more += 1
        elif difference < 0:
            self.num_less += 1
        else:
            self.num_same += 1

    def made(self) -> PairedDifference:
        """Return what was added."""
        num = self.num_more + self.num_less + self.num_same
        mean = self.total / num if num else None
        low = high = None
        if mean is not None and num >= MIN_PAIRS_OF_INTERVAL:
            variance = (num * self.total_of_squares - self.total**2) / (num * (num - 1))
            half = Z_95 * math.sqrt(variance / num)
            low, high = mean - half, mean + half
        return PairedDifference(
            num_pairs=num,
            mean=mean,
            low=low,
            high=high,
            num_more=self.num_more,
            num_less=self.num_less,
            num_same=self.num_same,
            sign_p=sign_test(self.num_more, self.num_less),
        )
