"""What the cycle does: jobs start, leave their place, get another one or another size, and have nodes held for them. Usage, timers and queues go along."""

from __future__ import annotations

import math

from holdfast.schedule.gang import Gang
from holdfast.schedule.job import Job, Lane, Placement
from holdfast.schedule.known import APART, LOOSE, TRIED, WAITED, Aside, Known, Reservation
from holdfast.schedule.policy import DAY_S, PriorityClass


class Acting(Known):
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
        self._count_gpus(job, job.gpus)
        if not job.firm and job.request.preemptible:
            job.loose_at = now + (max(self._trial_s(job) - job.attained_s, policy.minimum_run_s) if on_trial and not held else policy.minimum_run_s)
            self._timer(job.loose_at, TRIED if on_trial and not held else LOOSE, job)
        if on_trial and not job.firm and not held and job.request.preemptible:
            self.trial_gpus += job.gpus
            job.on_trial = True
        self.running[job] = None
        if job.request.gpus_max > job.gpus:
            self.elastic[job] = None
        if self._gangs_report:
            self.gangs[job] = Gang(job.gpus)
            self._timer(now + policy.release_s, APART, job)
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
            self._timer(job.loose_at, TRIED if job.on_trial else LOOSE, job)
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
        self._count_gpus(job, change, extra=True)
        self._charge(job, change, now)

    def reserve(self, job: Job, nodes: tuple[int, ...], at: float, now: float) -> None:
        """Keep these nodes for a job that waits, in the place of those it had. It stands in no queue while it has them: the cycle looks at it first."""
        before = self.reservations.get(job)
        if before is None:
            self.waiting.remove(job)
            self._timer_waited(job)
            self.reservations[job] = Reservation(job, nodes, at, now, now)
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
        job.priority, job.reason = to, because
        if job not in self.reservations:
            self.waiting.remove(job)
            self.step_back(job)

    def hold_back(self, job: Job) -> None:
        """A waiting job is above its ceiling: it stands in no queue until there is room."""
        self.waiting.remove(job)
        self.aside[job] = Aside.CEILING

    # Inside: into the queue and out of it, onto nodes and off them.

    def _release(self, job: Job, now: float) -> None:
        self._charge(job, job.gpus, now)

    def _gather(self, job: Job, now: float) -> None:
        """A released gang has to find itself again, and is not charged until it has."""
        if job not in self.gangs:
            self._charge(job, -job.gpus, now)
            job.attained_s, job.since = job.attained_s + now - job.since, now
        self.gangs[job] = Gang(job.gpus)
        self._timer(now + self.policy.release_s, APART, job)

    def _stop(self, job: Job, now: float) -> None:
        if job.extras:
            self.resize(job, (), now)
        if job in self.gangs:
            del self.gangs[job]  # Never released: nothing was charged.
        else:
            self._charge(job, -job.gpus, now)
            job.attained_s += now - job.since
            if job.failures and now - job.since >= self.policy.crash_s:
                job.failures = 0
        self.wounded.pop(job, None)
        self._trial_over(job)
        self.fleet.give(job, job.placement)
        self._count_gpus(job, -job.gpus)
        job.placement, job.loose, job.firm, job.loose_at = (), False, False, math.inf
        job.ticket += 1
        del self.running[job]
        self.elastic.pop(job, None)

    def _charge(self, job: Job, gpus: int, now: float) -> None:
        """From now on it uses so many more, or fewer, and so do all above it."""
        rate = gpus * job.priority.factor
        job.use.change(rate, now)
        self.usage.change(job.line, rate, now)

    def _trial_over(self, job: Job) -> None:
        if job.on_trial:
            job.on_trial = False
            self.trial_gpus -= job.gpus

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

    def _leave_queue(self, job: Job) -> None:
        if job in self.aside:
            del self.aside[job]
        else:
            self.drop_reservation(job)
            self.waiting.remove(job)
        if job.overdue:
            self._count(self._overdue, 1, job, -1)
            job.overdue = False

    def _timer_waited(self, job: Job) -> None:
        if not job.overdue and job.lane is not Lane.ADMIN:
            self._timer(job.since + self.policy.patience_s - job.waited_s, WAITED, job)
