"""Persist: the agent's side of saving through memory. Whatever its workers have sealed is made durable, whether they still live or not.

Each rank's snapshots are taken one after the other, the oldest first: a checkpoint may refer to the newest complete one only because no rank has two
saves under way (see checkpoint/commit.py). Work is done in threads; what it costs the workers is bounded by the number of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import sys
from collections import defaultdict
from pathlib import Path
from typing import Final

from holdfast.checkpoint.snapshot import NONE, Buffer, persist, waiting_step

_LOOK_EVERY_S: Final = 0.05
_NAME: Final = re.compile(r"snapshot-(\d+)-(\d+)-[01]")


class Persist:
    """All snapshots below one node's memory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._busy: dict[int, asyncio.Task[None]] = {}  # By rank.

    async def run(self) -> None:
        while True:
            self._begin_what_waits()
            await asyncio.sleep(_LOOK_EVERY_S)

    async def settle(self, *, within_s: float) -> None:
        """Until all that is sealed is durable or has failed, or the time is up."""
        with contextlib.suppress(asyncio.TimeoutError):
            async with asyncio.timeout(within_s):
                while self._begin_what_waits():
                    await asyncio.wait(list(self._busy.values()), return_when=asyncio.FIRST_COMPLETED)

    def forget(self, *, before_generation: int) -> None:
        """Give back the memory of generations that are gone."""
        for path in self._directory.glob("snapshot-*"):
            name = _NAME.fullmatch(path.name)
            if name and int(name[1]) < before_generation:
                path.unlink(missing_ok=True)

    def _begin_what_waits(self) -> bool:
        """Whether anything waits or is under way."""
        waiting: dict[int, list[tuple[int, Path]]] = defaultdict(list)
        for path in self._directory.glob("snapshot-*"):
            name, step = _NAME.fullmatch(path.name), waiting_step(path)
            if name and step != NONE:
                waiting[int(name[2])].append((step, path))
        for rank, found in waiting.items():
            if rank not in self._busy:
                task = self._busy[rank] = asyncio.create_task(asyncio.to_thread(_persist, min(found)[1]))
                task.add_done_callback(lambda _, rank=rank: self._busy.pop(rank, None))  # type: ignore[misc]
        return bool(self._busy)


def _persist(path: Path) -> None:
    buffer = Buffer.open(path)
    if buffer is None or not buffer.is_waiting:
        return
    step = buffer.sealed.step
    try:
        persist(buffer)
        buffer.answer_durable(step)
    except Exception as error:  # Whatever it was: the worker is told, older checkpoints are kept, and the next save is tried.
        print(f"holdfast agent: step {step} in {path.name} could not be made durable: {error!r}", file=sys.stderr, flush=True)
        buffer.answer_failed(step)
