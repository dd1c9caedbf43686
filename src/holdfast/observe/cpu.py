"""Cores: how busy they are, and how long tasks wait for them, for memory and for disks.

Sees        /proc/stat, /proc/loadavg, /proc/pressure/{cpu,memory,io}.
Says        host_cpu_ratio, host_load, host_cpu_pressure_ratio, host_memory_pressure_ratio, host_io_pressure_ratio.
Is wrong    in a container: these are of the machine, whatever share of it the container has. Time stolen by a hypervisor counts as busy.
            Pressure is absent on kernels older than 4.20 and where it is switched off (psi=0).
Costs       five small reads, 35 µs. On a machine with hundreds of cores /proc/stat alone may take a millisecond; the runner then looks less often.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

from holdfast.domain.signal import Signal
from holdfast.observe.reread import Reread

_SOME: Final = re.compile(rb"some avg10=([\d.]+)")
_FULL: Final = re.compile(rb"full avg10=([\d.]+)")
_IDLE, _WAITING = 3, 4  # Columns of the first line of /proc/stat, its name left out.


class Cpu:
    name = "cpu"
    every_s = 1.0
    timeout_s = 5.0
    doing = ""

    def __init__(self, proc: Path = Path("/proc"), cores: int | None = None) -> None:
        self._stat = Reread(proc / "stat")
        self._load = Reread(proc / "loadavg")
        # The kernel knows no time in which every task of the machine waited for a core.
        self._pressure = {
            "host_cpu_pressure_ratio": (Reread(proc / "pressure" / "cpu"), _SOME),
            "host_memory_pressure_ratio": (Reread(proc / "pressure" / "memory"), _FULL),
            "host_io_pressure_ratio": (Reread(proc / "pressure" / "io"), _FULL),
        }
        self._cores = cores or os.cpu_count() or 1
        self._last: tuple[int, int] | None = None  # All ticks, and the idle ones among them.

    def look(self) -> list[Signal]:
        return [*self._busy(), *self._waiting(), *self._pressures()]

    def _busy(self) -> list[Signal]:
        text = self._stat.read(512)
        if text is None or not text.startswith(b"cpu "):
            return []
        ticks = [int(field) for field in text[: text.index(b"\n")].split()[1:9]]  # Guests are in "user" already.
        now = sum(ticks), ticks[_IDLE] + ticks[_WAITING]
        before, self._last = self._last, now
        if before is None or now[0] <= before[0]:
            return []  # The first look has nothing to compare with; two in one tick show nothing.
        idle = max(0, now[1] - before[1])  # The kernel lets the time of waiting for disks fall now and then.
        return [Signal("host_cpu_ratio", max(0.0, 1.0 - idle / (now[0] - before[0])))]

    def _waiting(self) -> list[Signal]:
        text = self._load.read()
        return [Signal("host_load", float(text.split(None, 1)[0]) / self._cores)] if text else []

    def _pressures(self) -> list[Signal]:
        found = ((name, pattern.search(file.read() or b"")) for name, (file, pattern) in self._pressure.items())
        return [Signal(name, float(seen[1]) / 100.0) for name, seen in found if seen]
