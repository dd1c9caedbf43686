"""The cluster, as the scheduler has it: nodes, accounts, who waits, who runs. What happened is told by its methods; `cycle.decide` alone starts and evicts.

    submit ─► waiting (trial, due, rest) ─► running (firm, or loose after a while) ─► end
                 ▲                              │
                 └──────── evicted, failed ─────┘

No clock: `now` comes with every call, and one that is earlier than the last counts as the last. `next_at()` says when time alone will change something.

It is three files, one class each, and `Cluster` is all of them. Here: what it is told, and what time does. `acting.py`: what the cycle does with a job.
`known.py`: what is known, and questions.
"""

from __future__ import annotations

import copy
import heapq
import math
from collections.abc import Iterable, Sequence
from typing import NoReturn

from holdfast.schedule.acting import Acting
from holdfast.schedule.job import Job, JobRefused, JobRequest, Lane
from holdfast.schedule.known import BACK, DONE_KEPT, LOOSE, TRIED, WAITED, Aside
from holdfast.schedule.needs import check_circle, check_needs
from holdfast.schedule.place import Health
from holdfast.schedule.policy import DAY_S

_AGAIN_S = 300.0  # Until somebody who is about to save is looked at again.


class Cluster(Acting):
    """One owner, one thread."""

    # What happened.

    def submit(self, request: JobRequest, now: float) -> Job:
        """A job is asked for. It waits from now on, or from when what it needs is done; refused when it could never start."""
        now = self.at(now)
        self._check(request)
        account = self.tree.number(request.account)
        self._grow()
        self._users.add(account)
        self._numbers += 1
        kind, line = self.policy.classes[request.priority], self.tree.lines[account]
        job = Job(request, number=self._numbers, account=account, line=line, priority=kind, use=self.usage.meter(), now=now)
        self.jobs[request.id] = job
        self._wanted[account] = self._wanted.get(account, 0.0) + job.gpus_most
        self.estimates.arrivals.append((now, request))
        self.done.pop(request.id, None)
        for need in [need for need in job.missing if need in self.done]:
            del job.missing[need]
        for need in job.missing:
            self._needed_by.setdefault(need, {})[job] = None
        if not job.missing:
            self._consider(job, now)
        return job

    def appoint(self, account: Sequence[str]) -> None:
        """Whoever is in this account may submit work that goes before other groups."""
        self.tree.administrators[self.tree.number(account)] = None
        self._grow()

    def used(self, account: Sequence[str], gpu_s: float, now: float) -> None:
        """So much was used before this cluster was told of anything."""
        number = self.tree.number(account)
        self._grow()
        self.usage.add(self.tree.lines[number], gpu_s, now)

    def end(self, id: str, now: float) -> None:
        """A job ended well."""
        now, job = self.at(now), self.jobs[id]
        if job.running and job not in self.gangs:
            self.estimates.learn(job, job.attained_s + now - job.since)
        self.withdraw(id, now)
        self._done(id, now)

    def made(self, id: str, now: float) -> None:
        """A job goes on, and has made what others need it for."""
        self._done(self.jobs[id].request.id, self.at(now))

    def withdraw(self, id: str, now: float) -> None:
        """A job is not wanted any more. Who needs it waits until one of that name ends well."""
        now, job = self.at(now), self.jobs.pop(id)
        if job.running:
            self._stop(job, now)
        elif not job.missing:
            self._leave_queue(job)
        for need in job.missing:
            del self._needed_by[need][job]
        job.ticket += 1
        self._wanted[job.account] -= job.gpus_most
        if not job.missing:
            self._count(self._present, 0, job, -1)

    def fail(self, id: str, now: float) -> None:
        """A start came to nothing, or a job failed by itself. It waits again, behind a pause that doubles; in a crash loop it has lost its place as well."""
        now, job, policy = self.at(now), self.jobs[id], self.policy
        assert job.running, f"{job} does not run"
        self._stop(job, now)
        job.failures += 1
        job.since, job.banned_until = now, now + min(policy.back_off_s * 2.0 ** min(job.failures - 1, 16), policy.back_off_max_s)
        if job.failures >= policy.crash_loop:
            job.stands_at, job.waited_s = job.banned_until, 0.0
        job.ticket += 1
        self.aside[job] = Aside.PAUSE
        self._timer(job.banned_until, BACK, job)

    def fail_by_node(self, id: str, node: int, now: float) -> None:
        """A job failed and a node it stands on is to blame, which may stay in service. The next cycle finds another place for it."""
        now, job = self.at(now), self.jobs[id]
        assert any(node == number for number, _ in (*job.placement, *job.extras)), f"{job} does not stand on {self.fleet.nodes[node].name}"
        self.wounded.setdefault(job, set()).add(node)
        if self.fleet.health[node] is Health.OUT:
            return  # It has been charged for that.
        self.care.failed(node, now)
        if self.care.sick(node, now):
            self.drain(node, now)
        else:
            self.judge(node, self.care.verdict(node, now)[0], now)

    def node_failed(self, node: int, now: float) -> tuple[str, ...]:
        """A node is out of service, through its own fault. Who stood there is named, and mended by the next cycle."""
        if self.fleet.health[node] is not Health.OUT:
            self.care.failed(node, self.at(now))
        return self.judge(node, Health.OUT, now)

    def node_back(self, node: int, now: float) -> None:
        """A node was repaired. It is on probation first."""
        now = self.at(now)
        self.care.back(node, now)
        self.care.doubt(node, now)
        self.judge(node, self.care.verdict(node, now)[0], now)

    def drain(self, node: int, now: float) -> None:
        """A node is sick: nothing new starts there. Who can be evicted leaves in a while, who cannot at its end; then it is out, and said to be drained."""
        now = self.at(now)
        if self.fleet.health[node] is not Health.OUT:
            self.judge(node, Health.DRAINING, now)
            self.care.drain(node, now)

    def ready(self, id: str, rank: int, reaches: Iterable[int], now: float) -> bool:
        """A member of a gang is there and reaches these ranks. True when the gang is released: it runs, and is charged, from now on."""
        now, job = self.at(now), self.jobs[id]
        gang = self.gangs.get(job)
        if gang is None or not gang.ready(rank, reaches):
            return gang is None
        del self.gangs[job]
        self._release(job, now)
        return True

    def saved(self, id: str, at: float) -> None:
        """A checkpoint was committed."""
        self.jobs[id].saved_at = at

    def judge(self, node: int, health: Health, now: float) -> tuple[str, ...]:
        """A node is thought of differently. Jobs on one that is out have lost it, and are named."""
        now = self.at(now)
        if health is self.fleet.health[node]:
            return ()
        for kept in self.reservations.values():
            if node in kept.nodes:  # The others stay held, and the next cycle looks for what is missing.
                self.fleet.let_go((node,))
                kept.nodes, kept.made_at = tuple(other for other in kept.nodes if other != node), -math.inf
        if health is not Health.OUT:
            self.care.back(node, now)
            self._judged(node, health)
            return ()
        self._judged(node, health)
        self.care.left(node, now)
        return self._wound(node, (*self.fleet.on[node], *self.fleet.extras_on[node]))

    # Time.

    def next_at(self) -> float:
        """When something changes by itself; infinity when nothing will."""
        return min(self._timer_at(), self.care.next_at(), self._again_at)

    def look_again(self, now: float) -> None:
        """Somebody could start if others had just saved: some will have soon."""
        self._again_at = now + _AGAIN_S

    def tick(self, now: float) -> None:
        """Time has passed: who is due, who has been tried, who may be evicted, who comes back, which nodes are trusted again."""
        now = self.at(now)
        if now >= self._again_at:
            self._again_at = math.inf
        for node in self.care.due(now):
            if now >= self.care.draining.get(node, math.inf):
                self._wound(node, [job for job in (*self.fleet.on[node], *self.fleet.extras_on[node]) if job.request.preemptible])
            self.judge(node, self.care.verdict(node, now)[0], now)
        for job in [job for job, why in self.aside.items() if why is Aside.CEILING and not self.above_ceiling(job)]:
            del self.aside[job]
            self.step_back(job)
        while self._timer_at() <= now:
            _, kind, _, _, job = heapq.heappop(self._timers)
            if kind == WAITED:
                self._become_overdue(job)
            elif kind == TRIED:
                self._trial_over(job)
                self._loosen(job)
            elif kind == LOOSE:
                self._loosen(job)
            elif kind == BACK:
                del self.aside[job]
                self._queue(job, now)
            elif job in self.gangs:
                self.fail(job.request.id, now)

    def supposed(self) -> Cluster:
        """A copy to think ahead with, in which gangs meet as soon as they are placed."""
        ahead = copy.deepcopy(self)
        ahead._gangs_report = False
        for job in list(ahead.gangs):
            del ahead.gangs[job]
            ahead._release(job, ahead.now)
        return ahead

    # Inside.

    def _consider(self, job: Job, now: float) -> None:
        """It stands in line from now on."""
        job.stands_at = now
        self._count(self._present, 0, job, 1)
        self._queue(job, now)

    def _done(self, id: str, now: float) -> None:
        self.done.pop(id, None)
        self.done[id] = None
        if len(self.done) > 2 * DONE_KEPT:
            self.done = dict.fromkeys(list(self.done)[DONE_KEPT:])
        for job in self._needed_by.pop(id, ()):
            del job.missing[id]
            if not job.missing:
                self._consider(job, now)

    def _judged(self, node: int, health: Health) -> None:
        before = self.fleet.capacity_gpus
        self.fleet.judge(node, health)
        if self.fleet.capacity_gpus != before:
            self.tree.guarantee(self.fleet.capacity_gpus)

    def _wound(self, node: int, jobs: Iterable[Job]) -> tuple[str, ...]:
        hit = dict.fromkeys(jobs)
        for job in hit:
            self.wounded.setdefault(job, set()).add(node)
        return tuple(job.request.id for job in hit)

    def _loosen(self, job: Job) -> None:
        if self._evictions_left(job) > 0:
            self.fleet.loosen(job)
        elif self.policy.evictions_a_day:
            job.loose_at = job.evicted_at[-self.policy.evictions_a_day] + DAY_S
            self._timer(job.loose_at, LOOSE, job)

    def _become_overdue(self, job: Job) -> None:
        job.overdue = True
        if job not in self.reservations:
            self.waiting.remove(job)
            job.lane = Lane.DUE
            self.waiting.add(job)
        self._count(self._overdue, 1, job, 1)

    def _check(self, request: JobRequest) -> None:
        if request.id in self.jobs:
            raise JobRefused(f"job {request.id} is here already; choose another name")
        if request.gpus < 1 or (request.gpus_max and request.gpus_max < request.gpus):
            raise JobRefused(f"job {request.id} asks for {request.gpus} to {request.gpus_max or request.gpus} GPUs; expected 1 or more, and no less at most")
        if request.priority not in self.policy.classes:
            raise JobRefused(f"job {request.id} has priority {request.priority!r}; expected one of {', '.join(self.policy.classes)}")
        if request.gpus > self.fleet.total_gpus:
            raise JobRefused(f"job {request.id} asks for {request.gpus} GPUs and the cluster has {self.fleet.total_gpus}; ask for fewer")
        self._check_needs(request)
        kind = self.policy.classes[request.priority]
        most = min(kind.user_ceiling, kind.group_ceiling) * self.fleet.total_gpus + 1e-9
        if request.gpus > most and self.lower_class(kind) is None:
            said = f"class {kind.name} has a ceiling of {most:.0f}, with no lower class to go on in"
            raise JobRefused(f"job {request.id} asks for {request.gpus} GPUs and {said}; ask for fewer, or in another class")
        line = [number for depth in range(1, len(request.account) + 1) if (number := self.tree.known(request.account[:depth])) is not None]
        for account in line:
            name, limit = self.tree.name(account), self.tree.limits[account]
            if limit is not None and request.gpus > limit:
                raise JobRefused(f"job {request.id} asks for {request.gpus} GPUs and {name} is limited to {limit}; ask for fewer, or raise the limit")
            if account in self._users and len(self.tree.lines[account]) <= len(request.account):
                raise JobRefused(f"job {request.id} belongs below {name}, which has jobs of its own; let those belong to a user below it too")
        if len(line) == len(request.account) and self.tree.children[line[-1]]:
            raise JobRefused(f"job {request.id} belongs to {'/'.join(request.account)}, which is a group; name a user in it")
        if kind.crosses and not any(account in self.tree.administrators for account in line):
            self._refuse_ordinary(request)

    def _check_needs(self, request: JobRequest) -> None:
        def find(id: str) -> JobRequest | None:
            return self.jobs[id].request if id in self.jobs else None

        check_needs(request, find, self.done)
        if request.id in request.needs or self._needed_by.get(request.id):  # Only who is needed can close a circle.
            check_circle(request, find)

    def _refuse_ordinary(self, request: JobRequest) -> NoReturn:
        """Work that goes before other groups is for those who were named for it."""
        names = ", ".join(self.tree.name(account) for account in self.tree.administrators)
        others = ", ".join(name for name, one in self.policy.classes.items() if not one.crosses)
        whose = f"{names} may submit it, and {'/'.join(request.account)} is not below" if names else "nobody was named for it (an account that `administers`)"
        said = f"job {request.id} is of class {request.priority}, which goes before all groups: {whose}"
        raise JobRefused(f"{said}; ask for one of {others}, or have it submitted")
