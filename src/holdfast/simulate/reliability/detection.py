"""Detection: what a detector that sees each failure with probability `seen` misses, and how often one that listens for heartbeats cries for nothing.

Thinning: the failures that are seen and those that are missed are two Poisson processes that know nothing of each other.

Is wrong    when one cause blinds the detector to many failures at once: independent misses are the assumption, and a second, different sign is the cure.
            1 - (1 - seen)^k is the chance that *one* failure is seen by one of k looks; with k the number of failures it answers no question anybody has.
"""

from __future__ import annotations

import math

DAY_S = 86400.0


def any_seen(seen: float, mean: float) -> float:
    """The chance that at least one failure is seen, of a Poisson number of them with this mean."""
    return -math.expm1(-seen * mean)


def none_missed(seen: float, mean: float) -> float:
    """The chance that every failure is seen, however many there are: the promise that matters."""
    return math.exp(-(1.0 - seen) * mean)


def seen_by_one_of(looks: int, seen: float) -> float:
    """The chance that one failure is seen, looked at so often, each look on its own."""
    return 1.0 - (1.0 - seen) ** looks


def false_alarms_per_day(nodes: int, *, heartbeat_s: float, misses: int, lost: float) -> float:
    """How often healthy nodes are called lost, if `misses` heartbeats in a row must fail to come and each is lost with probability `lost`."""
    return nodes * DAY_S / heartbeat_s * lost**misses * (1.0 - lost)


def silence_noticed_s(*, heartbeat_s: float, misses: int) -> float:
    """How long after its last sign of life a lost node is noticed, in the mean: it is lost half-way between two heartbeats."""
    return heartbeat_s * (misses - 0.5)


def injections_for(seen: float, *, confidence: float = 0.95) -> int:
    """How many injected faults must all be seen to say that a detector sees at least this share."""
    return math.ceil(math.log(1.0 - confidence) / math.log(seen))
