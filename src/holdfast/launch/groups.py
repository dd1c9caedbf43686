"""Control groups on the disk of the kernel: where a node's may be made, how they are written, how they are removed.

    home/                                       the group we are in ourselves, so that whatever holds us holds the job too
        holdfast-UID-DIGEST-NODE.JOB/           one for a job on a node
            rank-3.g7/                          one for a worker of a generation

The name begins as the node's shared memory does: two jobs, and two nodes of one machine, never meet, and what an earlier run of the job left is found.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from holdfast.observe.cgroup import Place, find

CONTROLLERS: Final = ("memory", "cpu", "pids", "devices")
OWN: Final = "holdfast-own"  # Where our own processes go under version 2, in which a group with groups below it may hold none itself.


class Files:
    """What can be done to a control group. The kernel makes its files with the directory, and takes them away with it."""

    def make(self, directory: Path) -> None:
        directory.mkdir(exist_ok=True)

    def write(self, file: Path, text: str) -> None:
        """In one piece: a number written in two would be two numbers. Never makes a file: one that is not there is a controller that is not."""
        fd = os.open(file, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(fd, text.encode())
        finally:
            os.close(fd)

    def remove(self, directory: Path) -> None:
        """Fails while a process is in it, or a group below it."""
        directory.rmdir()


def homes(proc: Path = Path("/proc"), controllers: Sequence[str] = CONTROLLERS) -> dict[str, Place]:
    """Below which groups ours are made, by controller."""
    return {name: _outside(place) for name, place in find("self", proc, controllers).items()}


def _outside(place: Place) -> Place:
    inside = place.version == 2 and place.directory.name == OWN and place.directory != place.top
    return Place(2, place.directory.parent, place.top) if inside else place


def remove(directory: Path, files: Files | None = None) -> bool:
    """A group and all below it. False while somebody is in one of them; then it stays."""
    files = files or Files()
    try:
        below = [path for path in directory.iterdir() if path.is_dir()]
        for path in below:
            remove(path, files)
        files.remove(directory)
    except FileNotFoundError:
        pass
    except OSError:
        return False
    return True


def sweep(prefix: str, proc: Path = Path("/proc")) -> None:
    """Remove what agents that were killed have left behind. What may not be touched stays, and is in nobody's way."""
    for home in {place.directory for place in homes(proc).values()}:
        with contextlib.suppress(OSError):
            for path in home.glob(f"{prefix}*"):
                remove(path)
