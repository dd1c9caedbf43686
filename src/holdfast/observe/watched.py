"""The workers that are watched: rank to process. The agent adds and removes, the probes of workers read."""

from __future__ import annotations

import threading


class Watched:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._workers: dict[int, int] = {}

    def add(self, rank: int, pid: int) -> None:
        """The next look sees it. A rank that was there already is another process now."""
        with self._lock:
            self._workers[rank] = pid

    def remove(self, rank: int) -> None:
        with self._lock:
            self._workers.pop(rank, None)

    def workers(self) -> dict[int, int]:
        with self._lock:
            return dict(self._workers)
