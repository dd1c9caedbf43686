"""The scorecard: what a launcher made of a suite of faults, in five parts from 0 to 1 and one number, so that two launchers can be compared.

    coverage    kinds of fault that were done, of all there are: the rest of the card speaks of these alone
    detection   faults that were found and called by their right name
    recovery    faults after which every rank trained again without a person
    loss        1 less the seconds lost for each fault over `LOSS_MAX_S`
    goodput     of the time under fire, the part in which new work was done

Is wrong    as every single number is: two cards with different coverage are not to be compared but for their parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

WEIGHTS = {"coverage": 0.15, "detection": 0.25, "recovery": 0.35, "loss": 0.10, "goodput": 0.15}
LOSS_MAX_S = 60.0  # Who loses more for each fault than this has nothing left to lose here.


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """One fault and what came of it, as far as it can be seen from outside."""

    fault: str
    found: bool
    recovered: bool
    lost_s: float | None  # None: not known, since it did not come back.


@dataclass(frozen=True, slots=True, kw_only=True)
class Scorecard:
    parts: dict[str, float]
    score: float


def scorecard(tried: Sequence[Tried], *, kinds: int, goodput: float) -> Scorecard:
    n = max(1, len(tried))
    lost_s = [min(LOSS_MAX_S, LOSS_MAX_S if one.lost_s is None else one.lost_s) for one in tried]
    parts = {
        "coverage": len({one.fault for one in tried}) / kinds,
        "detection": sum(one.found for one in tried) / n,
        "recovery": sum(one.recovered for one in tried) / n,
        "loss": 1.0 - sum(lost_s) / n / LOSS_MAX_S if tried else 0.0,
        "goodput": max(0.0, min(1.0, goodput)),
    }
    return Scorecard(parts=parts, score=sum(WEIGHTS[name] * part for name, part in parts.items()))
