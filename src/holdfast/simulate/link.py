"""A connection between one agent and control: messages keep their order, take their time, come twice, and may be lost when it breaks.

Control that has a broken connection may still find messages in its buffer: they arrive late, behind those of the connection that came after it. Only what an
agent told can be so late; it stops reading a connection when it leaves it. What control said before it died may still be read. A control that stands still
reads when it goes on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.simulate.node import VirtualNode
    from holdfast.simulate.world import World

_UP = (("link.up.delayed", 0.001), ("link.up.repeated", 0.002), ("link.up.breaks", 0.0007))
_DOWN = (("link.down.delayed", 0.002), ("link.down.repeated", 0.004), ("link.down.breaks", 0.0015))
DELAY_S = 8.0  # At most, for one message that is held up.


@dataclass(slots=True)
class Link:
    world: World
    node: VirtualNode
    life: int  # Of control: what was sent to one that died is not read by the next.
    is_open: bool = True
    late: bool = False  # Broken, but what was on its way to control still arrives.
    drained: bool = False  # Control died, but what it had said before is still read.
    opened_at: float = field(init=False)
    _unread: list[tuple[Callable[[Any], None], Any]] = field(default_factory=list)
    _up: float = 0.0
    _down: float = 0.0

    def __post_init__(self) -> None:
        self.opened_at = self.world.clock.now

    def to_control(self, hear: Callable[[Any], None], message: Any) -> None:
        def arrive() -> None:
            self._unread.append((hear, message))
            if len(self._unread) == 1:
                self._read()

        trouble = self.world.faults.pick(_UP)
        self._up = self._arrival(self._up, delayed=trouble == "link.up.delayed")
        self._carry(arrive, self._up, breaks=trouble == "link.up.breaks", twice=trouble == "link.up.repeated")

    def _read(self) -> None:
        """Control reads what has come, in order; when it goes on, if it stands still."""
        clock, control = self.world.clock, self.world.control
        if control.paused_until > clock.now:
            clock.at(control.paused_until, self._read)
            return
        unread, self._unread = self._unread, []
        for hear, message in unread:
            if not self.is_open:
                self.world.hit("link.up.stale" if self.late else "link.up.lost")
            if self.is_open or self.late:
                hear(message)

    def to_agent(self, hear: Callable[[Any], None], message: Any) -> None:
        world = self.world

        def arrive() -> None:
            if not self.is_open:
                world.hit("link.down.stale" if self.drained else "link.down.lost")
            if self.is_open or self.drained:
                hear(message)

        trouble = world.faults.pick(_DOWN)
        self._down = self._arrival(self._down, delayed=trouble == "link.down.delayed")
        self._carry(arrive, self._down, breaks=trouble == "link.down.breaks", twice=trouble == "link.down.repeated")

    def cut(self, *, dead: bool = False) -> None:
        """May come again for one that is cut: what was lost by then stays lost, and what was sent after it with it."""
        late, drained = self.world.dice.random() < 0.3, dead and self.world.dice.random() < 0.5
        self.late, self.drained = late and (self.is_open or self.late), drained and (self.is_open or self.drained)
        self.is_open = False

    def _arrival(self, before: float, *, delayed: bool) -> float:
        world = self.world
        takes_s = world.dice.random() * (world.latency_s + self.node.network_slow_s) + (world.dice.uniform(1.0, DELAY_S) if delayed else 0.0)
        return max(before, world.clock.now + takes_s)

    def _carry(self, arrive: Callable[[], None], at: float, *, breaks: bool, twice: bool) -> None:
        clock = self.world.clock
        if breaks:  # Before this message is there, and so without it.
            clock.at(at, lambda: self.world.control.lost(self.node.name, self) if self.is_open else None)
        for _ in range(1 + twice):
            clock.at(at, arrive)
