"""Rejoining: a broken gang whose survivors keep their processes and their state. What the core asks about it; pure.

    the gang breaks ─► PartGang: who can leaves its loop and waits ─► the plan keeps them ─► StartGang: they are told their place, the lost are forked
                                                                 └─► it does not: they are stopped like the others

Only a gang that has finished a step since it was formed can do it. So a rejoin that fails is never answered by another.
"""

from __future__ import annotations

from typing import Final

from holdfast.domain.job import Mode
from holdfast.domain.plan import Plan, Rung
from holdfast.domain.state import Gang, NodeState, State

PROVEN_STEPS: Final = 5  # A checkpoint that gives NaN is known by its first steps. Sooner, survivors might hold what it gave, and nobody would look again.


def why_not(state: State) -> str:
    """Why the ranks of a gang that breaks now are not asked to part, or nothing."""
    gang, spec = state.gang, state.spec
    assert gang is not None and spec is not None
    if not gang.rejoins:
        return "the script does not rejoin, or the gang has not finished a step"
    if state.world_size == 1:
        return "there is one rank"
    if spec.policy.mode is not Mode.AUTO:
        return "a person is asked first, and nobody waits that long"
    if Rung.REJOIN.name.lower() in spec.policy.never:
        return "the policy forbids it (--never)"
    if gang.restore and state.step < gang.restore_step + PROVEN_STEPS:
        return f"{gang.restore} was restored less than {PROVEN_STEPS} steps ago, and is not known to be sound"
    if any(finding.kind == "poisoned_checkpoint" for one in state.incidents if one.is_open for finding in one.findings):
        return "the state that survivors hold is what is wrong"
    return ""


def cannot(gang: Gang) -> str:
    """Why the ranks that wait cannot be joined, or nothing."""
    if not gang.waiting:
        return "no rank lives on that could take the others in" if gang.rejoins else "the script does not rejoin, or the gang had not finished a step"
    return "" if max(gang.waiting.values()) >= 0 else "no rank that lives on holds a step whole"


def keeps(plan: Plan) -> bool:
    """Whether those who wait go on with the next gang: it is formed at once, of as many ranks, and from the state they hold."""
    same_size = plan.rung is Rung.REJOIN or (plan.rung is Rung.REPLACE and len(plan.take) == len(plan.drop))
    return same_size and not plan.wait_s and not plan.distrust


def left_behind(state: State, chosen: tuple[str, ...]) -> list[str]:
    """Nodes that are up, on which ranks wait that a gang on these nodes cannot take over. They wait no longer."""
    gang, spec = state.gang, state.spec
    if gang is None or spec is None:
        return []
    waits = {rank: gang.nodes[int(rank) // spec.ranks_per_node] for rank in gang.waiting}
    kept = {rank: step for rank, step in gang.waiting.items() if len(chosen) == len(gang.nodes) and waits[rank] in chosen}
    gang.waiting = kept if max(kept.values(), default=-1) >= 0 else {}
    left = {name for rank, name in waits.items() if rank not in gang.waiting}
    return sorted(name for name in left if state.nodes[name].state is NodeState.READY)


def formed(before: Gang | None, gang: Gang) -> Gang:
    """The new gang, with those of the one before who wait for it. A node that stays has the place it had, and so its ranks have."""
    if before is not None and before.waiting:
        gang.kept, gang.kept_of = tuple(sorted(map(int, before.waiting))), before.generation
        gang.restore, gang.restore_step = "", max(before.waiting.values())
    return gang


def beginning(gang: Gang) -> str:
    """What the ranks of a new gang begin with, in words."""
    if gang.kept:
        who = f"rank {gang.kept[0]} lives" if len(gang.kept) == 1 else f"{len(gang.kept)} ranks live"
        return f"{who} on; step {gang.restore_step} is given to the others"
    return f"restoring {gang.restore}" if gang.restore else "no checkpoint to restore"


def waited_for(state: State, node: str) -> tuple[int, ...]:
    """Generations of which a node may still run ranks, because they wait there for the next one."""
    gang = state.gang
    if gang is None or node not in gang.nodes or state.nodes[node].state is not NodeState.READY:
        return ()
    return (gang.generation,) if gang.waiting else (gang.kept_of,) if gang.kept and node not in gang.started else ()
