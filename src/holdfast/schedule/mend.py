"""A running gang that lost nodes: replaced, else shrunk, else requeued first with its place kept.

    1  each node it lost is replaced by a free healthy one, of a domain in which the gang stands where there is one
    2  a node that is to blame but still good enough for this job is used again
    3  an elastic gang gives up GPUs beyond its minimum, and keeps the minimum
    4  it waits again, before all others of its account; if its turn had come, the nodes it had left are held for it, with as many more as it needs

In any case it goes on from its last checkpoint, and what it did since then is lost. The cycle looks at reservations next: where loose jobs can go for it, it
starts again at once.
"""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.schedule.cluster import Cluster
from holdfast.schedule.job import Job, Lane, Placement
from holdfast.schedule.place import Health
from holdfast.schedule.reserve import may_reserve, ready_at, reserve_for


@dataclass(frozen=True, slots=True, kw_only=True)
class Mend:
    job: str
    how: str  # replaced, restarted, shrunk, requeued
    lost: tuple[int, ...]  # Nodes.
    placement: Placement  # Where it goes on; nowhere when it waits.
    extras: Placement
    gpus: int
    because: str


def mend(cluster: Cluster, job: Job, now: float) -> Mend:
    """Do what can be done for one that is wounded, and say what."""
    fleet, lost = cluster.fleet, cluster.wounded[job]
    gone = tuple((node, gpus) for node, gpus in job.placement if node in lost)
    kept = tuple((node, gpus) for node, gpus in job.placement if node not in lost)
    extras = tuple((node, gpus) for node, gpus in job.extras if node not in lost)
    names = ", ".join(fleet.nodes[node].name for node in sorted(lost))
    how, placement = ("shrunk", job.placement) if not gone else ("replaced", _replaced(cluster, kept, gone))
    because = f"it lost {names}" if not gone else f"{names} failed and free nodes take the place"
    if placement is None and all(_good_enough(cluster, job, node) for node, _ in gone):
        how, placement, because = "restarted", job.placement, f"it failed on {names}, and nothing else is free"
    fit = {node for node, _ in extras if _good_enough(cluster, job, node)}
    if placement is None and (smaller := _shrunk(kept, extras, fit, sum(gpus for _, gpus in gone))) is not None:
        placement, extras = smaller
        how, because = "shrunk", f"{names} failed, no healthy node is free, and it can do with fewer GPUs"
    if placement is None:
        cluster.requeue(job, now)
        held = _keep_place(cluster, job, [node for node, _ in kept], now) if job.lane is Lane.DUE else False
        because = f"{names} failed and no healthy node is free; {'nodes are held for it' if held else 'it is the first of its account'}"
        return Mend(job=job.request.id, how="requeued", lost=tuple(sorted(lost)), placement=(), extras=(), gpus=0, because=because)
    cluster.replace(job, placement, extras, now)
    return Mend(job=job.request.id, how=how, lost=tuple(sorted(lost)), placement=placement, extras=extras, gpus=job.gpus_now, because=because)


def _replaced(cluster: Cluster, kept: Placement, gone: Placement) -> Placement | None:
    fleet, found = cluster.fleet, list(kept)
    for node, gpus in gone:
        taken = {number for number, _ in (*found, *gone)}
        beside = [number for number, _ in kept] or [node]
        other = fleet.near(gpus, (number for number in range(len(fleet.total)) if number not in taken), beside)
        if other is None:
            return None
        found.append((other, gpus))
    return tuple(sorted(found))


def _good_enough(cluster: Cluster, job: Job, node: int) -> bool:
    health = cluster.fleet.health[node]
    small = job.gpus <= cluster.policy.small_gpus and job.request.preemptible
    return health is Health.GOOD or (health is Health.SUSPECT and small)


def _shrunk(kept: Placement, extras: Placement, fit: set[int], needed: int) -> tuple[Placement, Placement] | None:
    """The minimum over what it has left, and what remains beyond it. Nodes that are not `fit` may be good enough for extras, and not for more."""
    usable = [(node, gpus) for node, gpus in extras if node in fit]
    if sum(gpus for _, gpus in usable) < needed:
        return None
    base, beyond = dict(kept), dict(extras)
    for node, gpus in sorted(usable, key=lambda one: (-one[1], one[0])):  # Few nodes, so that it stays together.
        taken = min(gpus, needed)
        needed -= taken
        if taken:
            base[node] = base.get(node, 0) + taken
            beyond[node] -= taken
    return tuple(sorted(base.items())), tuple((node, gpus) for node, gpus in sorted(beyond.items()) if gpus)


def _keep_place(cluster: Cluster, job: Job, left: list[int], now: float) -> bool:
    """Hold what a gang had left, and as many more nodes as it needs, those first that will be ready first."""
    fleet = cluster.fleet
    own = [node for node in left if fleet.is_open(node)]
    if not own:
        return may_reserve(cluster, job) and reserve_for(cluster, job, now)
    others = (node for node in range(len(fleet.total)) if fleet.is_open(node) and node not in own)
    ready = sorted((ready_at(cluster, node, min(job.gpus, fleet.total[node]), now), node) for node in others)
    nodes, at = list(own), now
    while ready and sum(fleet.total[node] for node in nodes) < job.gpus:
        at, node = ready.pop(0)
        nodes.append(node)
    if sum(fleet.total[node] for node in nodes) < job.gpus:
        return False
    cluster.reserve(job, tuple(sorted(nodes)), at, now)
    return True
