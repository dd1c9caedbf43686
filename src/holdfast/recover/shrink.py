"""Shrink or wait: nodes are lost, no spare is ready, one comes after `wait_s`. Go on with fewer meanwhile?

        waiting    costs  W + restart                                shrinking  costs  shrink + (1 - kept)(W - shrink) + grow
        equal at   W* = shrink + (grow - restart) / kept             kept: speed of the smaller gang, over that of the whole one

If W is not known: wait for W*, then shrink. Whatever happens, that costs no more than twice what the better of the two would have.

Is wrong    when the smaller gang does not fit in memory, or the batch changes with it and nobody recorded that.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Smaller:
    kept: float  # (replicas - 1) / replicas × how well the rest is used.
    shrink_s: float  # To go on with fewer,
    grow_s: float  # and later with all again.
    restart_s: float  # To go on with all after waiting.


def waiting_costs_s(wait_s: float, smaller: Smaller) -> float:
    return wait_s + smaller.restart_s


def shrinking_costs_s(wait_s: float, smaller: Smaller) -> float:
    """A node that comes before the smaller gang is up comes too late to change the mind."""
    shrunk_s = max(0.0, wait_s - smaller.shrink_s)
    return smaller.shrink_s + (1.0 - smaller.kept) * shrunk_s + smaller.grow_s


def worth_shrinking_from_s(smaller: Smaller) -> float:
    """The wait above which shrinking costs less."""
    return max(0.0, smaller.shrink_s + (smaller.grow_s - smaller.restart_s) / smaller.kept)


def patient_costs_s(wait_s: float, smaller: Smaller) -> float:
    """Of who waits for as long as that, and then shrinks."""
    patience_s = worth_shrinking_from_s(smaller)
    if wait_s <= patience_s:
        return waiting_costs_s(wait_s, smaller)
    return patience_s + shrinking_costs_s(wait_s - patience_s, smaller)


def in_words(wait_s: float, smaller: Smaller) -> str:
    """The rule with its figures, for the plan."""
    waiting, shrinking, equal = waiting_costs_s(wait_s, smaller), shrinking_costs_s(wait_s, smaller), worth_shrinking_from_s(smaller)
    return (
        f"waiting W = {wait_s:.1f} s costs W + restart = {waiting:.1f} s; going on smaller costs shrink + (1 - kept)(W - shrink) + grow = "
        f"{smaller.shrink_s:.1f} + {1.0 - smaller.kept:.2f} x {max(0.0, wait_s - smaller.shrink_s):.1f} + {smaller.grow_s:.1f} = {shrinking:.1f} s; "
        f"they are equal at W* = {equal:.1f} s"
    )
