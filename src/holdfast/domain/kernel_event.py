"""A kernel event: something the kernel or one of its drivers did or said once. A signal has a value at every look; an event happened and is over."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelEvent:
    kind: str  # "oom_kill", "xid", "gpu_lost", "disk_error", "link_down", …: `observe/README.md` lists all.
    message: str  # The kernel's own words where it had any.
    at: float  # Seconds since the epoch.
    pid: int | None = None  # Only where the number means the same process to us.
    of: str = ""  # The GPU, disk or interface of the node it is about, as in `Signal.of`.
    code: int | None = None  # The number of an XID, the errno of a disk error.
    pci: str = ""  # Where a GPU sits, as "0000:3b:00".
    uuid: str = ""  # Which GPU it is, wherever it sits.
