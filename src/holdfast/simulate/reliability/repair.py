"""Repair: how long until a node is back. It has a rate of its own, which is never that of the failures.

Is wrong    as an exponential, mostly: published times have a median of 3 m 42 s and a mean of 38 m 54 s (OLMo). Measured percentiles are better.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise


def within(for_s: float, *, mean_s: float) -> float:
    """The chance that a repair with this mean is done within `for_s`, if it is exponential."""
    return -math.expm1(-for_s / mean_s)


def done_by(share: float, *, mean_s: float) -> float:
    """After how long so many of all repairs are done, if they are exponential."""
    return -mean_s * math.log1p(-share)


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Repair times as they were measured: share of repairs to seconds, 0 and 1 included; between two of them, as good as even."""

    shares: tuple[float, ...]
    seconds: tuple[float, ...]

    @classmethod
    def of(cls, measured: Mapping[float, float]) -> Percentiles:
        shares = tuple(sorted(measured))
        seconds = tuple(measured[share] for share in shares)
        if len(shares) < 2 or shares[0] != 0.0 or shares[-1] != 1.0 or list(seconds) != sorted(seconds) or seconds[0] < 0.0:
            raise ValueError(f"percentiles go from share 0 to share 1 and their times rise, unlike {dict(measured)}")
        return cls(shares, seconds)

    @property
    def mean_s(self) -> float:
        pieces = zip(pairwise(self.shares), pairwise(self.seconds), strict=True)
        return sum((high - low) * (first + last) / 2.0 for (low, high), (first, last) in pieces)

    def within(self, for_s: float) -> float:
        place = bisect_left(self.seconds, for_s)
        if place == 0:
            return 0.0
        if place == len(self.seconds):
            return 1.0
        low, high, first, last = self.shares[place - 1], self.shares[place], self.seconds[place - 1], self.seconds[place]
        return low + (high - low) * (for_s - first) / (last - first)
