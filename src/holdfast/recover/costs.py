"""Costs: what a restart of this job takes, from its own ledger; and how long a node is waited for, from those that came back.

Sees        the bills of its closed incidents, how long the gang took from being up to its first step, how long lost nodes stayed away.
Says        means. Before the first incident: what the gang took, and the grace of a stop. Its start from nothing says little: a restart imports nothing anew.
Is wrong    when nodes come back late or never: those are in no mean until they do. The core waits no longer than waiting is worth.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from holdfast.domain.goodput import Bucket
from holdfast.domain.incident import Incident, IncidentPhase

BELIEVED_S: Final = 60.0  # For a restart nobody has seen yet.
_RECENT: Final = 20
_RESTART: Final = (Bucket.DIAGNOSE, Bucket.STOP, Bucket.REPLACE, Bucket.RENDEZVOUS, Bucket.RESTORE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    restart_s: float = BELIEVED_S  # Stop, rendezvous, restore.
    again_s: float = 0.0  # Work done again after it.
    rests_on: str = "believed, since no restart of this job was seen yet"
    measured: int = 0  # Restarts it rests on.

    @property
    def all_s(self) -> float:
        return self.restart_s + self.again_s


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeWait:
    """How long it is expected to take until a node is there again."""

    seconds: float = BELIEVED_S
    rests_on: str = "believed"


def costs_of(incidents: Collection[Incident], first_s: float | None = None) -> Costs:
    """`first_s`: what the gang took from the moment its ranks were told to go, until all had finished a step."""
    closed = [one for one in incidents if one.phase is IncidentPhase.RESOLVED and not one.stands and one.costs][-_RECENT:]
    if closed:
        restart_s = sum(one.costs.get(bucket, 0.0) for one in closed for bucket in _RESTART) / len(closed)
        again_s = sum(one.costs.get(Bucket.RECOMPUTE, 0.0) for one in closed) / len(closed)
        return Costs(restart_s=restart_s, again_s=again_s, rests_on=f"the mean of {len(closed)} in this job", measured=len(closed))
    return Costs() if first_s is None else Costs(restart_s=first_s, rests_on="what its gang took to come to its first step")


def node_wait(absences: Sequence[float], *, otherwise_s: float, cleaning_s: float | None = None) -> NodeWait:
    """`cleaning_s`: the node is there and is only being cleaned, which takes no longer."""
    if cleaning_s is not None:
        return NodeWait(seconds=cleaning_s, rests_on="one is back and is being cleaned")
    if absences:
        recent = absences[-_RECENT:]
        return NodeWait(seconds=sum(recent) / len(recent), rests_on=f"the mean of {len(recent)} that came back")
    return NodeWait(seconds=otherwise_s, rests_on="none came back in this job yet; node_wait_s is taken")
