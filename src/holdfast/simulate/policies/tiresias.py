"""After Tiresias (NSDI 2019): two queues by attained service (GPUs × run time), the first before the second, each in order of submission; who has waited long
is promoted. Written anew from the paper's description, so "Tiresias-like"; it evicts, and pays for it as everybody here does."""

from __future__ import annotations

import heapq
import math

from holdfast.schedule.cycle import Eviction
from holdfast.simulate.policies.pool import Pool
from holdfast.simulate.trace import TraceJob

_FIRST_GPU_S = 3600.0  # Of attained service; then the second queue.
_PROMOTED_AFTER = 8.0  # Times its run time: the paper's promotion knob.
_EVERY_S = 600.0  # Between looks at who must go: leases, so that not every arrival evicts.


class Tiresias(Pool):
    knows = "nothing; it sees attained service"

    def __init__(self, gpus: int) -> None:
        super().__init__(gpus)
        self._waiting: dict[str, tuple[TraceJob, float]] = {}  # With since when.
        self._attained: dict[str, float] = {}
        self._looked_at = -math.inf

    def submit(self, job: TraceJob, now: float) -> None:
        self._waiting[job.id] = (job, now)
        self._attained[job.id] = 0.0

    def end(self, id: str, now: float) -> None:
        super().end(id, now)
        del self._attained[id]

    def next_at(self) -> float:
        return self._looked_at + _EVERY_S if self._waiting else math.inf

    def _choose(self) -> None:
        if self._waiting and self.now >= self._looked_at + _EVERY_S:
            self._looked_at = self.now
            self._rank()
        elif self.free:
            for job, _ in [one for one in self._waiting.values() if one[0].gpus <= self.free]:
                if job.gpus <= self.free:
                    del self._waiting[job.id]
                    self._start(job)
                if not self.free:
                    return

    def _rank(self) -> None:
        """Everybody in order; those that fit run, the others do not."""
        everybody = [(self._level(job, started, runs=True), job.submit_s, job.id, job) for job, started in self.running.values()]
        everybody += [(self._level(job, since, runs=False), job.submit_s, job.id, job) for job, since in self._waiting.values()]
        heapq.heapify(everybody)
        left, wanted = self.gpus, []
        while everybody and left:
            job = heapq.heappop(everybody)[3]
            if job.gpus <= left:
                left -= job.gpus
                wanted.append(job)
        ids = {job.id for job in wanted}
        first = next((job.id for job in wanted if job.id in self._waiting), "")
        for id in [id for id in self.running if id not in ids]:
            job, started = self.running.pop(id)
            self._attained[id] += (self.now - started) * job.gpus
            self.free += job.gpus
            self._waiting[id] = (job, self.now)
            self._evictions.append(Eviction(job=id, for_job=first))
        for job in wanted:
            if job.id in self._waiting:
                del self._waiting[job.id]
                self._start(job)

    def _level(self, job: TraceJob, since: float, *, runs: bool) -> int:
        attained = self._attained[job.id] + ((self.now - since) * job.gpus if runs else 0.0)
        if not runs and self.now - since > _PROMOTED_AFTER * max(attained / job.gpus, 3600.0):
            return 0
        return 0 if attained < _FIRST_GPU_S else 1
