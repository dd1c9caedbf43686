"""After Slurm: Fair Tree order (groups by decayed use, then users) and backfill that reserves for the first jobs of that order. Written anew from its
documentation. Like Slurm's `bf_max_job_test`, only so many jobs of the queue are looked at in one pass, and a pass comes every 300 s at most."""

from __future__ import annotations

import bisect
import math

from holdfast.schedule.usage import Usage
from holdfast.simulate.policies.pool import Pool
from holdfast.simulate.trace import TraceJob

_TESTED = 100
_EVERY_S = 300.0


class FairTree(Pool):
    knows = "the length of every job (an oracle), or its user's limit where the trace has one"

    def __init__(self, gpus: int, half_life_s: float = 7 * 86400.0) -> None:
        super().__init__(gpus)
        self._usage = Usage(half_life_s=half_life_s, entry_s=0.0)
        self._accounts: dict[tuple[str, ...], int] = {}
        self._queues: dict[tuple[str, str], dict[str, TraceJob]] = {}
        self._looked_at = -math.inf

    def submit(self, job: TraceJob, now: float) -> None:
        self._queues.setdefault((job.group, job.user), {})[job.id] = job

    def end(self, id: str, now: float) -> None:
        job = self.running[id][0]
        super().end(id, now)
        self._usage.change(self._line(job), -float(job.gpus), now)

    def next_at(self) -> float:
        return self._looked_at + _EVERY_S if self._queues and self.free else math.inf

    def _choose(self) -> None:
        if not self.free or self.now < self._looked_at + _EVERY_S:
            return
        self._looked_at = self.now
        # The future as steps: from each time on, so many GPUs are free.
        times, free = [self.now], [self.free]
        for at, gpus in sorted((max(self.now, started + _length(job)), job.gpus) for job, started in self.running.values()):
            times.append(at)
            free.append(free[-1] + gpus)
        for job in self._order():
            at = _earliest(times, free, job.gpus, _length(job))
            _occupy(times, free, at, at + _length(job), job.gpus)
            if at <= self.now:
                queue = self._queues[job.group, job.user]
                del queue[job.id]
                if not queue:
                    del self._queues[job.group, job.user]
                self._usage.change(self._line(job), float(job.gpus), self.now)
                self._start(job)

    def _order(self) -> list[TraceJob]:
        def used(*path: str) -> float:
            return self._usage.used(self._account(path), self.now)

        groups = {group: used(group) for group, _ in self._queues}
        users = sorted(self._queues, key=lambda one: (groups[one[0]], one[0], used(*one), one[1]))
        order: list[TraceJob] = []
        for user in users:
            order += list(self._queues[user].values())[: _TESTED - len(order)]
            if len(order) >= _TESTED:
                break
        return order

    def _line(self, job: TraceJob) -> tuple[int, int]:
        return self._account((job.group,)), self._account((job.group, job.user))

    def _account(self, path: tuple[str, ...]) -> int:
        number = self._accounts.setdefault(path, len(self._accounts))
        self._usage.grow(len(self._accounts))
        return number


def _length(job: TraceJob) -> float:
    return max(1.0, job.duration_s, job.estimate_s or 0.0)  # One that takes no time still needs room.


def _earliest(times: list[float], free: list[int], gpus: int, length_s: float) -> float:
    """The first time from which so many GPUs are free for so long."""
    start: int | None = None
    for number, there in enumerate(free):
        if there < gpus:
            start = None
        elif start is None:
            start = number
        if start is not None and (number + 1 == len(times) or times[number + 1] >= times[start] + length_s):
            return times[start]
    raise AssertionError("the last step has the whole pool free")


def _occupy(times: list[float], free: list[int], start: float, end: float, gpus: int) -> None:
    for at in (start, end):
        place = bisect.bisect_left(times, at)
        if place == len(times) or times[place] != at:
            times.insert(place, at)
            free.insert(place, free[place - 1])
    for number in range(bisect.bisect_left(times, start), bisect.bisect_left(times, end)):
        free[number] -= gpus
