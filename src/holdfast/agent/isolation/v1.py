"""Control groups, version 1: a hierarchy for each controller.

    memory    a group for the job on this node, and one for each worker below it: limit_in_bytes, the same with swap, soft_limit_in_bytes
    cpu       one for the job on this node: cfs_quota_us, shares
    pids      the same: pids.max
    devices   the same: GPUs that others have are denied

Memory is there in any case, because it counts who was killed; of the others only what is needed.

Is wrong    about --memory-high: a soft limit is only thought of when the whole machine is short. And about which limit was met, when a job had once filled its
            own with files it read and is later killed because the machine is short: its own is then named.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from holdfast.agent.exits import Counted, Limit
from holdfast.domain.resources import WEIGHT_USUAL, Resources, size
from holdfast.launch.groups import Files, remove
from holdfast.observe.cgroup import Place

PERIOD_US: Final = 100_000
_SHARES_USUAL, _SHARES_MIN, _SHARES_MAX = 1024, 2, 262_144
_ALMOST_BYTES: Final = 1 << 20  # Memory is charged some pages at a time.
_NVIDIA_MAJOR: Final = 195  # Documentation/admin-guide/devices.txt

Setting = tuple[str, str, bool]  # File, text, and whether it must succeed.


class Version1:
    name = "cgroup v1"

    def __init__(self, homes: Mapping[str, Place], name: str, resources: Resources, *, hidden_gpus: tuple[int, ...] = (), files: Files) -> None:
        there = homes["memory"].directory / name / "memory.limit_in_bytes" if "memory" in homes else None
        self.resources = resources = raised(resources, there) if there is not None else resources
        self._files = files
        self._groups: dict[str, Path] = {}
        self.refused: dict[str, str] = {}
        for controller, settings in _settings(resources, hidden_gpus).items():
            home = homes.get(controller)
            if home is None or home.version != 1:
                self.refused[controller] = "it is not mounted here"
                continue
            try:
                self._groups[controller] = self._made(home.directory / name, settings)
            except OSError as error:
                remove(home.directory / name, files)
                self.refused[controller] = f"{home.directory / name}: {error.strerror}"

    def make(self, member: str) -> tuple[str, ...]:
        paths = dict(self._groups)
        if "memory" in paths:
            paths["memory"] = self._made(paths["memory"] / member, _memory_settings(self.resources.worker_memory_bytes))
        # A fork has one thread, and a thread that moves itself waits for nobody (cgroup_procs_write_start in kernel/cgroup/cgroup.c).
        # A process that writes itself into cgroup.procs waits for a grace period of RCU: 8 to 16 ms.
        return tuple(str(path / "tasks") for path in paths.values())

    def counted(self, member: str) -> Counted | None:
        above = self._groups.get("memory")
        if above is None or not (above / member).is_dir():
            return None
        asked = self.resources
        limits = []
        if asked.worker_memory_bytes is not None:
            limits.append(_limit(above / member, asked.worker_memory_bytes, "for each worker (--memory-per-worker)"))
        if asked.memory_bytes is not None:
            limits.append(_limit(above, asked.memory_bytes, "for the job on this node (--memory)"))
        if asked.processes is not None and "pids" in self._groups:
            words = f"{asked.processes} processes and threads of the job on this node (--max-processes)"
            limits.append(Limit(what="processes", words=words, file=str(self._groups["pids"] / "pids.events"), word="max"))
        return Counted(kills=str(above / member / "memory.oom_control"), fresh=True, limits=tuple(limits))

    def allow(self, resources: Resources) -> None:
        self.resources = resources
        if "memory" in self._groups:
            self._made(self._groups["memory"], _memory_settings(resources.memory_bytes))

    def members(self) -> list[str]:
        above = self._groups.get("memory")
        return sorted(path.name for path in above.iterdir() if path.is_dir()) if above is not None and above.is_dir() else []

    def remove(self, member: str) -> bool:
        return "memory" not in self._groups or remove(self._groups["memory"] / member, self._files)

    def close(self) -> bool:
        left = [path for path in self._groups.values() if not remove(path, self._files)]
        return not left

    def _made(self, directory: Path, settings: list[Setting]) -> Path:
        self._files.make(directory)
        for name, text, needed in settings:
            with contextlib.nullcontext() if needed else contextlib.suppress(OSError):
                self._files.write(directory / name, text)
        return directory


def _settings(resources: Resources, hidden_gpus: tuple[int, ...]) -> dict[str, list[Setting]]:
    """By controller; one that is not needed is left out."""
    memory = [("memory.use_hierarchy", "1", False), *_memory_settings(resources.memory_bytes)]  # Kernels before 5.11 must be asked.
    if resources.memory_high_bytes is not None:
        memory.append(("memory.soft_limit_in_bytes", str(resources.memory_high_bytes), True))
    cpu: list[Setting] = []
    if resources.cpus is not None:
        cpu += [("cpu.cfs_period_us", str(PERIOD_US), True), ("cpu.cfs_quota_us", str(round(resources.cpus * PERIOD_US)), True)]
    if resources.cpu_weight is not None:
        shares = resources.cpu_weight * _SHARES_USUAL // WEIGHT_USUAL
        cpu.append(("cpu.shares", str(min(_SHARES_MAX, max(_SHARES_MIN, shares))), True))
    pids: list[Setting] = [("pids.max", str(resources.processes), True)] if resources.processes is not None else []
    devices: list[Setting] = [("devices.deny", f"c {_NVIDIA_MAJOR}:{gpu} rwm", True) for gpu in hidden_gpus]
    asked = {"cpu": cpu, "pids": pids, "devices": devices}
    return {"memory": memory, **{controller: settings for controller, settings in asked.items() if settings}}


def _limit(group: Path, limit_bytes: int, of: str) -> Limit:
    """By the most there ever was: `failcnt`, which should count it, stays 0 on kernels of our day (seen on 6.18)."""
    words = f"{size(limit_bytes)} {of}"
    return Limit(what="memory", words=words, file=str(group / "memory.max_usage_in_bytes"), at=limit_bytes - _ALMOST_BYTES, fresh=True)


def _memory_settings(limit_bytes: int | None) -> list[Setting]:
    """Swap does not add to it: training that swaps is a hang by another name. Without swap accounting there is no such file."""
    if limit_bytes is None:
        return []
    with_swap = ("memory.memsw.limit_in_bytes", str(limit_bytes), False)  # Never below the other: one is raised from above, and lowered from below.
    return [with_swap, ("memory.limit_in_bytes", str(limit_bytes), True), with_swap]


def raised(resources: Resources, limit: Path) -> Resources:
    """With what the job's group allows already, where that may be raised: an agent that is started again beside its workers takes nothing from them."""
    try:
        allowed = int(limit.read_text())
    except (OSError, ValueError):  # There is none yet, or under version 2 it has no limit.
        return resources
    return resources.with_memory(allowed) if allowed <= (resources.memory_max_bytes or 0) else resources  # Under version 1 none is a very high one.
