"""Membership: on which nodes the next gang is formed, when a gang that runs should have others, and what became of it. The core asks here, as it asks
`standing`; works on the core's state, which has one owner still.

    a node is lost, no spare ─► smaller, if the plan says so ─► a node is ready again ─► at a save: parted, or stopped with grace, and formed anew on more
    a node is drained        ─► at a save: the same, and formed anew without it

Nodes that stay keep their order, so ranks are dense; in a gang of the same size a spare takes over the ranks of the node it replaces. A gang that runs is
stopped for more nodes only with a save, when ranks can be forked there at once, and not sooner than `resize_every_s` after the last change: flapping nodes
must not cost more than they bring.
"""

from __future__ import annotations

from collections.abc import Collection

from holdfast.domain.job import JobPhase
from holdfast.domain.state import Change, NodeState, State

_ABSENCES, _CHANGES = 20, 500  # The newest ones are kept.


def in_order(state: State, names: Collection[str]) -> tuple[str, ...]:
    """By name; those that are avoided last."""
    return tuple(sorted(names, key=lambda name: (name in state.avoided, name)))


def usable(state: State) -> tuple[str, ...]:
    """Nodes that ranks may be given, in the order in which they are."""
    return in_order(state, {name for name, node in state.nodes.items() if node.state is NodeState.READY and name not in state.cordoned})


def size(state: State) -> int:
    """How many nodes the next gang is to have. More than there are: it must wait."""
    spec = state.spec
    assert spec is not None
    there = min(len(usable(state)), spec.nodes)
    may = bool(state.smaller) and there >= spec.least_nodes and str(there) not in state.refused
    return there if may else spec.nodes


def kept(state: State) -> float:
    """How much of the gang that was asked for there is."""
    gang, spec = state.gang, state.spec
    assert gang is not None and spec is not None
    return len(gang.nodes) / spec.nodes


def choose(state: State, kept: tuple[str, ...], count: int) -> tuple[str, ...] | None:
    """Usable nodes keep their place; the places of the others go to spares. Who is avoided comes last, and only if need be."""
    ready = usable(state)
    if len(ready) < count:
        return None
    avoided = len(set(ready) & set(state.avoided))
    ready = ready[: max(count, len(ready) - avoided)]
    if len(kept) != count:
        kept = tuple(name for name in kept if name in ready)[:count]  # Of another size: ranks are dealt anew, densely.
    places: list[str | None] = [name if name in ready else None for name in kept] + [None] * (count - len(kept))
    spares = [name for name in ready if name not in places]
    return tuple(name if name is not None else spares.pop(0) for name in places)


def formed(state: State, before: tuple[str, ...]) -> None:
    """Note what the new gang has that the one before had not."""
    gang, spec = state.gang, state.spec
    assert gang is not None and spec is not None
    if before and (state.moving or len(before) != len(gang.nodes)):
        because = state.moving or (f"grown back to {len(gang.nodes)} nodes" if len(gang.nodes) > len(before) else state.smaller)
        change = Change(at=state.at, generation=gang.generation, before=before, after=gang.nodes, by_choice=bool(state.moving), because=because)
        state.changes = [*state.changes[1 - _CHANGES :], change]
    state.moving = ""
    state.draining = tuple(name for name in state.draining if name in gang.nodes)
    if len(gang.nodes) == spec.nodes:
        state.smaller = ""


def why_move(state: State) -> str:
    """Why the gang that runs should be stopped now, with a save, and be formed on other nodes; empty: it should not."""
    gang, spec = state.gang, state.spec
    if gang is None or spec is None or state.phase is not JobPhase.RUNNING or not gang.ready or not gang.beats:
        return ""  # A script that does not beat does not save when it is told to leave either.
    # Nobody is stopped for a node whose warm parent still imports: all would wait for it.
    there = tuple(name for name in usable(state) if state.nodes[name].warm or name in gang.nodes)
    leaving = [name for name in gang.nodes if name in state.draining]
    count = min(len(there), spec.nodes)
    if count < spec.least_nodes or str(count) in state.refused:
        return ""
    if leaving:
        return f"{', '.join(leaving)} is drained: {state.cordoned[leaving[0]]}"
    if gang.treatment != state.treatment:
        return f"training goes on otherwise than before: {state.treatment}"
    last = max((change.at for change in state.changes), default=float("-inf"))
    if len(gang.nodes) < count and state.at - last >= spec.policy.resize_every_s:
        come = ", ".join(name for name in there if name not in gang.nodes)
        return f"growing back from {len(gang.nodes)} to {count} nodes: {come} is there again"
    return ""


def out_of_service(state: State, name: str) -> str:
    if name not in state.cordoned:
        return ""
    return "going" if name in state.notices else "draining" if name in state.draining else "cordoned"


def why_not_used(state: State, name: str) -> str:
    """Why a node gets no ranks, gets them last, or will lose them; empty for one that is simply there."""
    node = state.nodes[name]
    if node.state is not NodeState.READY:
        return {NodeState.LOST: "silent", NodeState.CLEANING: "came back with old ranks, which are being ended"}.get(node.state, "cannot end its processes")
    if name in state.draining:
        return f"the gang leaves it {'before it goes' if name in state.notices else 'at the next save'}: {state.cordoned[name]}"
    if name in state.cordoned:
        return f"cordoned: {state.cordoned[name]}"
    return "taken last: it was left for another, or fails more often than others" if name in state.avoided else ""


def waits_to_leave(state: State) -> str:
    """Why the gang still runs on a node it is to leave; empty when nothing is in the way but the next save."""
    spec, gang = state.spec, state.gang
    assert spec is not None
    there = usable(state)
    if gang is not None and not gang.beats:
        return "its script does not save when it is told to leave: the gang stays there until it is formed anew"
    if gang is not None and len(there) < spec.least_nodes:
        return f"no node is there in its place, and {spec.least_nodes} are the least: it moves when one comes"
    return ""


def came_back(state: State, name: str) -> None:
    """A node that was lost is heard again."""
    node = state.nodes[name]
    if node.lost_at:
        state.absences = [*state.absences[1 - _ABSENCES :], max(0.0, state.at - node.lost_at)]
        node.lost_at = 0.0
