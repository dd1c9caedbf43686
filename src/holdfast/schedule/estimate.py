"""How long a job will run, as far as anybody knows: its user's limit, else what that user's jobs of that size took, else its class's default.

An estimate that is overrun is doubled until it is not.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from holdfast.schedule.job import Job, JobRequest

_KEPT = 32  # Run times of one user and size.
_ENOUGH = 5
_POOLED = 512  # Run times of one size, of all users: for forecasts, where the user's own are too few.
_ARRIVALS = 4096
_GUESSED = ((0.25, 0.25), (0.75, 1.0), (1.0, 4.0))  # Where nothing was seen: up to this share, so many times what is thought.
_LIMITED = ((0.25, 0.125), (0.75, 0.5), (1.0, 1.0))  # Users ask for more than they need: 13.5 times the run time in the median on wagap 2013.


@dataclass(slots=True)
class Estimates:
    quantile: float
    _seen: dict[tuple[int, int], deque[float]] = field(default_factory=dict)
    _pooled: dict[int, deque[float]] = field(default_factory=dict)
    arrivals: deque[tuple[float, JobRequest]] = field(default_factory=lambda: deque(maxlen=_ARRIVALS))  # When what was asked for, the latest.
    _likely: dict[tuple[int, int], float] = field(default_factory=dict)  # The quantile of each, found once for each job that ends.

    def learn(self, job: Job, ran_s: float) -> None:
        """A job has ended by itself."""
        kind = (job.account, job.gpus)
        seen = self._seen.setdefault(kind, deque(maxlen=_KEPT))
        seen.append(ran_s)
        self._pooled.setdefault(job.gpus, deque(maxlen=_POOLED)).append(ran_s)
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

    def whole_at(self, job: Job, share: float, ran_s: float) -> float:
        """Of all its run time: `share` of its kind that ran longer than it has by now were done by then. Its kind: its user's jobs of that size, else all."""
        for seen in (self._seen.get((job.account, job.gpus), ()), self._pooled.get(job.gpus, ())):
            longer = sorted(one for one in seen if one > ran_s)
            if len(longer) >= _ENOUGH:
                return min(longer[min(len(longer) - 1, int(share * len(longer)))], max(job.request.estimate_s or longer[-1], ran_s + 1.0))
        factors = _GUESSED if job.request.estimate_s is None else _LIMITED
        guess = max(1.0, self.whole_s(job) * next(factor for up_to, factor in factors if share <= up_to))
        while guess <= ran_s:
            guess *= 2
        return guess
