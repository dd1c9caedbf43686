"""All that the scheduler knows: nodes, accounts, who waits, who runs. What happened is told by its methods; `cycle.decide` alone starts and evicts.

    submit ─► waiting (trial, due, rest) ─► running (firm, or loose after a while) ─► end
                 ▲                              │
                 └──────── evicted, failed ─────┘

No clock: `now` comes with every call, and one that is earlier than the last counts as the last. `next_at()` says when time alone will change something.
"""

from __future__ import annotations

import copy
import heapq
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from holdfast.errors import UserError
from holdfast.schedule.estimate import Estimates
from holdfast.schedule.gang import Gang
from holdfast.schedule.health import Care
from holdfast.schedule.job import Job, JobRequest, Lane, Placement
from holdfast.schedule.order import Waiting
from holdfast.schedule.place import Fleet, Health, NodeRoom
from holdfast.schedule.policy import DAY_S, Policy, PriorityClass
from holdfast.schedule.tree import Account, Tree
from holdfast.schedule.usage import Usage

_AGAIN_S = 300.0  # Until somebody who is about to save is looked at again.
_WAITED, _LOOSE, _TRIED, _BACK, _APART = range(5)  # What a timer is for.


class JobRefused(UserError):
    """A job that could never run here."""


@dataclass(slots=True)
class Reservation:
    """Nodes that are kept for a job that is due and does not fit."""

    job: Job
    nodes: tuple[int, ...]
    at: float  # When it is expected to start.
    made_at: float


