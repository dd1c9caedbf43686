"""Restore: `restore` puts a checkpoint back into the script's pieces.

Each rank looks at the size of every chunk and reads, checks and loads only what it needs: its own state and the shared one, and at another world size or
sharding those parts of the others' that have become its own. So every byte is checked by the rank that uses it before anything is changed.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.checkpoint.chunks import read_chunk, verify_size
from holdfast.checkpoint.document import sharded_parts
from holdfast.checkpoint.errors import CheckpointCorrupt
from holdfast.checkpoint.found import CheckpointFound, advice, look_at
from holdfast.checkpoint.pieces import Pieces, apply
from holdfast.checkpoint.state import Note, get_value


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """What came out of a checkpoint besides the pieces. `randomness` is applied later, when the loop is entered: until then others may draw."""

    name: str
    step: int
    generation: int
    world_size: int  # Of those who saved it.
    progress: dict[str, Any]
    randomness: dict[str, Any]  # Nothing for a rank that nobody was: it draws its own.


def restore(path: Path, pieces: Pieces, *, rank: int, world_size: int) -> Restored:
    """Load the checkpoint in `path` into `pieces`; raises CheckpointCorrupt or CheckpointMismatch, and then `pieces` must not be trained on.

    The number of ranks may be another than that which saved. What a rank held alone and what is no part of anything larger then comes from the rank of
    the same number, or for a rank that is new from one of the old; its random numbers are its own.
    """
    found = look_at(path)
    source = rank % found.world_size
    try:
        for chunk in found.manifest.chunks:
            verify_size(path.parent, chunk)
        own = _get(found, source, "own", whole=found.world_size == world_size)
        shared = _get(found, 0, "shared", whole=True) if own["shared"] else {}
        apply(pieces, {**own["pieces"], **shared}, lambda tensors: _fill(found, tensors))
    except CheckpointCorrupt as corrupt:
        raise CheckpointCorrupt(f"checkpoint {found.name} cannot be restored: {corrupt} {advice(path, corrupt.chunk)}") from corrupt
    return Restored(
        name=found.name, step=found.step, generation=found.generation, world_size=found.world_size, progress=own["progress"],
        randomness=own["randomness"] if rank < found.world_size else {},
    )  # fmt: skip


def _get(found: CheckpointFound, rank: int, part: str, *, whole: bool) -> dict[str, Any]:
    """A rank's state; unless `whole`, without its parts of tensors that are sharded, since nobody will have the same parts."""
    note = note_of(found, rank)[part]
    without = frozenset() if whole else sharded_parts(note["document"])
    value = get_value(found.path.parent, found.manifest.by_digest(), found.manifest.algorithm, note, without=without)
    assert isinstance(value, dict), f"the {part} state is a {type(value)}, which we never write"
    return value


def _fill(found: CheckpointFound, tensors: dict[str, Any]) -> None:
    from holdfast.checkpoint.dcp import fill  # Only here: torch's planner takes a second to load, and is rarely needed.

    fill(found, tensors)


def note_of(found: CheckpointFound, rank: int) -> dict[str, Note]:
    """What a rank's state is made of, without the tensors; raises CheckpointCorrupt."""
    chunk = found.manifest.by_digest()[found.manifest.states[rank]]
    text = bytearray(chunk.size_bytes)
    read_chunk(found.path.parent, chunk, found.manifest.algorithm, memoryview(text))
    notes: dict[str, Note] = json.loads(text)
    return notes
