"""The plan of a storm: which fault, at which rank, at which step. A function of the seed alone: the same seed gives the same storm."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from holdfast.chaos.fault import Fault, Need
from holdfast.chaos.storm import CALM_STEPS, Strike


def planned(
    faults: Sequence[Fault], *, count: int, per_1000_steps: float, world_size: int, seed: int, from_step: int, spares: int = 0
) -> tuple[Strike, ...]:
    """Strikes at random, with exponential gaps: as faults come that know nothing of each other. No closer than a gang needs to be well again, and no more
    nodes are lost than can be replaced."""
    chance, step, strikes = Random(seed), from_step, list[Strike]()
    ordered = sorted(faults, key=lambda fault: fault.key)
    for _ in range(count):
        left = spares - sum(Need.SPARE in one.fault.needs for one in strikes)
        affordable = [fault for fault in ordered if left > 0 or Need.SPARE not in fault.needs]
        if not affordable:
            break
        step += CALM_STEPS + int(chance.expovariate(per_1000_steps / 1000.0))
        strikes.append(Strike(fault=chance.choice(affordable), rank=chance.randrange(world_size), step=step))
    return tuple(strikes)


def suite(faults: Sequence[Fault], *, world_size: int, seed: int, from_step: int) -> tuple[Strike, ...]:
    """Every fault once, as soon as the gang is well: what only a gang that knows what is usual can see comes last."""
    chance = Random(seed)
    ordered = sorted(faults, key=lambda fault: (fault.learned, fault.stands != fault.learned, fault.key))  # And there, what breaks the gang last of all.
    return tuple(Strike(fault=fault, rank=chance.randrange(world_size), step=from_step) for fault in ordered)