class Cluster:
    """One owner, one thread."""

    def __init__(self, nodes: Sequence[NodeRoom], accounts: Iterable[Account] = (), policy: Policy | None = None, *, gangs_report: bool = False) -> None:
        self.policy = policy or Policy()
        self.fleet = Fleet(nodes)
        self.tree = Tree(accounts, capacity_gpus=self.fleet.capacity_gpus)
        self.usage = Usage(half_life_s=self.policy.half_life_s, entry_s=self.policy.entry_s)
        self.estimates = Estimates(self.policy.estimate_quantile)
        self.waiting = Waiting(self.tree, by_age=self._by_age, age=self._age, charged=self._charged, room=self._room)
        self.jobs: dict[str, Job] = {}  # That wait or run.
        self.running: dict[Job, None] = {}
        self.elastic: dict[Job, None] = {}  # That run and may grow.
        self.reservations: dict[Job, Reservation] = {}
        self.care = Care(len(self.fleet.nodes), self.policy)
        self.wounded: dict[Job, set[int]] = {}  # Running jobs that have lost what they had on these nodes; the next cycle mends them.
        self.gpus: list[int] = []  # Running, by account.
        self.trial_gpus = 0
        self.now = -math.inf
        self._gangs_report = gangs_report  # Whether members say when they are ready; without it a gang is released at once.
        self.gangs: dict[Job, Gang] = {}  # Placed and not yet released.
        self._present: list[int] = []  # Jobs by account,
        self._overdue: list[int] = []  # and those that have waited their patience out.
        self._kids: list[list[int]] = []  # By account: children with jobs, and with overdue jobs.
        self._class_gpus: dict[tuple[str, int], int] = {}
        self._again_at = math.inf
        self._timers: list[tuple[float, int, int, int, Job]] = []
        self._numbers = 0
        self._users: set[int] = set()  # Accounts that have had jobs.
        self._grow()

    # What happened.

    def submit(self, request: JobRequest, now: float) -> Job:
        """A job is asked for. It waits from now on; refused when it could never start."""
        now = self.at(now)
        self._check(request)
        account = self.tree.number(request.account)
        self._grow()
        self._users.add(account)
        self._numbers += 1
        job = Job(request, number=self._numbers, account=account, line=self.tree.lines[account], priority=self.policy.classes[request.priority], now=now)
        self.jobs[request.id] = job
        self.estimates.arrivals.append((now, request))
        self._count(self._present, 0, job, 1)
        self._queue(job, now)
        return job

    def used(self, account: Sequence[str], gpu_s: float, now: float) -> None:
        """So much was used before this cluster was told of anything."""
        self.usage.add(self.tree.lines[self.tree.number(account)], gpu_s, now)

    def end(self, id: str, now: float) -> None:
        """A job finished, or was withdrawn."""
        now, job = self.at(now), self.jobs.pop(id)
        if job.running:
            if job not in self.gangs:
                self.estimates.learn(job, job.attained_s + now - job.since)
            self._stop(job, now)
        else:
            self._leave_queue(job)
        job.ticket += 1
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
        self._timer(job.banned_until, _BACK, job)

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
            self.fleet.judge(node, health)
            return ()
        self.fleet.judge(node, health)
        self.care.left(node, now)
        return self._wound(node, (*self.fleet.on[node], *self.fleet.extras_on[node]))

    # Time.

    def at(self, now: float) -> float:
        self.now = max(self.now, now)
        return self.now

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
        while self._timer_at() <= now:
            _, kind, _, _, job = heapq.heappop(self._timers)
            if kind == _WAITED:
                self._become_overdue(job)
            elif kind == _TRIED:
                self._trial_over(job)
                self._loosen(job, now)
            elif kind == _LOOSE:
                self._loosen(job, now)
            elif kind == _BACK:
                self._queue(job, now)
            elif job in self.gangs:
                self.fail(job.request.id, now)

    # Moves, of the cycle.

    def start(self, job: Job, placement: Placement, now: float, *, firm: bool) -> None:
        """A waiting job gets this place, whole."""
        policy, on_trial = self.policy, job.lane is Lane.TRIAL
        held = any(self.fleet.holder[node] not in (None, job) for node, _ in placement)
        self._leave_queue(job)
        job.waited_s += now - job.since
        job.ticket += 1
        job.since = job.resized_at = now
        job.placement, job.loose = placement, False
        job.firm = firm
        job.stands_at = max(job.stands_at, job.submitted_at)
        job.saved_at = now + (policy.restart_s if job.attained_s else 0.0)
        job.seen_estimate_s = 0.0
        self.fleet.take(job, placement)
        for account in job.line:
            self.gpus[account] += job.gpus
            key = (job.priority.name, account)
            self._class_gpus[key] = self._class_gpus.get(key, 0) + job.gpus
        if not job.firm and job.request.preemptible:
            job.loose_at = now + (max(self._trial_s(job) - job.attained_s, policy.minimum_run_s) if on_trial and not held else policy.minimum_run_s)
            self._timer(job.loose_at, _TRIED if on_trial and not held else _LOOSE, job)
        if on_trial and not job.firm and not held and job.request.preemptible:
            self.trial_gpus += job.gpus
            job.on_trial = True
        self.running[job] = None
        if job.request.gpus_max > job.gpus:
            self.elastic[job] = None
        if self._gangs_report:
            self.gangs[job] = Gang(job.gpus)
            self._timer(now + policy.release_s, _APART, job)
        else:
            self._release(job, now)

    def evict(self, job: Job, now: float) -> None:
        """A running job gives its place up and waits again, with what it had saved."""
        lost_s = job.unsaved_s(now)
        if not job.firm:
            job.stands_at += max(0.0, now - job.since - lost_s)  # What it has run is no wait: who could not be fitted in meanwhile goes before it.
        self._stop(job, now)
        job.waited_s += lost_s
        job.evicted_at = [at for at in job.evicted_at if now < at + DAY_S] + [now]
        self._queue(job, now)

    def requeue(self, job: Job, now: float) -> None:
        """A running job lost nodes and nothing takes their place: it waits again, first of its account, and if its turn had come it still has it."""
        lost_s, firm = job.unsaved_s(now), job.firm
        self._stop(job, now)
        job.waited_s += lost_s
        job.stands_at = -math.inf
        self._queue(job, now, turn=firm)

    def replace(self, job: Job, placement: Placement, extras: Placement, now: float) -> None:
        """A running job goes on elsewhere from its last checkpoint, with the rights that it had."""
        del self.wounded[job]
        job.waited_s += job.unsaved_s(now)
        self.resize(job, (), now)
        self.fleet.give(job, job.placement)
        job.placement = placement
        self.fleet.take(job, placement)
        if job.loose:
            self.fleet.loosen(job)
        self.resize(job, extras, now)
        job.saved_at = now + self.policy.restart_s
        job.ticket += 1
        if not job.loose and job.loose_at < math.inf:
            self._timer(job.loose_at, _TRIED if job.on_trial else _LOOSE, job)
        if self._gangs_report:
            self._gather(job, now)

    def resize(self, job: Job, extras: Placement, now: float) -> None:
        """An elastic job gets other GPUs beyond its minimum."""
        before = job.gpus_now
        if job.extras:
            self.fleet.give(job, job.extras, extra=True)
        job.extras, job.resized_at = extras, now
        if extras:
            self.fleet.take(job, extras, extra=True)
        change = job.gpus_now - before
        for account in job.line:
            self.gpus[account] += change
        self.usage.change(job.line, change * job.priority.factor, now)

    def reserve(self, job: Job, nodes: tuple[int, ...], at: float, now: float) -> None:
        """Keep these nodes for a job that waits, in the place of those it had. It stands in no queue while it has them: the cycle looks at it first."""
        before = self.reservations.get(job)
        if before is None:
            self.waiting.remove(job)
            self._timer_waited(job)
            self.reservations[job] = Reservation(job, nodes, at, now)
        else:
            self.fleet.let_go(before.nodes)
            before.nodes, before.at, before.made_at = nodes, at, now
        self.fleet.hold(nodes, job)

    def drop_reservation(self, job: Job) -> None:
        """The nodes are open again, and the job stands in its queue."""
        kept = self.reservations.pop(job, None)
        if kept is not None:
            self.fleet.let_go(kept.nodes)
            self.step_back(job)

    def step_back(self, job: Job) -> None:
        """A waiting job that was set aside stands in its place again."""
        self.waiting.add(job)
        self._timer_waited(job)

    def demote(self, job: Job, to: PriorityClass, because: str) -> None:
        self.waiting.remove(job)
        job.priority, job.reason = to, because
        self.step_back(job)

    # Questions.

    def trials_most(self) -> float:
        """GPUs that trials may have while somebody is due: less, the longer the longest of them has waited. In a wait of w patiences, trials
        delay a job by no more than their share of (1 + log w) patiences, however many come."""
        policy, oldest = self.policy, (*self.waiting.oldest(Lane.DUE), *self.reservations)
        longest_s = max((self.now - max(job.stands_at, job.submitted_at) for job in oldest), default=0.0)
        return max(policy.trial_share_least, policy.trial_share * min(1.0, policy.patience_s / max(longest_s, 1.0))) * self.fleet.capacity_gpus

    def waits(self, account: int) -> bool:
        """Whether somebody below this account waits."""
        return any(self.waiting.sizes(lane, account) for lane in Lane) or any(account in job.line for job in self.reservations)

    def permits(self, job: Job) -> bool:
        """Whether no limit is in its way."""
        return all(room is None or job.gpus <= room for room in map(self._room, job.line))

    def above_ceiling(self, job: Job) -> str:
        """Why this job may not start in its class, or ''."""
        kind, capacity = job.priority, self.fleet.capacity_gpus
        for account, part, whose in ((job.account, kind.user_ceiling, "user"), (job.line[1], kind.group_ceiling, "group")):
            runs = self._class_gpus.get((kind.name, account), 0)
            if part < 1.0 and runs + job.gpus > part * capacity:
                who = f"{whose} {self.tree.name(account)}"
                return f"{who} runs {runs} GPUs in class {kind.name}, and {job.gpus} more would pass its ceiling of {part * capacity:.0f}"
        return ""

    def class_gpus(self, name: str, account: int) -> int:
        return self._class_gpus.get((name, account), 0)

    def below_quota_now(self, job: Job) -> bool:
        """Whether a running job stands on GPUs that its account is guaranteed."""
        return any(0 < self.gpus[account] <= self.tree.quotas[account] for account in job.line)

    def spares(self, victim: Job, job: Job) -> bool:
        """Whether a guarantee keeps `victim` in its place."""
        return any(self.tree.quotas[account] > self.gpus[account] - victim.gpus for account in victim.line if account not in job.line)

    def eviction_cost(self, job: Job) -> float:
        policy = self.policy
        return (job.unsaved_s(self.now) + policy.restart_s + policy.evicted_before_s * len(job.evicted_at)) * job.gpus

    def has_saved(self, job: Job) -> bool:
        """Whether little would be lost if it went now. One that never saves is never worth waiting for."""
        every_s = job.request.checkpoint_every_s
        return every_s is None or job.unsaved_s(self.now) <= self.policy.saved_share * every_s

    def has_run_enough(self, job: Job) -> bool:
        return self.now >= job.since + self.policy.minimum_run_s and self._evictions_left(job) > 0

    def supposed(self) -> Cluster:
        """A copy to think ahead with, in which gangs meet as soon as they are placed."""
        ahead = copy.deepcopy(self)
        ahead._gangs_report = False
        for job in list(ahead.gangs):
            del ahead.gangs[job]
            ahead._release(job, ahead.now)
        return ahead

    # Inside.

    def _timer_at(self) -> float:
        while self._timers and self._timers[0][3] != self._timers[0][4].ticket:
            heapq.heappop(self._timers)
        return self._timers[0][0] if self._timers else math.inf

    def _wound(self, node: int, jobs: Iterable[Job]) -> tuple[str, ...]:
        hit = dict.fromkeys(jobs)
        for job in hit:
            self.wounded.setdefault(job, set()).add(node)
        return tuple(job.request.id for job in hit)

    def _gather(self, job: Job, now: float) -> None:
        """A released gang has to find itself again, and is not charged until it has."""
        if job not in self.gangs:
            self.usage.change(job.line, -job.gpus * job.priority.factor, now)
            job.attained_s, job.since = job.attained_s + now - job.since, now
        self.gangs[job] = Gang(job.gpus)
        self._timer(now + self.policy.release_s, _APART, job)

    def _release(self, job: Job, now: float) -> None:
        self.usage.change(job.line, job.gpus * job.priority.factor, now)

    def _stop(self, job: Job, now: float) -> None:
        if job.extras:
            self.resize(job, (), now)
        if job in self.gangs:
            del self.gangs[job]  # Never released: nothing was charged.
        else:
            self.usage.change(job.line, -job.gpus * job.priority.factor, now)
            job.attained_s += now - job.since
            if job.failures and now - job.since >= self.policy.crash_s:
                job.failures = 0
        self.wounded.pop(job, None)
        self._trial_over(job)
        self.fleet.give(job, job.placement)
        for account in job.line:
            self.gpus[account] -= job.gpus
            self._class_gpus[job.priority.name, account] -= job.gpus
        job.placement, job.loose, job.firm, job.loose_at = (), False, False, math.inf
        job.ticket += 1
        del self.running[job]
        self.elastic.pop(job, None)

    def _trial_over(self, job: Job) -> None:
        if job.on_trial:
            job.on_trial = False
            self.trial_gpus -= job.gpus

    def _loosen(self, job: Job, now: float) -> None:
        if self._evictions_left(job) > 0:
            self.fleet.loosen(job)
        elif self.policy.evictions_a_day:
            job.loose_at = job.evicted_at[-self.policy.evictions_a_day] + DAY_S
            self._timer(job.loose_at, _LOOSE, job)

    def _evictions_left(self, job: Job) -> int:
        return self.policy.evictions_a_day - sum(self.now < at + DAY_S for at in job.evicted_at)

    def _queue(self, job: Job, now: float, *, turn: bool = False) -> None:
        policy = self.policy
        job.since, job.overdue = now, job.waited_s >= policy.patience_s
        if job.priority.crosses:
            job.lane = Lane.ADMIN
        elif job.overdue or turn:
            job.lane = Lane.DUE
        elif job.failures >= policy.crash_loop:
            job.lane = Lane.REST
        elif job.gpus <= self.fleet.gpus_max and job.attained_s < self._trial_s(job):
            job.lane = Lane.TRIAL
        else:
            job.lane = Lane.WHOLE if job.gpus >= self.fleet.gpus_max else Lane.REST
        self.waiting.add(job)
        if job.overdue:
            self._count(self._overdue, 1, job, 1)
        self._timer_waited(job)

    def _timer_waited(self, job: Job) -> None:
        if not job.overdue and job.lane is not Lane.ADMIN:
            self._timer(job.since + self.policy.patience_s - job.waited_s, _WAITED, job)

    def _become_overdue(self, job: Job) -> None:
        job.overdue = True
        if job not in self.reservations:
            self.waiting.remove(job)
            job.lane = Lane.DUE
            self.waiting.add(job)
        self._count(self._overdue, 1, job, 1)

    def _leave_queue(self, job: Job) -> None:
        if job.banned_until > self.now and not job.placement:
            return  # It is in no queue.
        self.drop_reservation(job)
        self.waiting.remove(job)
        if job.overdue:
            self._count(self._overdue, 1, job, -1)
            job.overdue = False

    def _count(self, counts: list[int], which: int, job: Job, change: int) -> None:
        """Keep how many jobs, and how many children with any, each account has."""
        for account in reversed(job.line):
            before = counts[account]
            counts[account] += change
            parent = self.tree.parents[account]
            if parent >= 0 and (before == 0) != (counts[account] == 0):
                self._kids[parent][which] += 1 if before == 0 else -1

    def _by_age(self, account: int) -> bool:
        present, overdue = self._kids[account]
        return overdue < present or present == 1

    def _trial_s(self, job: Job) -> float:
        """The same cost whatever its size, and for a whole node no less than its minimum run."""
        tried_s = self.policy.trial_s / job.gpus
        return tried_s if job.gpus < self.fleet.gpus_max else max(tried_s, self.policy.minimum_run_s)

    def _age(self, job: Job) -> float:
        age_s = self.now - job.stands_at
        return age_s + min((self.policy.whole_ahead - 1.0) * age_s, self.policy.patience_s) if job.gpus >= self.fleet.gpus_max else age_s

    def _charged(self, account: int) -> float:
        return self.usage.charged(account, self.now) / self.tree.weights[account]

    def _room(self, account: int) -> int | None:
        limit = self.tree.limits[account]
        return None if limit is None else limit - self.gpus[account]

    def _timer(self, at: float, kind: int, job: Job) -> None:
        heapq.heappush(self._timers, (at, kind, job.number, job.ticket, job))

    def _grow(self) -> None:
        accounts = len(self.tree.accounts)
        for counts in (self.gpus, self._present, self._overdue):
            counts += [0] * (accounts - len(counts))
        self._kids += [[0, 0] for _ in range(accounts - len(self._kids))]
        self.usage.grow(accounts)

    def _check(self, request: JobRequest) -> None:
        if request.id in self.jobs:
            raise JobRefused(f"job {request.id} is here already; choose another name")
        if request.gpus < 1 or (request.gpus_max and request.gpus_max < request.gpus):
            raise JobRefused(f"job {request.id} asks for {request.gpus} to {request.gpus_max or request.gpus} GPUs; expected 1 or more, and no less at most")
        if request.priority not in self.policy.classes:
            raise JobRefused(f"job {request.id} has priority {request.priority!r}; expected one of {', '.join(self.policy.classes)}")
        whole = sum(self.fleet.total)
        if request.gpus > whole:
            raise JobRefused(f"job {request.id} asks for {request.gpus} GPUs and the cluster has {whole}; ask for fewer")
        for depth in range(1, len(request.account) + 1):
            account = self.tree.number(request.account[:depth])
            name, limit = self.tree.name(account), self.tree.limits[account]
            if limit is not None and request.gpus > limit:
                raise JobRefused(f"job {request.id} asks for {request.gpus} GPUs and {name} is limited to {limit}; ask for fewer, or raise the limit")
            if depth < len(request.account) and account in self._users:
                raise JobRefused(f"job {request.id} belongs below {name}, which has jobs of its own; let those belong to a user below it too")
        if self.tree.children[self.tree.number(request.account)]:
            raise JobRefused(f"job {request.id} belongs to {'/'.join(request.account)}, which is a group; name a user in it")
