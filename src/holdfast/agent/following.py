"""Following: what ranks print is sent to control while somebody watches them. All of it is in their logs, whoever watches."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Final

from holdfast.domain.effect import StartGang
from holdfast.wire.frames import Channel
from holdfast.wire.messages import Output

_OUTPUT_BYTES: Final = 64 << 10
_BACKLOG_BYTES_MAX: Final = 1 << 20
_JUST_STARTED_S: Final = 5.0
_FOLLOW_EVERY_S: Final = 0.2


class Following:
    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._channel: Channel | None = None  # To a control that has said for whom it passes output on.
        self._followed: dict[int, int] = {}  # Rank to how far its log was sent.
        self._before_start: tuple[float, dict[int, int]] = (0.0, {})  # When ranks were last started here, and how long their logs were then.
        self._started_last = 0  # The newest generation that was started here.

    def follow(self, ranks: Collection[int], channel: Channel | None) -> None:
        self._followed = {rank: self._followed.get(rank, self._first_shown(rank)) for rank in ranks}
        self._channel = channel

    def lost_control(self) -> None:
        self._channel = None

    async def run(self, ranks: Callable[[], Collection[int]]) -> None:
        """`ranks`: those that run here now."""
        while True:
            for rank in self._followed:
                if rank in ranks():
                    self.send(rank)
            await asyncio.sleep(_FOLLOW_EVERY_S)

    def begin(self, effect: StartGang) -> None:
        """What ranks printed while they ran elsewhere was sent from there."""
        if effect.generation != self._started_last + 1:
            self._followed |= {rank: self.size(rank) for rank in effect.ranks if rank in self._followed}
        self._started_last = effect.generation
        self._before_start = (time.monotonic(), {rank: self.size(rank) for rank in effect.ranks})

    def _first_shown(self, rank: int) -> int:
        """From where somebody who begins to watch is shown a log: from here on; and right after a start from its beginning, since a viewer that was started
        with the job may come to us after a script that is short."""
        at, sizes = self._before_start
        return sizes[rank] if rank in sizes and time.monotonic() - at <= _JUST_STARTED_S else self.size(rank)

    def send(self, rank: int) -> None:
        """Send what a followed rank printed since the last time. A viewer that cannot keep up gets it later: it is all in the log."""
        if rank not in self._followed or self._channel is None:
            return
        size = self.size(rank)
        if size == self._followed[rank]:
            return
        if size < self._followed[rank]:
            self._followed[rank] = 0  # The log was rotated.
        with contextlib.suppress(OSError), self.log(rank).open("rb") as log:
            log.seek(self._followed[rank])
            while self._channel.backlog_bytes < _BACKLOG_BYTES_MAX and (data := log.read(_OUTPUT_BYTES)):
                self._channel.send(Output(rank=rank, data=data))
                self._followed[rank] += len(data)

    def log(self, rank: int) -> Path:
        return self._logs / f"rank-{rank}.log"

    def size(self, rank: int) -> int:
        try:
            return os.stat(self.log(rank)).st_size
        except OSError:
            return 0
