"""One line on stderr for the person who reads the log: `Say`. A standing condition is told once, not at every step."""

from __future__ import annotations

import contextlib
import sys


class Say:
    """Speaks for one rank. It never raises: a closed stderr must not end a training run."""

    def __init__(self, *, rank: int, world_size: int) -> None:
        self._prefix = f"holdfast: rank {rank}: " if world_size > 1 else "holdfast: "
        self._told: set[str] = set()

    def line(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError, AttributeError):
            print(f"{self._prefix}{text}", file=sys.stderr, flush=True)

    def once(self, topic: str, text: str) -> None:
        if topic not in self._told:
            self._told.add(topic)
            self.line(text)
