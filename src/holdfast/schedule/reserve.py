"""Reservations: named nodes for a job that is due and does not fit, and who may stand there meanwhile.

The nodes are those that will be ready soonest, as far as estimates tell; loose jobs do not count, for they can go. A job that cannot be evicted starts there
only when its estimate ends in time. A preemptible one may without an estimate: at first whatever is expected, since guesses are mostly wrong and idle nodes are
lost; and after a while only when the reserved one is not expected before the minimum run, or small ones without end could keep it waiting for theirs.
A reservation is kept a while, so that it does not wander, and then looked for anew.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from holdfast.schedule.cluster import Cluster
from holdfast.schedule.job import Job, Placement
from holdfast.schedule.place import Fleet, Health

_LOOKED_AT = 256


def may_reserve(cluster: Cluster, job: Job) -> bool:
    """Whether so many more nodes may be held; the first who is due may always."""
    fleet = cluster.fleet
    return not fleet.held or len(fleet.held) + -(-job.gpus // fleet.gpus_max) <= cluster.policy.reserved_share * len(fleet.total)


def reserve_for(cluster: Cluster, job: Job, now: float) -> bool:
    """Name nodes for a job, in the place of those it had. False when there are none to name."""
    fleet, wanted = cluster.fleet, job.gpus
    open_nodes = (node for node in part_for(fleet, job) if fleet.is_open(node) or fleet.holder[node] is job)
    ready = sorted((ready_at(cluster, node, min(wanted, fleet.total[node]), now), fleet.free[node], node) for node in open_nodes)
    nodes, at, left = [], now, wanted
    for when, _, node in ready:
        if wanted <= fleet.gpus_max and fleet.total[node] < wanted:
            continue
        nodes.append(node)
        at, left = max(at, when), left - fleet.total[node]
        if left <= 0:
            break
    if left > 0 or not math.isfinite(at):
        return False
    cluster.reserve(job, tuple(nodes), at, now)
    return True


def part_for(fleet: Fleet, job: Job) -> Iterable[int]:
    """Where to look for a place that is hard to find: of a large fleet each job looks at another part, so that the cost stays the same."""
    many, looked_at = len(fleet.total), max(_LOOKED_AT, 4 * -(-job.gpus // fleet.gpus_max))
    if many <= looked_at:
        return range(many)
    first = job.number * looked_at
    return ((first + step) % many for step in range(looked_at))


def ready_at(cluster: Cluster, node: int, gpus: int, now: float) -> float:
    """When so many GPUs of a node can be had without evicting anybody who is firm."""
    fleet = cluster.fleet
    free = fleet.free[node] + fleet.loose[node]
    if free >= gpus:
        return now
    for at, gone in sorted((min(cluster.estimates.end_at(job, now), job.loose_at), there) for job, there in fleet.on[node].items() if not job.loose):
        free += gone
        if free >= gpus:
            return at
    return math.inf


def backfill_place(cluster: Cluster, job: Job, now: float) -> Placement | None:
    """A place for this job on nodes that are held for another, where it will not be in the way."""
    fleet, reservations = cluster.fleet, cluster.reservations
    if job.gpus > fleet.gpus_max:
        return None
    policy, preemptible = cluster.policy, job.request.preemptible
    runs_s = policy.minimum_run_s if preemptible else cluster.estimates.whole_s(job)

    def may_stand(holder: Job) -> bool:
        kept = reservations[holder]
        return kept.at >= now + runs_s or (preemptible and now < kept.since + policy.filled_s)

    held = ((node, fleet.holder[node]) for node in fleet.held if fleet.health[node] is Health.GOOD)
    return fleet.find_among(job.gpus, (node for node, holder in held if holder is not None and may_stand(holder)))
