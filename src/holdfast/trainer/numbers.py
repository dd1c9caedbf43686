"""Numbers from the loop, read without making anyone wait: `Numbers.offer` takes them, `Numbers.arrived` has the newest that are here.

A float or a CPU tensor is here at once. A tensor on a GPU is copied into pinned memory behind the work that computes it, and read when the event
after the copy says so, usually a step later. Nothing here waits for a GPU.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from time import monotonic, perf_counter, sleep
from typing import Any, Final

_EVERY_S: Final = 0.2  # Sending a number costs 100 µs where every step waits for the GPU, and agents look once a second.


class Numbers:
    """The newest value of every number reported."""

    def __init__(self, told: Callable[[str, float, int], None] = lambda *_: None) -> None:
        """`told` hears of each that arrives: its name, its value, and the step in which it was offered."""
        self.arrived: dict[str, float] = {}
        self._told = told
        self._slots: dict[str, _Slot] = {}

    def offer(self, name: str, value: Any, step: int = 0) -> None:
        """Take a number or a tensor of one element; raises TypeError or ValueError for anything else."""
        if isinstance(value, float):
            self._arrive(name, value, step)
        elif getattr(value, "is_cuda", False):
            self._send(name, value, step)
        else:
            self._arrive(name, float(_local(value)), step)

    def collect(self) -> None:
        """Take in what has arrived; what has not stays on its way."""
        for name, slot in self._slots.items():
            if slot.on_the_way and slot.event.query():
                slot.on_the_way = False
                self._arrive(name, float(slot.landed), slot.step)

    def _arrive(self, name: str, value: float, step: int) -> None:
        self.arrived[name] = value
        self._told(name, value, step)

    def _send(self, name: str, value: Any, step: int) -> None:
        """One at a time for each name: while one is on its way the GPU is behind, and a newer number would only queue."""
        slot, now = self._slots.get(name), perf_counter()
        if slot is not None and (slot.on_the_way or now - slot.sent_at < _EVERY_S):
            return
        import torch

        if torch.cuda.is_current_stream_capturing():
            return
        scalar = _local(value)
        if scalar.numel() != 1:
            raise ValueError(f"{name} has {scalar.numel()} elements: expected one")
        if slot is None:
            slot = self._slots[name] = _Slot(torch.empty((), dtype=scalar.dtype, pin_memory=True), torch.cuda.Event())
        slot.landed.copy_(scalar.reshape(()), non_blocking=True)
        slot.event.record()
        slot.on_the_way, slot.sent_at, slot.step = True, now, step


class _Slot:
    """Where one number lands, again and again: making pinned memory and events anew took longer than the copy."""

    __slots__ = ("event", "landed", "on_the_way", "sent_at", "step")

    def __init__(self, landed: Any, event: Any) -> None:
        self.landed, self.event = landed, event
        self.on_the_way, self.sent_at, self.step = False, 0.0, 0


def gpu_is_done(*, within_s: float) -> bool:
    """Whether the GPU comes to the end of what it was given. At once where there is none."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return True
    event, deadline = torch.cuda.Event(), monotonic() + within_s
    event.record()
    while not event.query():
        if monotonic() > deadline:
            return False
        sleep(0.002)
    return True


def _local(value: Any) -> Any:
    """A DTensor's part here: a replicated loss is whole on every rank, and gathering another one would be a collective."""
    value = value.detach() if hasattr(value, "detach") else value
    return value.to_local() if hasattr(value, "to_local") else value
