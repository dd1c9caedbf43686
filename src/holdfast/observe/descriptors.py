"""Open files of the machine.

Sees        /proc/sys/fs/file-nr.
Says        host_file_descriptors_ratio.
Is wrong    about the limit that usually bites first, which is that of one process (`ulimit -n`): see worker_file_descriptors.
Costs       one small read every 10 s.
"""

from __future__ import annotations

from pathlib import Path

from holdfast.domain.signal import Signal
from holdfast.observe.reread import Reread


class Descriptors:
    name = "descriptors"
    every_s = 10.0
    timeout_s = 5.0
    doing = ""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._counts = Reread(proc / "sys" / "fs" / "file-nr")

    def look(self) -> list[Signal]:
        fields = (self._counts.read() or b"").split()
        if len(fields) < 3 or int(fields[2]) <= 0:
            return []
        return [Signal("host_file_descriptors_ratio", (int(fields[0]) - int(fields[1])) / int(fields[2]))]
