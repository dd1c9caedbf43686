"""EASY backfill: the first in the queue has a reservation, and others pass it when they do not delay it."""

from __future__ import annotations

from itertools import islice

from holdfast.simulate.policies.pool import Pool
from holdfast.simulate.trace import TraceJob

_LOOKED_AT = 2000  # So many behind the first are looked at, as in the replay that its known figures are from; all of them would be 1.2 % better on Philly.


class Easy(Pool):
    knows = "the length of every job (an oracle), or its user's limit where the trace has one"

    def __init__(self, gpus: int) -> None:
        super().__init__(gpus)
        self.queue: dict[str, TraceJob] = {}

    def submit(self, job: TraceJob, now: float) -> None:
        self.queue[job.id] = job

    def _choose(self) -> None:
        while self.queue and (first := next(iter(self.queue.values()))).gpus <= self.free:
            del self.queue[first.id]
            self._start(first)
        if not self.queue or not self.free:
            return
        shadow, extra = self._shadow(first.gpus)
        chosen = []
        free = self.free
        for job in islice(self.queue.values(), 1, 1 + _LOOKED_AT):
            if job.gpus > free:
                continue
            in_time = self.now + self._length(job) <= shadow
            if in_time or job.gpus <= extra:
                chosen.append(job)
                free -= job.gpus
                extra -= 0 if in_time else job.gpus
                if not free:
                    break
        for job in chosen:
            del self.queue[job.id]
            self._start(job)

    def _shadow(self, wanted: int) -> tuple[float, int]:
        """When the first will start, and how many GPUs are left over then."""
        free = self.free
        for at, gpus in sorted((max(self.now, started + self._length(job)), job.gpus) for job, started in self.running.values()):
            free += gpus
            if free >= wanted:
                return at, free - wanted
        return float("inf"), 0

    def _length(self, job: TraceJob) -> float:
        return job.duration_s if job.estimate_s is None else max(job.estimate_s, job.duration_s)
