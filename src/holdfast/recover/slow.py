"""Slow: one node holds the whole gang back. Stay, have a spare take its place, or go on without it?

    share    of every step that is lost by waiting for it              kept   speed of the gang without it, over that of the whole one
    staying  costs  share x H          a spare  costs  move            going on without it  costs  move + grow + (1 - kept) x H

How long it would stay slow nobody knows. What has stood for so long is expected to stand as long again, so H is how long it has: whatever comes, that costs
no more than twice what the better of the two would have, as with `shrink.py`. A gang that is told to move saves first, or keeps what it has: nothing is done
again.

Sees        who is slow, since when, and what of a step is lost by it; the fleet; the policy.
Says        a plan of rung `replace` or `shrink`, or why the gang stays, and when to ask again.
Is wrong    about a rank that has more to do by design: its place is taken once, it is as slow there, and its node is given back. What is slow from the first
            step on may be so by design, and must cost half of every step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from holdfast.domain.job import Policy
from holdfast.domain.plan import Candidate, Plan, Rung
from holdfast.domain.state import Attempt
from holdfast.recover.candidates import Fleet, forbidden

SLOW: Final = "slow_rank"
LEAST: Final = 0.2  # Of every step. What costs less may be a matter of minutes, or of how the work is dealt,
FROM_THE_START: Final = 0.5  # and this, where nobody has seen the rank keep up.


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A gang is held back."""

    node: str
    share: float
    stood_s: float
    from_start: bool  # Nobody has seen it otherwise.
    because: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Stay:
    because: str
    again_s: float | None = None  # So long from now it may be worth it; None: never, as things are.


def leave(held: Held, fleet: Fleet, policy: Policy, history: Sequence[Attempt] = (), *, at: float = 0.0) -> Plan | Stay:
    """`history`: what was done before, which budgets count."""
    least = FROM_THE_START if held.from_start else LEAST
    staying_s = held.share * held.stood_s
    figures = f"{held.share:.0%} of every step is lost by it, for {held.stood_s:.0f} s: staying is expected to cost {staying_s:.0f} s more"
    weighed = (_replace(held, fleet), _shrink(held, fleet, least))
    forbids = {one.rung: forbidden(one.rung, SLOW, history, policy, at) for one in weighed if one.possible}
    candidates = tuple(replace(one, possible=False, because=forbids[one.rung]) if forbids.get(one.rung) else one for one in weighed)
    possible = [one for one in candidates if one.possible]
    why_not = "; ".join(f"{one.name}: {one.because}" for one in candidates if not one.possible)
    if held.share < least:
        return Stay(because=f"{figures}, and it is left alone below {least:.0%}")
    if not possible:
        return Stay(because=f"{figures}, but {why_not}")
    best = min(possible, key=lambda one: one.cost_s)
    if best.cost_s >= staying_s:
        return Stay(because=f"{figures}, and {best.name} {best.cost_s:.0f} s", again_s=max(1.0, _worth_from_s(held, fleet, best.rung) - held.stood_s))
    take = _spares(fleet)[:1] if best.rung is Rung.REPLACE else ()
    how = f"{take[0]} takes its place" if take else f"{_others(fleet)} of {fleet.whole} nodes go on without it"
    said = f"{held.node} holds the gang back ({held.because}): {how}; {figures}, and this {best.cost_s:.0f} s"
    return Plan(rung=best.rung, because=said, drop=(held.node,), take=take, candidates=candidates, alternatives=(f"staying: {figures}",))


def _replace(held: Held, fleet: Fleet) -> Candidate:
    if not _spares(fleet):
        return Candidate(rung=Rung.REPLACE, possible=False, because="no spare is there that nothing is held against")
    return Candidate(rung=Rung.REPLACE, cost_s=_move_s(fleet), because=f"a spare takes the place of {held.node}; a restart: {fleet.costs.rests_on}")


def _shrink(held: Held, fleet: Fleet, least: float) -> Candidate:
    count, why_not = _others(fleet), ""
    if _spares(fleet):
        why_not = f"{_spares(fleet)[0]} is there, and whoever leaves {held.node} takes it in"
    elif count < (fleet.least or fleet.whole):
        why_not = f"{count} nodes would be left, and {fleet.least or fleet.whole} are the least"
    elif count in (fleet.refused or {}):
        why_not = f"the script does not run on {count} nodes"
    elif held.share - _lacks(fleet) < least:
        why_not = f"{count} of {len(fleet.gang)} nodes would be hardly faster"
    if why_not:
        return Candidate(rung=Rung.SHRINK, possible=False, because=why_not)
    cost_s = 2 * _move_s(fleet) + _lacks(fleet) * held.stood_s
    return Candidate(rung=Rung.SHRINK, cost_s=cost_s, because=f"the others go on without {held.node}, and take it in again later")


def _worth_from_s(held: Held, fleet: Fleet, rung: Rung) -> float:
    """How long it must have stood."""
    if rung is Rung.REPLACE:
        return _move_s(fleet) / held.share + 1.0
    return 2 * _move_s(fleet) / (held.share - _lacks(fleet)) + 1.0


def _lacks(fleet: Fleet) -> float:
    """Of the speed the gang would have if nobody held it back, what it lacks without the node."""
    return 1.0 - _others(fleet) / len(fleet.gang)


def _others(fleet: Fleet) -> int:
    """Nodes that would go on: whole replicas."""
    return (len(fleet.gang) - 1) // fleet.block * fleet.block


def _move_s(fleet: Fleet) -> float:
    return fleet.costs.restart_s if fleet.can_rejoin else fleet.rejoin_s


def _spares(fleet: Fleet) -> tuple[str, ...]:
    return tuple(name for name in fleet.spares if name not in fleet.avoided)
