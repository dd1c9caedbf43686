"""`holdfast run`: bring up a cluster on this machine, show the job, and take everything down again."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable

from holdfast.chaos.undo import UNDO, Undoing
from holdfast.cli.job import hold, is_held, state_of
from holdfast.cli.live import Live
from holdfast.core import BROKEN_CODE
from holdfast.domain.job import JobSpec
from holdfast.domain.state import State
from holdfast.errors import HoldfastError
from holdfast.launch.layout import JobDirectory
from holdfast.launch.local import LocalCluster
from holdfast.wire.frames import BadFrame, Channel, connect
from holdfast.wire.messages import Output, StopJob, View, Watch

_COME_UP_S = 30.0
_STOPPING_SIGNALS = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM", signal.SIGHUP: "the terminal is gone"}


def run_job(directory: JobDirectory, spec: JobSpec, live: Live, *, started: Callable[[LocalCluster], None] = lambda cluster: None) -> State:
    """Run a job to its end. `started` is called once the processes are there."""
    with hold(directory):
        for problem in Undoing(directory.path / UNDO).heal():  # Of a storm that was killed together with its watchdog.
            print(f"a fault that was done to this job on purpose could not be put right: {problem}", file=sys.stderr)
        asyncio.run(_run(directory, spec, live, started))
        return state_of(directory)


async def _run(directory: JobDirectory, spec: JobSpec, live: Live, started: Callable[[LocalCluster], None]) -> None:
    viewer = Viewer(directory, live)
    viewer.stop_on_signals()
    async with LocalCluster(directory, spec, interpreter=sys.executable) as cluster:
        started(cluster)
        watching = asyncio.create_task(viewer.watch())
        await cluster.wait()
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(watching, 2.0)


def attach_job(directory: JobDirectory, live: Live) -> State:
    """Watch a job somebody else runs. Ctrl-C ends the watching, not the job."""
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(Viewer(directory, live).watch(retry=False))
    return state_of(directory)


async def ask_to_stop(directory: JobDirectory, *, now: bool) -> None:
    channel = await connect(directory.control_socket)
    channel.send(StopJob(because="asked to stop by `holdfast stop`", code=143, now=now))
    await channel.closed()


class Viewer:
    """Watches control: shows what it says, and passes on a wish to stop."""

    def __init__(self, directory: JobDirectory, live: Live) -> None:
        self._directory = directory
        self._live = live
        self._channel: Channel | None = None
        self._stop: StopJob | None = None
        self._ended = False

    def stop_on_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for signum, why in _STOPPING_SIGNALS.items():
            loop.add_signal_handler(signum, self._stop_asked, signum, why)

    def _stop_asked(self, signum: signal.Signals, why: str) -> None:
        """The first asks for a graceful stop, the second for an end at once."""
        self._stop = StopJob(because=f"stopped: {why}", code=128 + signum, now=self._stop is not None)
        if self._channel is not None:
            self._channel.send(self._stop)

    async def watch(self, *, retry: bool = True) -> None:
        """Until the job has ended. Control may die and come back meanwhile."""
        while not self._ended:
            try:
                channel = await connect(self._directory.control_socket)
            except OSError:
                if not retry:
                    return
                await asyncio.sleep(0.05)
                continue
            self._channel = channel
            channel.send(Watch())
            if self._stop is not None:
                channel.send(self._stop)
            with contextlib.suppress(BadFrame):
                async for message in channel:
                    self._show(message)
            self._channel = None
            await channel.closed()

    def _show(self, message: object) -> None:
        match message:
            case View():
                self._live.view(message)
                self._ended = bool(message.outcome)
            case Output(data=data):
                self._live.output(data)
            case _:
                pass
        if self._live.lost and self._stop is None:
            self._stop_asked(signal.SIGHUP, _STOPPING_SIGNALS[signal.SIGHUP])


def detach(log: str) -> bool:
    """Go on in the background: True in the process that does, False in the one that returns to the shell."""
    reader, writer = os.pipe()
    if os.fork() != 0:
        os.close(writer)
        os.read(reader, 1)  # Until the other has let go of the terminal, or died.
        return False
    os.close(reader)
    os.setsid()
    if os.fork() != 0:
        os._exit(0)
    null, out = os.open(os.devnull, os.O_RDONLY), os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for fd, target in ((null, 0), (out, 1), (out, 2)):
        os.dup2(fd, target)
    os.write(writer, b".")
    os.close(writer)
    return True


def come_up(directory: JobDirectory) -> None:
    """Wait until a job that was put in the background can be asked for, since the next command may do so, or is over already."""
    seen, until_s = False, time.monotonic() + _COME_UP_S
    while time.monotonic() < until_s:
        held = is_held(directory)
        if (held and _is_known(directory)) or (seen and not held):
            return
        seen |= held
        time.sleep(0.02)
    raise HoldfastError(f"job {directory.job!r} did not come up within {_COME_UP_S:.0f} s; {directory.logs / 'run.log'} may say why")


def _is_known(directory: JobDirectory) -> bool:
    try:
        return state_of(directory).spec is not None
    except HoldfastError:
        return False  # Its journal is only being made.


def exit_code(state: State) -> int:
    return state.code if state.outcome is not None else BROKEN_CODE
