"""Which faults are possible: what a fault needs, held against this machine and this job, with the reason where it is not."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from holdfast.chaos import clock, cores, disks
from holdfast.chaos.fault import Fault, Need
from holdfast.chaos.inside import carried
from holdfast.domain.job import JobSpec
from holdfast.launch.layout import JobDirectory
from holdfast.launch.processes import CONTROL, process_of

_BECAUSE = {
    Need.ROOT: "it needs root",
    Need.GROUPS: "no control group can be made here: run as root, with the cpu controller mounted for writing",
    Need.NETWORK: "the nodes of the job share the machine's network: start it with --own-network",
    Need.THROTTLE: "writes to a disk are held up by control groups of version 1 only, as root, and where it is a whole device: no partition, no tmpfs",
    Need.DISK: "the checkpoints lie on the machine's own disk, which is not touched: mount one at the job's `checkpoints` before it starts",
    Need.CLOCK: "the job was not started with a clock that can be set: `holdfast run --chaos --own-network` does so where gcc is installed",
    Need.LIMIT: "without a limit it would hit the whole machine: start the job with --memory or --memory-per-worker",
    Need.SPARE: "no node could take the place of the lost one: start the job with --spares",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Here:
    """What this machine and this job have."""

    has: frozenset[Need]
    carried: frozenset[str]  # Orders that the script obeys.
    programs: frozenset[str]


def look(directory: JobDirectory, spec: JobSpec, orders: Path) -> Here:
    root = os.geteuid() == 0
    control = process_of(directory, CONTROL)
    limits = spec.resources
    seen = {
        Need.ROOT: root,
        Need.GROUPS: root and os.access(cores.group_of("", "cpu"), os.W_OK),
        Need.NETWORK: root and spec.own_network,
        Need.THROTTLE: root and cores.version() == 1 and disks.is_device(directory.checkpoints),
        Need.DISK: disks.is_own(directory.checkpoints),
        Need.CLOCK: control is not None and clock.clock_of(control) is not None,
        Need.LIMIT: limits.memory_bytes is not None or limits.worker_memory_bytes is not None,
        Need.SPARE: replaceable(spec) > 0,
    }
    programs = frozenset(program for program in ("gcc", "tc") if shutil.which(program) is not None)
    return Here(has=frozenset(need for need, there in seen.items() if there), carried=carried(orders), programs=programs)


def replaceable(spec: JobSpec) -> int:
    """How many nodes may be lost: those that spares take the place of, and those that a gang of whole replicas may do without."""
    replica = spec.mesh.block(spec.ranks_per_node) if spec.mesh is not None else 1
    least = -(-spec.min_nodes // replica) * replica
    return spec.spares + (max(0, spec.nodes - least) if spec.min_nodes else 0)


def why_not(fault: Fault, here: Here) -> str:
    """The first reason against it; empty when it is possible."""
    missing = [need for need in fault.needs if need not in here.has]
    if missing:
        return _BECAUSE[missing[0]]
    if fault.program and fault.program not in here.programs:
        return f"{fault.program} is not installed"
    if fault.order and not here.carried:
        return "only the script can do it, and this one does not listen: see docs/chaos.md for the two lines"
    if fault.order and fault.order not in here.carried:
        return f"only the script can do it, and this one does not carry {fault.order!r}"
    return ""
