"""Training: what the loss, the gradient's norm and the learning rate did, for whoever reads the gauge table once a second.

A loss at one moment says little when there are a hundred steps between two looks: so it is added up, and the reader divides. Since when it is not finite is
known to the step, because the rank that had it first is the one to look at.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from math import isfinite, nan
from typing import Any

from holdfast.domain.gauges import BAD_SINCE, GOOD_UNTIL, GPU_MEMORY, GPU_PEAK, GPU_SIZE, LEARNING_RATE, LOSS, LOSSES, NORM, NORMS, GaugeTable


class Training:
    def __init__(self, gauges: GaugeTable, pieces: Mapping[str, Any]) -> None:
        self._gauges = gauges
        torch = sys.modules.get("torch")
        optimizers = (piece for piece in pieces.values() if torch is not None and isinstance(piece, torch.optim.Optimizer))
        self._optimizer = next(optimizers, None)
        self._loss, self._losses, self._norm, self._norms = 0.0, 0, 0.0, 0
        self._bad, self._good = False, nan  # Whether the newest loss is not finite, and the step of the last that was.

    def take(self, name: str, value: float, step: int) -> None:
        """A number has arrived that was reported in this step."""
        finite = isfinite(value)
        if name == "loss":
            if finite == self._bad:
                self._bad = not finite
                self._gauges.set(GOOD_UNTIL, nan if finite else self._good)
                self._gauges.set(BAD_SINCE, nan if finite else step)
            if finite:
                self._good = step
                self._loss, self._losses = self._loss + value, self._losses + 1
        elif name == "grad_norm" and finite:
            self._norm, self._norms = self._norm + value, self._norms + 1

    def write(self, rate_times: float = 1.0) -> None:
        """Put it where others read it. `rate_times`: the learning rate that is used is so many times the optimizer's own."""
        put = self._gauges.set
        if self._losses:
            put(LOSS, self._loss)
            put(LOSSES, self._losses)
        if self._norms:
            put(NORM, self._norm)
            put(NORMS, self._norms)
        rate = self._optimizer.param_groups[0].get("lr") if self._optimizer is not None else None
        if isinstance(rate, (float, int)):  # One on a GPU would have to be waited for.
            put(LEARNING_RATE, rate * rate_times)
        torch = sys.modules.get("torch")
        if torch is not None and torch.cuda.is_initialized():
            stats = torch.cuda.memory_stats()
            put(GPU_MEMORY, stats.get("allocated_bytes.all.current", 0))
            put(GPU_PEAK, stats.get("allocated_bytes.all.peak", 0))
            put(GPU_SIZE, self._gpu_bytes(torch.cuda))

    def _gpu_bytes(self, cuda: Any) -> float:
        """What this process may have of its GPU, by the card and by what the script allows itself."""
        allowed = getattr(cuda, "get_per_process_memory_fraction", None)  # Not in all versions of torch.
        return float(cuda.get_device_properties(cuda.current_device()).total_memory * (allowed() if allowed is not None else 1.0))
