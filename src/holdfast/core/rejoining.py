"""Rejoining: a broken gang whose survivors keep their processes and their state. What the core asks about it; pure.

    the gang breaks ─► PartGang: who can leaves its loop and waits ─► the plan keeps them ─► StartGang: they are told their place, the lost are forked
                                                                 └─► it does not: they are stopped like the others

The next gang may be smaller, when a node is lost and no spare is there, or larger, when one has come: then nothing is broken, and whoever stays is asked to
part in good order. Nodes that stay keep their order, so the ranks on one of them are all lower by the same number, or the same as before.

Only a gang that has finished a step since it was formed can do it. So a rejoin that fails is never answered by another.
"""

from __future__ import annotations

from typing import Final

from holdfast.core import membership
from holdfast.domain.finding import NUMBERS
from holdfast.domain.job import Mode
from holdfast.domain.plan import Plan, Rung
from holdfast.domain.state import Gang, NodeState, State

PROVEN_STEPS: Final = 5  # A checkpoint that gives NaN is known by its first steps. Sooner, survivors might hold what it gave, and nobody would look again.


def why_not(state: State, *, whole: bool = False) -> str:
    """Why the ranks of a gang that breaks now, or of a `whole` one that is to have other nodes, are not asked to part; or nothing."""
    gang, spec = state.gang, state.spec
    assert gang is not None and spec is not None
    if not gang.rejoins:
        return "the script does not rejoin, or the gang has not finished a step"
    if state.world_size == 1 and not whole:
        return "there is one rank"
    if spec.policy.mode is not Mode.AUTO:
        return "a person is asked first, and nobody waits that long"
    if Rung.REJOIN.name.lower() in spec.policy.never:
        return "the policy forbids it (--never)"
    if gang.restore and state.step < gang.restore_step + PROVEN_STEPS:
        return f"{gang.restore} was restored less than {PROVEN_STEPS} steps ago, and is not known to be sound"
    if gang.treatment != state.treatment:
        return "training goes on otherwise than before, of which only a start tells"
    if any(finding.kind in NUMBERS for one in state.incidents if one.is_open for finding in one.findings):
        return "the state that survivors hold is what is wrong"
    return ""


def cannot(state: State) -> str:
    """Why the ranks that wait cannot be joined, or nothing."""
    gang, waits = state.gang, _waits(state)
    assert gang is not None
    if not gang.waiting:
        return "no rank lives on that could take the others in" if gang.rejoins else "the script does not rejoin, or the gang had not finished a step"
    usable = membership.usable(state)
    return "" if any(gang.waiting[rank] >= 0 and node in usable for rank, node in waits.items()) else "no rank that lives on holds a step whole"


def _waits(state: State) -> dict[str, str]:
    """Ranks that wait, each with its node."""
    gang, spec = state.gang, state.spec
    assert gang is not None and spec is not None
    return {rank: gang.nodes[int(rank) // spec.ranks_per_node] for rank in gang.waiting}


def keeps(plan: Plan) -> bool:
    """Whether those who wait go on with the next gang: it is formed at once, from what they hold, and nothing is otherwise that only a start would tell."""
    at_once = plan.rung in (Rung.REJOIN, Rung.SHRINK) or (plan.rung is Rung.REPLACE and len(plan.take) == len(plan.drop))
    return at_once and not plan.wait_s and not plan.distrust and plan.fitting is None


def left_behind(state: State, chosen: tuple[str, ...]) -> list[str]:
    """Nodes that are up, on which ranks wait that a gang on these nodes cannot take over. They wait no longer."""
    gang = state.gang
    if gang is None:
        return []
    waits = _waits(state)
    kept = {rank: step for rank, step in gang.waiting.items() if waits[rank] in chosen}
    gang.waiting = kept if max(kept.values(), default=-1) >= 0 else {}
    left = {name for rank, name in waits.items() if rank not in gang.waiting}
    return sorted(name for name in left if state.nodes[name].state is NodeState.READY)


def formed(state: State, gang: Gang) -> Gang:
    """The new gang, with those of the one before who wait for it. A node that stays has the place it had in a gang of the same size, and so its ranks have."""
    before, spec = state.gang, state.spec
    if before is not None and before.waiting and spec is not None:
        places = {name: (before.nodes.index(name) - place) * spec.ranks_per_node for place, name in enumerate(gang.nodes) if name in before.nodes}
        gang.moved = {name: by for name, by in places.items() if by}
        gang.kept, gang.kept_of = tuple(sorted(int(rank) - gang.moved.get(node, 0) for rank, node in _waits(state).items())), before.generation
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
