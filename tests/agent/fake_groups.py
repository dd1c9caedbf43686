"""Control groups of version 2 in a plain directory: files come and go with a group, and the kernel's rules about them hold.

Documentation/admin-guide/cgroup-v2.rst: a controller is there when the group above hands it down; a group that hands any down may hold no process; a process is
in one group; a group that holds processes or groups cannot be removed.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

from holdfast.launch.groups import Files

OF_CONTROLLER = {
    "memory": {
        "memory.max": "max", "memory.high": "max", "memory.swap.max": "max", "memory.current": "0", "memory.events.local": "oom 0\noom_kill 0\n",
        "memory.events": "oom 0\noom_kill 0\n",
    },
    "cpu": {"cpu.max": "max 100000", "cpu.weight": "100", "cpu.stat": "throttled_usec 0\n"},
    "pids": {"pids.max": "max", "pids.events": "max 0\n"},
}  # fmt: skip


class FakeGroups(Files):
    """`top` is the group at the mount; every group below has what the one above hands down."""

    def __init__(self, top: Path, controllers: str = "cpu memory pids") -> None:
        self.top = top
        self.read_only: set[Path] = set()
        top.mkdir(parents=True)
        self._fill(top, controllers.split())

    def make(self, directory: Path) -> None:
        if directory.parent in self.read_only:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(directory))
        if not directory.is_dir():
            directory.mkdir()
            self._fill(directory, (directory.parent / "cgroup.subtree_control").read_text().split())

    def write(self, file: Path, text: str) -> None:
        if not file.exists():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(file))
        if file.parent in self.read_only:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(file))
        match file.name:
            case "cgroup.procs":
                self._move(text, file)
            case "cgroup.subtree_control":
                self._hand_down(text.removeprefix("+"), file)
            case _:
                file.write_text(text + "\n")

    def remove(self, directory: Path) -> None:
        if processes(directory) or any(path.is_dir() for path in directory.iterdir()):
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), str(directory))
        for file in directory.iterdir():
            file.unlink()
        directory.rmdir()

    def put(self, pid: int, directory: Path) -> None:
        with (directory / "cgroup.procs").open("a") as file:
            file.write(f"{pid}\n")

    def _fill(self, directory: Path, controllers: list[str]) -> None:
        files = {"cgroup.procs": "", "cgroup.subtree_control": "", "cgroup.controllers": " ".join(controllers)}
        for controller in controllers:
            files |= OF_CONTROLLER[controller]
        for name, text in files.items():
            (directory / name).write_text(text)

    def _move(self, pid: str, file: Path) -> None:
        if (file.parent / "cgroup.subtree_control").read_text().split():
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), str(file))
        for other in self.top.rglob("cgroup.procs"):
            other.write_text("".join(f"{one}\n" for one in other.read_text().split() if one != pid))
        self.put(int(pid), file.parent)

    def _hand_down(self, controller: str, file: Path) -> None:
        if controller not in (file.parent / "cgroup.controllers").read_text().split():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(file))
        if controller in file.read_text().split():
            return
        if processes(file.parent):
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), str(file))
        given = {*file.read_text().split(), controller}
        file.write_text(" ".join(sorted(given)))
        for below in (path for path in file.parent.iterdir() if path.is_dir()):
            has = {*(below / "cgroup.controllers").read_text().split(), controller}
            (below / "cgroup.controllers").write_text(" ".join(sorted(has)))
            for name, text in OF_CONTROLLER[controller].items():
                (below / name).write_text(text)


def processes(directory: Path) -> list[int]:
    return [int(pid) for pid in (directory / "cgroup.procs").read_text().split()]
