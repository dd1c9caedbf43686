"""Interval: how often to save, so that saving and losing work cost least together.

Sees        how long a step, a save and its way to durable storage take, as measured; the failures of this run; what fleets have published.
Says        one save every so many steps, why, and the share of the time that it is expected to cost.
Is wrong    when failures come in bursts, or do not grow with the nodes (a bug in the script): the rate is taken to be constant and the nodes' own.
            It matters little: a rate that is wrong by a factor of four costs a quarter more than need be, (k + 1/k) / 2 with k the root of four.
Costs       5 to 10 ms a decision, most of it for the quantiles of the rate.

The model: failures strike at a constant rate, in wall-clock time, also while saving and while starting again, and each loses what was done since the last save.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from holdfast.domain.rate import Rate

LONGEST_S = 1800.0  # However rare failures seem: at 1 s a save this costs 0.06 % of the time, and bounds the loss if the rate is wrong.
SAVING_MAX = 0.01  # Unless saves are so dear that this bound alone would cost more than this share.
UNMEASURED_S = 60.0  # The first save comes soon, so that there is a measurement to decide with.
WORTH_CHANGING = 0.05  # A new interval must cost this much less, or every new failure would be told to all ranks.
SLACK = 1.25  # And what is in use may be so far beyond a bound, which moves with every measurement of a step.

YEAR_S = 365.25 * 86400.0
SELDOM_PER_S = 1.0 / (1000.0 * YEAR_S)  # As good as never: a rate below this is taken as this, so that its inverse is a number.
GOLDEN = (math.sqrt(5.0) - 1.0) / 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Prior:
    """What is believed of the failure rate of one node before anything was seen: as much as `failures` in `node_h` say. (Gamma, shape and rate.)

    The default is 1 in 100 node-days. Published per 8-GPU node-day: 0.0038 (Llama 3, arXiv 2407.21783: 419 in 54 days on 2,048 nodes); 0.0065 and 0.0023
    for the nodes' own faults on two clusters, but 0.021 and 0.024 for whatever stops a job of 8 or of 1,024 GPUs on the first of them (arXiv 2410.21680:
    every 47.7 days, every 7.9 h). It weighs as little as a fiftieth of a failure, because a run whose script or machine is bad fails a thousand times as
    often, and must not need a day to be believed.
    """

    failures: float = 0.02
    node_h: float = 48.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    step_s: float
    nodes: int
    failures: int = 0  # Those that lost work: after a stop that was asked for nothing is lost.
    node_h: float = 0.0  # Nodes × wall-clock hours in which they were seen.
    stall_s: float | None = None  # What a save costs training. None: not measured yet.
    durable_s: float = 0.0  # From the request to the last byte. With two buffers one save can be on its way while the next is taken.
    restart_s: float = 0.0  # From the failure to the first new step. Of no weight for the interval, only for the goodput.
    prior: Prior = Prior()


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    every: int  # Steps.
    interval_s: float
    because: str
    overhead: float  # Share of the time lost to saving and to work done again, expected.
    goodput: float  # Share of the time left for new work, expected: starting again counted too.
    cheapest: int  # Steps: what would cost least, where something else was given or stays.
    stall_s: float
    failure_every_s: float  # Mean, and the 90 % interval.
    failure_every_low_s: float
    failure_every_high_s: float


def decide(measured: Measured, *, before: int | None = None, given: int | None = None) -> Interval:
    """Say how often to save. `before` is the number of steps in use now; `given` is what the user asked for, which is done."""
    assert measured.step_s > 0.0 and measured.nodes > 0
    rate = posterior(measured)
    points = rate.points()
    stall_s = measured.step_s if measured.stall_s is None else measured.stall_s
    shortest, longest = _bounds(measured, stall_s)

    def cost(every: float) -> float:
        return sum(weight * share_lost(every * measured.step_s, stall_s, per_s) for weight, per_s in points)

    free_s = _free_optimum_s(lambda interval_s: cost(interval_s / measured.step_s), stall_s, points)
    down = max(1, math.floor(free_s / measured.step_s))
    cheapest = min(max(min(down, down + 1, key=cost), shortest), longest)
    every = cheapest
    because = f"{_why_at_all(measured, rate)}{_why_cheapest(cheapest, free_s, measured, shortest, longest)}"
    if given is not None:
        every, because = given, because + _why_given(given, measured, shortest, cost(given), cost(cheapest))
    elif before not in (None, cheapest) and shortest / SLACK <= before <= longest * SLACK and cost(cheapest) >= (1.0 - WORTH_CHANGING) * cost(before):
        every, because = before, f"{because}; {_steps(before)} stay, since a change would spare less than {_percent(WORTH_CHANGING)} of the cost"
    return Interval(
        every=every,
        interval_s=every * measured.step_s,
        because=because,
        overhead=cost(every),
        goodput=sum(
            weight * math.exp(-per_s * measured.restart_s) * (1.0 - share_lost(every * measured.step_s, stall_s, per_s)) for weight, per_s in points
        ),
        cheapest=cheapest,
        stall_s=stall_s,
        failure_every_s=_inverse(rate.mean),
        failure_every_low_s=_inverse(rate.quantile(0.95)),
        failure_every_high_s=_inverse(rate.quantile(0.05)),
    )


def share_lost(interval_s: float, stall_s: float, per_s: float) -> float:
    """Share of the time that goes to saves and to work done again, at `per_s` failures a second.

    To get `interval_s` of work saved takes (e^((interval + stall) × rate) - 1) / rate on average, and starting again, which this leaves out, makes it
    longer by a factor that does not depend on the interval. A share and not a duration, because the mean duration over all rates that are possible is
    infinite as long as little was seen.
    """
    exponent = per_s * (interval_s + stall_s)
    if exponent == 0.0:
        return stall_s / (interval_s + stall_s)
    return 1.0 - per_s * interval_s * math.exp(-exponent) / -math.expm1(-exponent)


def optimum_s(stall_s: float, per_s: float) -> float:
    """The interval that costs least if the rate is known: M × (1 + W0(-exp(-(1 + stall / M)))) with M = 1 / `per_s`. Near the root of 2 × stall × M."""
    return one_plus_w0(stall_s * per_s) / per_s if per_s else math.inf


# The rate of failures, and how well it is known.


def posterior(measured: Measured) -> Rate:
    node_h = measured.prior.node_h + measured.node_h
    return Rate(failures=measured.prior.failures + measured.failures, watched_s=node_h * 3600.0 / measured.nodes)


def _bounds(measured: Measured, stall_s: float) -> tuple[int, int]:
    """The fewest and the most steps between two saves."""
    longest_s = UNMEASURED_S if measured.stall_s is None else max(LONGEST_S, stall_s / SAVING_MAX)
    shortest = max(1, math.ceil(measured.durable_s / measured.step_s))
    return shortest, max(shortest, math.floor(longest_s / measured.step_s))


def _free_optimum_s(cost: Callable[[float], float], stall_s: float, points: Sequence[tuple[float, float]]) -> float:
    """Where the mean cost over all `points` is least: between the optimum for the highest rate and that for the lowest (golden section, log scale)."""
    if stall_s == 0.0:
        return 0.0
    low, high = (math.log(optimum_s(stall_s, max(per_s, SELDOM_PER_S))) for _, per_s in (points[-1], points[0]))
    while high - low > 1e-6:
        left, right = high - GOLDEN * (high - low), low + GOLDEN * (high - low)
        if cost(math.exp(left)) <= cost(math.exp(right)):
            high = right
        else:
            low = left
    return math.exp((low + high) / 2.0)


def _inverse(per_s: float) -> float:
    return 1.0 / max(per_s, SELDOM_PER_S)


# Why, in words.


def _why_at_all(measured: Measured, rate: Rate) -> str:
    if measured.stall_s is None:
        save = f"what a save costs is not measured yet and taken to be a step, {_duration(measured.step_s)}"
    else:
        save = f"a save costs {_duration(measured.stall_s)}"
    usual, low, high = (_duration(_inverse(per_s)) for per_s in (rate.mean, rate.quantile(0.95), rate.quantile(0.05)))
    if not measured.failures:
        return f"{save}, a failure is expected every {usual} (none seen yet): "
    seen = f"{measured.failures} seen in {_duration(measured.node_h * 3600.0 / measured.nodes)}"
    return f"{save}, a failure is expected every {usual} ({low} to {high}, {seen}): "


def _why_cheapest(cheapest: int, free_s: float, measured: Measured, shortest: int, longest: int) -> str:
    at = f"{_duration(cheapest * measured.step_s)} = {_steps(cheapest)}"
    if cheapest == shortest and free_s < (shortest - 1) * measured.step_s:
        at = f"{_duration(free_s)}; it is {at}, since a save takes {_duration(measured.durable_s)} to be durable"
    elif cheapest == longest and free_s > (longest + 1) * measured.step_s:
        at = f"{_duration(free_s)}; it is {at}, " + ("so that a save is measured soon" if measured.stall_s is None else "so that a wrong rate costs little")
    return f"losing work and saving cost least together at one save every {at}"


def _why_given(given: int, measured: Measured, shortest: int, cost: float, least: float) -> str:
    late = f"; a save takes {_duration(measured.durable_s)} to be durable, so some will wait for the one before" if given < shortest else ""
    return f"; {_steps(given)} were given, and cost {_percent(cost)} of the time instead of {_percent(least)}{late}"


def _steps(count: int) -> str:
    return f"{count} step{'s' if count != 1 else ''}"


def _percent(share: float) -> str:
    return f"{100.0 * share:.2g} %"


def _duration(seconds: float) -> str:
    """Two digits: more is not known."""
    for unit, size, up_to in (("s", 1.0, 120.0), ("min", 60.0, 120.0), ("h", 3600.0, 48.0), ("days", 86400.0, 730.0), ("years", YEAR_S, 100.0)):
        count = seconds / size
        if count < up_to:
            return f"{count:.2g} {unit}" if count < 9.95 else f"{count:.0f} {unit}"
    return "100 years or more"


# The two functions that the standard library does not have.


def one_plus_w0(excess: float) -> float:
    """1 + W0(-exp(-(1 + excess))), W0 being Lambert's: the u in [0, 1) with -u - log(1 - u) = excess.

    Solved for u and not for W0, because for a small excess, which is the usual case, all digits of W0 are those of -1.
    """
    if excess > 40.0:
        return 1.0  # To the last digit, and the logarithms below would end.
    root = math.sqrt(2.0 * excess)
    if root < 0.01:  # The inverse of u²/2 + u³/3 + u⁴/4 + …: the next term is below 1e-14 of the sum.
        return root * (1.0 + root * (-1.0 / 3.0 + root * (1.0 / 36.0 + root * (1.0 / 270.0 + root / 4320.0))))
    rest = math.exp(-1.0 - excess)  # Newton for 1 - u, from below: the function is concave, so it never oversteps.
    for _ in range(60):
        step = (math.log(rest) - rest + 1.0 + excess) / (1.0 / rest - 1.0)
        rest -= step
        if abs(step) <= 1e-15 * rest:
            break
    return 1.0 - rest
