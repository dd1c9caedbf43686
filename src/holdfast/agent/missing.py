"""Missing files: whether one that a worker did not find may still come, as its own node sees it.

    may_come(path) -> str     why; empty when nothing says so

Sees        where the path leads, as far as it does, and the mounts the kernel lists.
Says        that it is there by now; that it lies on a file system that is kept elsewhere (NFS, Lustre, FUSE, …); that the way to it ends in an empty directory,
            which is what a mount point looks like before its mount.
Is wrong    where a mount point is missing itself among other directories: the job then ends at its first try, and `holdfast resume` goes on.
Costs       a few calls on local file systems. Nothing on any other is touched: on a dead mount that would never return.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

# Kept in this machine, or in its memory. What is not known is taken to be elsewhere.
_LOCAL: Final = frozenset((
    "bcachefs", "btrfs", "devtmpfs", "erofs", "exfat", "ext2", "ext3", "ext4", "f2fs", "iso9660", "jfs", "overlay", "proc", "ramfs", "rootfs", "squashfs",
    "sysfs", "tmpfs", "vfat", "xfs", "zfs",
))  # fmt: skip
_LINKS_MAX: Final = 40  # As the kernel: ELOOP.


def may_come(path: str, *, mounts: str = "/proc/self/mountinfo") -> str:
    """Says why a file that was not found may be there at another try."""
    try:
        kinds = _kinds(Path(mounts).read_text())
    except OSError as error:
        return f"the mounts of this machine cannot be read: {error.strerror}"
    here, rest, links = "/", _parts(os.path.abspath(path)), 0
    try:
        while rest:
            further = os.path.join(here, rest[0])
            if (kind := _kind_of(further, kinds)) not in _LOCAL:
                return f"{further} is on {kind}"
            if not os.path.lexists(further):
                empty = os.path.isdir(here) and not os.listdir(here)
                return f"{here} is empty, as a mount point is before its mount" if empty else ""
            if not os.path.islink(further):
                here, rest = further, rest[1:]
                continue
            links += 1
            if links > _LINKS_MAX:
                return ""
            here, rest = "/", _parts(os.path.normpath(os.path.join(here, os.readlink(further)))) + rest[1:]
    except OSError as error:
        return f"{path} cannot be looked for: {error.strerror}"
    return f"{path} is there by now"


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part]


def _kinds(mountinfo: str) -> dict[str, str]:
    """Mount point to the kind of its file system; the last mount on a place is the one that is seen. Format: proc_pid_mountinfo(5)."""
    found: dict[str, str] = {}
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        if after:
            found[before.split()[4].replace("\\040", " ")] = after.split()[0]
    return found


def _kind_of(path: str, kinds: dict[str, str]) -> str:
    point = max((one for one in kinds if one == "/" or path == one or path.startswith(f"{one}/")), key=len, default="")
    return kinds.get(point, "nothing that is listed")
