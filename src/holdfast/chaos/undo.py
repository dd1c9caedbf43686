"""Undo: how to put right what was done, written down before it is done, as plain values in a file: whoever finds the file can do it.

    undoing = Undoing(path); undoing.add(Remove(path=…)); …; undoing.heal()
    watchdog(path)         a process that heals from the file when this one is gone, however it went

Each is done in turn, the newest first, and once more does no harm: what is gone already needs nothing.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from signal import Signals, pidfd_send_signal
from typing import assert_never

import msgspec

from holdfast.agent import tree
from holdfast.launch.layout import JobDirectory
from holdfast.launch.processes import process_of

_RUN_S, _END_S = 20.0, 5.0


class Undo(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    pass


class InNetwork(Undo, frozen=True, kw_only=True):
    """Run a command in the network of a node, whichever process is its agent by then."""

    directory: str
    node: str
    argv: tuple[str, ...]


class Write(Undo, frozen=True, kw_only=True):
    """Write into a file that is there; with `process`, only while that process is the one it was."""

    path: str
    data: bytes
    process: tuple[int, int] | None = None


class Remove(Undo, frozen=True, kw_only=True):
    """A file, or a directory that is empty."""

    path: str


class Send(Undo, frozen=True, kw_only=True):
    """A signal to a process, while it is the one it was; `ends`: wait until it is gone."""

    process: tuple[int, int]  # Its number, and the moment it started.
    signal: int
    ends: bool = False


_ANY = InNetwork | Write | Remove | Send


def identity(pid: int) -> tuple[int, int]:
    """A number the kernel gave away again is not the old process."""
    found = tree.read(pid)
    return (pid, found.start_ticks) if found is not None else (pid, -1)


class Undoing:
    """What was done and not yet put right."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def add(self, *undos: _ANY) -> None:
        """Before anything is done. On the disk before this returns: a killed process has no second chance."""
        with self.path.open("ab") as file:
            for undo in undos:
                file.write(msgspec.json.encode(undo) + b"\n")
            file.flush()
            os.fsync(file.fileno())

    def heal(self) -> list[str]:
        """Put everything right; what could not be, in words."""
        try:
            lines = self.path.read_bytes().splitlines()
        except FileNotFoundError:
            return []
        problems = []
        for line in reversed(lines):
            try:
                _do(msgspec.json.decode(line, type=_ANY))
            except msgspec.DecodeError:
                continue  # Killed while it was being written down: nothing was done yet.
            except (OSError, subprocess.SubprocessError) as error:
                problems.append(f"{line.decode()}: {error}")
        self.path.unlink(missing_ok=True)
        return problems


def _do(undo: _ANY) -> None:
    match undo:
        case InNetwork(directory=directory, node=node, argv=argv):
            agent = process_of(JobDirectory(Path(directory)), node)
            if agent is not None:  # Else the network is gone, and what was wrong with it.
                done = subprocess.run(in_network_of(agent, *argv), timeout=_RUN_S, capture_output=True, text=True, check=False)
                if done.returncode and "No such file" not in done.stderr and "Cannot find" not in done.stderr:
                    raise OSError(done.stderr.strip())
        case Write(path=path, data=data, process=process):
            if (process is None or identity(process[0]) == process) and os.path.exists(path):
                with open(path, "r+b", buffering=0) as file:
                    file.write(data)
        case Remove(path=path):
            try:
                os.rmdir(path) if os.path.isdir(path) else os.unlink(path)
            except OSError as error:
                if error.errno not in (errno.ENOENT, errno.EBUSY, errno.ENOTEMPTY):  # Gone, or in use by others.
                    raise
        case Send(process=process, signal=number, ends=ends):
            _send(process, Signals(number), ends=ends)
        case _:
            assert_never(undo)


def _send(process: tuple[int, int], number: Signals, *, ends: bool) -> None:
    try:
        fd = os.pidfd_open(process[0])
    except ProcessLookupError:
        return
    try:
        if identity(process[0]) == process:
            with contextlib.suppress(ProcessLookupError):
                pidfd_send_signal(fd, number)
            if ends:
                select.select([fd], [], [], _END_S)
    finally:
        os.close(fd)


def in_network_of(agent: int, *command: str) -> list[str]:
    return ["nsenter", "-t", str(agent), "-n", *command]


@contextlib.contextmanager
def watchdog(path: Path) -> Iterator[None]:
    """While inside, a process of its own waits for the end of this one, and then heals from `path`."""
    waiting = subprocess.Popen(
        [sys.executable, "-m", "holdfast.chaos.undo", str(path), *map(str, identity(os.getpid()))], stdin=subprocess.DEVNULL, start_new_session=True
    )
    try:
        yield
    finally:
        waiting.terminate()
        waiting.wait()


def _wait_for_the_end_of(process: tuple[int, int]) -> None:
    try:
        fd = os.pidfd_open(process[0])
    except ProcessLookupError:
        return
    if identity(process[0]) == process:
        select.select([fd], [], [])
    os.close(fd)


if __name__ == "__main__":
    _wait_for_the_end_of((int(sys.argv[2]), int(sys.argv[3])))
    time.sleep(0.1)  # What it had begun to do may still be under way in a child of its.
    Undoing(Path(sys.argv[1])).heal()
