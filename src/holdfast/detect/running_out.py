"""Running out: memory, shared memory or disk space that will be used up soon if it goes on as it does.

Sees        how much of something is left, once a look, by a name for each thing that has a size.
Says        `memory_running_out` or `disk_running_out` with the expected time, when the trend of the last `looks` looks is steady, ends within `horizon_s`, and
            less than `left` of the whole is left. It stands until the trend would end later than twice that, or it no longer falls.
Is silent   about what falls and rises again: a steady trend is one where nearly every pair of points, half a window apart, points the same way.
Is wrong    when something fills up to a mark and stops there (a cache with a limit): it is said, and taken back when it stops.
Misses      what is used up faster than `looks` looks, and what leaks so slowly that the horizon is far: the rules on what is left see that.
Costs       a median of a few slopes, every look, for each thing of which less than `left` is left.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from holdfast.domain.finding import Finding, Severity


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """How much of one thing is left at one look."""

    kind: str  # "memory" or "disk".
    name: str  # In words: "memory of node a", "/dev/shm of node a".
    left: float
    size: float
    node: str = ""
    of: str = ""
    who: str = ""  # Who uses most of what is being used up, in words, if that is known,
    ranks: tuple[int, ...] = ()  # and its ranks.


@dataclass(slots=True)
class RunningOut:
    looks: int = 45
    horizon_s: float = 900.0
    left: float = 0.6
    steady: float = 0.9
    _seen: dict[tuple[str, str, str], deque[tuple[float, float]]] = field(default_factory=dict)
    _standing: dict[tuple[str, str, str], Finding] = field(default_factory=dict)

    @property
    def standing(self) -> list[Finding]:
        """What is so now."""
        return list(self._standing.values())

    def look(self, things: Iterable[Left], now: float) -> None:
        """Take one look at all that could run out."""
        current = {(thing.kind, thing.node, thing.of): thing for thing in things}
        for gone in self._seen.keys() - current.keys():
            del self._seen[gone]
            self._standing.pop(gone, None)
        for key, thing in current.items():
            seen = self._seen.setdefault(key, deque(maxlen=self.looks))
            seen.append((now, thing.left))
            if len(seen) == self.looks and (key in self._standing or thing.left <= self.left * thing.size):
                self._judge(key, thing, seen, now)

    def _judge(self, key: tuple[str, str, str], thing: Left, seen: deque[tuple[float, float]], now: float) -> None:
        slope, steady = trend(seen)
        ends_s = thing.left / -slope if slope < 0 else float("inf")
        if key in self._standing:
            if ends_s > 2 * self.horizon_s or steady < 0.5:
                del self._standing[key]
        elif steady >= self.steady and ends_s <= self.horizon_s:
            self._standing[key] = self._say(thing, -slope, ends_s, now)

    def _say(self, thing: Left, rate: float, ends_s: float, now: float) -> Finding:
        who = f"; {thing.who}" if thing.who else ""
        return Finding(
            kind=f"{thing.kind}_running_out", node=thing.node, of=thing.of, ranks=thing.ranks, since=now - self.looks, severity=Severity.CRITICAL,
            because=(
                f"the {thing.name} will be used up in about {ends_s / 60:.0f} min: {thing.left / 2**30:.1f} of {thing.size / 2**30:.1f} GiB are left, "
                f"and {rate / 2**20:.1f} MiB a second are going{who}"
            ),
        )  # fmt: skip


def trend(points: deque[tuple[float, float]]) -> tuple[float, float]:
    """The median slope between points that are half a window apart, and how steady it is: the share of those slopes that fall, and 0 where what is left
    once rose again by half of what it fell in all, which a leak does not and a heap that is collected does."""
    every = np.array(points)
    at, left = every[:, 0], every[:, 1]
    half = len(every) // 2
    slopes = (left[half:] - left[:-half]) / np.maximum(1e-9, at[half:] - at[:-half])
    rose = float(np.max(left - np.minimum.accumulate(left)))
    fell = float(left[0] - left[-1])
    return float(np.median(slopes)), float(np.mean(slopes < 0)) if rose < 0.5 * fell else 0.0
