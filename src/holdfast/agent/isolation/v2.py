"""Control groups, version 2: one hierarchy, in which a group holds processes or groups, and not both.

    home/                          +memory +cpu +pids for those below
        holdfast-own/              whoever was in home: `holdfast run`, control, agents, warm parents
        NAME/                      the job on this node: memory.max, memory.high, cpu.max, cpu.weight, pids.max
            rank-3.g7/             a worker: memory.max

Home is the group we were started in. It is ours to divide when it was handed over to us (a systemd scope or service with Delegate=yes, a container with a group
of its own) and nobody but us is in it: others are not moved. Who is ours is told by descent from the process that launched this agent. What is made for
ourselves is not undone: when the last of us has left, home is empty, and goes with whoever made it.

Written after Documentation/admin-guide/cgroup-v2.rst. Tested against directories that behave like it; on a kernel that has it jobs ran, and out-of-memory kills
were told. The limits of one job beside another were not tried there.
"""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path
from typing import Final

from holdfast.agent import tree
from holdfast.agent.exits import Counted, Limit
from holdfast.agent.isolation.v1 import PERIOD_US, raised
from holdfast.domain.resources import Resources, size
from holdfast.launch.groups import OWN, Files, remove
from holdfast.observe.cgroup import Place

_TRIES: Final = 5  # Of moving ourselves out of the way: a process that forks meanwhile leaves a child behind.


class Version2:
    name = "cgroup v2"

    def __init__(self, home: Place, name: str, resources: Resources, *, files: Files) -> None:
        self._files = files
        self._group = home.directory / name
        self.resources = resources = raised(resources, self._group / "memory.max")
        self.refused: dict[str, str] = {}
        wanted = {"memory": _memory(resources), "cpu": _cpu(resources), "pids": _pids(resources)}
        needed = [controller for controller, settings in wanted.items() if settings or controller == "memory"]
        try:
            self._divide(home, needed)
            files.make(self._group)
        except OSError as error:
            where = error.filename or home.directory
            self.refused = dict.fromkeys(needed, f"{where}: {error.strerror}")
            return
        for controller in needed:
            try:
                files.write(self._group / "cgroup.subtree_control", f"+{controller}")
                for file, text in wanted[controller]:
                    self._set(self._group / file, text)
            except OSError as error:
                self.refused[controller] = f"{self._group}: {error.strerror}"
        if "memory" in self.refused:
            self.close()

    def make(self, member: str) -> tuple[str, ...]:
        if "memory" in self.refused:
            return ()
        directory = self._group / member
        self._files.make(directory)
        if self.resources.worker_memory_bytes is not None:
            for file, text in _memory(Resources(memory_bytes=self.resources.worker_memory_bytes)):
                self._set(directory / file, text)
        return (str(directory / "cgroup.procs"),)

    def counted(self, member: str) -> Counted | None:
        directory, asked = self._group / member, self.resources
        if not directory.is_dir():
            return None
        limits = []
        if asked.worker_memory_bytes is not None:
            limits.append(_limit(directory, f"{size(asked.worker_memory_bytes)} for each worker (--memory-per-worker)", fresh=True))
        if asked.memory_bytes is not None:
            limits.append(_limit(self._group, f"{size(asked.memory_bytes)} for the job on this node (--memory)"))
        if asked.processes is not None and "pids" not in self.refused:
            words = f"{asked.processes} processes and threads of the job on this node (--max-processes)"
            # Counted where the limit is, by kernels before 6.11 where the fork failed.
            limits += [Limit(what="processes", words=words, file=str(group / "pids.events"), word="max") for group in (self._group, directory)]
        return Counted(kills=str(directory / "memory.events"), fresh=True, limits=tuple(limits))

    def allow(self, resources: Resources) -> None:
        self.resources = resources
        if "memory" not in self.refused:
            for file, text in _memory(resources):
                self._set(self._group / file, text)

    def members(self) -> list[str]:
        return sorted(path.name for path in self._group.iterdir() if path.is_dir()) if self._group.is_dir() else []

    def remove(self, member: str) -> bool:
        return remove(self._group / member, self._files)

    def close(self) -> bool:
        return remove(self._group, self._files)

    def _set(self, file: Path, text: str) -> None:
        try:
            self._files.write(file, text)
        except FileNotFoundError:
            if file.name != "memory.swap.max":  # A kernel without swap has no such file.
                raise

    def _divide(self, home: Place, needed: list[str]) -> None:
        """Hand the controllers down from home, and if we are in the way there, step aside first."""
        control = home.directory / "cgroup.subtree_control"
        missing = [controller for controller in needed if controller not in control.read_text().split()]
        if not missing:
            return
        lacking = [controller for controller in missing if controller not in (home.directory / "cgroup.controllers").read_text().split()]
        if "memory" in lacking:
            raise OSError(errno.ENODEV, "the memory controller is not handed down to it", str(home.directory))
        for _ in range(_TRIES):
            try:
                for controller in missing:
                    if controller not in lacking:
                        self._files.write(control, f"+{controller}")
                return
            except OSError as error:
                if error.errno != errno.EBUSY:
                    raise
            self._step_aside(home.directory)
        raise OSError(errno.EBUSY, "processes keep coming into it", str(home.directory))

    def _step_aside(self, home: Path) -> None:
        inside = {int(line) for line in (home / "cgroup.procs").read_text().split()}
        others = inside - self._ours()
        if others:
            who = f"processes of others are in it ({', '.join(map(str, sorted(others)[:3]))}{', …' if len(others) > 3 else ''})"
            raise OSError(errno.EBUSY, who, str(home))
        self._files.make(home / OWN)
        for pid in sorted(inside):
            with contextlib.suppress(ProcessLookupError):
                self._files.write(home / OWN / "cgroup.procs", str(pid))

    def _ours(self) -> set[int]:
        """This agent, who launched it, and all that it launched."""
        launcher = os.getppid()
        return {launcher, *(process.pid for process in tree.descendants(launcher))}


def _memory(resources: Resources) -> list[tuple[str, str]]:
    settings = []
    if resources.memory_bytes is not None:
        # Swap does not add to it: training that swaps is a hang by another name.
        settings += [("memory.max", str(resources.memory_bytes)), ("memory.swap.max", "0")]
    if resources.memory_high_bytes is not None:
        settings.append(("memory.high", str(resources.memory_high_bytes)))
    return settings


def _cpu(resources: Resources) -> list[tuple[str, str]]:
    settings = []
    if resources.cpus is not None:
        settings.append(("cpu.max", f"{round(resources.cpus * PERIOD_US)} {PERIOD_US}"))
    if resources.cpu_weight is not None:
        settings.append(("cpu.weight", str(resources.cpu_weight)))
    return settings


def _pids(resources: Resources) -> list[tuple[str, str]]:
    return [("pids.max", str(resources.processes))] if resources.processes is not None else []


def _limit(group: Path, words: str, *, fresh: bool = False) -> Limit:
    """`oom` of the group alone: an allocation failed at this very limit. Kernels before 5.2 count those below with it."""
    local = group / "memory.events.local"
    return Limit(what="memory", words=words, file=str(local if local.exists() else group / "memory.events"), word="oom", fresh=fresh)
