"""What is known of nodes, accounts and jobs, and what can be asked of it. Nothing here starts or stops anything."""

from __future__ import annotations

import enum
import heapq
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from holdfast.schedule.estimate import Estimates
from holdfast.schedule.gang import Gang
from holdfast.schedule.health import Care
from holdfast.schedule.job import Job, Lane, Placement
from holdfast.schedule.order import Waiting
from holdfast.schedule.place import Fleet, NodeRoom
from holdfast.schedule.policy import DAY_S, Policy, PriorityClass
from holdfast.schedule.shares import entitled
from holdfast.schedule.tree import Account, Tree
from holdfast.schedule.usage import Usage

DONE_KEPT = 10_000  # Names of jobs that ended well, at least, for those that need them.
WAITED, LOOSE, TRIED, BACK, APART = range(5)  # What a timer is for.


class Aside(enum.Enum):
    """Why a job that waits, and needs nothing any more, stands in no queue."""

    PAUSE = "it failed, and pauses"
    CEILING = "its class is at its ceiling, and there is none below"


@dataclass(slots=True)
class Reservation:
    """Nodes that are kept for a job that is due and does not fit."""

    job: Job
    nodes: tuple[int, ...]
    at: float  # When it is expected to start.
    made_at: float
    since: float  # It has had some, these or others.


