"""Process trees, as /proc shows them: who descends from whom, what they do, and how to be rid of them.

    descendants(pid)      all processes below one
    marked(job, node)     all processes that carry a job's name in their environment, whoever their parent is by now
    end_tree(pids)        SIGCONT, SIGTERM, a deadline, SIGKILL, another deadline; says which processes are still there after that

Everything works for an unprivileged user on their own processes. A process is named by its number and the moment it started, so that a number the
kernel gave away again is never mistaken for the old process.

Is wrong    when a process hides its environment (a set-user-id program, or one that overwrote it): it is then found only by its parent.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

JOB_MARK: Final = "HOLDFAST_JOB"
NODE_MARK: Final = "HOLDFAST_NODE"
KILL_WAIT_S: Final = 5.0
_LOOK_EVERY_S: Final = 0.01
TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """One process at the moment it was read."""

    pid: int
    parent: int
    session: int
    state: str  # One letter, as `ps` shows it: R runs, S sleeps, D waits for a device, T is stopped, Z is dead and not yet reaped.
    threads: int
    cpu_s: float
    memory_bytes: int
    start_ticks: int  # Since the machine came up. With the pid it names a process for good.

    @property
    def dead(self) -> bool:
        """A zombie whose other threads still run holds its memory, and counts as alive."""
        return self.state in ("Z", "X") and self.threads <= 1


def read(pid: int) -> Process | None:
    """The process with this number; None when there is none."""
    try:
        fd = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)  # All processes are read again and again: Python's files take twice as long.
    except FileNotFoundError:
        return None
    try:
        # The name stands in parentheses and may contain anything, parentheses and spaces too.
        fields = os.read(fd, 4096).rpartition(b")")[2].split()
    except ProcessLookupError:
        return None
    finally:
        os.close(fd)
    return Process(
        pid=pid, parent=int(fields[1]), session=int(fields[3]), state=fields[0].decode(), threads=int(fields[17]),
        cpu_s=(int(fields[11]) + int(fields[12])) / TICKS_PER_S, memory_bytes=int(fields[21]) * mmap.PAGESIZE, start_ticks=int(fields[19]),
    )  # fmt: skip


def own_bytes(pid: int) -> int:
    """What a process has in memory of its own, and shares with no file; 0 when it is gone."""
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            _, resident, shared, *_ = map(int, file.read().split())
    except (OSError, ValueError):
        return 0
    return (resident - shared) * mmap.PAGESIZE


def read_all() -> dict[int, Process]:
    """Every process that can be seen. Those that end while we look are left out."""
    found = (read(int(name)) for name in os.listdir("/proc") if name.isdigit())
    return {process.pid: process for process in found if process is not None}


def descendants(pid: int) -> list[Process]:
    """All processes below `pid`, dead ones that nobody reaped included, ordered by number. Orphans have left the tree: see `marked`."""
    return _below({pid}, read_all())


def trees(roots: Iterable[int]) -> dict[int, list[Process]]:
    """Each root that lives, first, and all processes below it, at the price of one look at /proc for all of them."""
    everything = read_all()
    return {root: [everything[root], *_below({root}, everything)] if root in everything else [] for root in roots}


def marked(job: str, node: str | None = None) -> list[int]:
    """The living processes started for a job (on one node, if given), this one excepted. Orphans and those with a session of their own too."""
    return [process.pid for process in _marked(job, node)]


def state(pid: int) -> str | None:
    """One letter, as `ps` shows it; None when there is no such process."""
    process = read(pid)
    return process.state if process is not None else None


def started_at(pid: int) -> float:
    """Seconds since the epoch; infinity for a process that is gone."""
    process = read(pid)
    if process is None:
        return float("inf")
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + process.start_ticks / TICKS_PER_S


def cpu_seconds(pids: Iterable[int]) -> float:
    """Processor time used so far by these processes together. One that has ended counts no more, so a difference can be negative."""
    found = (read(pid) for pid in pids)
    return sum(process.cpu_s for process in found if process is not None)


def end_tree(pids: Iterable[int], *, grace_s: float, kill_wait_s: float = KILL_WAIT_S) -> list[int]:
    """End these processes and all below them; returns those that even SIGKILL did not end in time. Takes grace_s + kill_wait_s at most."""
    known = {process.pid: process for process in map(read, pids) if process is not None}

    def find() -> list[Process]:
        everything = read_all()
        # A child of a process that is gone has another parent now: so all ever seen are followed, and not only what hangs below the roots.
        for process in _below(set(known), everything):
            known.setdefault(process.pid, process)
        return [process for process in known.values() if _same(process, everything.get(process.pid))]

    return _end(find, grace_s=grace_s, kill_wait_s=kill_wait_s)


def end_marked(job: str, node: str | None = None, *, grace_s: float = 0.0, kill_wait_s: float = KILL_WAIT_S) -> list[int]:
    """End whatever was started for a job and is still there; for what is left when the warm parent was killed. Returns what could not be ended."""
    return _end(lambda: _marked(job, node), grace_s=grace_s, kill_wait_s=kill_wait_s)


def _end(find: Callable[[], list[Process]], *, grace_s: float, kill_wait_s: float) -> list[int]:
    """Ask, wait, kill, wait; newcomers are found by looking again each time."""
    asked_until = time.monotonic() + grace_s
    asked: set[int] = set()
    while (left := find()) and time.monotonic() < asked_until:
        for process in left:
            if process.pid not in asked:
                asked.add(process.pid)
                _send(process, signal.SIGCONT)  # First: a stopped process would keep its SIGTERM until somebody lets it go on.
                _send(process, signal.SIGTERM)
        time.sleep(_LOOK_EVERY_S)
    killed_until = time.monotonic() + kill_wait_s
    while left := find():
        for process in left:
            _send(process, signal.SIGKILL)
        if time.monotonic() >= killed_until:
            return sorted(process.pid for process in left)
        time.sleep(_LOOK_EVERY_S)
    return []


def _below(roots: set[int], everything: dict[int, Process]) -> list[Process]:
    children: dict[int, list[Process]] = {}
    for process in everything.values():
        children.setdefault(process.parent, []).append(process)
    found: dict[int, Process] = {}
    waiting = [process for root in roots for process in children.get(root, [])]
    while waiting:
        process = waiting.pop()
        if process.pid not in found:  # Numbers that were given away while we read could close a circle.
            found[process.pid] = process
            waiting += children.get(process.pid, [])
    return [found[pid] for pid in sorted(found)]


def _marked(job: str, node: str | None) -> list[Process]:
    wanted = {f"{JOB_MARK}={job}".encode()} | ({f"{NODE_MARK}={node}".encode()} if node is not None else set())
    found = [process for process in read_all().values() if not process.dead and process.pid != os.getpid() and wanted <= _environment(process.pid)]
    return sorted(found, key=lambda process: process.pid)


def _environment(pid: int) -> set[bytes]:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return set(file.read().split(b"\0"))
    except OSError:  # Gone, or another user's.
        return set()


def _same(before: Process, now: Process | None) -> bool:
    return now is not None and now.start_ticks == before.start_ticks and not now.dead


def _send(process: Process, number: signal.Signals) -> None:
    """Through a descriptor: between opening and sending, the number cannot be given to somebody else."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        pidfd = os.pidfd_open(process.pid)
        try:
            if _same(process, read(process.pid)):
                signal.pidfd_send_signal(pidfd, number)
        finally:
            os.close(pidfd)
