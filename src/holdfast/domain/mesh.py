"""A mesh: how the ranks of a gang are laid out, which of them hold the same state, and which nodes go on together or not at all.

    dp=2 x pp=3, one rank a node                 a rank's number is made of its coordinates, the last dimension fastest, as torch's init_device_mesh has it

              pp 0   pp 1   pp 2
      dp 0     0      1      2                   a row is a replica: ranks that together hold the whole state
      dp 1     3      4      5                   a column are the holders of one shard: rank 4 is lost, and rank 1 holds the same

A dimension replicates the state or splits it, and may have another size in another gang or may not: data parallelism replicates and may (DDP), or splits and
may (FSDP); tensors and pipelines are split and have one size. A block is the fewest nodes that hold whole replicas and no part of another: by blocks a gang is
smaller or larger.

Is wrong    where ranks along a dimension that replicates hold something of their own, such as an optimizer split over them that nobody told of.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from math import lcm, prod
from typing import Final, TypeVar

# What a dimension of this name does, where nothing else is known: whether it replicates, and whether it may have another size.
NAMES: Final = {
    **dict.fromkeys(("dp", "ddp", "data", "replicate", "dp_replicate"), (True, True)),
    **dict.fromkeys(("fsdp", "shard", "dp_shard"), (False, True)),
    **dict.fromkeys(("cp", "context"), (True, False)),
    **dict.fromkeys(("tp", "tensor", "pp", "pipeline", "ep", "expert"), (False, False)),
}
Item = TypeVar("Item")


@dataclass(frozen=True, slots=True, kw_only=True)
class Dimension:
    name: str
    size: int
    replicates: bool  # Ranks that differ in this coordinate alone hold the same.
    resizes: bool  # The gang may be formed with another size of it.


@dataclass(frozen=True, slots=True, kw_only=True)
class Mesh:
    dimensions: tuple[Dimension, ...]

    def __str__(self) -> str:
        """As it is typed."""
        return ",".join(f"{one.name}={one.size}" for one in self.dimensions)

    @property
    def world_size(self) -> int:
        return prod(one.size for one in self.dimensions)

    @property
    def copies(self) -> int:
        """How many hold each shard."""
        return prod(one.size for one in self.dimensions if one.replicates)

    @property
    def shards(self) -> int:
        return self.world_size // self.copies

    def coordinates(self, rank: int) -> tuple[int, ...]:
        found = []
        for one in reversed(self.dimensions):
            rank, coordinate = divmod(rank, one.size)
            found.append(coordinate)
        return tuple(reversed(found))

    def shard(self, rank: int) -> int:
        """The number of what a rank holds."""
        return self._numbered(rank, replicating=False)

    def replica(self, rank: int) -> int:
        """The number of the replica it is a part of."""
        return self._numbered(rank, replicating=True)

    def _numbered(self, rank: int, *, replicating: bool) -> int:
        number = 0
        for one, coordinate in zip(self.dimensions, self.coordinates(rank), strict=True):
            number = number * one.size + coordinate if one.replicates == replicating else number
        return number

    def replicas(self) -> tuple[tuple[int, ...], ...]:
        """The ranks of each."""
        found: list[list[int]] = [[] for _ in range(self.copies)]
        for rank in range(self.world_size):
            found[self.replica(rank)].append(rank)
        return tuple(map(tuple, found))

    def holders(self, rank: int) -> tuple[int, ...]:
        """All ranks that hold what this one does, itself among them."""
        ranks = [rank]
        for one, coordinate, stride in zip(self.dimensions, self.coordinates(rank), self._strides(), strict=True):
            if one.replicates:
                ranks = [other + (place - coordinate) * stride for other in ranks for place in range(one.size)]
        return tuple(sorted(ranks))

    def _strides(self) -> tuple[int, ...]:
        return tuple(prod(one.size for one in self.dimensions[place + 1 :]) for place in range(len(self.dimensions)))

    def only_copies(self, lost: Collection[int]) -> tuple[int, ...]:
        """Of the lost ranks those whose shard nobody else holds who is not lost too."""
        gone = set(lost)
        return tuple(rank for rank in sorted(gone) if gone.issuperset(self.holders(rank)))

    def who_else(self, lost: Collection[int]) -> tuple[int, ...]:
        """The ranks that are left and hold what a lost one held."""
        return tuple(sorted({holder for rank in lost for holder in self.holders(rank)} - set(lost)))

    # Other sizes.

    @property
    def elastic(self) -> int | None:
        """The place of the dimension that is smaller in a smaller gang: whole replicas leave where there are any. None: the mesh has one size."""
        places = range(len(self.dimensions))
        return next((place for both in (True, False) for place in places if self._may_shrink(place, replicates=both)), None)

    def _may_shrink(self, place: int, *, replicates: bool) -> bool:
        return self.dimensions[place].resizes and self.dimensions[place].replicates == replicates

    def resized(self, world_size: int) -> Mesh | None:
        """The same with more or fewer along that dimension; None where no number of them makes so many ranks."""
        if world_size == self.world_size:
            return self
        if self.elastic is None or world_size < 1:
            return None
        size, left = divmod(world_size * self.dimensions[self.elastic].size, self.world_size)
        if left or not size:
            return None
        changed = replace(self.dimensions[self.elastic], size=size)
        return replace(self, dimensions=(*self.dimensions[: self.elastic], changed, *self.dimensions[self.elastic + 1 :]))

    def shares_out_like(self, other: Mesh) -> bool:
        """Whether the same ranks hold the same, whatever the dimensions are called."""
        return self.world_size == other.world_size and all(self.holders(rank) == other.holders(rank) for rank in range(other.world_size))

    def holds_alike(self, rank: int, other: Mesh, of_other: int) -> bool:
        """Whether `rank` holds what the rank `of_other` of another mesh does: the same part of a state that is split into as many."""
        return self.shards == other.shards and self.shard(rank) == other.shard(of_other)

    # Nodes.

    def block(self, ranks_per_node: int) -> int:
        """How many nodes a block has. Where no dimension may have another size, nothing is known that would forbid any number: 1."""
        outer, width = self._shape(ranks_per_node)
        return outer * width

    def _shape(self, ranks_per_node: int) -> tuple[int, int]:
        """A block as so many runs of so many nodes, one run for each coordinate of what stands before the elastic dimension."""
        if self.elastic is None:
            return 1, 1
        sizes = [one.size for one in self.dimensions]
        outer, inner = prod(sizes[: self.elastic]), prod(sizes[self.elastic + 1 :])
        if outer == 1:
            return 1, lcm(inner, ranks_per_node) // ranks_per_node
        if inner % ranks_per_node == 0:
            return outer, inner // ranks_per_node
        if ranks_per_node % inner == 0 and sizes[self.elastic] % (ranks_per_node // inner) == 0:
            return outer, 1
        return 1, -(-self.world_size // ranks_per_node)  # Nodes that are part of everything: they are one block.

    def by_block(self, nodes: Sequence[Item], ranks_per_node: int) -> list[list[Item]]:
        """The nodes of a gang with this mesh, in the order of their ranks, as blocks. In each a node stands in the place of what its ranks hold."""
        outer, width = self._shape(ranks_per_node)
        count = len(nodes) // (outer * width)
        return [[nodes[(run * count + block) * width + place] for run in range(outer) for place in range(width)] for block in range(count)]

    def in_ranks(self, blocks: Sequence[Sequence[Item]], ranks_per_node: int) -> tuple[Item, ...]:
        """And back: the nodes of so many blocks in the order of their ranks."""
        outer, width = self._shape(ranks_per_node)
        return tuple(block[run * width + place] for run in range(outer) for block in blocks for place in range(width))


def parsed(text: str) -> Mesh:
    """`dp=4,pp=2,tp=8`, the last one fastest. Raises ValueError with a sentence."""
    found: list[Dimension] = []
    for part in text.split(","):
        name, _, size = (word.strip() for word in part.partition("="))
        if not size.isdecimal() or int(size) < 1:
            raise ValueError(f"{part.strip()!r} is no dimension; expected names and sizes such as dp=4,pp=2,tp=8")
        if name not in NAMES:
            raise ValueError(f"what a dimension {name!r} does is not known; there are {', '.join(NAMES)}")
        if name in (one.name for one in found):
            raise ValueError(f"{name} stands there twice")
        replicates, resizes = NAMES[name]
        found.append(Dimension(name=name, size=int(size), replicates=replicates, resizes=resizes))
    return Mesh(dimensions=tuple(found))


def seen(dimensions: Sequence[tuple[str, int, bool]], holds: Mapping[int, int]) -> Mesh | None:
    """The mesh of ranks of which it is known what each holds: the same number, the same state. `dimensions` are those of the script, by name, size and whether
    it may be another; none, or such as do not fit the number of ranks: two are made up, one that replicates and one that does not. None: nothing fits."""
    world_size = len(holds)
    if sorted(holds) != list(range(world_size)) or not world_size:
        return None
    found = _fitted(dimensions, holds) if dimensions and prod(size for _, size, _ in dimensions) == world_size else None
    if found is not None:
        return found
    shards = len(set(holds.values()))
    resizes = bool(dimensions) and all(resizes for _, _, resizes in dimensions)
    made_up = (("replicate", world_size // shards, True), ("shard", shards, resizes))
    orders = ([one for one in order if one[1] > 1] or made_up[:1] for order in (made_up, made_up[::-1]))
    meshes = [mesh for order in orders if (mesh := _fitted(order, holds)) is not None]
    return next((mesh for mesh in meshes if all(one.replicates == (one.name == "replicate") for one in mesh.dimensions)), None)


def _fitted(dimensions: Sequence[tuple[str, int, bool]], holds: Mapping[int, int]) -> Mesh | None:
    """Along which dimensions everybody holds the same, if that explains all of it."""
    if prod(size for _, size, _ in dimensions) != len(holds):
        return None
    plain = Mesh(dimensions=tuple(Dimension(name=name, size=size, replicates=False, resizes=resizes) for name, size, resizes in dimensions))
    strides = plain._strides()
    alike = [
        all(holds[rank] == holds[rank - at[place] * strides[place]] for rank in holds if (at := plain.coordinates(rank)))
        for place in range(len(dimensions))
    ]  # fmt: skip
    mesh = Mesh(dimensions=tuple(replace(one, replicates=same) for one, same in zip(plain.dimensions, alike, strict=True)))
    return mesh if len(set(holds.values())) == mesh.shards else None


def in_words(ranks: Collection[int]) -> str:
    """`rank 3`, `ranks 0-7, 12`."""
    runs: list[list[int]] = []
    for rank in sorted(set(ranks)):
        if runs and runs[-1][-1] == rank - 1:
            runs[-1][1:] = [rank]
        else:
            runs.append([rank])
    said = ", ".join("-".join(map(str, run)) for run in runs)
    return f"rank {said}" if len(set(ranks)) == 1 else f"ranks {said}"
