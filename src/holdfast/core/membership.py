"""Membership: on which nodes the next gang is formed, when a gang that runs should have others, and what became of it. The core asks here, as it asks
`standing`; works on the core's state, which has one owner still.

    a node is lost, no spare ─► smaller, if the plan says so ─► a node is ready again ─► at a save: parted, or stopped with grace, and formed anew on more
    a node is drained        ─► at a save: the same, and formed anew without it

Where the mesh of the job is known a gang is made of whole replicas (`replicas`): what is left of one that lost a node stands by, and is taken first.

Nodes that stay keep their order, so ranks are dense; in a gang of the same size a spare takes over the ranks of the node it replaces. A gang that runs is
stopped for more nodes only with a save, when ranks can be forked there at once, and not before it has rested from the last change: flapping nodes must not
cost more than they bring, so each stop by choice doubles the rest for an hour.
"""

from __future__ import annotations

from collections.abc import Collection

from holdfast.core import replicas
from holdfast.domain.job import JobPhase
from holdfast.domain.state import Change, NodeState, State

_ABSENCES, _CHANGES = 20, 500  # The newest ones are kept.
_FLAPS_S, DOUBLED_MAX = 3600.0, 4  # So long a stop by choice is remembered; so often the rest after a change is doubled at most.


def in_order(state: State, names: Collection[str]) -> tuple[str, ...]:
    """By name; what is left of replicas first, those that are avoided last."""
    return tuple(sorted(names, key=lambda name: (name in state.avoided, name not in state.left_over, name)))


def usable(state: State) -> tuple[str, ...]:
    """Nodes that ranks may be given, in the order in which they are."""
    return in_order(state, {name for name, node in state.nodes.items() if node.state is NodeState.READY and name not in state.cordoned})


def size(state: State) -> int:
    """How many nodes the next gang is to have. More than there are: it must wait."""
    spec = state.spec
    assert spec is not None
    there = replicas.whole(state, len(usable(state)))
    may = bool(state.smaller) and there >= replicas.least(state) and str(there) not in state.refused
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
    blocks = replicas.by_block(state, kept)
    if len(kept) != count:
        blocks = _dense(blocks, set(ready), count // replicas.block(state), replicas.block(state))
    here = {name for block in blocks for name in block}
    spares = [name for name in ready if name not in here]
    was = {name: place for block in replicas.by_block(state, kept) for place, name in enumerate(block)}  # By what it holds, of nodes of the gang before.
    for block in blocks:
        for place, name in enumerate(block):
            if name not in ready:
                block[place] = next((spare for spare in spares if was.get(spare) == place), spares[0])
                spares.remove(block[place])
    return replicas.in_ranks(state, blocks)


def _dense(blocks: list[list[str]], ready: Collection[str], count: int, nodes: int) -> list[list[str]]:
    """Of another size: ranks are dealt anew, densely. Of the blocks those stay that have lost least; new ones come behind them."""
    left = [sum(name in ready for name in block) for block in blocks]
    stay = sorted((place for place in range(len(blocks)) if left[place]), key=lambda place: -left[place])[:count]
    return [blocks[place] for place in sorted(stay)] + [[""] * nodes for _ in range(count - len(stay))]


def formed(state: State, before: tuple[str, ...]) -> None:
    """Note what the new gang has that the one before had not."""
    gang, spec = state.gang, state.spec
    assert gang is not None and spec is not None
    if before and (state.moving or len(before) != len(gang.nodes)):
        because = state.moving or (f"grown back to {len(gang.nodes)} nodes" if len(gang.nodes) > len(before) else state.smaller)
        change = Change(at=state.at, generation=gang.generation, before=before, after=gang.nodes, by_choice=bool(state.moving), because=because)
        state.changes = [*state.changes[1 - _CHANGES :], change]
    behind = (name for name in (*before, *state.left_over) if name not in gang.nodes) if len(gang.nodes) < spec.nodes and replicas.block(state) > 1 else ()
    there = (NodeState.READY, NodeState.CLEANING)  # Ranks that waited there may just be being ended.
    state.left_over = tuple(dict.fromkeys(name for name in behind if state.nodes[name].state in there and name not in state.cordoned))
    state.moving = state.renewing = ""
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
    count = replicas.whole(state, len(there))
    if count < replicas.least(state) or str(count) in state.refused:
        return ""
    if leaving:
        return f"{', '.join(leaving)} is drained: {state.cordoned[leaving[0]]}"
    if gang.treatment != state.treatment:
        return f"training goes on otherwise than before: {state.treatment}"
    if state.renewing:
        return state.renewing
    if len(gang.nodes) < count and rests_s(state) <= 0.0:
        come, by = (", ".join(name for name in there if name not in gang.nodes and (name in state.left_over) == over) for over in (False, True))
        return f"growing back from {len(gang.nodes)} to {count} nodes: {come} is there again{f', and {by} stood by' if by else ''}"
    return ""


def rests_s(state: State) -> float:
    """How much longer the gang keeps the nodes it has, unless it must leave one. The first that come back are taken in soon, flapping ones late."""
    spec = state.spec
    assert spec is not None
    last = max((change.at for change in state.changes), default=float("-inf"))
    stops = sum(change.by_choice and state.at - change.at < _FLAPS_S for change in state.changes)
    return last + spec.policy.resize_every_s * 2.0 ** min(stops, DOUBLED_MAX) - state.at


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
    if name in state.left_over and (state.gang is None or name not in state.gang.nodes):
        return "stands by: the replica it was part of is not whole"
    return "taken last: it was left for another, or fails more often than others" if name in state.avoided else ""


def waits_to_leave(state: State) -> str:
    """Why the gang still runs on a node it is to leave; empty when nothing is in the way but the next save."""
    spec, gang = state.spec, state.gang
    assert spec is not None
    there = usable(state)
    if gang is not None and not gang.beats:
        return "its script does not save when it is told to leave: the gang stays there until it is formed anew"
    if gang is not None and replicas.whole(state, len(there)) < replicas.least(state):
        return f"no node is there in its place, and {replicas.least(state)} are the least: it moves when one comes"
    return ""


def came_back(state: State, name: str) -> None:
    """A node that was lost is heard again."""
    node = state.nodes[name]
    if node.lost_at:
        state.absences = [*state.absences[1 - _ABSENCES :], max(0.0, state.at - node.lost_at)]
        node.lost_at = 0.0
