"""Restore: `restore` puts a checkpoint back into the script's pieces, `recall` a snapshot that is still in memory.

Each rank looks at the size of every chunk and reads, checks and loads only what it needs: its own state and the shared one, and at another world size or
sharding those parts of the others' that have become its own. So every byte is checked by the rank that uses it before anything is changed.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.checkpoint.chunks import read_chunk, verify_size
from holdfast.checkpoint.document import from_document, sharded_parts
from holdfast.checkpoint.errors import CheckpointCorrupt
from holdfast.checkpoint.found import CheckpointFound, advice, look_at
from holdfast.checkpoint.pieces import UNCHANGED, Changed, Pieces, apply, gpu_of
from holdfast.checkpoint.snapshot import Buffer
from holdfast.checkpoint.state import Note, get_value, tensor_in


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """What came out of a checkpoint besides the pieces. `randomness` is applied later, when the loop is entered: until then others may draw."""

    name: str
    step: int
    generation: int
    world_size: int  # Of those who saved it.
    progress: dict[str, Any]
    randomness: dict[str, Any]  # Nothing for a rank that nobody was: it draws its own.
    held: frozenset[str] = frozenset()  # The pieces in it.

    @property
    def from_survivors(self) -> bool:
        """It came from ranks that lived on, and not out of a checkpoint."""
        return not self.name


def restore(path: Path, pieces: Pieces, *, rank: int, world_size: int, alone: bool = False, changed: Changed = UNCHANGED) -> Restored:
    """Load the checkpoint in `path` into `pieces`; raises CheckpointCorrupt or CheckpointMismatch, and then `pieces` must not be trained on.

    The number of ranks may be another than that which saved. What a rank held alone and what is no part of anything larger then comes from the rank of
    the same number, or for a rank that is new from one of the old; its random numbers are its own. `alone` when no other rank is on this node.
    """
    found = look_at(path)
    source = rank % found.world_size
    try:
        for chunk in found.manifest.chunks:
            verify_size(path.parent, chunk)
        same = found.world_size == world_size
        own = _where_it_was(pieces, lambda gpu: _get(found, source, "own", gpu, whole=same, alone=same or alone))
        shared = _where_it_was(pieces, lambda gpu: _get(found, 0, "shared", gpu, whole=True, alone=alone)) if own["shared"] else {}
        states = {**own["pieces"], **shared}
        apply(pieces, states, lambda tensors: _fill(found, tensors), changed)
    except CheckpointCorrupt as corrupt:
        raise CheckpointCorrupt(f"checkpoint {found.name} cannot be restored: {corrupt} {advice(path, corrupt.chunk)}") from corrupt
    return Restored(
        name=found.name, step=found.step, generation=found.generation, world_size=found.world_size, progress=own["progress"],
        randomness=own["randomness"] if rank < found.world_size else {}, held=frozenset(states),
    )  # fmt: skip


def recall(own: Buffer, shared: Buffer | None, pieces: Pieces, *, world_size: int, changed: Changed = UNCHANGED) -> Restored | None:
    """Load a snapshot that the agent found sound into `pieces`; None, and nothing is changed, when the disk is needed for it after all.

    `shared` is the buffer with what all ranks hold alike. Tensors that were on a GPU go straight there; the others are copied, since the buffer is used again.
    """
    seals = [buffer.head.seal for buffer in (own, shared) if buffer is not None]
    note = own.note()
    if note["shard"]["world_size"] != world_size:
        return None
    state = _where_it_was(pieces, lambda gpu: _recall_section(own, note["sections"]["own"], gpu))
    alike: dict[str, Any] = {}
    if state["shared"]:
        there = shared.note()["sections"].get("shared") if shared is not None else None
        if shared is None or there is None:
            return None
        alike = _where_it_was(pieces, lambda gpu: _recall_section(shared, there, gpu))
    _wait_for_gpu()
    if [buffer.head.seal for buffer in (own, shared) if buffer is not None] != seals:
        return None  # It was written over meanwhile.
    try:
        states = {**state["pieces"], **alike}
        apply(pieces, states, _lies_otherwise, changed)
    except _LiesOtherwise:
        return None
    shard = note["shard"]
    return Restored(
        name=seals[0].name, step=shard["step"], generation=shard["generation"], world_size=shard["world_size"], progress=state["progress"],
        randomness=state["randomness"], held=frozenset(states),
    )  # fmt: skip


class _LiesOtherwise(Exception):
    """The ranks are sharded otherwise than when they saved."""


def _lies_otherwise(tensors: dict[str, Any]) -> None:
    raise _LiesOtherwise


def _recall_section(buffer: Buffer, section: dict[str, Any], gpu: Any) -> dict[str, Any]:
    value = from_document(section["document"], [tensor_in(buffer.data, tensor, gpu) for tensor in section["tensors"]])
    assert isinstance(value, dict), f"a section is a {type(value)}, which we never write"
    return value


def _wait_for_gpu() -> None:
    import torch

    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


def _where_it_was(pieces: Pieces, get: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
    """Get a state with what was on a GPU on the one that the script uses, or on the CPU where the GPU has no room for both it and what it replaces."""
    import torch

    gpu = gpu_of(pieces)
    if gpu is None:
        return get(None)
    try:
        return get(gpu)
    except torch.cuda.OutOfMemoryError:
        torch.cuda.empty_cache()
        return get(None)


def _get(found: CheckpointFound, rank: int, part: str, gpu: Any, *, whole: bool, alone: bool) -> dict[str, Any]:
    """A rank's state; unless `whole`, without its parts of tensors that are sharded, since nobody will have the same parts."""
    note = note_of(found, rank)[part]
    without = frozenset() if whole else sharded_parts(note["document"])
    value = get_value(found.path.parent, found.manifest.by_digest(), found.manifest.algorithm, note, without=without, gpu=gpu, alone=alone)
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
