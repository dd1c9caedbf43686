"""Why a job waits: one reason, what would clear it, and when it is expected to start, with a range. Asked for one job at a time; the others cost nothing."""

from __future__ import annotations

import math
from dataclasses import dataclass

from holdfast.errors import UserError
from holdfast.schedule.cluster import Cluster
from holdfast.schedule.job import Job, Lane
from holdfast.schedule.place import Health


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    kind: str  # start failed, members, limit, health, reservation, fragmentation, share
    because: str
    clears: str
    demoted: str = ""  # Why it stands in a lower class than it asked for.
    start_at: float = math.nan  # Expected; NaN when nobody can say.
    start_range: tuple[float, float] = (math.nan, math.nan)  # Earliest and latest that is likely.


def why(cluster: Cluster, id: str) -> Reason | None:
    """Why this job does not run; None when it does."""
    job = cluster.jobs.get(id)
    if job is None:
        raise UserError(f"no job {id} waits or runs here; {len(cluster.jobs)} others do")
    if job.running and job not in cluster.gangs:
        return None
    kind, because, clears = _reason(cluster, job)
    at, soonest, latest = _expected(cluster, job)
    return Reason(kind=kind, because=because, clears=clears, demoted=job.reason, start_at=at, start_range=(soonest, latest))


def _reason(cluster: Cluster, job: Job) -> tuple[str, str, str]:
    fleet, tree = cluster.fleet, cluster.tree
    if job in cluster.gangs:
        return "members", f"it has its place, but {cluster.gangs[job].missing}", "every member is ready and reaches the others"
    if job.banned_until > cluster.now:
        times = "time" if job.failures == 1 else "times"
        return "start failed", f"its start failed {job.failures} {times}; it pauses", f"{job.banned_until - cluster.now:.0f} s pass"
    for account in job.line:
        limit = tree.limits[account]
        if limit is not None and cluster.gpus[account] + job.gpus > limit:
            name = tree.name(account)
            return "limit", f"{name} runs {cluster.gpus[account]} GPUs and is limited to {limit}", f"{name} runs {limit - job.gpus} or fewer"
    good = sum(total for total, health in zip(fleet.total, fleet.health, strict=True) if health is Health.GOOD)
    if job.gpus > good:
        return "health", f"it needs {job.gpus} GPUs and {good} are on healthy nodes", "nodes come back"
    kept = cluster.reservations.get(job)
    if kept is not None:
        names = ", ".join(fleet.nodes[node].name for node in kept.nodes[:4]) + (" and others" if len(kept.nodes) > 4 else "")
        return "reservation", f"{names} are kept for it, and firm jobs are still there", "those jobs end, or can be evicted"
    if fleet.free_gpus >= job.gpus and not fleet.fits(job.gpus):
        held = sum(fleet.free[node] for node in fleet.held)
        reserved = f", {held} of them held for others" if held else ""
        where = "one node" if job.gpus <= fleet.gpus_max else "whole nodes"
        return "fragmentation", f"{fleet.free_gpus} GPUs are free{reserved}, but not {job.gpus} on {where}", "a node has room"
    ahead = sum(cluster.waiting.count(lane) for lane in Lane if lane <= job.lane) - 1
    charged = cluster.usage.charged(job.account, cluster.now) / 3600
    by_share = f"{tree.name(job.account)} has been charged {charged:.0f} GPU-hours, and others less for their weight"
    order = "it is due, and older ones come first" if job.lane is Lane.DUE else by_share
    return "share", f"all GPUs are taken and up to {max(0, ahead)} jobs come first: {order}", "GPUs become free, or it is due"


def _expected(cluster: Cluster, job: Job) -> tuple[float, float, float]:
    """From the reservation, or from how fast GPUs are expected to come free for those ahead of it."""
    now, kept = cluster.now, cluster.reservations.get(job)
    if job.banned_until > now or job in cluster.gangs:
        return math.nan, now, math.inf
    if kept is not None:
        likely = [cluster.estimates.spread_s(one) for node in kept.nodes for one in cluster.fleet.on[node] if not one.loose]
        slack = max((long - short for short, long in likely), default=0.0)
        return kept.at, now, kept.at + slack
    running = list(cluster.running)
    if not running:
        return now, now, now
    ahead = sum(size * count for lane in Lane if lane <= job.lane for size, count in cluster.waiting.wanted(lane).items())
    left_s = [max(1.0, cluster.estimates.end_at(one, now) - now) for one in running]
    per_s = sum(one.gpus / left for one, left in zip(running, left_s, strict=True))
    at = now + max(0, ahead - cluster.fleet.free_gpus) / per_s
    due_at = max(now, job.since + (cluster.policy.patience_s - job.waited_s))
    return at, now + (at - now) / 4, max(now + (at - now) * 4, due_at)
