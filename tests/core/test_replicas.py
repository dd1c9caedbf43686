"""Whatever nodes are there: the next gang is made of whole replicas, as many as can be; whoever stays of a replica that lost nobody holds what it held."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core import membership, replicas
from holdfast.domain.job import JobSpec
from holdfast.domain.mesh import parsed
from holdfast.domain.state import Gang, Node, NodeState, State


def _state(mesh: str, *, ranks_per_node: int = 1, spares: int = 0, least: int = 1) -> State:
    said = parsed(mesh)
    nodes = said.world_size // ranks_per_node
    spec = JobSpec(job="job", argv=("train.py",), nodes=nodes, min_nodes=least, ranks_per_node=ranks_per_node, mesh=said)
    names = tuple(f"n{place:02d}" for place in range(nodes + spares))
    return State(spec=spec, mesh=said, nodes={name: Node(host="") for name in names}, gang=Gang(generation=1, nodes=names[:nodes]), smaller="it may be")


@st.composite
def struck(draw: st.DrawFn) -> State:
    """A gang of which some nodes are lost, in all the orders that dimensions can have."""
    sizes = {"dp": draw(st.integers(2, 4)), "pp": draw(st.integers(1, 3)), "tp": draw(st.integers(1, 2))}
    order = draw(st.permutations(sorted(sizes)))
    each = draw(st.sampled_from([each for each in (1, 2, 4) if sizes["dp"] * sizes["pp"] * sizes["tp"] % each == 0]))
    state = _state(",".join(f"{name}={sizes[name]}" for name in order), ranks_per_node=each, spares=draw(st.integers(0, 2)))
    for name in draw(st.sets(st.sampled_from(sorted(state.nodes)))):
        state.nodes[name].state = NodeState.LOST
    return state


@settings(deadline=None)
@given(struck())
def test_a_gang_is_whole_replicas_and_as_many_as_can_be(state: State) -> None:
    assert state.gang is not None
    count = membership.size(state)
    usable = membership.usable(state)
    if len(usable) < replicas.block(state):
        assert membership.choose(state, state.gang.nodes, count) is None
        return
    chosen = membership.choose(state, state.gang.nodes, count)
    assert chosen is not None
    assert len(set(chosen)) == len(chosen) == replicas.whole(state, len(usable))
    assert set(chosen) <= set(usable)
    of = replicas.mesh(state, len(chosen))
    assert of is not None
    assert len(of.replicas()) == of.copies


@settings(deadline=None)
@given(struck())
def test_who_is_in_a_replica_that_lost_nobody_and_stays_keeps_its_part(state: State) -> None:
    assert state.gang is not None
    assert state.spec is not None
    chosen = membership.choose(state, state.gang.nodes, membership.size(state))
    if chosen is None:
        return
    each, usable = state.spec.ranks_per_node, membership.usable(state)
    for block in replicas.by_block(state, state.gang.nodes):
        for name in block if set(block) <= set(usable) else ():
            if name in chosen:
                first = state.gang.nodes.index(name) * each
                assert all(replicas.stays(state, rank, name, chosen) for rank in range(first, first + each))


def test_what_is_left_of_two_broken_replicas_makes_one() -> None:
    state = _state("dp=2,pp=2")
    for name in ("n01", "n02"):
        state.nodes[name].state = NodeState.LOST
    assert state.gang is not None
    chosen = membership.choose(state, state.gang.nodes, membership.size(state))
    assert chosen == ("n00", "n03")
    assert replicas.stays(state, 3, "n03", chosen), "it held the second part, and does"


def test_without_a_mesh_any_nodes_make_a_gang() -> None:
    state = _state("dp=3")
    state.mesh = None
    state.nodes["n01"].state = NodeState.LOST
    assert state.gang is not None
    assert membership.choose(state, state.gang.nodes, membership.size(state)) == ("n00", "n02")
    assert replicas.missing(state, [0]) == ""


def test_a_least_number_of_nodes_is_whole_replicas_too() -> None:
    assert replicas.least(_state("dp=3,pp=2", least=3)) == 4


def test_those_come_first_whose_every_holder_is_in_one_domain() -> None:
    state = _state("dp=2,pp=2")
    rack = {"n00": "a", "n01": "a", "n02": "a", "n03": "b"}
    assert replicas.in_one_domain(state, rack) == {"n00", "n02"}, "both holders of the first part would be lost with rack a"
