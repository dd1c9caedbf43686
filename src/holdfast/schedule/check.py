"""What must always be true of a cluster (the invariants I1 to I16 of docs/scheduling.md), from books of its own: it trusts no count that the scheduler keeps.

`Auditor` follows every decision at the cost of what changed; `sweep` compares everything, now and then. Each failure is a sentence that begins with its
number. I5 (shares converge) is a figure over windows, kept here too. I10 (same trace, same decisions) is a hash over a replay; I8 and I12 are tests.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

from holdfast.schedule.cluster import Cluster
from holdfast.schedule.cycle import Decisions
from holdfast.schedule.job import Lane
from holdfast.schedule.mend import Mend
from holdfast.schedule.place import Health
from holdfast.schedule.policy import DAY_S
from holdfast.schedule.shares import poured


@dataclass(slots=True)
class Auditor:
    """Looks at one cluster, decision by decision."""

    cluster: Cluster
    failures: list[str] = field(default_factory=list)
    _on: dict[str, tuple[tuple[int, int], ...]] = field(default_factory=dict)
    _started: dict[str, float] = field(default_factory=dict)
    _evicted: dict[str, deque[float]] = field(default_factory=dict)
    _free: list[int] = field(default_factory=list)
    _held: dict[int, str] = field(default_factory=dict)  # After the decision before.
    _kept: dict[str, None] = field(default_factory=dict)  # Gangs that lost nodes, and for which others are held.

    def __post_init__(self) -> None:
        self._free = [node.gpus for node in self.cluster.fleet.nodes]

    def ended(self, id: str) -> None:
        self._give(id)
        self._kept.pop(id, None)

    def decided(self, decisions: Decisions, now: float) -> None:
        """Evictions first, then starts: as they are performed."""
        cluster, policy = self.cluster, self.cluster.policy
        served = {start.job for start in decisions.starts}
        emergency = {start.job for start in decisions.starts if start.job in cluster.jobs and cluster.jobs[start.job].priority.crosses}
        for mended in decisions.mends:
            self._mended(mended)
        runs = self._guaranteed()
        for resize in decisions.resizes:
            self._resized(resize.job, resize.extras)
        for eviction in decisions.evictions:
            id = eviction.job
            if eviction.for_job not in served:
                self._fail(f"I6: {id} was evicted for {eviction.for_job}, which did not start")
            if now < self._started.get(id, now) + policy.minimum_run_s and eviction.for_job not in emergency:
                self._fail(f"I7: {id} was evicted {now - self._started.get(id, now):.0f} s after its start, and {policy.minimum_run_s:.0f} s are guaranteed")
            times = self._evicted.setdefault(id, deque())
            while times and now >= times[0] + DAY_S:
                times.popleft()
            times.append(now)
            if len(times) > policy.evictions_a_day and eviction.for_job not in emergency:
                self._fail(f"I7: {id} was evicted {len(times)} times within a day, and {policy.evictions_a_day} are allowed")
            if eviction.for_job not in emergency:
                self._lowered(runs, id, eviction.for_job)
            self._give(id)
            self._loops(eviction.for_job)
        for start in decisions.starts:
            self._start(start.job, start.placement, start.gpus, now)
        self._below_guarantee(runs, decisions)
        self._held = {node: kept.job for kept in decisions.reservations for node in kept.nodes}
        self._places_kept(decisions)
        self._idle()
        self._limits()

    def sweep(self) -> None:
        """Everything against everything."""
        cluster, fleet = self.cluster, self.cluster.fleet
        if fleet.free != self._free:
            self._fail(f"I2: the fleet counts {fleet.free} GPUs free by node, and {self._free} are")
        for node, there in enumerate(fleet.on):
            loose = sum(gpus for job, gpus in there.items() if job.loose) + sum(fleet.extras_on[node].values())
            if loose != fleet.loose[node]:
                self._fail(f"I2: {loose} GPUs of {fleet.nodes[node].name} are loose, and {fleet.loose[node]} are counted")
        runs = [0] * len(cluster.tree.accounts)
        for job in cluster.running:
            for account in job.line:
                runs[account] += job.gpus_now
        for account, counted in enumerate(cluster.gpus):
            if runs[account] != counted:
                self._fail(f"I2: {cluster.tree.name(account)} runs {runs[account]} GPUs, and {counted} are counted")
        for job in cluster.running:
            if sum(gpus for _, gpus in job.placement) != job.gpus:
                self._fail(f"I1: {job} runs on {job.placement}")
        for job in cluster.jobs.values():
            if job.banned_until > cluster.now + cluster.policy.back_off_max_s:
                self._fail(f"I15: {job} pauses for {job.banned_until - cluster.now:.0f} s, and {cluster.policy.back_off_max_s:.0f} s is the most")
        if not cluster.wounded:  # Between a failure and the cycle after it, jobs stand on what they have lost.
            self._on_failed()

    def _start(self, id: str, placement: tuple[tuple[int, int], ...], gpus: int, now: float) -> None:
        cluster = self.cluster
        if id in self._on:
            self._fail(f"I2: {id} was started twice")
        if sum(count for _, count in placement) != gpus or gpus < cluster.jobs[id].request.gpus:
            self._fail(f"I1: {id} was started with {placement}, and asked for {cluster.jobs[id].request.gpus} GPUs")
        if cluster.jobs[id].missing:
            self._fail(f"I16: {id} was started, and {', '.join(cluster.jobs[id].missing)} has not ended, which it needs")
        for node, count in placement:
            self._free[node] -= count
            if self._free[node] < 0:
                self._fail(f"I2: {cluster.fleet.nodes[node].name} has {self._free[node]} GPUs free after {id} was started")
            self._healthy(id, gpus, node)
            holder = cluster.fleet.holder[node]
            if holder is not None and self._held.get(node) == holder.request.id != id and cluster.jobs[id].firm and not cluster.jobs[id].priority.crosses:
                self._fail(f"I4: {id} is firm on {cluster.fleet.nodes[node].name}, which was and is held for {holder.request.id}")
        self._on[id] = placement
        self._started[id] = now
        self._kept.pop(id, None)
        self._ceiling(id)

    def _mended(self, mended: Mend) -> None:
        """A gang that lost nodes goes on elsewhere, whole; or waits, and what it had left is kept for it."""
        id, cluster = mended.job, self.cluster
        before = {node for key in (id, f"extras of {id}") for node, _ in self._on.get(key, ())}
        self._give(id)
        if not mended.placement:
            if id in cluster.jobs and cluster.jobs[id] in cluster.reservations:
                self._kept[id] = None
            return
        job = cluster.jobs[id]
        if sum(count for _, count in mended.placement) != job.gpus:
            self._fail(f"I1: {id} goes on with {mended.placement}, and needs {job.gpus} GPUs")
        for node, count in (*mended.placement, *mended.extras):
            self._free[node] -= count
            if self._free[node] < 0:
                self._fail(f"I2: {cluster.fleet.nodes[node].name} has {self._free[node]} GPUs free after {id} was mended")
            if cluster.fleet.health[node] is Health.OUT or node not in before:
                self._healthy(id, mended.gpus, node)
        self._on[id] = mended.placement
        if mended.extras:
            self._on[f"extras of {id}"] = mended.extras

    def _healthy(self, id: str, gpus: int, node: int) -> None:
        """I13: whoever comes to a node, it is good; or in doubt, and he is small and can be evicted."""
        cluster, name = self.cluster, self.cluster.fleet.nodes[node].name
        health = cluster.fleet.health[node]
        if health in (Health.OUT, Health.DRAINING):
            self._fail(f"I13: {id} was started on {name}, which is {health.value}")
        if health is Health.SUSPECT and (gpus > cluster.policy.small_gpus or not cluster.jobs[id].request.preemptible):
            self._fail(f"I13: {id} of {gpus} GPUs was started on {name}, which is in doubt")

    def _on_failed(self) -> None:
        """I13: nobody stands on a node that is out."""
        health, nodes = self.cluster.fleet.health, self.cluster.fleet.nodes
        for id, placement in self._on.items():
            for node, _ in placement:
                if health[node] is Health.OUT:
                    self._fail(f"I13: {id} stands on {nodes[node].name}, which is out")

    def _places_kept(self, decisions: Decisions) -> None:
        """I14: a gang that lost nodes, and for which others are held, has its reservation until it starts, or may not start for a limit or a ceiling."""
        if self._kept:
            cluster = self.cluster
            for id in self._kept.keys() - {one.job for one in decisions.reservations}:
                del self._kept[id]
                if cluster.permits(cluster.jobs[id]) and not cluster.above_ceiling(cluster.jobs[id]):
                    self._fail(f"I14: {id} lost nodes, waits, and its reservation was given away")

    def _loops(self, id: str) -> None:
        """I15: nobody is evicted for a job in a crash loop, unless it has waited as long as anybody, or what it gets is its group's guarantee."""
        job = self.cluster.jobs.get(id)
        rights = (Lane.ADMIN, Lane.DUE, *((Lane.REST,) if self.cluster.tree.quota_accounts else ()))
        if job is not None and job.failures >= self.cluster.policy.crash_loop and job.lane not in rights:
            self._fail(f"I15: somebody was evicted for {id}, which has failed {job.failures} times in a row")

    def _resized(self, id: str, extras: tuple[tuple[int, int], ...]) -> None:
        self._give(f"extras of {id}")
        for node, count in extras:
            self._free[node] -= count
        if extras:
            self._on[f"extras of {id}"] = extras
        if id in self.cluster.jobs:
            self._ceiling(id)

    def _give(self, id: str) -> None:
        for key in (id, f"extras of {id}"):
            for node, count in self._on.pop(key, ()):
                self._free[node] += count

    def _idle(self) -> None:
        """I11: who fits on what is free and open does not wait, unless a limit is in its way."""
        cluster, fleet = self.cluster, self.cluster.fleet
        if cluster.tree.limited or fleet.free_gpus == 0:
            return
        smallest = min((size for lane in cluster.waiting.lanes for size in cluster.waiting.wanted(lane)), default=0)
        if smallest and fleet.fits(smallest):
            self._fail(f"I11: a job of {smallest} GPUs waits while an open node has room for it")

    def _limits(self) -> None:
        cluster = self.cluster
        if cluster.tree.limited:
            for account, limit in enumerate(cluster.tree.limits):
                if limit is not None and cluster.gpus[account] > limit:
                    self._fail(f"I2: {cluster.tree.name(account)} runs {cluster.gpus[account]} GPUs and is limited to {limit}")

    def _ceiling(self, id: str) -> None:
        """I9, whenever somebody gets more: a cluster that shrinks below what runs is nobody's fault."""
        cluster, job = self.cluster, self.cluster.jobs[id]
        kind, capacity = job.priority, cluster.fleet.capacity_gpus
        for account, part in ((job.account, kind.user_ceiling), (job.line[1], kind.group_ceiling)):
            if part < 1.0:
                runs = sum(one.gpus_now for one in cluster.running if one.priority is kind and account in one.line)
                if runs > part * capacity + 1e-9:
                    self._fail(f"I9: {cluster.tree.name(account)} runs {runs} GPUs in class {kind.name}, above {part * capacity:.0f}, and {id} got more")

    def _guaranteed(self) -> dict[int, list[int]]:
        """By account with a guarantee: GPUs that run, and how many of them go for others."""
        cluster = self.cluster
        return {account: [sum(self._size(id) for id in self._on_by(account)), 0] for account in cluster.tree.quota_accounts}

    def _on_by(self, account: int) -> list[str]:
        jobs = self.cluster.jobs
        return [id for id in self._on if id in jobs and account in jobs[id].line]

    def _size(self, id: str) -> int:
        return sum(count for key in (id, f"extras of {id}") for _, count in self._on.get(key, ()))

    def _lowered(self, runs: dict[int, list[int]], id: str, for_job: str) -> None:
        jobs = self.cluster.jobs
        for account, counts in runs.items():
            if account in jobs[id].line and account not in jobs[for_job].line:
                counts[1] += self._size(id)

    def _below_guarantee(self, runs: dict[int, list[int]], decisions: Decisions) -> None:
        """I9: nobody falls below his guarantee for another's work, who is no administrator."""
        tree, jobs = self.cluster.tree, self.cluster.jobs
        for account, (before, gone) in runs.items():
            after = before - gone + sum(start.gpus for start in decisions.starts if account in jobs[start.job].line)
            if gone and after < tree.quotas[account]:
                self._fail(f"I9: {tree.name(account)} fell to {after} GPUs for others, and {tree.quotas[account]} are guaranteed")

    def _fail(self, said: str) -> None:
        if len(self.failures) < 1000:
            self.failures.append(said)


