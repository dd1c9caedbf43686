"""Clock: jumps of the wall clock against the monotonic one, which nobody can set.

Sees        both clocks.
Says        host_clock_offset_seconds at every look, a jump at the next two as well: the reading of one look may be replaced by the next before anybody takes
            it. The event `clock_jump` above 0.1 s.
Is wrong    about a clock that is wrong and stays so: only changes are seen. A machine that was suspended shows the time it slept as a jump.
Costs       three clock readings.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from holdfast.domain.kernel_event import KernelEvent
from holdfast.domain.signal import Signal
from holdfast.observe.probe import Seen

JUMP_S: Final = 0.1  # A clock that is slewed moves by 0.5 ms a second at most (adjtimex(2)).
_TOLD: Final = 3  # Times that a jump is said.
_APART_S: Final = 0.001
_TRIES: Final = 5


class Clock:
    name = "clock"
    every_s = 1.0
    timeout_s = 5.0
    doing = ""

    def __init__(self, wall: Callable[[], float] = time.time, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._wall = wall
        self._monotonic = monotonic
        self._apart_s: float | None = None
        self._jump_s, self._told = 0.0, _TOLD

    def look(self) -> list[Seen]:
        before, self._apart_s = self._apart_s, self._read()
        if before is None:
            return []
        moved_s = self._apart_s - before
        if abs(moved_s) >= JUMP_S:
            self._jump_s, self._told = moved_s, 0
        self._told += 1
        found: list[Seen] = [Signal("host_clock_offset_seconds", self._jump_s if self._told <= _TOLD else moved_s)]
        if abs(moved_s) >= JUMP_S:
            way = "forwards" if moved_s > 0 else "backwards"
            found.append(KernelEvent(kind="clock_jump", message=f"the wall clock jumped {abs(moved_s):.3f} s {way}", at=self._wall()))
        return found

    def _read(self) -> float:
        """Wall time less monotonic time. When the thread was held up between the two, they are read again."""
        for _ in range(_TRIES):
            begin, wall, end = self._monotonic(), self._wall(), self._monotonic()
            if end - begin < _APART_S:
                break
        return wall - (begin + end) / 2
