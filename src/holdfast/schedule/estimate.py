"""How long a job will run, as far as anybody knows: its user's limit, else what that user's jobs of that size took, else its class's default.

An estimate that is overrun is doubled until it is not.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from holdfast.schedule.job import Job

_KEPT = 32  # Run times of one user and size.
_ENOUGH = 5


@dataclass(slots=True)
class Estimates:
    quantile: float
    _seen: dict[tuple[int, int], deque[float]] = field(default_factory=dict)
    _likely: dict[tuple[int, int], float] = field(default_factory=dict)  # The quantile of each, found once for each job that ends.

    def learn(self, job: Job, ran_s: float) -> None:
        """A job has ended by itself."""
        kind = (job.account, job.gpus)
        seen = self._seen.setdefault(kind, deque(maxlen=_KEPT))
        seen.append(ran_s)
        if len(seen) >= _ENOUGH:
            self._likely[kind] = max(1.0, sorted(seen)[min(len(seen) - 1, int(self.quantile * len(seen)))])

    def whole_s(self, job: Job) -> float:
        """Of all its run time, before anything is known of how it goes."""
        if job.request.estimate_s is not None:
            return max(1.0, job.request.estimate_s)
        return self._likely.get((job.account, job.gpus), job.priority.estimate_s)

    def end_at(self, job: Job, now: float) -> float:
        """When a running job will end."""
        job.seen_estimate_s = max(job.seen_estimate_s, self.whole_s(job))
        ran = job.attained_s + max(0.0, now - job.since)
        while job.seen_estimate_s <= ran:
            job.seen_estimate_s *= 2
        return now + job.seen_estimate_s - ran

    def spread_s(self, job: Job) -> tuple[float, float]:
        """A tenth of its kind ran shorter than the first, a tenth longer than the second; a factor of four both ways where nothing was seen."""
        seen = self._seen.get((job.account, job.gpus))
        if seen is None or len(seen) < _ENOUGH:
            return self.whole_s(job) / 4, self.whole_s(job) * 4
        ordered = sorted(seen)
        return ordered[len(ordered) // 10], ordered[len(ordered) * 9 // 10]
