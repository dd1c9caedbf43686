"""Workers: what each rank's processes use, the rank's own process and all below it.

Sees        /proc/PID/stat of every process of a rank, /proc/PID/io and the size of /proc/PID/fd.
Says        worker_cpu_ratio, worker_memory_bytes, worker_threads, worker_read_bytes_total, worker_written_bytes_total of the rank's processes together;
            worker_file_descriptors, worker_major_faults_total, worker_process_state of its own.
Is wrong    about memory that processes share: it is counted in each. (What they really hold together costs a walk over all their pages.) A process whose
            parent ended between two looks around, 5 s apart, is not found; what the processes below use is as old as the last one. What a process read
            and wrote is absent for another user's. Of a rank that is gone, the state is said (4) until it is removed, and nothing else.
Costs       30 µs a look for each rank, and every 5 s 60 µs for each process below it; who is there is found every 5 s by reading only processes that are new.
"""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from holdfast.domain.signal import Signal
from holdfast.observe.reread import Reread, number_after, read_once
from holdfast.observe.watched import Watched

SLOW_EVERY_S: Final = 5.0  # Who is there, the processes below, bytes read and written, open files.
_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
_STATES: Final = {"R": 0, "S": 1, "I": 1, "D": 2, "T": 3, "t": 3, "Z": 4, "X": 4}
_GONE: Final = 4


@dataclass(frozen=True, slots=True)
class _Stat:
    state: str
    parent: int
    major_faults: int
    cpu_s: float
    threads: int
    started: int  # Ticks since the machine came up. With the pid it names a process for good.
    memory_bytes: int


def _parse(text: bytes | None) -> _Stat | None:
    if text is None:
        return None
    # The name stands in parentheses and may contain anything, parentheses and spaces too.
    fields = text[text.rindex(b")") + 2 :].split()
    return _Stat(
        fields[0].decode(), int(fields[1]), int(fields[9]), (int(fields[11]) + int(fields[12])) / _TICKS_PER_S, int(fields[17]), int(fields[19]),
        int(fields[21]) * mmap.PAGESIZE,
    )  # fmt: skip


@dataclass(slots=True)
class _Counted:
    """One process's counters at the last look: what came since is added to its rank's, so that the end of a process takes nothing away."""

    started: int = -1
    cpu_s: float = 0.0
    read_bytes: int = 0
    written_bytes: int = 0


@dataclass(slots=True)
class _Below:
    """The processes below a rank's own, as they were at the last look around."""

    pids: set[int] = field(default_factory=set)
    memory_bytes: int = 0
    threads: int = 0
    cpu_ratio: float = 0.0
    at: float = 0.0


@dataclass(slots=True)
class _Rank:
    pid: int
    stat: Reread  # Kept open: it names this process, also after its number was given away.
    below: _Below = field(default_factory=_Below)
    counted: dict[int, _Counted] = field(default_factory=dict)
    cpu_s: float | None = None
    at: float = 0.0
    read_bytes: int = 0
    written_bytes: int = 0


def _used_s(before: _Counted, stat: _Stat) -> float:
    """Since the last look. What a process used before it was found is left out: it would look like more cores than there are."""
    if before.started != stat.started:
        before.started, before.cpu_s, before.read_bytes, before.written_bytes = stat.started, stat.cpu_s, 0, 0
    used_s, before.cpu_s = stat.cpu_s - before.cpu_s, stat.cpu_s
    return max(0.0, used_s)


