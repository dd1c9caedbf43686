"""Control groups: what a rank's group may have, has, and was refused. Version 1, version 2, and both at once.

Sees        /proc/PID/cgroup and /proc/self/mountinfo, which say where the group is; then memory.current and its kin (version 2) or
            memory.usage_in_bytes and its kin (version 1), and cpu.stat.
Says        cgroup_memory_bytes, cgroup_memory_limit_bytes, cgroup_throttled_seconds_total, cgroup_oom_kills_total, of each rank.
            A rank is in a group of its own where that is permitted (`agent/isolation`).
Is wrong    for ranks that share a group: each is told of the whole group. Memory charged to a group includes cached files, which the kernel gives up
            before it kills. A group that is not mounted here (another container's) is absent.
Costs       three small reads for each group, 5 µs, and one for each group above it; where groups are is found out anew every 10 s.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from holdfast.domain.signal import Signal
from holdfast.observe.reread import Reread, number_after, read_once, whole_number
from holdfast.observe.watched import Watched

FIND_EVERY_S: Final = 10.0
_NO_LIMIT: Final = 1 << 62  # Version 1 writes a number near 2**63 where there is none.


@dataclass(frozen=True, slots=True)
class Place:
    """A control group of one process, for one controller."""

    version: int
    directory: Path
    top: Path  # The uppermost group that can be seen from here.

    def upwards(self) -> list[Path]:
        """The group and all above it: the smallest limit among them is the one that counts."""
        between = [self.directory, *self.directory.parents]
        return between[: between.index(self.top) + 1]


def find(pid: int | str, proc: Path = Path("/proc"), controllers: Sequence[str] = ("memory", "cpu")) -> dict[str, Place]:
    """The groups of a process, by controller; one that is not there, or out of sight, is left out."""
    lines = (read_once(proc / str(pid) / "cgroup") or b"").decode(errors="replace").splitlines()
    paths = {names: path for _, names, path in (line.split(":", 2) for line in lines if line.count(":") >= 2)}
    mounts = _mounts(proc)
    found: dict[str, Place] = {}
    for wanted in controllers:
        first = next((path for names, path in paths.items() if wanted in names.split(",")), None)
        version, path, mount = (1, first, mounts.get(wanted)) if first is not None else (2, paths.get(""), mounts.get(""))
        place = _place(version, path, mount)
        if place is not None:
            found[wanted] = place
    return found


def _mounts(proc: Path) -> dict[str, tuple[str, Path]]:
    """Controller to (the group that is mounted, where). Version 2 stands under "". Format: proc_pid_mountinfo(5)."""
    found: dict[str, tuple[str, Path]] = {}
    for line in (read_once(proc / "self" / "mountinfo", 1 << 20) or b"").decode(errors="replace").splitlines():
        here, _, there = line.partition(" - ")
        if not there.startswith("cgroup"):
            continue
        fields, (kind, _, options) = here.split(), there.split(" ", 2)
        for controller in [""] if kind == "cgroup2" else options.split(","):
            found.setdefault(controller, (fields[3], Path(fields[4])))
    return found


def _place(version: int, path: str | None, mount: tuple[str, Path] | None) -> Place | None:
    if path is None or mount is None:
        return None
    root, top = mount
    # A container without a namespace of its own sees the host's path, and its own group mounted as if it were the root.
    if root != "/" and path != root and not path.startswith(root + "/"):
        return None
    below = path if root == "/" else path[len(root) :]
    if ".." in below.split("/"):
        return None  # Outside our namespace.
    directory = top / below.lstrip("/")
    return Place(version, directory, top) if directory.is_dir() else None


def limit_of(directory: Path, version: int) -> int | None:
    """How much memory a group may have by its own setting; None without a limit."""
    limit = whole_number(read_once(directory / ("memory.max" if version == 2 else "memory.limit_in_bytes")))
    return limit if limit is not None and limit < _NO_LIMIT else None


@dataclass(slots=True)
class _Memory:
    """One group's files, kept open."""

    used: Reread
    kills: Reread
    limit: int | None


@dataclass(slots=True)
class _Group:
    memory: _Memory | None
    throttled: list[Reread]  # Its own and those of all groups above it: each holds it back for itself.
    version: int  # Of the files with the throttled time: nanoseconds in 1, microseconds in 2.


class Cgroups:
    name = "cgroup"
    every_s = 1.0
    timeout_s = 5.0
    doing = ""

    def __init__(self, watched: Watched, proc: Path = Path("/proc"), monotonic: Callable[[], float] = time.monotonic) -> None:
        self._watched = watched
        self._proc = proc
        self._monotonic = monotonic
        self._found: dict[int, tuple[Place | None, Place | None]] = {}  # By pid: memory, cpu.
        self._groups: dict[tuple[Place | None, Place | None], _Group] = {}
        self._found_at = -FIND_EVERY_S

    def look(self) -> list[Signal]:
        workers = self._watched.workers()
        now = self._monotonic()
        if now - self._found_at >= FIND_EVERY_S or workers.values() - self._found.keys():
            self._find(set(workers.values()))
            self._found_at = now
        read = {places: _read(group) for places, group in self._groups.items()}
        return [Signal(name, value, str(rank)) for rank, pid in sorted(workers.items()) for name, value in read[self._found[pid]]]

    def _find(self, pids: set[int]) -> None:
        """Ranks in one group share its reading."""
        groups = {pid: find(pid, self._proc) for pid in pids}
        self._found = {pid: (of.get("memory"), of.get("cpu")) for pid, of in groups.items()}
        self._groups = {places: self._groups.get(places) or _open(*places) for places in set(self._found.values())}
        for (memory, _), group in self._groups.items():
            if memory is not None and group.memory is not None:
                limits = [limit for directory in memory.upwards() if (limit := limit_of(directory, memory.version)) is not None]
                group.memory.limit = min(limits, default=None)


def _open(memory: Place | None, cpu: Place | None) -> _Group:
    of_memory = None
    if memory is not None:
        names = ("memory.current", "memory.events") if memory.version == 2 else ("memory.usage_in_bytes", "memory.oom_control")
        of_memory = _Memory(used=Reread(memory.directory / names[0]), kills=Reread(memory.directory / names[1]), limit=None)
    held_back = [Reread(directory / "cpu.stat") for directory in cpu.upwards()] if cpu is not None else []
    return _Group(of_memory, held_back, cpu.version if cpu is not None else 0)


def _read(group: _Group) -> list[tuple[str, float]]:
    found: list[tuple[str, float | None]] = []
    if group.memory is not None:
        found.append(("cgroup_memory_bytes", whole_number(group.memory.used.read())))
        found.append(("cgroup_memory_limit_bytes", group.memory.limit))
        found.append(("cgroup_oom_kills_total", number_after(group.memory.kills.read(), b"oom_kill ")))
    word, ticks_per_s = (b"throttled_usec ", 1e6) if group.version == 2 else (b"throttled_time ", 1e9)
    ticks = [count for file in group.throttled if (count := number_after(file.read(), word)) is not None]
    found.append(("cgroup_throttled_seconds_total", sum(ticks) / ticks_per_s if ticks else None))
    return [(name, float(value)) for name, value in found if value is not None]
