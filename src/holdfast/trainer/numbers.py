"""Numbers from the loop, read without making anyone wait: `Numbers.offer` takes them, `Numbers.arrived` has the newest that are here.

A float or a CPU tensor is here at once. A tensor on a GPU is copied into pinned memory behind the work that computes it, and read when the event
after the copy says so, usually a step later. Nothing here waits for a GPU.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Final

_ON_THE_WAY_MAX: Final = 16  # Beyond this the GPU is far behind, and a newer number is not worth more memory.


class Numbers:
    """The newest value of every number reported."""

    def __init__(self) -> None:
        self.arrived: dict[str, float] = {}
        self._on_the_way: deque[tuple[str, Any, Any]] = deque()

    def offer(self, name: str, value: Any) -> None:
        """Take a number or a tensor of one element; raises TypeError or ValueError for anything else."""
        if isinstance(value, float):
            self.arrived[name] = value
        elif getattr(value, "is_cuda", False):
            self._send(name, value)
        else:
            self.arrived[name] = float(_local(value))

    def collect(self) -> None:
        """Take in what has arrived, in order; what has not stays on its way."""
        while self._on_the_way and self._on_the_way[0][2].query():
            name, landed, _ = self._on_the_way.popleft()
            self.arrived[name] = float(landed)

    def _send(self, name: str, value: Any) -> None:
        import torch

        cuda: Any = torch.cuda
        if len(self._on_the_way) >= _ON_THE_WAY_MAX or cuda.is_current_stream_capturing():
            return
        scalar = _local(value)
        if scalar.numel() != 1:
            raise ValueError(f"{name} has {scalar.numel()} elements: expected one")
        landed = torch.empty((), dtype=scalar.dtype, pin_memory=True)
        landed.copy_(scalar.reshape(()), non_blocking=True)
        event = cuda.Event()
        event.record()
        self._on_the_way.append((name, landed, event))


def _local(value: Any) -> Any:
    """A DTensor's part here: a replicated loss is whole on every rank, and gathering another one would be a collective."""
    value = value.detach() if hasattr(value, "detach") else value
    return value.to_local() if hasattr(value, "to_local") else value
