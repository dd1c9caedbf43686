"""Costs: what a restart or a rejoin of this job takes, from its own ledger; and how long a node is waited for, from those that came back.

Sees        the bills of its closed incidents, how long its gang took from being up to its first step, how long lost nodes stayed away.
Says        means. Before the first incident: what the gang took, and the grace of a stop. Its start from nothing says little: a restart imports nothing anew.
Is wrong    when nodes come back late or never: those are in no mean until they do. The core waits no longer than waiting is worth.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
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
    rejoin_s: float | None = None  # Where survivors kept their processes. None: that was not seen yet.
    rejoins: int = 0  # How often it was.

    @property
    def all_s(self) -> float:
        return self.restart_s + self.again_s


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeWait:
    """How long it is expected to take until a node is there again."""

    seconds: float = BELIEVED_S
    rests_on: str = "believed"


def costs_of(incidents: Collection[Incident], first_s: float | None = None) -> Costs:
    """`first_s`: what its newest gang that came so far took from the moment its ranks were told to go, until all had finished a step."""
    closed = [one for one in incidents if one.phase is IncidentPhase.RESOLVED and not one.stands and one.costs]
    restarts, rejoins = ([one for one in closed if one.kept == kept][-_RECENT:] for kept in (False, True))
    went_back = restarts or [one for one in rejoins if Bucket.RECOMPUTE in one.costs]
    costs = Costs(again_s=_mean(went_back, Bucket.RECOMPUTE), rejoin_s=_mean(rejoins, *_RESTART) if rejoins else None, rejoins=len(rejoins))
    if restarts:
        return replace(costs, restart_s=_mean(restarts, *_RESTART), rests_on=f"the mean of {len(restarts)} in this job", measured=len(restarts))
    return costs if first_s is None else replace(costs, restart_s=first_s, rests_on="what its gang took to come to its first step")


def _mean(incidents: Sequence[Incident], *buckets: Bucket) -> float:
    return sum(one.costs.get(bucket, 0.0) for one in incidents for bucket in buckets) / max(1, len(incidents))


def node_wait(absences: Sequence[float], *, otherwise_s: float, cleaning_s: float | None = None) -> NodeWait:
    """`cleaning_s`: the node is there and is only being cleaned, which takes no longer."""
    if cleaning_s is not None:
        return NodeWait(seconds=cleaning_s, rests_on="one is back and is being cleaned")
    if absences:
        recent = absences[-_RECENT:]
        return NodeWait(seconds=sum(recent) / len(recent), rests_on=f"the mean of {len(recent)} that came back")
    return NodeWait(seconds=otherwise_s, rests_on="none came back in this job yet; node_wait_s is taken")
