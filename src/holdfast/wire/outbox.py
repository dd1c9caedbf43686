"""An outbox: what was told and not yet acknowledged. Pure; the caller does the sending."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from holdfast.wire.messages import Told


@dataclass(slots=True)
class Outbox:
    """Numbers messages from 1 and keeps them until the other side has written them down."""

    _next: int = 1
    _kept: deque[Told] = field(default_factory=deque)

    def tell(self, kind: str, body: bytes) -> Told:
        told = Told(seq=self._next, kind=kind, body=body)
        self._next += 1
        self._kept.append(told)
        return told

    def acknowledged(self, seq: int) -> None:
        while self._kept and self._kept[0].seq <= seq:
            self._kept.popleft()

    def unacknowledged(self) -> tuple[Told, ...]:
        """What to send again after a reconnect, in order."""
        return tuple(self._kept)


@dataclass(slots=True)
class Inbox:
    """The other end: takes each number of each sender once, in order."""

    _seen: dict[str, int] = field(default_factory=dict)

    def is_new(self, instance: str, seq: int) -> bool:
        if seq <= self._seen.get(instance, 0):
            return False
        self._seen[instance] = seq
        return True