class Known:
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
        self.aside: dict[Job, Aside] = {}  # That are considered, wait, and stand in no queue.
        self.done: dict[str, None] = {}  # Jobs that ended well, or made what they are needed for: the latest.
        self._needed_by: dict[str, dict[Job, None]] = {}  # By what is needed: who waits for it.
        self.care = Care(len(self.fleet.nodes), self.policy)
        self.wounded: dict[Job, set[int]] = {}  # Running jobs that have lost what they had on these nodes; the next cycle mends them.
        self.gpus: list[int] = []  # Running, by account,
        self.extras: list[int] = []  # and how many of them are extras.
        self._wanted: dict[int, float] = {}  # Running and waiting, by user: all that they could use.
        self.trial_gpus = 0
        self.now = -math.inf
        self._gangs_report = gangs_report  # Whether members say when they are ready; without it a gang is released at once.
        self.gangs: dict[Job, Gang] = {}  # Placed and not yet released.
        self._present: list[int] = []  # Jobs by account,
        self._overdue: list[int] = []  # and those that have waited their patience out.
        self._kids: list[list[int]] = []  # By account: children with jobs, and with overdue jobs.
        self._class_gpus: dict[tuple[str, int], int] = {}  # The same by class.
        self._class_extras: dict[tuple[str, int], int] = {}
        self._again_at = math.inf
        self._timers: list[tuple[float, int, int, int, Job]] = []
        self._numbers = 0
        self._users: set[int] = set()  # Accounts that have had jobs.
        self._grow()

    def at(self, now: float) -> float:
        self.now = max(self.now, now)
        return self.now

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
        return job.gpus <= self.room_above(job.account)

    def above_ceiling(self, job: Job) -> str:
        """Why this job may not start in its class, or ''."""
        for whose, account, runs, most in self._ceilings(job):
            runs -= self._class_extras.get((job.priority.name, account), 0)
            if runs + job.gpus > most:
                who = f"{whose} {self.tree.name(account)}"
                return f"{who} runs {runs} GPUs in class {job.priority.name}, and {job.gpus} more would pass its ceiling of {most:.0f}"
        return ""

    def room_above(self, account: int) -> float:
        """GPUs more that the limits of an account and of the groups above it leave for jobs, whose minimum goes before extras."""
        return min((room for one in self.tree.lines[account] if (room := self._room(one)) is not None), default=math.inf)

    def lower_class(self, kind: PriorityClass) -> PriorityClass | None:
        """The next class, in which a job may have more. Administrators' work is never made anybody else's."""
        lower = [one for one in self.policy.classes.values() if one.rank < kind.rank and one.user_ceiling >= kind.user_ceiling and not kind.crosses]
        return max(lower, key=lambda one: one.rank, default=None)

    def headroom(self, job: Job) -> int:
        """Extras more that limits and the ceilings of its class leave a running job."""
        return int(min((most - runs for _, _, runs, _, most in self.bounds(job)), default=self.fleet.total_gpus))

    def bounds(self, job: Job) -> list[tuple[str, int, int, int, float]]:
        """What must not be passed with this job: the class, if it is a ceiling's, the account, what that runs, how much of it are extras, and the most."""
        tree, name = self.tree, job.priority.name
        limits = [("", account, self.gpus[account], self.extras[account], float(most)) for account in job.line if (most := tree.limits[account]) is not None]
        return limits + [(name, account, runs, self._class_extras.get((name, account), 0), most) for _, account, runs, most in self._ceilings(job)]

    def entitled(self) -> dict[int, float]:
        """What each account would get now by weight, for what it runs and waits for."""
        return entitled(self.tree, self._wanted, float(self.fleet.capacity_gpus))

    def charged_along(self, job: Job) -> tuple[float, ...]:
        """For the order in which the tree would be walked: least first."""
        return tuple(self._charged(account) for account in job.line[1:])

    def class_gpus(self, name: str, account: int) -> int:
        return self._class_gpus.get((name, account), 0)

    def below_quota_now(self, job: Job) -> bool:
        """Whether a running job stands on GPUs that its account is guaranteed."""
        return any(0 < self.gpus[account] <= self.tree.quotas[account] for account in job.line)

    def spares(self, victim: Job, job: Job) -> bool:
        """Whether a guarantee keeps `victim` in its place."""
        return any(self.tree.quotas[account] > self.gpus[account] - victim.gpus_now for account in victim.line if account not in job.line)

    def spared(self, victims: Sequence[Job], job: Job, placement: Placement, lent: Mapping[int, Mapping[Job, int]]) -> set[Job]:
        """Those of these victims whom a guarantee keeps, were all of them to go, and the extras that are lent where the job would stand: the dearest of
        each account that would fall below its own."""
        gone: dict[int, int] = {}
        for owner, gpus in ((owner, gpus) for node, _ in placement for owner, gpus in lent.get(node, {}).items() if owner not in victims):
            gone.update({account: gone.get(account, 0) + gpus for account in owner.line})
        kept = set()
        for victim in sorted(victims, key=lambda one: (self.eviction_cost(one), one.number)):
            guards = [account for account in victim.line if self.tree.quotas[account] and account not in job.line]
            if any(self.gpus[account] - gone.get(account, 0) - victim.gpus_now < self.tree.quotas[account] for account in guards):
                kept.add(victim)
            else:
                gone.update({account: gone.get(account, 0) + victim.gpus_now for account in guards})
        return kept

    def eviction_cost(self, job: Job) -> float:
        policy = self.policy
        return (job.unsaved_s(self.now) + policy.restart_s + policy.evicted_before_s * len(job.evicted_at)) * job.gpus

    def has_saved(self, job: Job) -> bool:
        """Whether little would be lost if it went now. One that never saves is never worth waiting for."""
        every_s = job.request.checkpoint_every_s
        return every_s is None or job.unsaved_s(self.now) <= self.policy.saved_share * every_s

    def has_run_enough(self, job: Job) -> bool:
        return self.now >= job.since + self.policy.minimum_run_s and self._evictions_left(job) > 0

    # Inside: what orders the queue, counts by account, and timers.

    def _evictions_left(self, job: Job) -> int:
        return self.policy.evictions_a_day - sum(self.now < at + DAY_S for at in job.evicted_at)

    def _trial_s(self, job: Job) -> float:
        """The same cost whatever its size, and for a whole node no less than its minimum run."""
        tried_s = self.policy.trial_s / job.gpus
        return tried_s if job.gpus < self.fleet.gpus_max else max(tried_s, self.policy.minimum_run_s)

    def _by_age(self, account: int) -> bool:
        present, overdue = self._kids[account]
        return overdue < present or present == 1

    def _age(self, job: Job) -> float:
        age_s = self.now - job.stands_at
        return age_s + min((self.policy.whole_ahead - 1.0) * age_s, self.policy.patience_s) if job.gpus >= self.fleet.gpus_max else age_s

    def _charged(self, account: int) -> float:
        return self.usage.charged(account, self.now) / self.tree.weights[account]

    def _room(self, account: int) -> int | None:
        limit = self.tree.limits[account]
        return None if limit is None else limit - self.gpus[account] + self.extras[account]

    def _ceilings(self, job: Job) -> list[tuple[str, int, int, float]]:
        """Of its class, for its user and its group: whose, which account, what that runs in the class, and the most it may."""
        kind = job.priority
        if kind.user_ceiling >= 1.0 <= kind.group_ceiling:
            return []
        parts = (("user", job.account, kind.user_ceiling), ("group", job.line[1], kind.group_ceiling))
        return [(whose, account, self.class_gpus(kind.name, account), part * self.fleet.capacity_gpus + 1e-9) for whose, account, part in parts if part < 1.0]

    def _count_gpus(self, job: Job, change: int, *, extra: bool = False) -> None:
        for account in job.line:
            key = (job.priority.name, account)
            self.gpus[account] += change
            self._class_gpus[key] = self._class_gpus.get(key, 0) + change
            if extra:
                self.extras[account] += change
                self._class_extras[key] = self._class_extras.get(key, 0) + change

    def _count(self, counts: list[int], which: int, job: Job, change: int) -> None:
        """Keep how many jobs, and how many children with any, each account has."""
        for account in reversed(job.line):
            before = counts[account]
            counts[account] += change
            parent = self.tree.parents[account]
            if parent >= 0 and (before == 0) != (counts[account] == 0):
                self._kids[parent][which] += 1 if before == 0 else -1

    def _grow(self) -> None:
        accounts = len(self.tree.accounts)
        for counts in (self.gpus, self.extras, self._present, self._overdue):
            counts += [0] * (accounts - len(counts))
        self._kids += [[0, 0] for _ in range(accounts - len(self._kids))]
        self.usage.grow(accounts)

    def _timer(self, at: float, kind: int, job: Job) -> None:
        heapq.heappush(self._timers, (at, kind, job.number, job.ticket, job))

    def _timer_at(self) -> float:
        while self._timers and self._timers[0][3] != self._timers[0][4].ticket:
            heapq.heappop(self._timers)
        return self._timers[0][0] if self._timers else math.inf
