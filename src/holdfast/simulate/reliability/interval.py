"""Interval: how long from one save to the next costs least. Young's rule, Daly's, and the exact one, which is the one that `recover` uses.

        E(τ) = M × e^(R/M) × (e^((τ + δ)/M) - 1)        wall time for τ of work: δ a save, M the mean time between failures, R until it goes on again
        Young    √(2 δ M)                               good while δ is far below M
        Daly     √(2 δ M) (1 + ⅓√(δ/2M) + δ/18M) - δ     good to 1 % of the interval up to δ = M / 2
        exact    M (1 + W₀(-e^(-1 - δ/M)))              the minimum of E; R does not matter

Is wrong    when the rate is: four times too high a rate costs a quarter more than need be. When saves slow the steps between them, too: count that into δ.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from holdfast.recover.interval import optimum_s, share_lost


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    rule: str
    interval_s: float
    lost: float  # Share of the time: saves, and work done again.


def young_s(stall_s: float, per_s: float) -> float:
    return math.sqrt(2.0 * stall_s / per_s)


def daly_s(stall_s: float, per_s: float) -> float:
    mean_s = 1.0 / per_s
    if stall_s >= 2.0 * mean_s:
        return mean_s
    ratio = stall_s / (2.0 * mean_s)
    return math.sqrt(2.0 * stall_s * mean_s) * (1.0 + math.sqrt(ratio) / 3.0 + ratio / 9.0) - stall_s


def choices(stall_s: float, per_s: float) -> tuple[Choice, ...]:
    """All three, each with what it costs by the exact formula."""
    found = {"Young": young_s(stall_s, per_s), "Daly": daly_s(stall_s, per_s), "exact": optimum_s(stall_s, per_s)}
    return tuple(Choice(rule=rule, interval_s=interval_s, lost=share_lost(interval_s, stall_s, per_s)) for rule, interval_s in found.items())


def best_s(stall_s: float, per_s: float, *, step_s: float) -> float:
    """The best interval of whole steps, one at least: a save comes at the end of a step."""
    down = max(1, math.floor(optimum_s(stall_s, per_s) / step_s))
    return step_s * min((down, down + 1), key=lambda steps: share_lost(steps * step_s, stall_s, per_s))


def worth_it_below_s(interval_s: float, per_s: float) -> float:
    """What a save may cost for this interval to be the best one, τ²/2M: the question behind "save at every step"."""
    return interval_s**2 * per_s / 2.0
