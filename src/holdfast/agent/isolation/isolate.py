"""Isolation: every worker in a control group of its own, below one of the job's on this node.

    isolation = isolate(spec)              the best this machine permits; never an error
    isolation.enter("rank-3.g7")           what its process has to do before anything else
    isolation.counted("rank-3.g7")         where the kernel counts what memory did to it
    isolation.leave(7)                     the groups of a generation are removed
    isolation.close()                      and all others

Groups are made also where nothing is limited: then a kill for memory is known exactly, and by whom. What groups do not keep, limits of processes keep as far as
they can (`rlimits.py`), and `unkept` says in one sentence what is missing, why, and what to do.

Costs       on one machine with version 1: 0.05 ms to make a worker's group and 0.3 ms to enter it. Under version 2 the first to enter after a while is
            expected to wait some 10 ms for the kernel (a grace period of RCU), and with it all others of that moment.
"""

from __future__ import annotations

import contextlib
import re
import time
from pathlib import Path
from typing import Final, Protocol

from holdfast.agent.exits import Counted, counted_in
from holdfast.agent.isolation.rlimits import ProcessLimits, kept_by_processes
from holdfast.agent.isolation.v1 import Version1
from holdfast.agent.isolation.v2 import Version2
from holdfast.domain.node import NodeSpec
from holdfast.domain.resources import Resources
from holdfast.launch.groups import Files, homes
from holdfast.observe.cgroup import find

_GONE_WITHIN_S: Final = 1.0  # A process that has ended may be counted in its group for a moment.
_MEMBER: Final = re.compile(r".+\.g(-?\d+)")


class Groups(Protocol):
    """The groups of one job on one node."""

    name: str
    resources: Resources  # What it allows: more than at first, where an agent before this one was told to allow more.
    refused: dict[str, str]  # Controllers that were needed and cannot be had, each with the reason.

    def make(self, member: str) -> tuple[str, ...]:
        """Make a member's group; the files it has to write itself into. Raises OSError."""

    def counted(self, member: str) -> Counted | None: ...

    def members(self) -> list[str]: ...

    def remove(self, member: str) -> bool:
        """False while somebody is in it."""

    def allow(self, resources: Resources) -> None:
        """From now on the job may use so much. Raises OSError."""

    def close(self) -> bool: ...


def isolate(spec: NodeSpec, *, proc: Path = Path("/proc"), files: Files | None = None, beside: tuple[str, ...] = ()) -> Isolation:
    """Fence in what will run on a node, as well as this machine permits. `beside`: what else was asked for and is not kept."""
    files, found, name = files or Files(), homes(proc), f"{spec.mark}.{spec.job.job}"
    groups: Groups
    if "memory" in found and found["memory"].version == 2:
        groups = Version2(found["memory"], name, spec.job.resources, files=files)
    else:
        groups = Version1(found, name, spec.job.resources, hidden_gpus=_hidden_gpus(spec.gpus), files=files)
    return Isolation(groups, groups.resources, beside)


class Isolation:
    def __init__(self, groups: Groups, resources: Resources, beside: tuple[str, ...] = ()) -> None:
        self._groups = groups
        self._resources = resources
        self._processes, lost = kept_by_processes(resources, groups.refused)
        self._has_groups = "memory" not in groups.refused
        self.name = groups.name if self._has_groups else "limits of processes" if self._processes != ProcessLimits() else "nothing"
        self.unkept = _sentence(groups, (*lost, *beside))

    def enter(self, member: str) -> dict[str, object]:
        """What a process that is about to become this member does first, as the warm parent is told it."""
        try:
            files = self._groups.make(member)
        except OSError:  # Somebody removed the job's group meanwhile: it runs as it would without.
            files = ()
        return {"groups": list(files), "data_bytes": self._processes.data_bytes, "nice": self._processes.nice}

    def allow(self, resources: Resources) -> None:
        """From now on the job may use so much: what it is told before its workers enter."""
        if resources == self._resources:
            return
        with contextlib.suppress(OSError):  # Somebody removed the job's group meanwhile.
            self._groups.allow(resources)
        self._resources = resources
        self._processes, _ = kept_by_processes(resources, self._groups.refused)

    def counted(self, member: str) -> Counted:
        """Where its group counts; where it has none, the group it shares with us."""
        own = self._groups.counted(member)
        if own is not None:
            return own
        place = find("self").get("memory")
        return counted_in(place) if place is not None else Counted()

    @property
    def data_limit(self) -> str:
        return self._processes.words

    def leave(self, generation: int) -> None:
        """Its processes are gone: so are its groups, and those of older ones that nobody is in any more; a worker may live through several generations."""
        for member in self._groups.members():
            matched = _MEMBER.fullmatch(member)
            if matched and int(matched[1]) <= generation:
                self._groups.remove(member)

    def close(self) -> None:
        deadline = time.monotonic() + _GONE_WITHIN_S
        while not self._groups.close() and time.monotonic() < deadline:
            time.sleep(0.01)


def member_of(generation: int, rank: int) -> str:
    """What the group of a worker is called; a store has no rank."""
    return f"rank-{rank}.g{generation}" if rank >= 0 else f"store.g{generation}"


def _hidden_gpus(seen: tuple[int, ...]) -> tuple[int, ...]:
    """Those of this machine that the job is not to see."""
    there = (path.name.removeprefix("nvidia") for path in Path("/dev").glob("nvidia[0-9]*"))
    return tuple(sorted({int(name) for name in there if name.isdecimal()} - set(seen))) if seen else ()


def _sentence(groups: Groups, lost: tuple[str, ...]) -> str:
    if not lost:
        return ""
    reasons = "; ".join(f"{controller}: {why}" for controller, why in groups.refused.items())
    because = f" ({groups.name} cannot be used here: {reasons})" if reasons else ""
    advice = ". Run as root, or as `systemd-run --user --scope -p Delegate=yes holdfast run …`, or leave these options out" if reasons else ""
    return f"not all that was asked for is kept: {'; '.join(lost)}{because}{advice}"
