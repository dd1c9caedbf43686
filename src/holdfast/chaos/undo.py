"""Undo: how to put right what was done, written down before it is done, as plain values in a file: whoever finds the file can do it.

    undoing = Undoing(path); undoing.add(Remove(path=…)); …; undoing.heal()
    watchdog(path)         a process that heals from the file when this one is gone, however it went

Each is done in turn, the newest first, and once more does no harm: what is gone already needs nothing. What could not be done stays in the file, for the
next who finds it: another storm, or the next start of the job.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from signal import Signals, pidfd_send_signal
from typing import assert_never

import msgspec

from holdfast.agent import tree

UNDO = "chaos-undo"  # In a job's directory.
_RUN_S, _END_S = 20.0, 5.0
_GRACE_S = 3.0
_NOT_THERE = ("No such file", "Cannot find", "Invalid handle", "handle of zero")  # As `tc` says that there is nothing to take away.
_TURNS = 100  # Of emptying a control group whose processes start others meanwhile.


class Undo(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    pass


class InNetwork(Undo, frozen=True, kw_only=True):
    """Run a command in a network namespace, as long as anybody is in it or holds it open: an agent may be gone at that moment and its network not."""

    network: int  # The number of its inode.
    argv: tuple[str, ...]


class Write(Undo, frozen=True, kw_only=True):
    """Write into a file that is there."""

    path: str
    data: bytes


class Vacate(Undo, frozen=True, kw_only=True):
    """Move all that is in a control group into another one, or into the nearest above that which is still there: also what was started in it since."""

    group: str
    into: str


class Remove(Undo, frozen=True, kw_only=True):
    """A file, or a directory that is empty."""

    path: str


class Send(Undo, frozen=True, kw_only=True):
    """A signal to a process, while it is the one it was; `ends`: wait until it is gone."""

    process: tuple[int, int]  # Its number, and the moment it started.
    signal: int
    ends: bool = False


class End(Undo, frozen=True, kw_only=True):
    """A process, while it is the one it was, and all below it."""

    process: tuple[int, int]


_ANY = InNetwork | Write | Vacate | Remove | Send | End


def identity(pid: int) -> tuple[int, int]:
    """A number the kernel gave away again is not the old process."""
    found = tree.read(pid)
    return (pid, found.start_ticks) if found is not None else (pid, -1)


class Undoing:
    """What was done and not yet put right. One at a time reads or writes it: what is added while somebody else heals, an old watchdog that is slow, is no part
    of what he has read, and must not go with it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def add(self, *undos: _ANY) -> None:
        """Before anything is done. On the disk before this returns: a killed process has no second chance."""
        with self._alone():
            _write(self.path, "ab", [b"", *map(msgspec.json.encode, undos)])  # The line before may be half a one: of somebody killed, or a full disk.

    def heal(self) -> list[str]:
        """Put everything right; what could not be, in words."""
        if not self.path.exists():
            return []
        with self._alone():
            return self._heal()

    def _heal(self) -> list[str]:
        try:
            lines = self.path.read_bytes().splitlines()
        except FileNotFoundError:
            return []
        problems, left = list[str](), list[bytes]()
        for line in reversed(lines):
            try:
                _do(msgspec.json.decode(line, type=_ANY))
            except (OSError, subprocess.SubprocessError, msgspec.ValidationError) as error:
                problems.append(f"{line.decode()}: {error}")
                left.insert(0, line)
            except msgspec.DecodeError:
                continue  # Killed while it was being written down: nothing was done yet.
        if left:
            new = self.path.with_suffix(".new")
            _write(new, "wb", left)
            new.replace(self.path)
        else:
            self.path.unlink(missing_ok=True)
        return problems

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Waits for whoever heals now; the lock goes with the process, however it ends."""
        with self.path.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def _write(path: Path, mode: str, lines: Sequence[bytes]) -> None:
    with path.open(mode) as file:
        file.write(b"".join(line + b"\n" for line in lines))
        file.flush()
        os.fsync(file.fileno())


def _do(undo: _ANY) -> None:
    match undo:
        case InNetwork(network=network, argv=argv):
            door = _door_of(network)
            if door:  # Else the network is gone, and what was wrong with it.
                done = subprocess.run(["nsenter", f"--net={door}", *argv], timeout=_RUN_S, capture_output=True, text=True, check=False)
                if done.returncode and not any(word in done.stderr for word in _NOT_THERE):
                    raise OSError(done.stderr.strip())
        case Write(path=path, data=data):
            if os.path.exists(path):
                with open(path, "r+b", buffering=0) as file:
                    file.write(data)
        case Vacate(group=group, into=into):
            _vacate(Path(group), Path(into))
        case Remove(path=path):
            try:
                os.rmdir(path) if os.path.isdir(path) else os.unlink(path)
            except OSError as error:
                if error.errno not in (errno.ENOENT, errno.EBUSY, errno.ENOTEMPTY):  # Gone, or in use by others.
                    raise
        case Send(process=process, signal=number, ends=ends):
            _send(process, Signals(number), ends=ends)
        case End(process=process):
            if identity(process[0]) == process and (left := tree.end_tree([process[0]], grace_s=_GRACE_S)):
                raise OSError(f"processes {left} survived SIGKILL")
        case _:
            assert_never(undo)


def network_of(pid: int) -> int:
    return os.stat(f"/proc/{pid}/ns/net").st_ino


def _door_of(network: int) -> str:
    """A path by which a network namespace can be entered: of a process in it, or of a descriptor that holds it; empty when there is none."""
    name = f"net:[{network}]"
    pids = [one for one in os.listdir("/proc") if one.isdecimal()]
    inside = (f"/proc/{pid}/ns/net" for pid in pids)
    held = (f"/proc/{pid}/fd/{fd}" for pid in pids for fd in _listed(f"/proc/{pid}/fd"))
    return next((path for path in (*inside, *held) if _target(path) == name), "")


def _listed(directory: str) -> list[str]:
    with contextlib.suppress(OSError):
        return os.listdir(directory)
    return []


def _target(path: str) -> str:
    with contextlib.suppress(OSError):
        return os.readlink(path)
    return ""


def _vacate(group: Path, into: Path) -> None:
    there = next(place for place in (into, *into.parents) if (place / "cgroup.procs").exists())
    for _ in range(_TURNS):
        try:
            pids = (group / "cgroup.procs").read_text().split()
        except FileNotFoundError:
            return
        if not pids:
            return
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                (there / "cgroup.procs").write_text(pid)
    raise OSError(f"{group} does not become empty: {pids} are in it still")


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
        if not path.exists():  # Else whoever was in a hurry has left something, and the watchdog stays until this process is gone.
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
    for problem in Undoing(Path(sys.argv[1])).heal():
        print(f"storm: could not be put right: {problem}", file=sys.stderr)
