"""Kernel log: what the kernel says went wrong.

Sees        /dev/kmsg, from the moment the agent started, without ever waiting for it.
Says        host_kernel_errors_total; an event for every line of one of the kinds in `KINDS`, with the process where the line names one.
Is wrong    when more is logged between two looks than the kernel keeps: what was overwritten is lost. In a process namespace of its own the log's numbers
            name other processes, so they are left out. Absent where the log may not be read (kernel.dmesg_restrict, most containers).
Costs       one read that answers "nothing new"; 10 µs for each new line. A flood is read 1,000 lines a look.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from holdfast.domain.kernel_event import KernelEvent
from holdfast.domain.signal import Signal
from holdfast.observe.probe import Seen
from holdfast.observe.xid import Xids, short_pci

_OUTERMOST_NAMESPACE: Final = "pid:[4026531836]"  # PROC_PID_INIT_INO in include/linux/proc_ns.h.
_RECORD_BYTES: Final = 8192  # CONSOLE_EXT_LOG_MAX: a record never is longer, and a smaller buffer is refused.
_RECORDS_MAX: Final = 1000
_ERROR: Final = 3  # LOG_ERR; smaller is worse.

# The first that fits names the line. Groups: pid, of (a disk, an interface, a server), pci and code of a GPU.
KINDS: Final[tuple[tuple[str, re.Pattern[str]], ...]] = tuple(
    (kind, re.compile(pattern))
    for kind, pattern in (
        ("xid", r"NVRM: Xid \(PCI:(?P<pci>[0-9a-fA-F:.]+)\): (?P<code>\d+)(?:, pid='?(?P<pid>\d+))?"),
        ("gpu_off_bus", r"NVRM: .*GPU (?:at )?(?:PCI:)?(?P<pci>[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}).* has fallen off the bus"),
        # Older kernels wrote "Kill process", and then a second line without the first words.
        ("oom_kill", r"(?:Memory cgroup out of memory|Out of memory(?: \([^)]*\))?): Kill(?:ed)? process (?P<pid>\d+)"),
        ("machine_check", r"mce: .*(?:Hardware Error|Machine [Cc]heck)|\[Hardware Error\]|EDAC .*\b[CU]E\b"),
        ("filesystem_read_only", r"[Rr]emounting filesystem read-only|XFS \((?P<of>[^)]+)\): .*(?:[Ss]hutting down filesystem|has been shut down)"),
        ("disk_io_error", r"(?:I/O error|critical (?:medium|target|space allocation) error|lost async page write).*?, (?:dev|logical block.*on dev) (?P<of>\w+)"
                          r"|Buffer I/O error on dev(?:ice)? (?P<of2>\w+)|nvme (?P<of3>nvme\d+): .*(?:timeout|controller is down)"),
        ("nfs_not_responding", r"nfs: server (?P<of>\S+) not responding"),
        ("link_down", r"(?P<of>[\w.-]+)(?:: |:? NIC )[Ll]ink (?:is )?[Dd]own\b"),
        ("hung_task", r"INFO: task .*:(?P<pid>\d+) blocked for more than"),
        ("lockup", r"BUG: soft lockup|NMI watchdog: .*hard LOCKUP|rcu.* self-detected stall"),
        ("segfault", r"^[^\[]{1,16}\[(?P<pid>\d+)\]: segfault at |traps: .{1,16}\[(?P<pid2>\d+)\] (?:general protection|trap)"),
    )
)  # fmt: skip


class KernelLog:
    name = "kernel log"
    every_s = 1.0
    timeout_s = 5.0
    doing = ""

    def __init__(
        self, xids: Xids | None = None, path: Path = Path("/dev/kmsg"), proc: Path = Path("/proc"), wall: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._xids = xids
        self._path = path
        self._proc = proc
        self._wall = wall
        self._monotonic = monotonic
        self._fd = -1
        self._errors = 0

    def look(self) -> list[Seen]:
        if not self._open():
            return []
        found: list[Seen] = []
        offset_s = self._wall() - self._monotonic()  # The log counts seconds since the machine came up.
        for record in self._records():
            head, _, text = record.partition(";")
            fields = head.split(",")
            # Programs may write here too (systemd does), and are not the kernel: their facility is another one.
            if len(fields) < 3 or not fields[0].isdigit() or not fields[2].isdigit() or int(fields[0]) >= 8:
                continue
            self._errors += int(fields[0]) <= _ERROR
            event = read_line(text.partition("\n")[0], int(fields[2]) / 1e6 + offset_s, pids=self._pids_are_ours())
            if event is not None and self._is_new(event):
                found.append(event)
        return [Signal("host_kernel_errors_total", float(self._errors)), *found]

    def _is_new(self, event: KernelEvent) -> bool:
        return event.kind != "xid" or self._xids is None or event.code is None or self._xids.heard_from_kernel(event.pci, event.code, event.at)

    def _open(self) -> bool:
        if self._fd < 0:
            try:
                self._fd = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            except OSError:
                return False
            with contextlib.suppress(OSError):
                os.lseek(self._fd, 0, os.SEEK_END)  # What was said before we came has been somebody else's to act on.
            if self._xids is not None:
                self._xids.kernel_speaks = True
        return True

    def _records(self) -> list[str]:
        found = []
        for _ in range(_RECORDS_MAX):
            try:
                record = os.read(self._fd, _RECORD_BYTES)
            except BrokenPipeError:
                continue  # A record overwritten under our hands; the next one follows.
            except OSError:
                break  # EAGAIN: that was the last one.
            if not record:
                break
            found.append(record.decode(errors="replace"))
        return found

    def _pids_are_ours(self) -> bool:
        try:
            return os.readlink(self._proc / "self" / "ns" / "pid") == _OUTERMOST_NAMESPACE
        except OSError:
            return False

    def __del__(self) -> None:
        if getattr(self, "_fd", -1) >= 0:
            os.close(self._fd)


def read_line(text: str, at: float, *, pids: bool = True) -> KernelEvent | None:
    """What a line of the kernel log says; None when it is of no kind we know."""
    for kind, pattern in KINDS:
        found = pattern.search(text)
        if found is None:
            continue
        groups = found.groupdict()
        pid = groups.get("pid") or groups.get("pid2")
        code, pci = groups.get("code"), groups.get("pci")
        return KernelEvent(
            kind=kind, message=text, at=at, pid=int(pid) if pid and pids else None, code=int(code) if code else None,
            of=groups.get("of") or groups.get("of2") or groups.get("of3") or "", pci=short_pci(pci) if pci else "",
        )  # fmt: skip
    return None
