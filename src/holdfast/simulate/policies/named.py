"""Schedulers by the name a person gives."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from holdfast.errors import UserError
from holdfast.schedule.place import NodeRoom
from holdfast.schedule.policy import Policy
from holdfast.schedule.tree import Account
from holdfast.simulate.policies.easy import Easy
from holdfast.simulate.policies.fair_tree import FairTree
from holdfast.simulate.policies.ours import Holdfast
from holdfast.simulate.policies.pool import Fifo, ShortestFirst, Skip
from holdfast.simulate.policies.tiresias import Tiresias
from holdfast.simulate.replay import Scheduler

_COUNTING: dict[str, Callable[[int], Scheduler]] = {
    "fifo": Fifo, "skip": Skip, "easy": Easy, "shortest-first": ShortestFirst, "tiresias": Tiresias, "fair-tree": FairTree,
}  # fmt: skip
ON_NODES = ("holdfast", "health-blind")  # The second is ours without a memory of what failed where.
NAMES = (*ON_NODES, *_COUNTING)


def scheduler_named(
    name: str, nodes: Sequence[NodeRoom], policy: Policy | None = None, *, accounts: Iterable[Account] = (), checkpoint_every_s: float = 1800.0,
) -> Scheduler:  # fmt: skip
    """A fresh one. Ours places jobs on nodes, and knows accounts; the others count GPUs in one pool, which is in their favour."""
    if name == "health-blind":
        policy = replace(policy or Policy(), suspect_score=math.inf, drain_score=math.inf, probation_s=0.0)
    if name in ON_NODES:
        return Holdfast(list(nodes), accounts, policy, checkpoint_every_s=checkpoint_every_s)
    if name not in _COUNTING:
        raise UserError(f"policy {name!r} is not known; expected one of {', '.join(NAMES)}")
    return _COUNTING[name](sum(node.gpus for node in nodes))
