"""Why a job waits: exactly one reason, what is in its way by name, and what would clear it. Asked for one job at a time; the others cost nothing.

    needs           what it needs has not ended well
    members         it has its place, and not all of its gang are there
    crash loop      it failed soon after its start again and again, and has lost its place
    start failed    the same, not yet so often
    limit           it, or a group above it, would pass a limit
    ceiling         it would pass that of its class, and there is no lower one
    health          too few nodes are healthy
    reservation     nodes are kept for it, and not yet empty
    held            GPUs are free, and kept for others
    fragmentation   GPUs are free, and not together
    share           all are taken, and others come first
"""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.errors import UserError
from holdfast.schedule.cluster import Cluster
from holdfast.schedule.job import Job, Lane
from holdfast.schedule.place import Fleet, Health

_NAMED = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    kind: str
    because: str
    clears: str
    blockers: tuple[str, ...] = ()  # Nodes, jobs and accounts that are in the way, each in a few words.
    demoted: str = ""  # Why it stands in a lower class than it asked for.


def why(cluster: Cluster, id: str) -> Reason | None:
    """Why this job does not run; None when it does."""
    job = cluster.jobs.get(id)
    if job is None:
        raise UserError(f"no job {id} waits or runs here; {len(cluster.jobs)} others do")
    if job.running and job not in cluster.gangs:
        return None
    for look in (_needs, _starts, _limits, _ceiling, _health, _own_nodes, _free):
        found = look(cluster, job)
        if found is not None:
            kind, because, clears, blockers = found
            return Reason(kind=kind, because=because, clears=clears, blockers=blockers, demoted=job.reason)
    because, clears, blockers = _share(cluster, job)
    return Reason(kind="share", because=because, clears=clears, blockers=blockers, demoted=job.reason)


_Found = tuple[str, str, str, tuple[str, ...]] | None  # Kind, because, what clears it, what is in the way.


def _needs(cluster: Cluster, job: Job) -> _Found:
    if not job.missing:
        return None
    states = []
    for id in job.missing:
        other = cluster.jobs.get(id)
        states.append(f"{id} {'was withdrawn' if other is None else 'runs' if other.running else 'waits'}")
    gone = [id for id in job.missing if id not in cluster.jobs]
    have, names = "has" if len(job.missing) == 1 else "have", ", ".join(job.missing)
    clears = f"{names} {have} ended well, or made what it needs"
    return "needs", f"it needs {names}, which {have} not ended", f"{', '.join(gone)} is submitted again, and {clears}" if gone else clears, tuple(states)


def _starts(cluster: Cluster, job: Job) -> _Found:
    if job in cluster.gangs:
        return "members", f"it has its place, but {cluster.gangs[job].missing}", "every member is ready and reaches the others", ()
    if job.banned_until <= cluster.now:
        return None
    clears = f"{job.banned_until - cluster.now:.0f} s pass"
    if job.failures >= cluster.policy.crash_loop:
        because = f"it failed {job.failures} times in a row within {cluster.policy.crash_s:.0f} s of its start; it pauses, and has lost its place"
        return "crash loop", because, f"{clears}, and it runs longer than that", ()
    times = "time" if job.failures == 1 else "times"
    return "start failed", f"it failed {job.failures} {times}; it pauses", clears, ()


def _limits(cluster: Cluster, job: Job) -> _Found:
    tree = cluster.tree
    for account in job.line:
        limit = tree.limits[account]
        if limit is not None and cluster.gpus[account] - cluster.extras[account] + job.gpus > limit:
            name, runs = tree.name(account), [one for one in cluster.running if account in one.line]
            kind = "is limited to" if tree.accounts[account].may_borrow else "may not borrow beyond its quota of"
            because = f"{name} runs {cluster.gpus[account]} GPUs and {kind} {limit}"
            return "limit", because, f"{name} runs {limit - job.gpus} or fewer", _jobs(runs)
    return None


def _ceiling(cluster: Cluster, job: Job) -> _Found:
    because = cluster.above_ceiling(job)
    if not because or cluster.lower_class(job.priority) is not None:
        return None
    runs = [one for one in cluster.running if one.priority is job.priority and job.line[1] in one.line]
    return "ceiling", f"{because}; there is no lower class to go on in", "others of its class there end, or more nodes are in service", _jobs(runs)


