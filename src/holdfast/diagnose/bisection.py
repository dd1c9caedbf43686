"""Bisection: which of several changes mattered, by short runs from one checkpoint that differ by one change each.

Sees        the losses of each run by step; the same run unchanged, twice or more.
Says        for each change how far it moves the loss at the end of the run, as the mean of its last quarter, and how many times the noise that is. The noise is
            how far the unchanged runs are from each other, and no less than a thousandth of the loss: runs that repeat to the bit have none.
Is wrong    when what a change does shows later than the runs are long: a higher rate gains at first. When the unchanged runs happen to agree: repeat more of
            them.
Costs       nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, nan
from typing import Final

MATTERS: Final = 3.0  # Times the noise.
_LEAST_NOISE: Final = 1e-3  # Of the loss.
_LAST: Final = 0.25  # Of the steps.
Curve = Mapping[int, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """What one change did."""

    change: str
    loss: float  # At the end; NaN where it was not finite, or no loss was seen.
    moves: float  # From the unchanged runs' own.
    times: float  # The noise; infinite for a run that went wrong where the others did not.
    matters: bool
    says: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Bisection:
    unchanged: float  # The mean of the losses at the end.
    noise: float
    effects: tuple[Effect, ...]  # What moved the loss most comes first.

    @property
    def says(self) -> str:
        """In one sentence."""
        if not isfinite(self.unchanged):
            cured = [one.change for one in self.effects if one.matters]
            return f"unchanged, training goes wrong; with {' or '.join(cured)} it does not" if cured else "training goes wrong unchanged, and with every change"
        mattered = [one for one in self.effects if one.matters]
        if not mattered:
            return f"no change mattered: none moved the loss by {MATTERS:g} times the noise"
        return f"{mattered[0].change} mattered most: {mattered[0].says}"


def compare(unchanged: Sequence[Curve], changed: Mapping[str, Curve]) -> Bisection:
    ends = [_end(curve) for curve in unchanged]
    base = sum(ends) / len(ends) if ends else nan
    noise = max(max(ends) - min(ends), _LEAST_NOISE * abs(base)) if isfinite(base) else nan
    effects = [_effect(change, curve, base, noise) for change, curve in changed.items()]
    return Bisection(unchanged=base, noise=noise, effects=tuple(sorted(effects, key=lambda one: (not one.matters, -one.times, one.change))))


def _effect(change: str, curve: Curve, base: float, noise: float) -> Effect:
    loss = _end(curve)
    if not isfinite(loss):
        step = min((step for step, value in curve.items() if not isfinite(value)), default=-1)
        says = f"the loss is not finite from step {step} on" if step >= 0 else "no loss was seen"
        return Effect(change=change, loss=nan, moves=nan, times=float("inf") if isfinite(base) else 0.0, matters=isfinite(base) and step >= 0, says=says)
    if not isfinite(base):
        return Effect(change=change, loss=loss, moves=nan, times=float("inf"), matters=True, says=f"the loss stays finite and ends at {loss:.4g}")
    moves = loss - base
    times = abs(moves) / noise if noise else 0.0
    says = f"the loss ends {abs(moves):.3g} {'lower' if moves < 0 else 'higher'}, {times:.1f} times the noise"
    return Effect(change=change, loss=loss, moves=moves, times=times, matters=times >= MATTERS, says=says)


def _end(curve: Curve) -> float:
    """The mean of the last quarter; NaN when a value of it is not finite."""
    values = [value for _, value in sorted(curve.items())]
    last = values[-max(1, round(_LAST * len(values))) :] if values else []
    return sum(last) / len(last) if last and all(map(isfinite, last)) else nan
