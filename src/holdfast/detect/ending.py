"""Ending: when a job will be done if it goes on as it does.

The pace is that of the last quarter of the time it ran, and of five minutes at least: restarts, saves and evaluations are part of it, and a slow hour shows.
Ground that was lost and made good again is not progress twice.
"""

from __future__ import annotations

from bisect import bisect_right

_POINTS_MAX = 128
_RECENT_S = 300.0
_KNOWN_S = 60.0  # So long a pace must have been seen.


class Ending:
    def __init__(self) -> None:
        self._times: list[float] = []
        self._done: list[float] = []
        self._every_s = 1.0

    def look(self, elapsed_s: float, progress: float) -> None:
        """`progress` is the share of the job that is done, `elapsed_s` how long it has been run."""
        if not 0.0 <= progress <= 1.0 or (self._times and (elapsed_s < self._times[-1] + self._every_s or progress <= self._done[-1])):
            return
        self._times.append(elapsed_s)
        self._done.append(progress)
        if len(self._times) > _POINTS_MAX:
            del self._times[1::2], self._done[1::2]
            self._every_s *= 2

    def needs_s(self) -> float | None:
        """How long the job will have been run when it is done, as of when it last moved: a pause counts when it is over. None: it is too early to tell."""
        if len(self._times) < 2:
            return None
        now, done = self._times[-1], self._done[-1]
        since = now - max(_RECENT_S, now / 4)
        place = max(0, bisect_right(self._times, since) - 1)
        span_s, moved = now - self._times[place], done - self._done[place]
        return now + (1.0 - done) * span_s / moved if span_s >= _KNOWN_S else None
