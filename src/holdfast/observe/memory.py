"""Memory of the node: what there is and what can still be had, swap, and processes killed for want of it.

Sees        /proc/meminfo, /proc/vmstat, and the limits of our own control group and those above it.
Says        host_memory_bytes, host_memory_available_bytes, host_swap_used_bytes, host_swapped_pages_total, host_oom_kills_total.
            In a container with a limit below the machine's memory, "there is" and "can be had" are the container's.
Is wrong    when workers live in another control group than the agent, with a limit of its own: see `cgroup.py` for theirs. Swap is absent where there is
            none. Kills are those of the whole machine, also in a container.
Costs       two reads, 40 µs; with a limit two more for each group that has one.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from holdfast.domain.signal import Signal
from holdfast.observe import cgroup
from holdfast.observe.reread import Reread, number_after, whole_number

_ENDLESS = 1 << 62


class Memory:
    name = "memory"
    every_s = 1.0
    timeout_s = 5.0
    doing = ""

    def __init__(self, proc: Path = Path("/proc"), monotonic: Callable[[], float] = time.monotonic) -> None:
        self._proc = proc
        self._meminfo = Reread(proc / "meminfo")
        self._vmstat = Reread(proc / "vmstat")
        self._monotonic = monotonic
        self._limits: list[_Limit] = []
        self._limits_at = -cgroup.FIND_EVERY_S

    def look(self) -> list[Signal]:
        return [*self._sizes(), *self._counted()]

    def _sizes(self) -> list[Signal]:
        text = self._meminfo.read()
        total, available = _kib(text, b"MemTotal:"), _kib(text, b"MemAvailable:")
        swap, swap_free = _kib(text, b"SwapTotal:"), _kib(text, b"SwapFree:")
        found = []
        if total is not None:
            limits = self._below(total)
            found.append(Signal("host_memory_bytes", float(min([total, *(limit.bytes for limit in limits)]))))
            if available is not None:
                left = [free for limit in limits if (free := limit.free()) is not None]
                found.append(Signal("host_memory_available_bytes", float(max(0, min([available, *left])))))
        if swap and swap_free is not None:
            found.append(Signal("host_swap_used_bytes", float(swap - swap_free)))
        return found

    def _counted(self) -> list[Signal]:
        text = self._vmstat.read_all()
        read_in, written_out, kills = (number_after(text, word) for word in (b"pswpin ", b"pswpout ", b"oom_kill "))
        found = []
        if read_in is not None and written_out is not None:
            found.append(Signal("host_swapped_pages_total", float(read_in + written_out)))
        if kills is not None:
            found.append(Signal("host_oom_kills_total", float(kills)))
        return found

    def _below(self, total: int) -> list[_Limit]:
        """The groups above us, ourselves included, that may have less than the machine has."""
        now = self._monotonic()
        if now - self._limits_at >= cgroup.FIND_EVERY_S:
            self._limits_at = now
            place = cgroup.find("self", self._proc).get("memory")
            above = [(directory, cgroup.limit_of(directory, place.version)) for directory in place.upwards()] if place is not None else []
            version = place.version if place is not None else 0
            self._limits = [_Limit(directory, version, limit) for directory, limit in above if limit is not None and limit < total]
        return self._limits


def left_for(pid: int, proc: Path = Path("/proc")) -> tuple[int, int]:
    """What a process can still have, on the machine and in each group it is in, and of how much. Without an answer there is no end."""
    text = Reread(proc / "meminfo").read()
    available, total = _kib(text, b"MemAvailable:"), _kib(text, b"MemTotal:")
    found = [(_ENDLESS if available is None else available, _ENDLESS if total is None else total)]
    place = cgroup.find(pid, proc).get("memory")
    for directory in place.upwards() if place is not None else ():
        limit = cgroup.limit_of(directory, place.version) if place is not None else None
        if place is not None and limit is not None and (free := _Limit(directory, place.version, limit).free()) is not None:
            found.append((max(0, free), limit))
    return min(found)


class _Limit:
    """A control group with a limit."""

    def __init__(self, directory: Path, version: int, limit: int) -> None:
        self.bytes = limit
        self._used = Reread(directory / ("memory.current" if version == 2 else "memory.usage_in_bytes"))
        self._stat = Reread(directory / "memory.stat")
        self._words = (b"inactive_file ", b"active_file ", b"file_mapped ", b"slab_reclaimable ") if version == 2 else (
            b"total_inactive_file ", b"total_active_file ", b"total_mapped_file ", b"total_slab_reclaimable ",
        )  # fmt: skip

    def free(self) -> int | None:
        """Cached files are given up before anybody is killed: those nobody used lately, and others that nobody has mapped, as a log that is being written."""
        used = whole_number(self._used.read())
        stat = self._stat.read_all()
        unused, recent, mapped, slab = (number_after(stat, word) or 0 for word in self._words)
        cached = unused + max(0, recent - mapped) + slab
        return self.bytes - max(0, used - cached) if used is not None else None


def _kib(text: bytes | None, word: bytes) -> int | None:
    found = number_after(text, word)
    return found * 1024 if found is not None else None
