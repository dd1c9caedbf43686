"""A notice: that a node will go, and when, as somebody outside says it: a cloud that takes a machine back, an allocation that ends, maintenance."""

from __future__ import annotations

from dataclasses import dataclass

SAME_S = 5.0  # Two times nearer than this are one, told twice: clocks of nodes are not quite alike.


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    because: str
    goes_at: float  # Seconds since the epoch, by the clock of whoever holds it.

    def is_like(self, other: Notice | None) -> bool:
        return other is not None and self.because == other.because and abs(self.goes_at - other.goes_at) < SAME_S