@dataclass(slots=True)
class ShareWatch:
    """I5: how far each sibling was from its part (weight, quota, limit), in parts of the cluster, over half-lives in which all had somebody waiting."""

    cluster: Cluster
    parents: tuple[int, ...]
    worst: float = 0.0
    windows: int = 0
    _used: dict[int, float] = field(default_factory=dict)  # GPU-seconds by account, while all its siblings have had somebody waiting,
    _marks: dict[int, deque[tuple[float, dict[int, float]]]] = field(default_factory=dict)  # and what they were when, by parent.
    _gpus: dict[int, dict[int, int]] = field(default_factory=dict)  # What children of such parents have run since the last look.
    _at: float = 0.0

    def look(self, now: float) -> None:
        """After everything that happened at `now`."""
        cluster, passed = self.cluster, now - self._at
        for gpus in self._gpus.values():
            for child, count in gpus.items():
                self._used[child] = self._used.get(child, 0.0) + count * passed
        self._gpus, self._at = {}, now
        for parent in self.parents:
            children = cluster.tree.children[parent]
            if len(children) > 1 and all(cluster.waits(child) for child in children):
                self._judge(parent, children, now)
                self._gpus[parent] = {child: cluster.gpus[child] for child in children}
            else:
                self._marks.pop(parent, None)

    def _judge(self, parent: int, children: list[int], now: float) -> None:
        marks = self._marks.setdefault(parent, deque())
        half_life_s = self.cluster.policy.half_life_s
        if not marks or now - marks[-1][0] >= half_life_s / 7:
            marks.append((now, {child: self._used.get(child, 0.0) for child in children}))
        if now - marks[0][0] < half_life_s or not self.cluster.fleet.capacity_gpus:  # Of a cluster without any node nobody has a part.
            return
        began, before = marks.popleft()
        used = {child: self._used.get(child, 0.0) - before.get(child, 0.0) for child in children}
        tree, length_s = self.cluster.tree, now - began
        most = [math.inf if (limit := tree.limits[child]) is None else limit * length_s for child in children]
        due = poured(sum(used.values()), [tree.weights[child] for child in children], most, [tree.quotas[child] * length_s for child in children])
        there = self.cluster.fleet.capacity_gpus * length_s
        self.worst = max(self.worst, max(abs(used[child] - part) / there for child, part in zip(children, due, strict=True)))
        self.windows += 1
