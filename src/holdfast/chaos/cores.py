"""Cores: a rank is held back to a part of what it uses, by a control group of our own that it is put into and taken out of again."""

from __future__ import annotations

import time
from pathlib import Path

from holdfast.agent import tree
from holdfast.chaos.ground import Ground, Missed
from holdfast.chaos.undo import Remove, Vacate
from holdfast.observe.cgroup import find

_GROUPS = Path("/sys/fs/cgroup")
_LOOK_S = 5.0
_PERIOD_US, _QUOTA_US_MIN = 100_000, 1000


def version() -> int:
    return 2 if (_GROUPS / "cgroup.controllers").exists() else 1


def group_of(name: str, controller: str) -> Path:
    """Ours: with version 1 each controller has a tree of its own."""
    return _GROUPS / name if version() == 2 else _GROUPS / controller / name


def hold_back(ground: Ground, rank: int, share: float) -> None:
    """Let a rank have so much of the core it uses now."""
    pid = ground.pid(rank)
    used_s = tree.cpu_seconds([pid])
    time.sleep(_LOOK_S)
    limit(ground, pid, share * (tree.cpu_seconds([pid]) - used_s) / _LOOK_S)


def limit(ground: Ground, pid: int, cores: float) -> None:
    group, was = group_of(ground.group, "cpu") / "held_back", find(pid, controllers=["cpu"]).get("cpu")
    if was is None:
        raise Missed(f"process {pid} is in no control group for its cores")
    ground.undoing.add(Remove(path=str(group.parent)), Remove(path=str(group)), Vacate(group=str(group), into=str(was.directory)))
    group.mkdir(parents=True, exist_ok=True)
    quota_us = max(_QUOTA_US_MIN, int(cores * _PERIOD_US))
    if version() == 2:
        (group.parent / "cgroup.subtree_control").write_text("+cpu")
        (group / "cpu.max").write_text(f"{quota_us} {_PERIOD_US}")
    else:
        (group / "cpu.cfs_period_us").write_text(str(_PERIOD_US))
        (group / "cpu.cfs_quota_us").write_text(str(quota_us))
    (group / "cgroup.procs").write_text(str(pid))
