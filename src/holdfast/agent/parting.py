"""Parting, the agent's side: ranks of a broken gang are told to leave their collectives and to wait; and, later, where to go on.

The worker's side is trainer/parting.py. A worker that can do this has made a pipe of its own here, and sleeps at it in the kernel; what it did then is seen in
its beat. Who is not there in time holds the GIL, or has swallowed the exception, or computes: it is ended with those who are to blame, and nothing hangs.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import time
from collections.abc import Collection, Mapping
from pathlib import Path

from holdfast.agent.watch import Left, Watch

_LOOK_EVERY_S = 0.002


async def part(watch: Watch, directory: Path, generation: int, *, without: Collection[int], within_s: float) -> dict[int, Left]:
    """Tell all ranks but some to part. How those have left it who wait when the time is up or all do, by rank."""
    told = {rank for rank, pid in watch.ranks(generation).items() if rank not in without and _tell(directory, pid, f"part {generation}")}
    deadline = time.monotonic() + within_s
    while True:
        waiting = {rank: left for rank, left in watch.waiting(generation).items() if rank in told}
        if told & watch.ranks(generation).keys() <= waiting.keys() or time.monotonic() > deadline:
            return waiting
        await asyncio.sleep(_LOOK_EVERY_S)


def why_not(watch: Watch, directory: Path, generation: int) -> dict[str, str]:
    """By rank, why it could not leave its loop alive, where it has said so."""
    said = {}
    for rank, pid in watch.ranks(generation).items():
        with contextlib.suppress(OSError, UnicodeDecodeError):
            said[str(rank)] = (directory / f"cannot-{pid}").read_text()
    return said


def place(directory: Path, pid: int, generation: int, env: Mapping[str, str]) -> None:
    """Tell one who waits where it goes on. Told twice it is once: who has gone on hears it no more."""
    (directory / f"place-{pid}").write_text(json.dumps(dict(env)))
    _tell(directory, pid, f"rejoin {generation}")


def _tell(directory: Path, pid: int, word: str) -> bool:
    with contextlib.suppress(OSError):  # No pipe, or nobody at its other end: this worker cannot part.
        fd = os.open(directory / f"rejoin-{pid}", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            return os.write(fd, f"{word}\n".encode()) > 0
        finally:
            os.close(fd)
    return False
