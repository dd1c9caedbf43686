"""The queue and the shares as plain values, for people and programs: who runs where, who waits and why, and what each account is entitled to, uses and gets."""

from __future__ import annotations

import math
from dataclasses import dataclass

from holdfast.schedule.cluster import Cluster
from holdfast.schedule.explain import Reason, why
from holdfast.schedule.forecast import Expected, forecast
from holdfast.schedule.job import Job
from holdfast.schedule.shares import poured
from holdfast.schedule.tree import ROOT


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One job. Who waits has a reason, a place and an expectation; who runs has nodes."""

    id: str
    account: str
    gpus: int
    priority: str
    lane: str
    submitted_at: float
    since: float
    nodes: tuple[tuple[str, int], ...] = ()
    loose: bool = False
    place: int | None = None  # In the order in which those that wait are expected to start.
    reason: Reason | None = None
    expected: Expected | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareRow:
    """An account, or with jobs shown a job, in the order of the tree."""

    name: str
    depth: int
    weight: float
    entitled_gpus: float  # Now, for what it runs and waits for: water-filled, quotas first.
    entitled_share: float  # Of the cluster.
    used_gpu_h: float  # Decayed.
    used_share: float  # Of what all used.
    running_gpus: int
    waiting_gpus: int
    quota_gpus: int = 0
    limit_gpus: int | None = None
    is_job: bool = False


def queue_of(cluster: Cluster) -> tuple[Entry, ...]:
    """Those that run, oldest start first; then those that wait, in the order in which they are expected to start."""
    running = sorted(cluster.running, key=lambda job: (job.since, job.number))
    expected = forecast(cluster)
    waiting = sorted((job for job in cluster.jobs.values() if not job.running), key=lambda job: _order(job, expected[job.request.id]))
    return (*(_entry(cluster, job) for job in running), *(_entry(cluster, job, place, expected[job.request.id]) for place, job in enumerate(waiting, 1)))


def _order(job: Job, expected: Expected) -> tuple[float, float, float, int]:
    return expected.likely, expected.earliest, job.stands_at, job.number


def _entry(cluster: Cluster, job: Job, place: int | None = None, expected: Expected | None = None) -> Entry:
    fleet = cluster.fleet
    nodes = tuple((fleet.nodes[node].name, gpus) for node, gpus in (*job.placement, *job.extras))
    return Entry(
        id=job.request.id, account=cluster.tree.name(job.account), gpus=job.gpus_now or job.gpus, priority=job.priority.name, lane=job.lane.name.lower(),
        submitted_at=job.submitted_at, since=job.since, nodes=nodes, loose=job.loose, place=place, reason=why(cluster, job.request.id), expected=expected,
    )  # fmt: skip


def shares_of(cluster: Cluster, *, jobs: bool = False) -> tuple[ShareRow, ...]:
    """The tree from the top. Who neither runs nor waits is entitled to nothing now, and his part is lent."""
    tree, now = cluster.tree, cluster.now
    waiting = [0] * len(tree.accounts)
    of: dict[int, list[Job]] = {}
    for job in cluster.jobs.values():
        of.setdefault(job.account, []).append(job)
        for account in job.line if not job.running else ():
            waiting[account] += job.gpus
    capacity = float(cluster.fleet.capacity_gpus)
    parts = cluster.entitled()
    used = [cluster.usage.used(account, now) / 3600 for account in range(len(tree.accounts))]
    rows: list[ShareRow] = []

    def walk(account: int, depth: int) -> None:
        rows.append(
            ShareRow(
                name=tree.accounts[account].name, depth=depth, weight=tree.weights[account], entitled_gpus=parts[account],
                entitled_share=parts[account] / capacity if capacity else 0.0, used_gpu_h=used[account],
                used_share=used[account] / used[ROOT] if used[ROOT] > 0 else 0.0, running_gpus=cluster.gpus[account], waiting_gpus=waiting[account],
                quota_gpus=tree.quotas[account], limit_gpus=tree.limits[account],
            )
        )
        for child in tree.children[account]:
            walk(child, depth + 1)
        mine = of.get(account, []) if jobs else []
        for job, part in zip(mine, poured(parts[account], [1.0] * len(mine), [float(job.gpus_most) for job in mine]), strict=True):
            runs = job.gpus_now
            rows.append(
                ShareRow(
                    name=job.request.id, depth=depth + 1, weight=1.0, entitled_gpus=part, entitled_share=part / capacity if capacity else 0.0,
                    used_gpu_h=math.nan, used_share=math.nan, running_gpus=runs, waiting_gpus=0 if runs else job.gpus, is_job=True,
                )
            )

    walk(ROOT, 0)
    return tuple(rows)
