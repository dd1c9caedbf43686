"""Beats: the worker's side of the record in shared memory. `Beats.beat()` writes it, `Beats.enter()` names the phase the worker is in.

The file is made by the agent; without one every call is a no-op. A beat is a clock reading and three writes into mapped memory: no system call, no
lock. Call it from the thread of the training loop alone.
"""

from __future__ import annotations

import mmap
from pathlib import Path
from time import monotonic_ns

from holdfast.domain.beat import BEAT_FILE_BYTES, TABLE_AT, UNREPORTED, pack_fields
from holdfast.domain.gauges import GaugeTable


class Beats:
    """The record as it will be written next: change the fields, then beat."""

    __slots__ = (
        "_phase_bytes", "_seq", "_view", "data_wait_s", "flags", "gauges", "generation", "grad_norm", "loss", "phase", "phase_since_ns",
        "restored_step", "samples", "save_every", "save_s", "saved_step", "stall_s", "step", "step_started", "steps_total",
    )  # fmt: skip

    def __init__(self, view: memoryview | None, *, generation: int = 0) -> None:
        self._view, self._seq = view, 0
        self.gauges = GaugeTable(view[TABLE_AT:] if view is not None else None)
        self.generation, self.flags = generation, 0
        self.step, self.steps_total, self.step_started = 0, 0, 0
        self.phase, self._phase_bytes, self.phase_since_ns = "start", b"start", monotonic_ns()
        self.loss = self.grad_norm = UNREPORTED
        self.data_wait_s = self.save_s = 0.0
        self.samples, self.saved_step, self.restored_step = 0, -1, -1
        self.save_every, self.stall_s = -1, float("nan")

    def beat(self) -> None:
        self._write(monotonic_ns())

    def _write(self, now_ns: int) -> None:
        view = self._view
        if view is None:
            return
        self._seq = seq = self._seq + 1
        pack_fields(
            view, seq, self.flags, self.generation, self.step, self.steps_total, self.step_started, self._phase_bytes, self.phase_since_ns,
            now_ns, self.loss, self.grad_norm, self.data_wait_s, self.save_s, self.samples, self.saved_step, self.restored_step,
            self.save_every, self.stall_s,
        )  # fmt: skip

    def enter(self, phase: str) -> None:
        """Begin a phase, also the same one again: every step is a phase of its own, with its own time."""
        if phase is not self.phase:
            self.phase, self._phase_bytes = phase, phase.encode()[:24]
        self.phase_since_ns = now_ns = monotonic_ns()
        self._write(now_ns)


def open_beats(path: Path | None, *, generation: int = 0) -> Beats:
    """The record in the file at `path`; raises OSError or ValueError when that is not a file of the right size."""
    if path is None:
        return Beats(None, generation=generation)
    with path.open("r+b") as file:
        return Beats(memoryview(mmap.mmap(file.fileno(), BEAT_FILE_BYTES)), generation=generation)
