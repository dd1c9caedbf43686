"""XIDs: the driver's numbered errors, each counted once though two places tell of it.

Sees        what the kernel log (`kernel_log.py`) and NVML's events (`gpu.py`) say.
Says        gpu_xid_total of each GPU; the event `xid` for those only NVML told of. Those in the log come from there, with the kernel's words.
Is wrong    about storms: lines about the same XID of the same GPU within 5 s are one. Where the log can be read, an XID that only NVML tells of is told
            5 s late, because the log's words are waited for.
Costs       nothing to speak of; it reads no file and asks no driver, so it answers also while the driver hangs.

A gauge of the last XID sticks after the GPU has recovered, and cannot tell one error from a hundred. So these are counters: an edge each.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from typing import Final

from holdfast.domain.kernel_event import KernelEvent
from holdfast.domain.signal import Signal
from holdfast.observe.probe import Seen

SAME_S: Final = 5.0
_LATE_S: Final = 120.0  # A driver that hangs after an error hands over its events when it comes back.


def short_pci(address: str) -> str:
    """NVML writes 00000000:3B:00.0 and the kernel 0000:3b:00: both become the latter."""
    found = re.fullmatch(r"(?:([0-9a-f]+):)?([0-9a-f]{2}):([0-9a-f]{2})(?:\.[0-9a-f])?", address.strip().lower())
    return f"{int(found[1] or '0', 16):04x}:{found[2]}:{found[3]}" if found else address


class Xids:
    name = "xid"
    every_s = 1.0
    timeout_s = 5.0
    doing = ""

    def __init__(self, wall: Callable[[], float] = time.time) -> None:
        self.kernel_speaks = False  # Whether the log can be read here.
        self._wall = wall
        self._lock = threading.Lock()
        self._gpus: dict[str, tuple[str, str]] = {}  # PCI address to index and uuid.
        self._counts: dict[str, int] = {}  # By PCI address.
        self._counted_at: dict[tuple[str, int], float] = {}
        self._logged_at: dict[tuple[str, int], float] = {}
        self._waiting: dict[tuple[str, int], float] = {}  # What NVML told of and the log has not confirmed yet.
        self._events: list[KernelEvent] = []

    def know(self, pci: str, index: str, uuid: str) -> None:
        """There is such a GPU: it counts from 0 on."""
        with self._lock:
            self._gpus[pci] = (index, uuid)
            self._counts.setdefault(pci, 0)

    def heard_from_kernel(self, pci: str, code: int, at: float) -> bool:
        """Whether this is a new one."""
        with self._lock:
            self._logged_at[pci, code] = at
            self._waiting.pop((pci, code), None)
            return self._count(pci, code, at)

    def heard_from_driver(self, pci: str, code: int) -> None:
        at = self._wall()
        with self._lock:
            if not self.kernel_speaks:
                self._tell(pci, code, at)
            elif at - self._logged_at.get((pci, code), 0.0) > _LATE_S:
                self._waiting.setdefault((pci, code), at)

    def look(self) -> list[Seen]:
        now = self._wall()
        with self._lock:
            for (pci, code), at in list(self._waiting.items()):
                if now - at >= SAME_S:
                    del self._waiting[pci, code]
                    self._tell(pci, code, at)
            found: list[Seen] = [Signal("gpu_xid_total", float(count), self._of(pci)) for pci, count in sorted(self._counts.items())]
            found += self._events
            self._events = []
        return found

    def _tell(self, pci: str, code: int, at: float) -> None:
        if self._count(pci, code, at):
            uuid = self._gpus.get(pci, ("", ""))[1]
            message = f"the driver of GPU {self._of(pci)} ({pci}) reports XID {code}"
            self._events.append(KernelEvent(kind="xid", message=message, at=at, of=self._of(pci), code=code, pci=pci, uuid=uuid))

    def _count(self, pci: str, code: int, at: float) -> bool:
        if at < self._counted_at.get((pci, code), float("-inf")) + SAME_S:
            return False
        self._counted_at[pci, code] = at
        self._counts[pci] = self._counts.get(pci, 0) + 1
        return True

    def _of(self, pci: str) -> str:
        """Its number where NVML told it, else where it sits."""
        return self._gpus.get(pci, (pci, ""))[0]
