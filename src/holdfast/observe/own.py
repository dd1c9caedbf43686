"""The agent itself: what watching costs.

Sees        /proc/self/statm and this process's CPU time.
Says        agent_cpu_ratio, agent_memory_bytes.
Is wrong    about what the agent's children use.
Costs       one small read.
"""

from __future__ import annotations

import mmap
import time
from collections.abc import Callable
from pathlib import Path

from holdfast.domain.signal import Signal
from holdfast.observe.reread import Reread


class Own:
    name = "own"
    every_s = 5.0
    timeout_s = 5.0
    doing = ""

    def __init__(
        self, proc: Path = Path("/proc"), monotonic: Callable[[], float] = time.monotonic, cpu_s: Callable[[], float] = time.process_time,
    ) -> None:  # fmt: skip
        self._statm = Reread(proc / "self" / "statm")
        self._monotonic = monotonic
        self._cpu_s = cpu_s
        self._last: tuple[float, float] | None = None

    def look(self) -> list[Signal]:
        before, self._last = self._last, (self._monotonic(), self._cpu_s())
        found = []
        if before is not None and self._last[0] > before[0]:
            found.append(Signal("agent_cpu_ratio", (self._last[1] - before[1]) / (self._last[0] - before[0])))
        fields = (self._statm.read() or b"").split()
        if len(fields) > 1:
            found.append(Signal("agent_memory_bytes", float(int(fields[1]) * mmap.PAGESIZE)))
        return found
