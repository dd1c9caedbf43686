"""Disks: the one the checkpoints lie on is filled, or takes so many writes a second. Only ever a disk of the job's own: never the machine's."""

from __future__ import annotations

import os
from pathlib import Path

from holdfast.chaos.cores import group_of, version
from holdfast.chaos.ground import Ground, Missed
from holdfast.chaos.undo import Remove, Vacate, Write
from holdfast.launch.processes import process_of
from holdfast.observe.cgroup import find


def fill(ground: Ground, rank: int) -> None:
    filler = ground.scene.directory.checkpoints / "filler"
    ground.undoing.add(Remove(path=str(filler)))
    with filler.open("wb") as file:
        try:
            while True:
                file.write(bytes(1 << 20))
        except OSError:
            pass


def slow_down(ground: Ground, rank: int, writes_per_s: int) -> None:
    """So many of the job's writes reach its disk each second. Agents write; they are put into a group of ours where they are not in one already."""
    device = device_of(ground.scene.directory.checkpoints)
    if version() == 2:
        limit = group_of(ground.group, "io") / "io.max"
        ground.undoing.add(Write(path=str(limit), data=f"{device} wiops=max".encode()))
        limit.write_text(f"{device} wiops={writes_per_s}")
        return
    group, directory = group_of(ground.group, "blkio"), ground.scene.directory
    found = [process_of(directory, path.name) for path in sorted(directory.nodes.iterdir())]
    agents = [agent for agent in found if agent is not None]  # A node that was lost has none.
    if not agents:
        raise Missed("no agent is up")
    was = find(agents[0], controllers=["blkio"])["blkio"].directory  # And of all the others: one launcher has started them.
    if was != group:
        ground.undoing.add(Remove(path=str(group)), Vacate(group=str(group), into=str(was)))
        group.mkdir(exist_ok=True)
        for agent in agents:
            (group / "cgroup.procs").write_text(str(agent))
    limit = group / "blkio.throttle.write_iops_device"
    ground.undoing.add(Write(path=str(limit), data=f"{device} 0".encode()))
    limit.write_text(f"{device} {writes_per_s}")


def device_of(path: Path) -> str:
    number = os.stat(path).st_dev
    return f"{os.major(number)}:{os.minor(number)}"


def is_own(path: Path) -> bool:
    """Whether a disk is mounted there, and not the one that everything else lies on."""
    return path.exists() and os.path.ismount(path)


def is_device(path: Path) -> bool:
    """Whether it lies on a device of which writes can be counted: tmpfs and its like have none, and of a partition they are not."""
    device = Path("/sys/dev/block") / device_of(path)
    return device.exists() and not (device / "partition").exists()
