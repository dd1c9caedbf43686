"""A trace of jobs in virtual time, under any scheduler: jobs arrive, run, are evicted and end; nothing waits.

The world alone knows how long jobs take. A job makes progress from the end of its restart; it saves every `checkpoint_every_s` of run time, and an eviction
takes it back to what it had saved, as does a node that fails under it. A scheduler that does not know what jobs need is told of a job when all of that has
ended. A job that hangs until another ends, and did not say so, holds its GPUs meanwhile and makes no progress: so jobs can wait for jobs for ever, and that is
reported, not hidden.
"""

from __future__ import annotations

import hashlib
import heapq
import math
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, runtime_checkable

from holdfast.errors import UserError
from holdfast.schedule.cycle import Decisions
from holdfast.schedule.mend import Mend
from holdfast.simulate.failures import Change
from holdfast.simulate.trace import TraceJob


class Scheduler(Protocol):
    """Whatever decides. `knows` says what it was told of a job that is not in a real queue."""

    knows: str
    knows_needs: bool  # Whether it is told of a job before all that it needs has ended.

    def submit(self, job: TraceJob, now: float) -> None: ...
    def end(self, id: str, now: float) -> None: ...
    def decide(self, now: float) -> Decisions: ...
    def next_at(self) -> float: ...


@runtime_checkable
class OnNodes(Protocol):
    """A scheduler that knows nodes, and can be told that one failed."""

    def node_failed(self, node: int, now: float) -> None: ...
    def node_back(self, node: int, now: float) -> None: ...
    def suspect_gpus(self) -> int: ...


class Watcher(Protocol):
    """Looks at every event of a replay."""

    def submitted(self, job: TraceJob, now: float) -> None: ...
    def ended(self, id: str, now: float) -> None: ...
    def decided(self, decisions: Decisions, now: float) -> None: ...


@dataclass(slots=True)
class Ran:
    """What became of one job."""

    job: TraceJob
    first_start: float = math.nan
    end: float = math.nan
    done_s: float = 0.0  # Work that is saved, in seconds at the size that was asked for.
    started: float = math.nan  # Of what runs now; NaN while it waits.
    restart_s: float = 0.0
    gpus: int = 0
    evictions: int = 0
    lost_gpu_s: float = 0.0
    run: int = 0  # Counts starts and resizes: an end that was foreseen before the last one is none.


@dataclass(slots=True)
class FailureCount:
    """What failed in a replay, and what became of the jobs there."""

    nodes: int = 0
    mended: Counter[str] = field(default_factory=Counter)  # By how. Who was requeued and started again at once counts as replaced.
    lost_gpu_s: float = 0.0
    suspect_gpu_s: float = 0.0  # Run on nodes in doubt.


