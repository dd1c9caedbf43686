"""Replicas: what the core makes of the mesh of a job: which nodes are in a gang together or not at all, and whether somebody who lives holds what was lost.
The core asks here, as it asks `membership`; works on the core's state.

    the user says it, or ranks say what they hold ─► the mesh of the whole gang ─► blocks: by them a gang is smaller or larger
                                                                              └─► holders: survivors go on only if they hold every shard

Without a mesh a node is a block, and whoever lives on holds everything: so it was before there were meshes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Final

from holdfast.domain.event import MeshSeen
from holdfast.domain.mesh import Mesh, in_words, seen
from holdfast.domain.plan import Plan
from holdfast.domain.state import State

_TOLD: Final = 6  # Runs of ranks that a sentence names; of more it says how many.


def mesh(state: State, nodes: int | None = None) -> Mesh | None:
    """Of the gang there is, or of one of so many nodes."""
    if state.mesh is None or state.spec is None:
        return None
    return state.mesh.resized(state.world_size if nodes is None else nodes * state.spec.ranks_per_node)


def block(state: State) -> int:
    """How many nodes make whole replicas."""
    if state.mesh is None or state.spec is None:
        return 1
    nodes = state.mesh.block(state.spec.ranks_per_node)
    return 1 if state.spec.nodes % nodes else nodes


def whole(state: State, nodes: int) -> int:
    """How many of so many nodes can be used: whole replicas, and no more than were asked for."""
    assert state.spec is not None
    return min(nodes, state.spec.nodes) // block(state) * block(state)


def least(state: State) -> int:
    """The fewest nodes a gang is formed on."""
    assert state.spec is not None
    return -(-state.spec.least_nodes // block(state)) * block(state)


def by_block(state: State, nodes: Sequence[str]) -> list[list[str]]:
    of = mesh(state, len(nodes)) if block(state) > 1 else None
    return [[name] for name in nodes] if of is None or state.spec is None else of.by_block(nodes, state.spec.ranks_per_node)


def in_ranks(state: State, blocks: Sequence[Sequence[str]]) -> tuple[str, ...]:
    of = mesh(state, sum(map(len, blocks))) if block(state) > 1 else None
    return tuple(name for one in blocks for name in one) if of is None or state.spec is None else of.in_ranks(blocks, state.spec.ranks_per_node)


# Who holds what.


def take(state: State, event: MeshSeen) -> None:
    """The ranks of a node say what they hold. When all have, the mesh is known; what is seen counts before what was said."""
    gang, spec = state.gang, state.spec
    if gang is None or spec is None or event.generation != gang.generation:
        return
    gang.holds |= event.holds
    if len(gang.holds) < state.world_size:
        return
    found = seen(event.dimensions, {int(rank): number for rank, number in gang.holds.items()})
    said = spec.mesh.resized(state.world_size) if spec.mesh is not None else None
    if found is not None:  # One that says the same says also what may have another size; of a smaller gang what was seen of a larger one says most.
        found = next((one for one in (mesh(state), said) if one is not None and one.shares_out_like(found)), found)
    whole_one = found.resized(spec.world_size) if found is not None else None
    if whole_one is None:
        return  # Ranks that no mesh explains, or a smaller gang of one that has one size: what was known before stays.
    state.mesh, state.mesh_said = whole_one, ""
    if spec.mesh is not None and whole_one != spec.mesh:
        state.mesh_said = f"--mesh says {spec.mesh}, and by what its ranks hold it is {whole_one}: what was seen counts"


def missing(state: State, there: Collection[int]) -> str:
    """Why these ranks of the gang, of whom each holds its part whole, cannot give the state to others; empty when they can."""
    of = mesh(state)
    held = {of.shard(rank) for rank in there} if of is not None else set()
    if of is None or len(held) == of.shards:
        return ""
    return _only([rank for rank in range(of.world_size) if of.shard(rank) not in held])


def stays(state: State, rank: int, node: str, chosen: Sequence[str]) -> bool:
    """Whether a rank of the gang holds what it is to hold in one on these nodes."""
    before, after = mesh(state), mesh(state, len(chosen))
    if before is None or after is None or state.spec is None:
        return True
    each = state.spec.ranks_per_node
    return before.holds_alike(rank, after, chosen.index(node) * each + rank % each)


def in_one_domain(state: State, domains: Mapping[str, str]) -> frozenset[str]:
    """Nodes of the gang with ranks whose every holder is in one domain, of the nodes that are there: their state is lost with it, but for a copy."""
    of, gang, spec = mesh(state), state.gang, state.spec
    if of is None or gang is None or spec is None or of.copies == 1:
        return frozenset()  # All are alike: nobody comes first.
    where: dict[int, set[str]] = {}
    for rank in range(of.world_size):
        node = gang.nodes[rank // spec.ranks_per_node]
        where.setdefault(of.shard(rank), set()).update({domains[node]} if node in domains else ())
    return frozenset(gang.nodes[rank // spec.ranks_per_node] for rank in range(of.world_size) if len(where[of.shard(rank)]) < 2)


def with_holders(state: State, plan: Plan, lost: Collection[int], *, lives: bool, kept: bool) -> Plan:
    """The plan, with who else holds what these ranks held; `lives`: others wait for the next gang; `kept`: and go on with what they hold."""
    of = mesh(state)
    return plan if of is None or not lost else replace(plan, lost=tuple(sorted(lost)), mesh=of, held=_told(of, lost, lives=lives, kept=lives and kept))


def _told(of: Mesh, lost: Collection[int], *, lives: bool, kept: bool) -> str:
    only = of.only_copies(lost)
    if only:
        return f"{_only(only)}: back to the newest checkpoint"
    others = of.who_else(lost)
    was, have = "was" if len(set(lost)) == 1 else "were", ("holds" if kept else "held") if len(others) == 1 else ("hold" if kept else "held")
    back = "" if kept else f", and {'kept no whole step' if lives else 'did not live on'}: back to the newest checkpoint"
    return f"{_named(lost)} {was} lost; {_named(others)} {have} the same{back}"


def _only(ranks: Collection[int]) -> str:
    return f"{_named(ranks)} held the only copy of {'its shard' if len(ranks) == 1 else 'their shards'}"


def _named(ranks: Collection[int]) -> str:
    said = in_words(ranks)
    return said if said.count(",") < _TOLD else f"{len(set(ranks))} ranks"
