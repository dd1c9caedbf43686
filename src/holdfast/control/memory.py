"""What is in the memory of the nodes: which step is whole there, who gets it from where, and who holds copies for whom.

Agents say several times a second what they hold. Nothing of it is journalled: after a restart of control they say it again.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from holdfast.checkpoint.layout import directory_name
from holdfast.core import replicas
from holdfast.domain.held import Held
from holdfast.domain.job import JobSpec
from holdfast.domain.state import NodeState, State
from holdfast.recover.copies import Assignment, Common, assign, missing, newest_common, sources
from holdfast.wire.messages import Whole

_STUCK_S = 3.0  # Nothing newer became whole in memory for so long, while the disk has failed.
_AHEAD_S = 1.0  # How far ahead leave is given: by then every worker has it.


@dataclass(slots=True)
class Memory:
    held: dict[str, tuple[Held, ...]] = field(default_factory=dict)  # By node, as it last said.
    domains: dict[str, str] = field(default_factory=dict)
    _told: tuple[tuple[int, int], tuple[int, int], int] = ((-1, -1), (-1, -1), 0)
    _changed_at: float = 0.0

    def heard(self, node: str, held: tuple[Held, ...]) -> None:
        self.held[node] = held

    def gone(self, node: str) -> None:
        self.held.pop(node, None)

    def newest(self, distrusted: tuple[str, ...] = ()) -> Common | None:
        """The newest state of which every rank is in somebody's memory."""
        trusted = {node: [one for one in held if directory_name(one.step, one.generation) not in distrusted] for node, held in self.held.items()}
        return newest_common(trusted)

    def sources(self, newest: Common, nodes: tuple[str, ...], spec: JobSpec) -> dict[str, str]:
        """For each rank of a gang on these nodes the node to get its part from."""
        runs = {rank: nodes[rank // spec.ranks_per_node] for rank in range(len(nodes) * spec.ranks_per_node)}
        return {str(rank): node for rank, node in sources(self.held, newest, runs).items()}

    def whole(self, state: State, *, step: int, rate: float | None, now: float) -> Whole | None:
        """What to tell the agents, if it has changed. `step` is how far the furthest rank is, `rate` how many it does in a second.

        Where the disk has failed, ranks may have come to save different steps, none of which is ever whole. Then all are given leave to write over
        theirs, from a step on that none has reached yet, so that they all save the same one.
        """
        spec, assignment, sealed = state.spec, self._assign(state), self.newest()
        if spec is None or assignment is None or state.gang is None:
            return None
        needed = [2 if owner in assignment.holders else 1 for owner in state.gang.nodes for _ in range(spec.ranks_per_node)]
        safe = [one for one in self._all_whole() if all(len(there) >= count for there, count in zip(self._domains_of(one), needed, strict=False))]
        keys = _key(sealed) if sealed is not None else (-1, -1), _key(max(safe)) if safe else (-1, -1)
        if keys != self._told[:2]:
            self._changed_at = now
        permit = step + 1 + int(_AHEAD_S * rate) if rate is not None and now - self._changed_at > _STUCK_S else self._told[2]
        if permit != self._told[2]:
            self._changed_at = now
        if (*keys, permit) == self._told:
            return None
        self._told = (*keys, permit)
        return Whole(sealed=keys[0], safe=keys[1], permit=permit)

    def _all_whole(self) -> set[Common]:
        states = {_state(one) for held in self.held.values() for one in held}
        return {state for state in states if all(self._domains_of(state))}

    def _domains_of(self, state: Common) -> list[set[str]]:
        """By rank, the domains that have it in memory."""
        found: list[set[str]] = [set() for _ in range(state.world_size)]
        for node, held in self.held.items():
            for one in held:
                if _state(one) == state:
                    found[one.rank].add(self.domains.get(node, node))
        return found

    def holders(self, state: State) -> dict[str, dict[str, str]]:
        """For each node that is there: the ranks whose copies it is to hold, and the peer that has them."""
        gang, spec, assignment = state.gang, state.spec, self._assign(state)
        if gang is None or spec is None or assignment is None:
            return {}
        wanted: dict[str, dict[str, str]] = {name: {} for name in self._alive(state)}
        for owner, holder in assignment.holders.items():
            for rank in _ranks(gang.nodes.index(owner), spec):
                wanted[holder][str(rank)] = state.nodes[owner].peer
        alive = self._alive(state)
        if not alive.keys() >= set(gang.nodes):
            # Until somebody takes its place the state of a lost node has one copy less. Nothing trains meanwhile, so a node may hold for two.
            for order in missing(gang.nodes, spec.ranks_per_node, alive, assignment.holders, self.held).orders:
                place = order.rank // spec.ranks_per_node
                if place >= len(gang.nodes) or gang.nodes[place] != order.to:  # The state may be that of a larger gang.
                    wanted[order.to][str(order.rank)] = state.nodes[order.source].peer
        return wanted

    def _assign(self, state: State) -> Assignment | None:
        if state.gang is None or state.spec is None:
            return None
        alive = self._alive(state)
        before = self._holders_now(state.gang.nodes, state.spec)
        made = assign(state.gang.nodes, alive, before)
        # Not everybody can have one: whose state nobody in another domain holds comes first.
        return assign(state.gang.nodes, alive, before, replicas.in_one_domain(state, alive)) if made.without and state.mesh is not None else made

    def _alive(self, state: State) -> dict[str, str]:
        return {name: self.domains[name] for name, node in state.nodes.items() if node.state is NodeState.READY and name in self.domains}

    def ranks_of_lost_nodes(self, state: State) -> tuple[int, ...]:
        if state.gang is None or state.spec is None:
            return ()
        lost = [place for place, name in enumerate(state.gang.nodes) if state.nodes[name].state is not NodeState.READY]
        return tuple(rank for place in lost for rank in _ranks(place, state.spec))

    def _holders_now(self, owners: tuple[str, ...], spec: JobSpec) -> dict[str, str]:
        """By what they hold: who has most of an owner's ranks, and is not the owner."""
        found = {}
        for place, owner in enumerate(owners):
            ranks = set(_ranks(place, spec))
            count = {node: len({one.rank for one in held} & ranks) for node, held in sorted(self.held.items()) if node != owner}
            best = max(count, key=lambda node: count[node], default="")
            if best and count[best]:
                found[owner] = best
        return found


def _state(one: Held) -> Common:
    return Common(generation=one.generation, step=one.step, world_size=one.world_size)


def _key(state: Common) -> tuple[int, int]:
    return (state.generation, state.step)


def _ranks(place: int, spec: JobSpec) -> range:
    return range(place * spec.ranks_per_node, (place + 1) * spec.ranks_per_node)
