"""Needs: what a job will want of the disk and of shared memory, taken from its newest checkpoint.

    disk            the next checkpoint is written before the oldest goes: what one writes anew, once more than are kept and not there yet
    shared memory   on each node, what its ranks hold: their own and once what all hold alike; in two snapshots, and a third time for another node

Is wrong    where the gang will be another than the one that saved, or the model; where more checkpoints are kept than usual, or what is written anew grows.
            What data loaders pass on in shared memory comes on top and is not known.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any, Final

from holdfast.checkpoint.errors import CheckpointCorrupt
from holdfast.checkpoint.found import CheckpointFound, list_complete
from holdfast.checkpoint.read import note_of
from holdfast.checkpoint.remove import Retention
from holdfast.preflight.check import Place, looking

_RANKS_READ: Final = 16  # Of more, so many are looked at: all ranks of a gang hold about as much.
_BUFFERS: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    checkpoint: str
    save_bytes: int  # Of one checkpoint, what is written anew.
    disk_bytes: int
    shared_memory_bytes: int


def needs_of(place: Place) -> Needs | None:
    """None where nothing was saved yet, or nobody said which job it is about."""
    looking(place.checkpoints)
    complete = list_complete(Path(place.checkpoints))
    if not complete:
        return None
    newest = complete[0]
    return Needs(
        checkpoint=newest.name, save_bytes=newest.manifest.own_bytes,
        disk_bytes=newest.manifest.own_bytes * (1 + max(0, Retention().last - len(complete))), shared_memory_bytes=_held(newest, place.nodes),
    )  # fmt: skip


def _held(found: CheckpointFound, nodes: int) -> int:
    """By all nodes, which here are of one machine."""
    try:
        notes = [note_of(found, rank) for rank in range(min(found.world_size, _RANKS_READ))]
        own = round(mean(sum(_sizes(note["own"])) for note in notes) * found.world_size)
        shared = sum(_sizes(notes[0].get("shared", {})))
    except (CheckpointCorrupt, ValueError, KeyError, TypeError):
        own, shared = found.manifest.size_bytes, 0  # No rank holds less than what is nowhere else.
    return (own + nodes * shared) * (_BUFFERS + (nodes > 1))


def _sizes(note: Mapping[str, Any]) -> Iterator[int]:
    for tensor in note.get("tensors", ()):
        yield from (size for _, _, size in tensor["at"])
