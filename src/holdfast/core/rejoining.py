"""Rejoining: a broken gang whose survivors keep their processes, and their state where it is whole. What the core asks about it; pure.

    the gang breaks ─► PartGang: who can leaves its loop and waits ─► the plan keeps them ─► StartGang: they are told their place, the lost are forked
                                                                 └─► it does not: they are stopped like the others

The next gang may be smaller, when a node is lost and no spare is there, or larger, when one has come: then nothing is broken, and whoever stays is asked to
part in good order. Nodes that stay keep their order, so the ranks on one of them are all lower by the same number, or the same as before.

Where no survivor holds a step whole (each had a part of the state, or was in the middle of its optimizer's step) all ranks of the next gang restore the newest
checkpoint, as after any start, and the survivors do so in the processes they have. That is done for a gang of the same size alone.

Only a gang that has finished a step since it was formed can do it. So a rejoin that fails is never answered by another.
"""

from __future__ import annotations

from typing import Final

from holdfast.core import membership, replicas
from holdfast.domain.finding import NUMBERS
from holdfast.domain.job import Mode
from holdfast.domain.plan import Plan, Rung
from holdfast.domain.state import Gang, NodeState, State

_NOTHING_SAVED: Final = "nothing is saved yet that all could go back to"
_NO_FUNCTION: Final = "the script has no function that rejoins"
PROVEN_STEPS: Final = 5  # A checkpoint that gives NaN is known by its first steps. Sooner, survivors might hold what it gave, and nobody would look again.


def why_not(state: State, *, whole: bool = False) -> str:
    """Why the ranks of a gang that breaks now, or of a `whole` one that is to have other nodes, are not asked to part; or nothing."""
    gang, spec = state.gang, state.spec
    assert gang is not None and spec is not None
    if not gang.rejoins:
        return _NO_FUNCTION if gang.ready else "not every rank has finished a step since the gang was formed"
    if state.world_size == 1 and not whole:
        return "there is one rank"
    if spec.policy.mode is not Mode.AUTO:
        return "a person is asked first, and nobody waits that long"
    if Rung.REJOIN.name.lower() in spec.policy.never:
        return "the policy forbids it (--never)"
    if gang.sharded and whole:
        return "no rank holds the state whole, and one that leaves by itself saves nothing"
    if gang.sharded and state.saved_step < 0:
        return _NOTHING_SAVED
    if gang.restore and not gang.sharded and state.step < gang.restore_step + PROVEN_STEPS:
        return f"{gang.restore} was restored less than {PROVEN_STEPS} steps ago, and is not known to be sound"
    if state.renewing:
        return "memory is given back by a start alone"
    if gang.treatment != state.treatment:
        return "training goes on otherwise than before, of which only a start tells"
    if any(finding.kind in NUMBERS for one in state.incidents if one.is_open for finding in one.findings):
        return "the state that survivors hold is what is wrong"
    return ""


def cannot(state: State) -> str:
    """Why the ranks that wait cannot be joined, or nothing."""
    gang, waits = state.gang, _waits(state)
    assert gang is not None
    if not gang.waiting and gang.sharded and state.saved_step < 0:
        return _NOTHING_SAVED
    if not gang.waiting:
        return gang.not_asked or ("no rank lives on that could take the others in" if gang.rejoins else _NO_FUNCTION)
    usable = membership.usable(state)
    steps = [gang.waiting[rank] for rank, node in waits.items() if node in usable]
    if not steps:
        return "no rank lives on where the next gang could be"
    lacks = "no rank that lives on holds a step whole" if max(steps) < 0 else _lacks(state)
    return f"{lacks}, and {_NOTHING_SAVED}" if lacks and state.saved_step < 0 else ""


def goes_back(state: State) -> bool:
    """Whether ranks wait and none of them holds a step whole, or a part of it is held by nobody: then all restore a checkpoint."""
    return state.gang is not None and (max(state.gang.waiting.values(), default=0) < 0 or bool(state.gang.waiting and _lacks(state)))


def _lacks(state: State) -> str:
    """What those who wait with the newest step do not hold of it, where the mesh is known; empty: they hold all of it."""
    assert state.gang is not None
    waiting = state.gang.waiting
    return replicas.missing(state, [int(rank) for rank, step in waiting.items() if step == max(waiting.values())])


def _waits(state: State) -> dict[str, str]:
    """Ranks that wait, each with its node."""
    gang, spec = state.gang, state.spec
    assert gang is not None and spec is not None
    return {rank: gang.nodes[int(rank) // spec.ranks_per_node] for rank in gang.waiting}


def keeps(state: State, plan: Plan) -> bool:
    """Whether those who wait go on with the next gang: it is formed at once, and nothing is otherwise that only a start would tell."""
    at_once = plan.rung in (Rung.REJOIN, Rung.SHRINK) or (plan.rung is Rung.REPLACE and len(plan.take) == len(plan.drop))
    if goes_back(state):
        assert state.gang is not None
        at_once = at_once and plan.rung is not Rung.SHRINK and membership.size(state) == len(state.gang.nodes)
    return at_once and not plan.wait_s and not plan.distrust and plan.fitting is None


def left_behind(state: State, chosen: tuple[str, ...]) -> list[str]:
    """Nodes that are up, on which ranks wait that a gang on these nodes cannot take over. They wait no longer."""
    gang = state.gang
    if gang is None:
        return []
    waits = _waits(state)
    moved = {name for rank, name in waits.items() if name not in chosen or not replicas.stays(state, int(rank), name, chosen)}
    gang.waiting = {rank: step for rank, step in gang.waiting.items() if waits[rank] not in moved}
    if goes_back(state) and len(chosen) != len(gang.nodes):
        gang.waiting = {}
    left = {name for rank, name in waits.items() if rank not in gang.waiting}
    return sorted(name for name in left if state.nodes[name].state is NodeState.READY)


def formed(state: State, gang: Gang) -> Gang:
    """The new gang, with those of the one before who wait for it. A node that stays has the place it had in a gang of the same size, and so its ranks have."""
    before, spec = state.gang, state.spec
    if before is not None and before.waiting and spec is not None:
        places = {name: (before.nodes.index(name) - place) * spec.ranks_per_node for place, name in enumerate(gang.nodes) if name in before.nodes}
        gang.moved = {name: by for name, by in places.items() if by}
        gang.kept, gang.kept_of = tuple(sorted(int(rank) - gang.moved.get(node, 0) for rank, node in _waits(state).items())), before.generation
        if not goes_back(state):
            gang.restore, gang.restore_step = "", max(before.waiting.values())
    return gang


def beginning(gang: Gang) -> str:
    """What the ranks of a new gang begin with, in words."""
    if gang.kept:
        who = f"rank {gang.kept[0]} lives" if len(gang.kept) == 1 else f"{len(gang.kept)} ranks live"
        what = f"all restore {gang.restore}" if gang.restore else f"step {gang.restore_step} is given to the others"
        return f"{who} on; {what}"
    return f"restoring {gang.restore}" if gang.restore else "no checkpoint to restore"


def waited_for(state: State, node: str) -> tuple[int, ...]:
    """Generations of which a node may still run ranks, because they wait there for the next one."""
    gang = state.gang
    if gang is None or node not in gang.nodes or state.nodes[node].state is not NodeState.READY:
        return ()
    return (gang.generation,) if gang.waiting else (gang.kept_of,) if gang.kept and node not in gang.started else ()
