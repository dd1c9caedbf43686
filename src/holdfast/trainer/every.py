"""Every: how many steps from one save to the next, as control has it changed while the run goes on.

The record is written by the agent (see domain/interval.py). To look at it costs a read from mapped memory at every step, and nothing waits: a worker without a
record, or whose agent is gone, goes on with what it has.
"""

from __future__ import annotations

import mmap
from pathlib import Path

from holdfast.domain.interval import INTERVAL_BYTES, read_interval, sequence

NEVER = 1 << 62


class Every:
    """Ask `at` once for every step, in order."""

    __slots__ = ("_from", "_generation", "_next", "_record", "_seq", "late", "steps")

    def __init__(self, steps: int, record: memoryview | None = None, *, generation: int = 0) -> None:
        self.steps = steps  # As of the last step that was asked about.
        self.late: tuple[int, ...] = ()  # Steps that others saved and this rank did not, or the other way round: it was told too late.
        self._record, self._generation, self._seq = record, generation, 0
        self._next, self._from = steps, NEVER

    def at(self, step: int) -> int:
        if self._record is not None and sequence(self._record) != self._seq:
            self._hear(self._record, step)
        if step >= self._from:
            self.steps, self._from = self._next, NEVER
        return self.steps

    def _hear(self, record: memoryview, step: int) -> None:
        told = read_interval(record)
        if told is None:
            return  # It is being written: the next step finds it.
        self._seq = sequence(record)
        if told.generation == self._generation:
            # Somebody who was not told in time went on as before, from the step at which the others did not.
            self.late = tuple(one for one in range(told.from_step, step) if (one % self.steps == 0) != (one % told.every == 0)) if self.steps else ()
            self._next, self._from = told.every, told.from_step


def open_record(path: Path) -> memoryview:
    """Raises OSError or ValueError when that is not a file of the right size."""
    with path.open("rb") as file:
        return memoryview(mmap.mmap(file.fileno(), INTERVAL_BYTES, prot=mmap.PROT_READ))
