"""Precursors: whether a node is about to fail, from what it did not fail of yet: corrected memory errors, remapped rows, heat, link errors, contained XIDs.

Each sign is looked at over the last day (`level`) and against what is usual for this node (`rise`: one that always corrects errors is not sick for it). A
logistic model gives the chance that it fails within `HORIZON_H`; the parts that speak for it are named, so that a person can judge.

Sees        counts of each sign, by node: of the last day, and a day's mean over the week before.
Says        the chance, and which signs speak for it. An alarm above `ALARM`.
Is wrong    for what breaks without a sign (that is most of it where signs are weak), and wherever real nodes differ from the simulated ones: the coefficients
            were fitted on simulated fleets (`benchmarks/fleets/fit.py`), because no public recording has both the signs and the failures.
Costs       a product of ten numbers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from holdfast.learn.precursor_weights import ALARM, BIAS, HORIZON_H, WEIGHTS

SIGNS: Final = ("corrected_errors", "remapped_rows", "hot_hours", "link_errors", "contained_xids")
NAMES: Final = tuple(f"{sign}_{part}" for sign in SIGNS for part in ("level", "rise"))
_WORDS: Final = {
    "corrected_errors": "corrected memory errors", "remapped_rows": "remapped rows", "hot_hours": "hours above its heat limit",
    "link_errors": "link errors", "contained_xids": "contained XIDs",
}  # fmt: skip

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Foretold:
    chance: float  # Of failing within `HORIZON_H`.
    alarm: bool
    parts: tuple[tuple[str, float], ...]  # Sign and what it adds to the log-odds, the largest first.
    says: str


def features(last: Floats, usual: Floats) -> Floats:
    """`last` and `usual` are [node, sign]: counts of the last day, and a day's mean before. What is missing or negative counts as none."""
    last, usual = (np.log1p(np.maximum(np.nan_to_num(one), 0.0)) for one in (last, usual))
    return np.stack([last, np.maximum(last - usual, 0.0)], axis=-1).reshape(len(last), -1)


def chances(found: Floats) -> Floats:
    """Of each row of features."""
    odds = BIAS + found @ np.array(WEIGHTS)
    chance: Floats = 1.0 / (1.0 + np.exp(-np.clip(odds, -500.0, 500.0)))
    return chance


def foretell(last: Mapping[str, float], usual: Mapping[str, float]) -> Foretold:
    """Of one node."""
    rows = [np.array([[one.get(sign, 0.0) for sign in SIGNS]], dtype=np.float64) for one in (last, usual)]
    found = features(*rows)
    chance = float(chances(found)[0])
    added = found[0] * np.array(WEIGHTS)
    parts = sorted(((sign, float(added[2 * place] + added[2 * place + 1])) for place, sign in enumerate(SIGNS)), key=lambda one: (-one[1], one[0]))
    speak = [f"{last.get(sign, 0.0):g} {_WORDS[sign]} in a day (usual: {usual.get(sign, 0.0):.2g})" for sign, part in parts if part > 0.1]
    told = "; ".join(speak) or "no sign speaks for it"
    return Foretold(chance=chance, alarm=chance >= ALARM, parts=tuple(parts), says=f"{100 * chance:.1f} % to fail within {HORIZON_H:.0f} h: {told}")


def fit(found: Floats, failed: Floats, *, ridge: float = 1.0, rounds: int = 50) -> tuple[float, Floats]:
    """Bias and weights of the logistic model that makes `failed` (0 or 1) likeliest, with a ridge. Weights of signs are not below 0: no sign is good news."""
    rows = np.hstack([np.ones((len(found), 1)), found])
    weights = np.zeros(rows.shape[1])
    held = np.zeros(rows.shape[1], dtype=bool)
    weights[0] = math.log((failed.mean() + 1e-9) / (1.0 - failed.mean() + 1e-9))
    penalty = np.full(rows.shape[1], ridge)
    penalty[0] = 0.0
    for _ in range(rounds):
        chance = 1.0 / (1.0 + np.exp(-np.clip(rows @ weights, -30.0, 30.0)))
        slope = rows.T @ (failed - chance) - penalty * weights
        curve = (rows * (chance * (1.0 - chance))[:, None]).T @ rows + np.diag(penalty + 1e-9)
        held = (weights <= 0.0) & (slope < 0.0)
        held[0] = False
        step = np.zeros_like(weights)
        free = ~held
        step[free] = np.linalg.solve(curve[np.ix_(free, free)], slope[free])
        following = weights + step
        following[1:] = np.maximum(following[1:], 0.0)
        done = bool(np.max(np.abs(following - weights)) < 1e-8)
        weights = following
        if done:
            break
    return float(weights[0]), weights[1:]
