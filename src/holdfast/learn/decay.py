"""Decay: what is long ago counts less, by half in every half-life.

Weights are never negative and never above 1: what lies in the future, because a clock was set back, counts as now.
"""

from __future__ import annotations

import math
from typing import Final

DAY_S: Final = 86400.0
HALF_LIFE_S: Final = 14 * DAY_S  # As the scheduler forgets what nodes did.


def weight(at: float, now: float, half_life_s: float = HALF_LIFE_S) -> float:
    return math.exp2(-max(0.0, now - at) / half_life_s)


def decayed_s(since: float, until: float, now: float, half_life_s: float = HALF_LIFE_S) -> float:
    """The weights of all seconds from `since` to `until`, added up."""
    if until <= since:
        return 0.0
    ahead = max(0.0, until - max(now, since))  # Of the future: with full weight.
    older, newer = max(0.0, now - since), max(0.0, now - until)
    rate = math.log(2.0) / half_life_s
    return ahead + (math.exp(-rate * newer) - math.exp(-rate * older)) / rate
