"""One pool of GPUs without nodes, for schedulers that only count: what most published comparisons replay. Durations are theirs to see where they say so."""

from __future__ import annotations

import heapq
import math
from abc import ABC, abstractmethod

from holdfast.schedule.cycle import Decisions, Eviction, Start
from holdfast.simulate.trace import TraceJob


class Pool(ABC):
    """What the counting schedulers share. A subclass fills `_choose`, which starts jobs by `_start`."""

    knows = "nothing"
    knows_needs = False

    def __init__(self, gpus: int) -> None:
        self.gpus = self.free = gpus
        self.now = 0.0
        self.running: dict[str, tuple[TraceJob, float]] = {}
        self._starts: list[Start] = []
        self._evictions: list[Eviction] = []

    @abstractmethod
    def submit(self, job: TraceJob, now: float) -> None: ...

    def end(self, id: str, now: float) -> None:
        self.free += self.running.pop(id)[0].gpus

    def decide(self, now: float) -> Decisions:
        self.now, self._starts, self._evictions = now, [], []
        self._choose()
        return Decisions(starts=tuple(self._starts), evictions=tuple(self._evictions))

    def next_at(self) -> float:
        return math.inf

    @abstractmethod
    def _choose(self) -> None: ...

    def _start(self, job: TraceJob) -> None:
        assert job.gpus <= self.free
        self.free -= job.gpus
        self.running[job.id] = (job, self.now)
        self._starts.append(Start(job=job.id, placement=(), gpus=job.gpus, firm=True, because=""))


class Fifo(Pool):
    knows = "nothing; nobody passes the first in the queue"

    def __init__(self, gpus: int) -> None:
        super().__init__(gpus)
        self.queue: list[tuple[float, int, TraceJob]] = []
        self._count = 0

    def submit(self, job: TraceJob, now: float) -> None:
        self._count += 1
        heapq.heappush(self.queue, (self._key(job), self._count, job))

    def _key(self, job: TraceJob) -> float:
        return job.submit_s

    def _choose(self) -> None:
        while self.queue and self.queue[0][2].gpus <= self.free:
            self._start(heapq.heappop(self.queue)[2])


class Skip(Pool):
    knows = "nothing; whoever fits goes, oldest first"

    def __init__(self, gpus: int) -> None:
        super().__init__(gpus)
        self._by_size: dict[int, list[tuple[float, int, TraceJob]]] = {}
        self._count = 0

    def submit(self, job: TraceJob, now: float) -> None:
        self._count += 1
        heapq.heappush(self._by_size.setdefault(job.gpus, []), (self._key(job), self._count, job))

    def _key(self, job: TraceJob) -> float:
        return job.submit_s

    def _choose(self) -> None:
        while fitting := [queue[0] + (size,) for size, queue in self._by_size.items() if queue and size <= self.free]:
            self._start(heapq.heappop(self._by_size[min(fitting)[3]])[2])


class ShortestFirst(Skip):
    knows = "the length of every job (an oracle); whoever fits goes, shortest first"

    def _key(self, job: TraceJob) -> float:
        return job.duration_s
