"""A gang at the start: released when every member is ready and reaches all the others. Until then nothing runs and nothing is charged."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(slots=True)
class Gang:
    size: int
    _reached: dict[int, frozenset[int]] = field(default_factory=dict)

    def ready(self, rank: int, reaches: Iterable[int]) -> bool:
        """A member is there and reaches these. True when that completes the gang. What it says later replaces what it said before."""
        assert 0 <= rank < self.size, f"rank {rank} of a gang of {self.size}"
        self._reached[rank] = frozenset(reaches) | {rank}
        return self.complete

    @property
    def complete(self) -> bool:
        everybody = frozenset(range(self.size))
        return len(self._reached) == self.size and all(reached >= everybody for reached in self._reached.values())

    @property
    def missing(self) -> str:
        """What it waits for, in words."""
        absent = [rank for rank in range(self.size) if rank not in self._reached]
        if absent:
            return f"ranks {absent} are not ready"
        apart = sorted((rank, other) for rank, reached in self._reached.items() for other in range(self.size) if other not in reached)
        return f"ranks {apart[0][0]} and {apart[0][1]} do not reach each other" if apart else "nothing"
