"""A mesh says who holds what. Whatever its dimensions: every rank is in one replica, each replica has every shard, and those who leave are whole replicas."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.domain.mesh import Dimension, Mesh, in_words, seen

DIMENSIONS = st.lists(
    st.builds(
        Dimension, name=st.sampled_from(("dp", "fsdp", "pp", "tp")), size=st.sampled_from((1, 2, 2, 3, 4)), replicates=st.booleans(), resizes=st.booleans()
    ),
    min_size=1,
    max_size=4,
)
MESHES = st.builds(lambda dimensions: Mesh(dimensions=tuple(dimensions)), DIMENSIONS)


@st.composite
def meshes_on_nodes(draw: st.DrawFn) -> tuple[Mesh, int]:
    """With a number of ranks a node that the world is made of."""
    mesh = draw(MESHES)
    return mesh, draw(st.sampled_from([each for each in range(1, mesh.world_size + 1) if mesh.world_size % each == 0]))


def of(text: str, *, copies: str = "dp", resizes: str = "dp fsdp") -> Mesh:
    parts = (one.split("=") for one in text.split(","))
    made = (Dimension(name=name, size=int(size), replicates=name in copies.split(), resizes=name in resizes.split()) for name, size in parts)
    return Mesh(dimensions=tuple(made))


@given(MESHES)
def test_coordinates_are_numbered_as_torch_numbers_them(mesh: Mesh) -> None:
    expected = list(product(*(range(one.size) for one in mesh.dimensions)))
    assert [mesh.coordinates(rank) for rank in range(mesh.world_size)] == expected


@given(MESHES)
def test_replicas_part_the_ranks_and_each_holds_every_shard_once(mesh: Mesh) -> None:
    replicas = mesh.replicas()
    assert sorted(rank for replica in replicas for rank in replica) == list(range(mesh.world_size))
    for replica in replicas:
        assert sorted(mesh.shard(rank) for rank in replica) == list(range(mesh.shards))


@given(MESHES)
def test_holders_are_those_with_the_same_shard(mesh: Mesh) -> None:
    for rank in range(mesh.world_size):
        assert mesh.holders(rank) == tuple(other for other in range(mesh.world_size) if mesh.shard(other) == mesh.shard(rank))


@given(MESHES, st.data())
def test_a_shard_is_gone_when_and_only_when_all_its_holders_are(mesh: Mesh, data: st.DataObject) -> None:
    lost = data.draw(st.sets(st.integers(0, mesh.world_size - 1)))
    left = {mesh.shard(rank) for rank in range(mesh.world_size) if rank not in lost}
    assert {mesh.shard(rank) for rank in mesh.only_copies(lost)} == set(range(mesh.shards)) - left
    assert {mesh.shard(rank) for rank in mesh.who_else(lost)} == {mesh.shard(rank) for rank in lost} & left


@given(meshes_on_nodes())
def test_blocks_part_the_nodes_and_come_back_in_the_order_of_the_ranks(given_: tuple[Mesh, int]) -> None:
    mesh, each = given_
    nodes = tuple(range(mesh.world_size // each))
    blocks = mesh.by_block(nodes, each)
    assert {len(block) for block in blocks} == {mesh.block(each)}
    assert mesh.in_ranks(blocks, each) == nodes


@given(meshes_on_nodes())
def test_a_block_has_whole_replicas_and_no_part_of_another(given_: tuple[Mesh, int]) -> None:
    mesh, each = given_
    if mesh.elastic is None:
        return
    grown = mesh.dimensions[mesh.elastic]
    for block in mesh.by_block(range(mesh.world_size // each), each):
        ranks = {node * each + local for node in block for local in range(each)}
        slices = {mesh.coordinates(rank)[mesh.elastic] for rank in ranks}
        assert len(ranks) == len(slices) * mesh.world_size // grown.size, "of each coordinate it has, it has all ranks"


@given(meshes_on_nodes(), st.integers(1, 5))
def test_in_another_size_a_place_in_a_block_still_holds_what_it_held(given_: tuple[Mesh, int], count: int) -> None:
    """So that a node of a block that stays keeps what it has, whatever blocks come or go."""
    mesh, each = given_
    if mesh.elastic is None or not mesh.dimensions[mesh.elastic].replicates:
        return
    block = mesh.block(each)
    other = mesh.resized(count * block * each)
    if other is None or other.block(each) != block:
        assert block == mesh.world_size // each, "only one that is all of the gang has no other size"
        return
    before = mesh.by_block(range(mesh.world_size // each), each)[0]
    for after in other.by_block(range(count * block), each):
        for was, now in zip(before, after, strict=True):
            assert all(mesh.holds_alike(was * each + local, other, now * each + local) for local in range(each))


@given(MESHES)
def test_what_everybody_holds_tells_the_mesh(mesh: Mesh) -> None:
    holds = {rank: mesh.shard(rank) for rank in range(mesh.world_size)}
    found = seen([(one.name, one.size, one.resizes) for one in mesh.dimensions], holds)
    assert found is not None
    assert all(found.holders(rank) == mesh.holders(rank) for rank in holds)


@pytest.mark.parametrize(
    ("holds", "expected"),
    [((7, 7, 7, 7), "replicate=4"), ((1, 2, 3, 4), "shard=4"), ((1, 2, 1, 2), "replicate=2,shard=2"), ((1, 1, 2, 2), "shard=2,replicate=2")],
)
def test_without_dimensions_two_are_made_up(holds: tuple[int, ...], expected: str) -> None:
    assert str(seen((), dict(enumerate(holds)))) == expected


def test_what_no_mesh_explains_is_none() -> None:
    assert seen((), {0: 1, 1: 2, 2: 2, 3: 3}) is None
    assert seen((), {0: 1, 2: 1}) is None, "one rank has not said"


def test_a_lost_node_of_a_pipeline_takes_its_replica_along_and_the_others_hold_the_same() -> None:
    mesh = of("dp=4,pp=2,tp=2")
    assert mesh.block(2) == 2
    assert mesh.by_block(("a", "b", "c", "d", "e", "f", "g", "h"), 2) == [["a", "b"], ["c", "d"], ["e", "f"], ["g", "h"]]
    assert (mesh.only_copies({2, 3}), mesh.who_else({2, 3})) == ((), (6, 7, 10, 11, 14, 15))
    assert mesh.only_copies({2, 6, 10, 14}) == (2, 6, 10, 14)


def test_a_pipeline_that_is_the_outer_dimension_has_blocks_with_gaps() -> None:
    mesh = of("pp=2,dp=3")
    assert mesh.by_block("abcdef", 1) == [["a", "d"], ["b", "e"], ["c", "f"]]
    assert mesh.in_ranks([["a", "d"], ["c", "f"]], 1) == ("a", "c", "d", "f"), "those who stay keep their order"


def test_several_replicas_of_a_node_leave_together() -> None:
    assert of("dp=8").block(4) == 1
    assert of("dp=4,tp=3").block(2) == 3, "replicas of three ranks on nodes of two: a node is part of two"


def test_of_a_state_that_is_split_every_rank_has_the_only_copy() -> None:
    mesh = of("fsdp=4")
    assert mesh.only_copies({3}) == (3,)
    assert mesh.resized(3) == of("fsdp=3"), "it can be split otherwise, from a checkpoint"
    assert not mesh.holds_alike(0, of("fsdp=3"), 0)


def test_a_mesh_of_one_size_has_no_other() -> None:
    mesh = of("pp=2,tp=2")
    assert (mesh.resized(2), mesh.block(1)) == (None, 1)


def test_ranks_are_told_in_runs() -> None:
    assert [in_words(ranks) for ranks in ([3], [0, 1, 2, 3], [7, 1, 2, 9])] == ["rank 3", "ranks 0-3", "ranks 1-2, 7, 9"]
