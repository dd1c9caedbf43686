"""`holdfast run`: bring up a cluster on this machine, show the job, and take everything down again."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Final, TypeVar

from holdfast.chaos.undo import UNDO, Undoing
from holdfast.cli.job import hold, is_held, not_running, state_now, state_of
from holdfast.cli.live import Live
from holdfast.cli.logs import Tail, offset_of_last
from holdfast.cli.words import culprits_words
from holdfast.core import BROKEN_CODE
from holdfast.domain.job import JobPhase, JobSpec
from holdfast.domain.resources import size
from holdfast.domain.state import State
from holdfast.errors import HoldfastError, UserError
from holdfast.launch.layout import JobDirectory
from holdfast.launch.local import LocalCluster
from holdfast.wire.frames import BadFrame, Channel, connect
from holdfast.wire.messages import StopJob, View, Watch

Shown = TypeVar("Shown")

_COME_UP_S: Final = 30.0
_FOLLOW_EVERY_S: Final = 0.1
_SHOWN_BYTES_MAX: Final = 16 << 20  # A terminal takes minutes for more, and keeps a few thousand lines of it.
_LAST_LINES_BYTES: Final = 64 << 10
_LINES_BEFORE: Final = 10  # So many `holdfast attach` begins with.
_STOPPING_SIGNALS = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM", signal.SIGHUP: "the terminal is gone"}


def run_job(directory: JobDirectory, spec: JobSpec, live: Live, *, started: Callable[[LocalCluster], None] = lambda cluster: None) -> State:
    """Run a job to its end. `started` is called once the processes are there."""
    with hold(directory):
        for problem in Undoing(directory.path / UNDO).heal():  # Of a storm that was killed together with its watchdog.
            print(f"a fault that was done to this job on purpose could not be put right: {problem}", file=sys.stderr)
        asyncio.run(_run(directory, spec, live, started))
        return state_now(directory)


async def _run(directory: JobDirectory, spec: JobSpec, live: Live, started: Callable[[LocalCluster], None]) -> None:
    viewer = Viewer(directory, live)
    viewer.stop_on_signals()
    async with LocalCluster(directory, spec, interpreter=sys.executable, say=live.note) as cluster:
        started(cluster)
        watching = asyncio.create_task(viewer.watch())
        following = asyncio.create_task(viewer.follow())
        await cluster.wait()
    viewer.is_over()
    await asyncio.gather(watching, following)


def attach_job(directory: JobDirectory, live: Live) -> State:
    """Watch a job somebody else runs. Ctrl-C ends the watching, not the job."""
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_attach(Viewer(directory, live, last_lines=_LINES_BEFORE)))
    state = state_now(directory)
    if state.phase is JobPhase.LOST:
        raise UserError(not_running(directory))
    return state


async def _attach(viewer: Viewer) -> None:
    following = asyncio.create_task(viewer.follow())
    await viewer.watch(retry=False)
    viewer.is_over()
    await following


async def ask_to_stop(directory: JobDirectory, *, now: bool) -> None:
    channel = await connect(directory.control_socket)
    channel.send(StopJob(because="asked to stop by `holdfast stop`", code=143, now=now))
    await channel.closed()


class Viewer:
    """Watches control and rank 0's log: shows what they say, and passes on a wish to stop. What is slow to read holds up nothing but the showing."""

    def __init__(self, directory: JobDirectory, live: Live, *, last_lines: int = 0) -> None:
        """`last_lines`: so many of what was printed before are shown too."""
        self._directory = directory
        self._live = live
        self._log = Tail(directory.rank_log(0), offset_of_last(directory.rank_log(0), last_lines))
        self._showing = asyncio.Lock()
        self._channel: Channel | None = None
        self._stop: StopJob | None = None
        self._ended = False
        self._is_over = False
        self._skips = False
        self._told: set[int] = set()  # The incidents whose beginning was shown, or need not be,
        self._quoted: set[str] = set()  # and what was quoted of them: ten failures of one kind are quoted once.

    def stop_on_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for signum, why in _STOPPING_SIGNALS.items():
            loop.add_signal_handler(signum, self._stop_asked, signum, why)

    def _stop_asked(self, signum: signal.Signals, why: str) -> None:
        """The first asks for a graceful stop, the second for an end at once. After the end they cut short what is still to be shown."""
        if self._is_over:
            self._skips = True
            asyncio.get_running_loop().remove_signal_handler(signum)
            signal.signal(signum, signal.SIG_DFL)
            return
        self._stop = StopJob(because=f"stopped: {why}", code=128 + signum, now=self._stop is not None)
        if self._channel is not None:
            self._channel.send(self._stop)

    def is_over(self) -> None:
        """Nothing will be printed or said any more."""
        self._is_over = True

    async def watch(self, *, retry: bool = True) -> None:
        """Until the job has ended. Control may die and come back meanwhile."""
        while not self._ended:
            try:
                channel = await connect(self._directory.control_socket)
            except OSError:
                if not retry or self._is_over:
                    return
                await asyncio.sleep(0.05)
                continue
            self._channel = channel
            channel.send(Watch())
            if self._stop is not None:
                channel.send(self._stop)
            with contextlib.suppress(BadFrame):
                async for message in channel:
                    if isinstance(message, View):
                        self._ended = bool(message.outcome)
                        await self._show(self._live.view, message)
                        await self._show_culprits(message)
            self._channel = None
            await channel.closed()

    async def _show_culprits(self, view: View) -> None:
        """The traceback an incident began with, once: what rank 0 printed is mostly its echo."""
        for incident in view.incidents:
            if incident.cause and incident.rung and incident.id not in self._told:
                self._told.add(incident.id)
                words = culprits_words(await asyncio.to_thread(state_of, self._directory), incident.id)
                if words and words.partition("\n")[2] not in self._quoted:
                    self._quoted.add(words.partition("\n")[2])
                    await self._show(self._live.note, words)

    async def follow(self) -> None:
        """Show what rank 0 prints, to its end: from its log, where all of it is, however fast it came."""
        try:
            while self._live.mode != "json":
                over = self._is_over  # Asked first: nothing is printed after it.
                while data := self._log.read():
                    await self._show(self._live.output, data)
                    if self._is_over and self._is_too_much(self._log.left_bytes()):
                        await self._skip()
                if over:
                    return
                await asyncio.sleep(_FOLLOW_EVERY_S)
        finally:
            self._log.close()

    def _is_too_much(self, left_bytes: int) -> bool:
        return self._skips or (self._live.mode == "terminal" and left_bytes > _SHOWN_BYTES_MAX)

    async def _skip(self) -> None:
        left_out = self._log.skip_to_last(_LAST_LINES_BYTES)
        if left_out:
            await self._show(self._live.note, f"{size(left_out)} more in `holdfast logs {self._directory.job}`")

    async def _show(self, how: Callable[[Shown], None], what: Shown) -> None:
        """Shows in a thread: a terminal that is held, or a pipe that no process reads from, must not keep us from the cluster."""
        async with self._showing:
            await asyncio.to_thread(how, what)
        if self._live.lost and self._stop is None and not self._is_over:
            self._stop_asked(signal.SIGHUP, "nobody reads the output any more")


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
