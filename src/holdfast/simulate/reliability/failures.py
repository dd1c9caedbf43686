"""Failures of a fleet: how many in a while. Poisson with mean n × rate × time, whatever the nodes are, as long as they fail on their own.

Is wrong    for bursts (3 and 5 % of hardware failures came together on two clusters, arXiv 2410.21680), infant mortality, and people who restart things.
            Not for lemons: the rates of unequal nodes add up, and the sum is all that counts.
"""

from __future__ import annotations

import math

from holdfast.domain.rate import gamma_share


def exactly(count: int, mean: float) -> float:
    """The chance of just so many."""
    if mean == 0.0:
        return 1.0 if count == 0 else 0.0
    return math.exp(count * math.log(mean) - mean - math.lgamma(count + 1))


def at_least(count: int, mean: float) -> float:
    """The chance of so many or more: the share below `mean` of a Gamma distribution of shape `count`."""
    return 1.0 if count <= 0 else gamma_share(float(count), mean)


def most_likely_below(share: float, mean: float) -> int:
    """The smallest count that is not exceeded with a chance of `share`."""
    low, high = -1, math.ceil(mean + 10.0 * math.sqrt(mean)) + 20
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if at_least(middle + 1, mean) > 1.0 - share else (low, middle)
    return high


def survives(for_s: float, per_s: float) -> float:
    """The chance that nothing fails for so long."""
    return math.exp(-per_s * for_s)
