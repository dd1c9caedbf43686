"""The probes of a node, as an agent runs them.

    watched, peers = Watched(), Peers()
    runner = Runner(default_probes(node="node-3", watched=watched, peers=peers, disks=[…], written=[…]), node="node-3")

Nothing is opened here; each probe does so in its own thread, at its first look.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from holdfast.observe.cgroup import Cgroups
from holdfast.observe.clock import Clock
from holdfast.observe.cpu import Cpu
from holdfast.observe.descriptors import Descriptors
from holdfast.observe.disk import DiskSpace, DiskWrite
from holdfast.observe.gpu import Gpus
from holdfast.observe.kernel_log import KernelLog
from holdfast.observe.memory import Memory
from holdfast.observe.network import Network
from holdfast.observe.nvml import Nvml
from holdfast.observe.own import Own
from holdfast.observe.peers import Peers
from holdfast.observe.probe import Probe
from holdfast.observe.watched import Watched
from holdfast.observe.worker import Workers
from holdfast.observe.xid import Xids


def default_probes(
    *, node: str, watched: Watched, peers: Peers | None = None, disks: Sequence[Path] = (), written: Sequence[Path] = (), nvml: Nvml | None = None,
) -> list[Probe]:  # fmt: skip
    """`disks` are looked at, `written` are written to as well: those a checkpoint goes to. A directory named twice is looked at once."""
    xids = Xids()
    probes: list[Probe] = [
        Cpu(), Memory(), Network(), Clock(), Descriptors(), Own(), KernelLog(xids), Workers(watched), Cgroups(watched), Gpus(nvml, xids), xids,
    ]  # fmt: skip
    if peers is not None:
        probes.append(peers)
    probes += [DiskSpace(directory) for directory in dict.fromkeys([*disks, *written])]
    probes += [DiskWrite(directory, node) for directory in dict.fromkeys(written)]
    return probes