@dataclass(slots=True)
class Replay:
    jobs: Sequence[TraceJob]
    scheduler: Scheduler
    restart_s: float = 300.0
    checkpoint_every_s: float = 1800.0
    watchers: Sequence[Watcher] = ()
    progress: Callable[[int], None] | None = None  # Told now and then how many jobs have ended.
    until: float = math.inf
    outages: Sequence[Change] | None = None  # Nodes that fail and are back, in order; None: nodes do not fail.
    failed: FailureCount = field(default_factory=FailureCount)
    ran: dict[str, Ran] = field(default_factory=dict)
    events: int = 0
    stuck: tuple[str, ...] = ()  # Jobs that will never end.
    log: list[tuple[float, Decisions]] | None = None
    hash: str = ""  # Of all that was decided.
    _ends: list[tuple[float, int, str, int]] = field(default_factory=list)
    _hang: dict[str, list[str]] = field(default_factory=dict)  # Until the end of a job: who.
    _held: dict[str, list[TraceJob]] = field(default_factory=dict)  # Not yet submitted, for a job has not ended: by that.
    _ended: int = 0
    _changed: int = 0  # So many of the outages' changes have happened.

    def run(self) -> Replay:
        if self.outages is not None and not isinstance(self.scheduler, OnNodes):
            raise UserError("this policy counts GPUs in one pool and has no nodes that could fail; replay failures under holdfast or health-blind")
        arrivals = deque(sorted(self.jobs, key=lambda job: job.submit_s))
        self.ran = {job.id: Ran(job) for job in arrivals}
        for job in arrivals:
            if job.hangs_until:
                self._hang.setdefault(job.hangs_until, []).append(job.id)
        digest, now = hashlib.sha256(), -math.inf
        while (at := self._next_at(arrivals, now)) <= self.until and at < math.inf:
            if self.outages is not None and isinstance(self.scheduler, OnNodes) and now > -math.inf:
                self.failed.suspect_gpu_s += self.scheduler.suspect_gpus() * (at - now)
            now = at
            self._happen(arrivals, now)
            decisions = self.scheduler.decide(now)
            self.events += 1
            self._perform(decisions, now)
            if decisions.starts or decisions.evictions or decisions.mends:
                digest.update(repr((now, decisions.starts, decisions.evictions, *decisions.mends)).encode())
                if self.log is not None:
                    self.log.append((now, decisions))
            if self.progress is not None and self.events % 2000 == 0:
                self.progress(self._ended)
        if self.until == math.inf:
            self.stuck = tuple(id for id, one in self.ran.items() if math.isnan(one.end))
        self.hash = digest.hexdigest()
        return self

    def _next_at(self, arrivals: Sequence[TraceJob], now: float) -> float:
        """When something happens next; infinity when nothing will that matters to a job."""
        while self._ends and self.ran[self._ends[0][2]].run != self._ends[0][3]:
            heapq.heappop(self._ends)  # Of a run that was cut short: it must not even wake the scheduler, for that would tell when it would have ended.
        at = min(arrivals[0].submit_s if arrivals else math.inf, self._ends[0][0] if self._ends else math.inf, max(now, self.scheduler.next_at()))
        if self.outages is None:
            return at
        if self._ended == len(self.ran):
            return math.inf
        return min(at, self.outages[self._changed][0] if self._changed < len(self.outages) else math.inf)

    def _happen(self, arrivals: deque[TraceJob], now: float) -> None:
        """Jobs end, nodes fail and are back, jobs come."""
        while self._ends and self._ends[0][0] <= now:
            _, _, id, run = heapq.heappop(self._ends)
            if self.ran[id].run == run:
                self._end(self.ran[id], now)
        if self.outages is not None:
            self._break(self.outages, now)
        while arrivals and arrivals[0].submit_s <= now:
            self._arrive(arrivals.popleft(), now)

    def _arrive(self, job: TraceJob, now: float) -> None:
        """A job is submitted, or held until what it needs has ended. What has ended already is needed no more."""
        missing = tuple(need for need in job.needs if math.isnan(self.ran[need].end))
        if missing and not self.scheduler.knows_needs:
            self._held.setdefault(missing[0], []).append(job)
            return
        self.scheduler.submit(job if missing == job.needs else replace(job, needs=missing), now)
        for watcher in self.watchers:
            watcher.submitted(job, now)

    def _break(self, outages: Sequence[Change], now: float) -> None:
        assert isinstance(self.scheduler, OnNodes), "asked before the first event"
        while self._changed < len(outages) and outages[self._changed][0] <= now:
            _, node, fails = outages[self._changed]
            self._changed += 1
            if fails:
                self.failed.nodes += 1
                self.scheduler.node_failed(node, now)
            else:
                self.scheduler.node_back(node, now)

    def _perform(self, decisions: Decisions, now: float) -> None:
        if decisions.mends:
            again = {start.job for start in decisions.starts}
            for mended in decisions.mends:
                self._mend(self.ran[mended.job], mended, now, again=mended.job in again)
        for resize in decisions.resizes:  # Before evictions: who gave extras, was evicted and starts again begins without any.
            self._resize(self.ran[resize.job], resize.gpus, now)
        for eviction in decisions.evictions:
            self._evict(self.ran[eviction.job], now)
        for start in decisions.starts:
            self._start(self.ran[start.job], start.gpus, now)
        for watcher in self.watchers:
            watcher.decided(decisions, now)

    def _start(self, one: Ran, gpus: int, now: float) -> None:
        one.restart_s = 0.0 if math.isnan(one.first_start) else self.restart_s
        if math.isnan(one.first_start):
            one.first_start = now
        one.started, one.gpus = now, gpus
        self._foresee(one, now)

    def _resize(self, one: Ran, gpus: int, now: float) -> None:
        if not math.isnan(one.started):
            one.done_s += self._worked_s(one, now)
            one.started, one.restart_s, one.gpus = now, max(0.0, one.started + one.restart_s - now), gpus
            self._foresee(one, now)

    def _hangs(self, one: Ran) -> bool:
        """Whether it waits for what another makes."""
        return bool(one.job.hangs_until) and math.isnan(self.ran[one.job.hangs_until].end)

    def _worked_s(self, one: Ran, now: float) -> float:
        """Work done since it started, saved or not, in seconds at the size that was asked for."""
        return 0.0 if self._hangs(one) else max(0.0, now - one.started - one.restart_s) * one.gpus / one.job.gpus

    def _foresee(self, one: Ran, now: float) -> None:
        one.run += 1
        if self._hangs(one):
            return
        left_s = max(0.0, one.job.duration_s - one.done_s) * one.job.gpus / one.gpus
        heapq.heappush(self._ends, (now + one.restart_s + left_s, self.events, one.job.id, one.run))

    def _mend(self, one: Ran, mended: Mend, now: float, *, again: bool) -> None:
        """A job lost nodes: it goes on from what it had saved, at once or when it is started."""
        self.failed.mended["replaced" if again else mended.how] += 1
        self.failed.lost_gpu_s += self._set_back(one, now)
        if mended.placement:
            self._start(one, mended.gpus, now)

    def _evict(self, one: Ran, now: float) -> None:
        self._set_back(one, now)
        one.evictions += 1

    def _set_back(self, one: Ran, now: float) -> float:
        """A job stops in the middle. GPU-seconds that were for nothing."""
        done = one.done_s + self._worked_s(one, now)
        saved = max(one.done_s, done // self.checkpoint_every_s * self.checkpoint_every_s)
        lost_gpu_s = (done - saved) * one.job.gpus + min(one.restart_s, now - one.started) * one.gpus
        one.lost_gpu_s += lost_gpu_s
        one.done_s, one.started, one.run = saved, math.nan, one.run + 1
        return lost_gpu_s

    def _end(self, one: Ran, now: float) -> None:
        one.lost_gpu_s += min(one.restart_s, now - one.started) * one.gpus
        one.end, one.started, one.run = now, math.nan, one.run + 1
        self._ended += 1
        self.scheduler.end(one.job.id, now)
        for watcher in self.watchers:
            watcher.ended(one.job.id, now)
        for job in self._held.pop(one.job.id, ()):
            self._arrive(job, now)
        for id in self._hang.get(one.job.id, ()):
            waiting = self.ran[id]
            if not math.isnan(waiting.started):
                waiting.started, waiting.restart_s = now, 0.0
                self._foresee(waiting, now)
