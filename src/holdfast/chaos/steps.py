"""Step logs: every rank of a script appends a line per finished step to a file of its own, and this reads them as they grow, under any launcher.

A line is `STEP MONOTONIC PID`: how many steps are finished, when, and in which process. CLOCK_MONOTONIC is one clock for all processes of a machine. The
process tells a new attempt from the old one, so that a survivor that just finished its step is not taken for a recovery.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

_TOGETHER_S = 0.05  # Ranks that step together write it down so close to each other.


@dataclass(frozen=True, slots=True)
class Step:
    step: int
    at: float
    pid: int


@dataclass(slots=True)
class StepLogs:
    directory: Path
    world_size: int
    name: str = "steps"  # Files are NAME-RANK.
    _steps: dict[int, list[Step]] = field(default_factory=dict)
    _offsets: dict[int, int] = field(default_factory=dict)

    def read(self) -> dict[int, list[Step]]:
        """All lines so far, by rank."""
        for rank in range(self.world_size):
            self._read_rank(rank)
        return self._steps

    def _read_rank(self, rank: int) -> None:
        try:
            with (self.directory / f"{self.name}-{rank}").open("rb") as file:
                file.seek(self._offsets.get(rank, 0))
                data = file.read()
        except FileNotFoundError:
            return
        whole = data[: data.rfind(b"\n") + 1]  # A line may be half written.
        self._offsets[rank] = self._offsets.get(rank, 0) + len(whole)
        for line in whole.splitlines():
            step, at, pid = line.split()
            self._steps.setdefault(rank, []).append(Step(int(step), float(at), int(pid)))

    def newest_pids(self) -> dict[int, int]:
        return {rank: steps[-1].pid for rank, steps in self.read().items()}

    def newest_step(self) -> int:
        return max(steps[-1].step for steps in self.read().values())

    def pids(self) -> set[int]:
        """Of every process that ever finished a step."""
        return {step.pid for steps in self.read().values() for step in steps}

    def fewest_since(self, old: set[int]) -> int:
        """How many steps the slowest rank has finished in a process that is not one of `old`."""
        steps = self.read()
        return min(sum(1 for step in steps.get(rank, ()) if step.pid not in old) for rank in range(self.world_size))

    def first_since(self, old: set[int]) -> dict[int, Step] | None:
        """The first step each rank finished in a new process, once every rank has one."""
        steps = self.read()
        firsts = {rank: next((step for step in steps.get(rank, ()) if step.pid not in old), None) for rank in range(self.world_size)}
        found = {rank: step for rank, step in firsts.items() if step is not None}
        return found if len(found) == self.world_size else None

    def furthest(self, pids: set[int]) -> int:
        """The most steps any of these processes has finished."""
        return max((step.step for steps in self.read().values() for step in steps if step.pid in pids), default=0)

    def all_again(self, rank: int, at: float, before: int) -> float | None:
        """When every rank had finished a step again after `rank` was struck at `at` in process `before`; None while that is not so.

        The struck rank must be another process. The others may have been kept, and a step they finished while it was gone is none of the new gang's.
        """
        steps = self.read()
        anew = next((step for step in steps.get(rank, ()) if step.at > at and step.pid != before), None)
        if anew is None:
            return None
        firsts = [next((step.at for step in steps.get(other, ()) if step.at >= anew.at - _TOGETHER_S), None) for other in range(self.world_size)]
        known = [first for first in firsts if first is not None]
        return max(known) if len(known) == self.world_size else None
