"""Capacity: nodes, GPUs, storage and bandwidth for a training, now and as it grows.

        GPUs        = 6 × parameters × tokens / (FLOP/s a GPU really does × goodput × time)          6: two forward, four backward (Kaplan 2020)
        state       = parameters × bytes a parameter: 18 with AdamW in mixed precision (weights 2, gradients 4, master 4, moments 8)
        memory      = (own + held for another) × 2 buffers × state of a node
        network     = state of a node once an interval, to its copy; storage the whole state once every `durable_every_s`

Goodput falls as the fleet grows, because its failures grow with it, so GPUs and goodput are found together.

Is wrong    for what is not a dense transformer (count active parameters, and the state of all), and where speed a GPU falls with the size of the job.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

BYTES_PER_PARAMETER = 18.0
_ROUNDS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    parameters: float
    tokens: float
    within_s: float
    flop_per_s: float  # What one GPU really does, not what its data sheet says.
    gpus_per_node: int = 8
    bytes_per_parameter: float = BYTES_PER_PARAMETER
    checkpoints_kept: int = 10
    durable_every_s: float = 1800.0
    copies: int = 2
    growth_per_year: float = 1.0  # Of the computation that is asked for.


@dataclass(frozen=True, slots=True, kw_only=True)
class Needed:
    year: int
    gpus: int
    nodes: int
    goodput: float
    state_gb: float
    storage_gb: float
    storage_gb_per_s: float
    copy_gb_per_s: float  # From each node to the one that holds its copy.
    memory_gb: float  # Of each node, for snapshots.


def needed(workload: Workload, year: int, goodput_on: Callable[[int], float], interval_on: Callable[[int], float]) -> Needed | None:
    """What the workload takes after so many years of growth; None when no number of GPUs is enough: more of them fail faster than they help."""
    work = 6.0 * workload.parameters * workload.tokens * workload.growth_per_year**year / workload.flop_per_s / workload.within_s
    gpus = max(1, math.ceil(work))
    for _ in range(_ROUNDS):
        share = goodput_on(gpus)
        more = math.ceil(work / share / workload.gpus_per_node) * workload.gpus_per_node if share > 1e-6 else math.inf
        if more > 1e9:
            return None
        if more <= gpus:
            break
        gpus = int(more)
    else:
        return None
    nodes = math.ceil(gpus / workload.gpus_per_node)
    # Growth is shared evenly between size and data, as Chinchilla (arXiv 2203.15556) has it: the state grows with its root.
    state_gb = workload.parameters * math.sqrt(workload.growth_per_year**year) * workload.bytes_per_parameter / 1e9
    return Needed(
        year=year, gpus=gpus, nodes=nodes, goodput=goodput_on(gpus), state_gb=state_gb, storage_gb=state_gb * workload.checkpoints_kept,
        storage_gb_per_s=state_gb / workload.durable_every_s, copy_gb_per_s=(workload.copies - 1) * state_gb / nodes / interval_on(gpus),
        memory_gb=2.0 * workload.copies * state_gb / nodes,
    )  # fmt: skip
