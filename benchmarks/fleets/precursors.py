"""A simulated fleet in which some failures are announced: corrected errors, remapped rows, heat, link errors and contained XIDs rise before a node fails.

It is made up, and says what the model would do if nodes behaved so. What is planted: `announced` of all failures have precursors, which begin a lognormal time
(median `lead_h`) before the failure and grow until their rate is `strength` times the usual one (or a tenth of `_LEAST_A_DAY`). What makes it hard: nodes that
always correct errors, aisles that are hot for a day, links that flap and recover, and failures without a sign.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from holdfast.learn.precursors import SIGNS, features
from holdfast.simulate.failures import poisson

Floats = NDArray[np.float64]
STEP_H = 6.0
DAY_STEPS, WEEK_STEPS = 4, 28
_USUAL_A_DAY = np.array([0.4, 0.01, 0.1, 1.0, 0.005])  # By sign, of the median node.
_KINDS = np.array([[1.0, 1.0, 0.0, 0.0, 0.3], [0.0, 0.0, 1.0, 0.0, 0.3], [0.3, 0.0, 0.0, 1.0, 1.0]])  # Which signs a failing memory, cooling or link shows.
_LEAST_A_DAY = np.array([2.0, 0.3, 2.0, 4.0, 0.3])  # What `strength` multiplies, where the usual rate is nearly nothing.


@dataclass(frozen=True, slots=True, kw_only=True)
class Planted:
    announced: float
    strength: float
    lead_h: float = 36.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    counts: Floats  # [step, node, sign]
    failures: tuple[tuple[float, int], ...]  # Hours and node.


def play(planted: Planted, *, nodes: int, days: int, seed: int, per_day: float = 0.01) -> Fleet:
    dice = np.random.default_rng(seed)
    steps = int(days * 24 / STEP_H)
    own = _USUAL_A_DAY * STEP_H / 24 * dice.lognormal(0.0, [1.2, 0.5, 0.6, 1.0, 0.5], (nodes, len(SIGNS)))
    rates = np.broadcast_to(own, (steps, nodes, len(SIGNS))).copy()
    _nuisances(rates, dice)
    names = [str(node) for node in range(nodes)]
    failures = [(at / 3600.0, int(name)) for at, name in poisson(random.Random(seed), names, 86400.0 / per_day, days * 86400.0)]
    for at_h, node in failures:
        if dice.random() < planted.announced:
            kind = _KINDS[dice.integers(len(_KINDS))]
            lead_h = planted.lead_h * dice.lognormal(0.0, 0.6)
            first, last = max(0, int((at_h - lead_h) / STEP_H)), min(steps, int(at_h / STEP_H) + 1)
            ramp = np.exp(np.linspace(-2.0, 0.0, max(1, last - first)))[:, None]
            rates[first:last, node] += ramp * kind * np.maximum(rates[first:last, node], _LEAST_A_DAY / 10 * STEP_H / 24) * planted.strength
    return Fleet(counts=dice.poisson(rates).astype(np.float64), failures=tuple(failures))


def _nuisances(rates: Floats, dice: np.random.Generator) -> None:
    """Twenty nodes in a hot aisle for a day, and links that are bad for some hours and then well again."""
    steps, nodes, _ = rates.shape
    for _ in range(max(1, steps // 40)):
        first, aisle = dice.integers(steps), dice.integers(max(1, nodes - 20))
        rates[first : first + DAY_STEPS, aisle : aisle + 20, SIGNS.index("hot_hours")] += 1.5
    for _ in range(nodes * steps // 2000):
        first = dice.integers(steps)
        rates[first : first + 2, dice.integers(nodes), SIGNS.index("link_errors")] += 8.0


def rows(fleet: Fleet, horizon_h: float) -> tuple[Floats, Floats, NDArray[np.int64], NDArray[np.int64]]:
    """Features, whether the node failed within the horizon, and of which step and node each row is. A node that is being mended has no rows for a day."""
    steps, nodes, _ = fleet.counts.shape
    total = np.concatenate([np.zeros((1, nodes, len(SIGNS))), np.cumsum(fleet.counts, axis=0)])
    failed = np.zeros((steps, nodes))
    away = np.zeros((steps, nodes), dtype=bool)
    for at_h, node in fleet.failures:
        step = int(at_h / STEP_H)
        failed[max(0, step - int(horizon_h / STEP_H)) : step, node] = 1.0
        away[step : step + DAY_STEPS, node] = True
    places = np.arange(WEEK_STEPS + DAY_STEPS, steps)
    last = total[places + 1] - total[places + 1 - DAY_STEPS]
    usual = (total[places + 1 - DAY_STEPS] - total[places + 1 - DAY_STEPS - WEEK_STEPS]) / 7.0
    found = features(last.reshape(-1, len(SIGNS)), usual.reshape(-1, len(SIGNS)))
    at, who = (one.reshape(-1) for one in np.meshgrid(places, np.arange(nodes), indexing="ij"))
    there = ~away[places].reshape(-1)
    return found[there], failed[places].reshape(-1)[there], at[there], who[there]


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    precision: float | None
    recall: float
    lead_h: float | None  # Of the failures that were foretold, in the median.
    alarms: int
    failures: int


def judge(fleet: Fleet, chance: Floats, at: NDArray[np.int64], who: NDArray[np.int64], *, alarm: float, horizon_h: float) -> Judged:
    """A node is said once, and then not again for the horizon. A failure is foretold when an alarm stands at most the horizon before it."""
    said: dict[int, list[float]] = {}
    for place in np.flatnonzero(chance >= alarm):
        node, hour = int(who[place]), (int(at[place]) + 1) * STEP_H
        if not said.get(node) or hour - said[node][-1] > horizon_h:
            said.setdefault(node, []).append(hour)
    first_h = (WEEK_STEPS + DAY_STEPS + 1) * STEP_H
    counted = [(at_h, node) for at_h, node in fleet.failures if at_h > first_h]
    by_node: dict[int, list[float]] = {}
    for at_h, node in counted:
        by_node.setdefault(node, []).append(at_h)
    leads = [min(gaps) for at_h, node in counted if (gaps := [at_h - hour for hour in said.get(node, ()) if 0.0 <= at_h - hour <= horizon_h])]
    alarms = sum(map(len, said.values()))
    right = sum(any(0.0 <= at_h - hour <= horizon_h for at_h in by_node.get(node, ())) for node, hours in said.items() for hour in hours)
    return Judged(
        precision=right / alarms if alarms else None, recall=len(leads) / max(1, len(counted)), lead_h=float(np.median(leads)) if leads else None,
        alarms=alarms, failures=len(counted),
    )  # fmt: skip
