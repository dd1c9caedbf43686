"""Elastic jobs: admitted at their minimum, grown with GPUs that nobody who waits can use, shrunk before anybody is evicted.

What a job has beyond its minimum is lent. It goes at once, as much as is needed: for whoever could have a loose job evicted (administrators,
guarantees, trials, those that are due), and for anybody else whose account is below what it is entitled to while the job's own is above. So does
it for another elastic job. An account's guarantee covers its extras too.

A job grows at most once in `resize_every_s`: first those below what they are entitled to, up to that; then, into what is still free, who has been
charged least. Limits and ceilings hold for extras as for jobs, and a job that waits goes before extras there too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from holdfast.schedule.cluster import Cluster
from holdfast.schedule.job import Job, Placement

Lent = dict[int, dict[Job, int]]  # By node: extras that may go, and whose.

_ROUNDING = 1e-6


def lent_to(cluster: Cluster, job: Job, *, entitled: Mapping[int, float] | None = None) -> Lent:
    """The extras that go for this job, should it need them; all of them together leave every guarantee whole. `entitled` for who has no claim but his part."""
    slack: dict[int, int] = {}
    lent: Lent = {}
    for owner in cluster.elastic:
        if not owner.extras or (entitled is not None and not _has_claim(cluster, job, owner, entitled)):
            continue
        guards = [account for account in owner.line if cluster.tree.quotas[account] and account not in job.line]
        left = min((slack.setdefault(account, cluster.gpus[account] - cluster.tree.quotas[account]) for account in guards), default=owner.gpus_now)
        for node, there in owner.extras:
            if (gives := min(there, left)) > 0:
                lent.setdefault(node, {})[owner] = gives
                left -= gives
                for account in guards:
                    slack[account] -= gives
    return lent


def give_way(cluster: Cluster, lent: Lent, placement: Placement, now: float) -> list[Job]:
    """Extras go from where a job will stand until it has room; from those first that have been charged most. Who gave, in order."""
    gave: list[Job] = []
    for node, gpus in placement:
        for owner in sorted(lent.get(node, ()), key=lambda one: (cluster.charged_along(one), one.number), reverse=True):
            missing = gpus - cluster.fleet.free[node]
            if missing > 0 and owner.running:  # It may have been evicted meanwhile.
                _take(cluster, owner, node, min(missing, lent[node][owner]), now)
                gave.append(owner)
    return gave


def make_room(cluster: Cluster, job: Job, now: float) -> list[Job]:
    """Extras go where with this job a limit or ceiling would be passed: a minimum goes before them. Who gave, in order."""
    gave: list[Job] = []
    for kind, account, _, extras, _ in cluster.bounds(job) if cluster.elastic else ():
        owners = (owner for owner in cluster.elastic if owner.extras and account in owner.line and kind in ("", owner.priority.name)) if extras else ()
        for owner in sorted(owners, key=lambda one: (cluster.charged_along(one), one.number), reverse=True):
            for node, there in reversed(owner.extras):
                over = next(runs + job.gpus - most for name, number, runs, _, most in cluster.bounds(job) if (name, number) == (kind, account))
                if over > 0:
                    _take(cluster, owner, node, min(there, math.ceil(over)), now)
                    gave.append(owner)
    return gave


def grow(cluster: Cluster, now: float) -> list[Job]:
    """Who has another size, in order. Called when nobody who waits can start."""
    fleet = cluster.fleet
    rests = [job for job in cluster.elastic if now - job.resized_at >= cluster.policy.resize_every_s and job not in cluster.gangs]
    rests = [job for job in rests if job.gpus_now < job.request.gpus_max]
    if not rests:
        return []
    entitled, changed = cluster.entitled(), dict[Job, None]()
    for job in sorted(rests, key=lambda one: (cluster.charged_along(one), one.number)):
        below = min(int(entitled[account] - cluster.gpus[account] + _ROUNDING) for account in job.line)
        _grow_free(cluster, job, min(below, _most(cluster, job)), now, changed)
        for owner in [other for other in cluster.elastic if other.extras and other.account != job.account]:
            for node, there in owner.extras if _most(cluster, job) > 0 else ():
                taken = min(there, _most(cluster, job), _above(cluster, job, owner, entitled)) if fleet.is_open(node) else 0
                if taken > 0:
                    _take(cluster, owner, node, taken, now)
                    _grow_free(cluster, job, taken, now, changed, only=node)
                    changed[owner] = None
    for job in sorted(rests, key=lambda one: (cluster.charged_along(one), one.number)):
        _grow_free(cluster, job, _most(cluster, job), now, changed)
    return list(changed)


def _most(cluster: Cluster, job: Job) -> int:
    return min(job.request.gpus_max - job.gpus_now, cluster.headroom(job))


def _grow_free(cluster: Cluster, job: Job, most: int, now: float, changed: dict[Job, None], *, only: int | None = None) -> None:
    """Up to so many GPUs that are free on open nodes, first where it stands."""
    fleet, extras, left = cluster.fleet, dict(job.extras), most
    everywhere = (*(node for node, _ in job.placement), *range(len(fleet.free))) if only is None else (only,)
    for node in dict.fromkeys(everywhere) if most > 0 else ():
        taken = min(left, fleet.free[node]) if fleet.is_open(node) else 0
        if taken > 0:
            extras[node] = extras.get(node, 0) + taken
            left -= taken
        if left <= 0:
            break
    if left < most:
        cluster.resize(job, tuple(sorted(extras.items())), now)
        changed[job] = None


def _take(cluster: Cluster, owner: Job, node: int, gpus: int, now: float) -> None:
    kept = ((other, count - gpus if other == node else count) for other, count in owner.extras)
    cluster.resize(owner, tuple((other, count) for other, count in kept if count), now)


def _has_claim(cluster: Cluster, job: Job, owner: Job, entitled: Mapping[int, float]) -> bool:
    """Whether a job that is nothing but waiting may have extras of another: always within its account; else from who is above his part, when it is below."""
    mine, others = _apart(job, owner)
    return mine == others or (cluster.gpus[mine] < entitled[mine] - _ROUNDING and cluster.gpus[others] > entitled[others] + _ROUNDING)


def _above(cluster: Cluster, job: Job, owner: Job, entitled: Mapping[int, float]) -> int:
    """How many GPUs another's account can give to one that may grow: what the one is above its part, as far as the other is below; nothing of a guarantee."""
    _, others = _apart(job, owner)
    below = [entitled[account] - cluster.gpus[account] for account in job.line if account not in owner.line]
    spare = [cluster.gpus[account] - cluster.tree.quotas[account] for account in owner.line if account not in job.line]
    return int(min(cluster.gpus[others] - entitled[others], *below, *spare) + _ROUNDING)


def _apart(one: Job, other: Job) -> tuple[int, int]:
    """The siblings at which the ways to two jobs part; the same account twice where they do not."""
    return next(((mine, others) for mine, others in zip(one.line, other.line, strict=False) if mine != others), (one.account, one.account))
