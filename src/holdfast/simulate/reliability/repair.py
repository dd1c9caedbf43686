"""Repair: how long until a node is back. It has a rate of its own, which is never that of the failures.

Is wrong    as an exponential, mostly: published times have a median of 3 m 42 s and a mean of 38 m 54 s (OLMo). Measured percentiles are better.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol


def within(for_s: float, *, mean_s: float) -> float:
    """The chance that a repair with this mean is done within `for_s`, if it is exponential."""
    return -math.expm1(-for_s / mean_s)


def done_by(share: float, *, mean_s: float) -> float:
    """After how long so many of all repairs are done, if they are exponential."""
    return -mean_s * math.log1p(-share)


class Dice(Protocol):
    def random(self) -> float: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Percentiles:
    """Times of which some percentiles were measured; between two of them, as good as even."""

    points: tuple[tuple[float, float], ...]  # Share of all, from 0 to 1, and the seconds that it stays below.

    def __post_init__(self) -> None:
        shares, seconds = [share for share, _ in self.points], [time for _, time in self.points]
        if len(shares) < 2 or shares[0] != 0.0 or shares[-1] != 1.0 or seconds[0] < 0.0 or any(low > high for low, high in pairwise(seconds)):
            raise ValueError(f"percentiles go from share 0 to share 1 and their times rise, unlike {self.points}")
        if any(low >= high for low, high in pairwise(shares)):
            raise ValueError(f"percentiles go from share 0 to share 1, each share once and in order, unlike {self.points}")

    @property
    def mean_s(self) -> float:
        return sum((above - below) * (low + high) / 2.0 for (below, low), (above, high) in pairwise(self.points))

    def within(self, for_s: float) -> float:
        """The share that is done by then."""
        if for_s <= self.points[0][1]:
            return 0.0
        (below, low), (above, high) = next((pair for pair in pairwise(self.points) if pair[1][1] >= for_s), (self.points[-1],) * 2)
        return below + (above - below) * (for_s - low) / (high - low) if high > low else above

    def draw(self, dice: Dice) -> float:
        share = dice.random()
        (below, low), (above, high) = next(pair for pair in pairwise(self.points) if pair[1][0] >= share)
        return low + (high - low) * (share - below) / (above - below)