class Workers:
    name = "worker"
    every_s = 1.0
    timeout_s = 5.0

    def __init__(self, watched: Watched, proc: Path = Path("/proc"), monotonic: Callable[[], float] = time.monotonic) -> None:
        self.doing = ""
        self._watched = watched
        self._proc = proc
        self._monotonic = monotonic
        self._ranks: dict[int, _Rank] = {}
        self._strangers: set[int] = set()  # Processes of no rank: they never become one's, so they are not read again.
        self._slow_at = -SLOW_EVERY_S

    def look(self) -> list[Signal]:
        now = self._monotonic()
        slow = self._follow() or now - self._slow_at >= SLOW_EVERY_S
        if slow:
            self._slow_at = now
            self._find()
        found = []
        for number, rank in sorted(self._ranks.items()):
            self.doing = f"reading the processes of rank {number}"
            found += self._read(str(number), rank, now, slow)
        self.doing = ""
        return found

    def _follow(self) -> bool:
        """Take up who was added and removed; whether anybody was."""
        wanted = self._watched.workers()
        if {number: rank.pid for number, rank in self._ranks.items()} == wanted:
            return False
        self._ranks = {
            number: before if (before := self._ranks.get(number)) is not None and before.pid == pid else _Rank(pid, Reread(self._proc / str(pid) / "stat"))
            for number, pid in wanted.items()
        }  # fmt: skip
        self._strangers.clear()
        return True

    def _find(self) -> None:
        """Who is below whom. A process once found below a rank stays the rank's, whoever its parent is later."""
        there = {int(name) for name in os.listdir(self._proc) if name.isdecimal()}
        self._strangers &= there
        owner = {rank.pid: rank for rank in self._ranks.values()}
        for rank in self._ranks.values():
            rank.below.pids &= there
            owner |= dict.fromkeys(rank.below.pids, rank)
        parents = {pid: stat.parent for pid in there - self._strangers - owner.keys() if (stat := self._stat(pid)) is not None}
        while found := {pid: owner[parent] for pid, parent in parents.items() if pid not in owner and parent in owner}:
            for pid, rank in found.items():
                rank.below.pids.add(pid)
            owner |= found
        self._strangers |= parents.keys() - owner.keys()

    def _stat(self, pid: int) -> _Stat | None:
        return _parse(read_once(self._proc / str(pid) / "stat", 1024))

    def _read(self, of: str, rank: _Rank, now: float, slow: bool) -> list[Signal]:
        own = _parse(rank.stat.read(1024))
        if own is None or own.state in ("Z", "X"):
            return [Signal("worker_process_state", float(_GONE), of)]
        found: dict[str, float] = {}
        if slow:
            found |= self._read_below(rank, now)
        if rank.cpu_s is not None and now > rank.at:
            found["worker_cpu_ratio"] = max(0.0, own.cpu_s - rank.cpu_s) / (now - rank.at) + rank.below.cpu_ratio
        rank.cpu_s, rank.at = own.cpu_s, now
        found |= {
            "worker_process_state": float(_STATES.get(own.state, 1)),
            "worker_memory_bytes": float(own.memory_bytes + rank.below.memory_bytes),
            "worker_threads": float(own.threads + rank.below.threads),
            "worker_major_faults_total": float(own.major_faults),
        }
        return [Signal(name, value, of) for name, value in found.items()]

    def _read_below(self, rank: _Rank, now: float) -> dict[str, float]:
        """The processes below, and what is dear of all of them."""
        below = {pid: stat for pid in rank.below.pids if (stat := self._stat(pid)) is not None}
        rank.counted = {pid: rank.counted.get(pid) or _Counted() for pid in (rank.pid, *below)}
        used_s = sum(_used_s(rank.counted[pid], stat) for pid, stat in below.items())
        rank.below.memory_bytes = sum(stat.memory_bytes for stat in below.values())
        rank.below.threads = sum(stat.threads for stat in below.values())
        rank.below.cpu_ratio = used_s / (now - rank.below.at) if now > rank.below.at else 0.0
        rank.below.at = now
        found = {"worker_file_descriptors": float(files)} if (files := self._files(rank.pid)) is not None else {}
        return found | self._moved(rank)

    def _moved(self, rank: _Rank) -> dict[str, float]:
        """Bytes from and to storage."""
        readable = False
        for pid, before in rank.counted.items():
            text = read_once(self._proc / str(pid) / "io")
            read, written = number_after(text, b"read_bytes: "), number_after(text, b"write_bytes: ")
            if read is None or written is None:
                continue
            readable = True
            rank.read_bytes += max(0, read - before.read_bytes)
            rank.written_bytes += max(0, written - before.written_bytes)
            before.read_bytes, before.written_bytes = read, written
        return {"worker_read_bytes_total": float(rank.read_bytes), "worker_written_bytes_total": float(rank.written_bytes)} if readable else {}

    def _files(self, pid: int) -> int | None:
        """Since Linux 6.2 the directory's size is their number; before that it is 0, and they are counted."""
        path = self._proc / str(pid) / "fd"
        try:
            return os.stat(path).st_size or len(os.listdir(path))
        except OSError:
            return None
