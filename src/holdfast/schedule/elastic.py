"""Elastic jobs: admitted at their minimum, grown with GPUs that nobody who waits can use, shrunk before anybody is evicted.

A job is resized at most once in `resize_every_s`, except that it shrinks at once when another needs the room.
"""

from __future__ import annotations

from holdfast.schedule.cluster import Cluster
from holdfast.schedule.job import Job, Placement


def shrunk_for(cluster: Cluster, gpus: int) -> tuple[Placement, dict[Job, Placement]] | None:
    """A place that is free once extras give way, and what those jobs keep; None when that is not enough. The node that costs the fewest GPUs is taken."""
    fleet = cluster.fleet
    if gpus > fleet.gpus_max:
        return None
    best: tuple[int, int] | None = None
    for node, extras in enumerate(fleet.extras_on):
        if extras and fleet.is_open(node) and fleet.free[node] + sum(extras.values()) >= gpus:
            best = min(best, (gpus - fleet.free[node], node)) if best is not None else (gpus - fleet.free[node], node)
    if best is None:
        return None
    missing, node = best
    kept: dict[Job, Placement] = {}
    for job, there in sorted(fleet.extras_on[node].items(), key=lambda one: (one[1], one[0].number)):
        if missing <= 0:
            break
        gone = min(missing, there)
        missing -= gone
        kept[job] = tuple((other, count - gone if other == node else count) for other, count in job.extras if other != node or count > gone)
    return ((node, gpus),), kept


def grow(cluster: Cluster, now: float) -> list[tuple[Job, Placement]]:
    """Who grows, and to which extras. Called when nobody who waits can start, so what is free on open nodes is of no use to others now."""
    grown = []
    for job in list(cluster.elastic):
        wanted = job.request.gpus_max - job.gpus_now
        if wanted <= 0 or now - job.resized_at < cluster.policy.resize_every_s or job in cluster.gangs:
            continue
        before, extras = dict(job.extras), dict(job.extras)
        for node, _ in (*job.placement, *_open_nodes(cluster)):
            room = cluster.fleet.free[node] if cluster.fleet.is_open(node) else 0
            taken = min(wanted, room - (extras.get(node, 0) - before.get(node, 0)), _limit(cluster, job) - sum(extras.values()) + sum(before.values()))
            if taken > 0:
                extras[node] = extras.get(node, 0) + taken
                wanted -= taken
            if wanted <= 0:
                break
        if extras != before:
            placement = tuple(sorted(extras.items()))
            cluster.resize(job, placement, now)
            grown.append((job, placement))
    return grown


def _open_nodes(cluster: Cluster) -> list[tuple[int, int]]:
    fleet = cluster.fleet
    return [(node, free) for node, free in enumerate(fleet.free) if free and fleet.is_open(node)]


def _limit(cluster: Cluster, job: Job) -> int:
    """GPUs more that the limits above a job allow."""
    rooms = [limit - cluster.gpus[account] for account in job.line if (limit := cluster.tree.limits[account]) is not None]
    return min(rooms, default=job.request.gpus_max)