def _health(cluster: Cluster, job: Job) -> _Found:
    fleet = cluster.fleet
    good = [node for node, health in enumerate(fleet.health) if health is Health.GOOD]
    there = sum(fleet.total[node] for node in good)
    roomy = job.gpus > fleet.gpus_max or any(fleet.total[node] >= job.gpus for node in good)
    if job.gpus <= there and roomy:
        return None
    bad = [node for node, health in enumerate(fleet.health) if health is not Health.GOOD]
    named = tuple(f"{fleet.nodes[node].name} is {fleet.health[node].value}: {cluster.care.verdict(node, cluster.now)[1]}" for node in bad[:_NAMED])
    seen = f"{there} are on healthy nodes" if roomy else "no healthy node has so many"
    return "health", f"it needs {job.gpus} GPUs and {seen}", f"{_and_others(fleet, bad)} {'is' if len(bad) == 1 else 'are'} healthy again", named


def _own_nodes(cluster: Cluster, job: Job) -> _Found:
    kept, fleet = cluster.reservations.get(job), cluster.fleet
    if kept is None:
        return None
    there = list(dict.fromkeys(one for node in kept.nodes for one in fleet.on[node]))
    keep = "is kept" if len(kept.nodes) == 1 else "are kept"
    return "reservation", f"{_and_others(fleet, sorted(kept.nodes))} {keep} for it, and jobs are still there", "those jobs end, or can be evicted", _jobs(there)


def _free(cluster: Cluster, job: Job) -> _Found:
    """GPUs are free on healthy nodes, and it cannot have them."""
    fleet = cluster.fleet
    free = {node: gpus for node, gpus in enumerate(fleet.free) if gpus and fleet.health[node] is Health.GOOD}
    if sum(free.values()) < job.gpus or fleet.fits(job.gpus):
        return None
    where = "one node" if job.gpus <= fleet.gpus_max else "whole nodes"
    held = {node: holder for node in free if (holder := fleet.holder[node]) is not None}
    together = sum(fleet.total[node] for node, gpus in free.items() if gpus == fleet.total[node]) if job.gpus > fleet.gpus_max else max(free.values())
    if together >= job.gpus:
        ids = list(dict.fromkeys(holder.request.id for holder in held.values()))
        for_whom = ", ".join(ids[:_NAMED]) + (" and others" if len(ids) > _NAMED else "")
        blockers = tuple(f"{fleet.nodes[node].name} ({free[node]} free) is held for {holder.request.id}" for node, holder in list(held.items())[:_NAMED])
        return "held", f"{sum(free.values())} GPUs are free, but held for {for_whom}", f"{for_whom} starts, and GPUs become free", blockers
    blockers = tuple(f"{fleet.nodes[node].name} has {free[node]} of {fleet.total[node]} free" for node in sorted(free, key=lambda node: -free[node])[:_NAMED])
    has = "has" if where == "one node" else "have"
    return "fragmentation", f"{sum(free.values())} GPUs are free, but not {job.gpus} on {where}", f"{where} {has} room", blockers


def _share(cluster: Cluster, job: Job) -> tuple[str, str, tuple[str, ...]]:
    tree, policy = cluster.tree, cluster.policy
    ahead = max(0, sum(cluster.waiting.count(lane) for lane in Lane if lane <= job.lane) - 1) + len(cluster.reservations)
    left_s = max(0.0, policy.patience_s - job.waited_s - (cluster.now - job.since))
    if job.lane is Lane.DUE:
        order, clears = "it is due, and older ones come first", "those before it start"
    else:
        charged = cluster.usage.charged(job.account, cluster.now) / 3600
        order = f"{tree.name(job.account)} has been charged {charged:,.0f} GPU-hours, and others less for their weight"
        clears = f"GPUs become free; at the latest it is due in {left_s:.0f} s, and then goes by age"
    loose = sum(cluster.fleet.loose)
    taken = f"all GPUs are taken ({loose} by jobs that may be evicted)" if loose else "all GPUs are taken"
    first = "one job comes" if ahead == 1 else f"up to {ahead} jobs come"
    return f"{taken} and {first} first: {order}", clears, ()


def _jobs(jobs: list[Job]) -> tuple[str, ...]:
    said = [f"{job.request.id} runs on {job.gpus_now} GPUs" for job in sorted(jobs, key=lambda job: (-job.gpus_now, job.number))]
    return (*said[:_NAMED], f"and {len(said) - _NAMED} more") if len(said) > _NAMED else tuple(said)


def _and_others(fleet: Fleet, nodes: list[int]) -> str:
    names = ", ".join(fleet.nodes[node].name for node in nodes[:_NAMED])
    return f"{names} and others" if len(nodes) > _NAMED else names or "no node"
