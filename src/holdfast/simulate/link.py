"""A connection between one agent and control: messages keep their order, take their time, and may be lost when it breaks.

Control that has a broken connection may still find messages in its buffer: they arrive late, behind those of the connection that came after it. Only what an
agent told can be so late; it stops reading a connection when it leaves it.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from holdfast.simulate.clock import Clock


@dataclass(slots=True)
class Link:
    clock: Clock
    dice: random.Random
    latency_s: float
    life: int  # Of control: what was sent to one that died is not read by the next.
    is_open: bool = True
    late: bool = False  # Broken, but what was on its way to control still arrives.
    _up: float = 0.0
    _down: float = 0.0

    def to_control(self, hear: Callable[[Any], None], message: Any) -> None:
        self._up = max(self._up, self.clock.now + self.dice.random() * self.latency_s)
        self.clock.after(self._up - self.clock.now, lambda: hear(message) if self.is_open or self.late else None)

    def to_agent(self, hear: Callable[[Any], None], message: Any) -> None:
        self._down = max(self._down, self.clock.now + self.dice.random() * self.latency_s)
        self.clock.after(self._down - self.clock.now, lambda: hear(message) if self.is_open else None)

    def cut(self) -> None:
        self.is_open, self.late = False, self.dice.random() < 0.3
