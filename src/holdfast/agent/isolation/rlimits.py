"""Limits of processes: what can be kept of a job's resources where there are no control groups.

memory      RLIMIT_DATA of every process: what it maps for itself and may write. Not RLIMIT_AS: CUDA maps address space by the terabyte that nobody uses, and
            would not start. A process that wants more gets an error from its allocator, and is not killed. The limit is for each process alone: not for a
            worker with its children, nor for all workers together, and it counts what is mapped before it is used (8 MB for the stack of each thread).
weight      nice, which can only be lowered without privilege: a step is a factor of 1.25 (sched_prio_to_weight in kernel/sched/core.c).
quota       nothing. Pinning a job to some cores would put several jobs on the same ones.
processes   nothing. RLIMIT_NPROC counts all that the user runs on the machine: it would let one job's processes stop another's.
"""

from __future__ import annotations

import math
from collections.abc import Container
from dataclasses import dataclass

from holdfast.domain.resources import WEIGHT_USUAL, Resources, size

_STEP, _NICE_MAX = 1.25, 19


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessLimits:
    data_bytes: int | None = None
    nice: int = 0
    words: str = ""  # Of the limit of memory.


def kept_by_processes(resources: Resources, refused: Container[str]) -> tuple[ProcessLimits, tuple[str, ...]]:
    """What processes are told because groups do not keep it, and what is lost by that, in words."""
    lost = []
    data_bytes, words, nice = None, "", 0
    if "memory" in refused:
        limits = {"--memory": resources.memory_bytes, "--memory-per-worker": resources.worker_memory_bytes}
        asked = {option: limit for option, limit in limits.items() if limit is not None}
        if asked:
            option, data_bytes = min(asked.items(), key=lambda one: one[1])
            words = f"{size(data_bytes)} for each process ({option}, kept by RLIMIT_DATA)"
            lost.append(f"{' and '.join(asked)} for each process alone (RLIMIT_DATA), not for all of them together")
        if resources.memory_high_bytes is not None:
            lost.append("--memory-high not at all")
    if "cpu" in refused:
        if resources.cpus is not None:
            lost.append("--cpus not at all")
        if resources.cpu_weight is not None:
            nice = nice_of(resources.cpu_weight)
            lost.append(f"--cpu-weight as nice {nice}")
    if "pids" in refused and resources.processes is not None:
        lost.append("--max-processes not at all")
    return ProcessLimits(data_bytes=data_bytes, nice=nice, words=words), tuple(lost)


def nice_of(weight: int) -> int:
    """The nearest there is, at or below the usual weight."""
    return min(_NICE_MAX, max(0, round(math.log(WEIGHT_USUAL / weight, _STEP))))
