"""The queue and the shares as plain values, for people and programs: who runs where, who waits and why, and what each account is entitled to, uses and gets."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

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
    """An account, or with jobs shown a job, or the processes of one, which are all alike; in the order of the tree."""

    kind: str  # account, job, process
    name: str
    depth: int
    weight: float = 1.0
    count: int = 1  # So many processes have this each.
    entitled_gpus: float  # Now, for what it runs and waits for: water-filled, quotas first.
    entitled_share: float  # Of the cluster.
    used_gpu_h: float  # Decayed.
    used_share: float  # Of what all used.
    running_gpus: int = 0
    waiting_gpus: int = 0
    quota_gpus: int = 0
    limit_gpus: int | None = None


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
    return tuple(_Shares(cluster).rows(ROOT, 0, jobs=jobs))


class _Shares:
    def __init__(self, cluster: Cluster) -> None:
        self.cluster, self.now = cluster, cluster.now
        self.parts = cluster.entitled()
        self.used_s = cluster.usage.used(ROOT, cluster.now)
        self.waiting = [0] * len(cluster.tree.accounts)
        self.jobs: dict[int, list[Job]] = {}  # By account.
        for job in cluster.jobs.values():
            self.jobs.setdefault(job.account, []).append(job)
            for account in job.line if not job.running else ():
                self.waiting[account] += job.gpus

    def rows(self, account: int, depth: int, *, jobs: bool) -> Iterator[ShareRow]:
        cluster, tree = self.cluster, self.cluster.tree
        row = self.row("account", tree.accounts[account].name, depth, self.parts[account], cluster.usage.used(account, self.now))
        yield replace(
            row, weight=tree.weights[account], running_gpus=cluster.gpus[account], waiting_gpus=self.waiting[account], quota_gpus=tree.quotas[account],
            limit_gpus=tree.limits[account],
        )  # fmt: skip
        for child in tree.children[account]:
            yield from self.rows(child, depth + 1, jobs=jobs)
        mine = self.jobs.get(account, []) if jobs else []
        for job, part in zip(mine, poured(self.parts[account], [1.0] * len(mine), [float(job.gpus_most) for job in mine]), strict=True):
            yield from self.of_job(job, part, depth + 1)

    def of_job(self, job: Job, part: float, depth: int) -> Iterator[ShareRow]:
        """The job, and what each of its processes has of it, a process to a GPU; a single one is the job."""
        used_s, count = job.use.used(self.now), job.gpus_now or job.gpus
        row = self.row("job", job.request.id, depth, part, used_s)
        yield replace(row, running_gpus=count) if job.running else replace(row, waiting_gpus=count)
        if count > 1:
            row = self.row("process", f"each of {count}", depth + 1, poured(part, [1.0] * count, [1.0] * count)[0], used_s / count)
            yield replace(row, count=count, running_gpus=1) if job.running else replace(row, count=count, waiting_gpus=1)

    def row(self, kind: str, name: str, depth: int, entitled_gpus: float, used_s: float) -> ShareRow:
        capacity = self.cluster.fleet.capacity_gpus
        return ShareRow(
            kind=kind, name=name, depth=depth, entitled_gpus=entitled_gpus, entitled_share=entitled_gpus / capacity if capacity else 0.0,
            used_gpu_h=used_s / 3600, used_share=used_s / self.used_s if self.used_s > 0 else 0.0,
        )  # fmt: skip
