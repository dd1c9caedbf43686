"""Spares: how many nodes to keep ready so that a failure seldom finds none.

Nodes in repair are Poisson with mean a = failures that take a node × mean repair time, whatever the repair times look like (Palm). A failure finds no spare
with the chance that as many as there are spares, or more, are in repair.

Is wrong    when failures come in bursts, when repair has a queue of its own, and when the job waits so long that it stops failing: then it is too high.
"""

from __future__ import annotations

from holdfast.simulate.reliability.failures import at_least, most_likely_below


def in_repair(node_failures_per_s: float, repair_s: float) -> float:
    """How many nodes are in repair, in the mean."""
    return node_failures_per_s * repair_s


def stock_out(spares: int, mean_in_repair: float) -> float:
    """The chance that a failure finds no spare."""
    return at_least(spares, mean_in_repair)


def spares_for(chance: float, mean_in_repair: float) -> int:
    """The fewest spares with which that chance is no more than `chance`."""
    return most_likely_below(1.0 - chance, mean_in_repair) + 1
