"""Which process each rank of a running job is: the journal does not know, and control does."""

from __future__ import annotations

import asyncio
import contextlib

from holdfast.cli.job import is_held
from holdfast.launch.layout import JobDirectory
from holdfast.wire.frames import BadFrame, connect
from holdfast.wire.messages import View, Watch

_WITHIN_S = 2.0


def rank_processes(directory: JobDirectory) -> dict[int, int]:
    """Rank to process id, on the rank's own node; empty for a job that does not run, and while its control is being restarted."""
    if is_held(directory):
        with contextlib.suppress(OSError, TimeoutError, BadFrame):
            return asyncio.run(asyncio.wait_for(_ask(directory), _WITHIN_S))
    return {}


async def _ask(directory: JobDirectory) -> dict[int, int]:
    channel = await connect(directory.control_socket)
    try:
        channel.send(Watch())
        async for message in channel:
            if isinstance(message, View):
                return {reading.rank: reading.pid for reading in message.ranks}
    finally:
        await channel.closed()
    return {}
