"""Virtual time: what is to happen, in the order in which it happens. Nothing waits; the clock jumps to whatever comes next."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(slots=True)
class Clock:
    now: float = 0.0
    fired: int = 0
    _heap: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    _count: int = 0

    def after(self, delay_s: float, do: Callable[[], None]) -> None:
        """Do this later."""
        self.at(self.now + delay_s, do)

    def at(self, moment: float, do: Callable[[], None]) -> None:
        """Do this then. What falls on the same moment happens in the order in which it was asked for."""
        self._count += 1
        heapq.heappush(self._heap, (max(self.now, moment), self._count, do))

    def take(self, until: float) -> Callable[[], None] | None:
        """Go to the next thing and say what it is; None when nothing is left before `until`."""
        if not self._heap or self._heap[0][0] > until:
            return None
        self.now, _, do = heapq.heappop(self._heap)
        self.fired += 1
        return do

    def forget(self) -> None:
        """Nothing of what was to happen happens."""
        self._heap.clear()
