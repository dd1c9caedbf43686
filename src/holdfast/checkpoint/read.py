"""Restore: `restore` puts a checkpoint back into the script's pieces.

Each rank looks at the size of every file and reads, checks and loads only what it needs: its own and the shared one. So every byte is checked
by the rank that uses it before anything is changed, and no rank reads another's.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.checkpoint.errors import CheckpointCorrupt, CheckpointMismatch
from holdfast.checkpoint.found import CheckpointFound, read_found, verify, verify_file, verify_sizes
from holdfast.checkpoint.layout import SHARED_FILE, rank_file
from holdfast.checkpoint.pieces import Pieces, apply


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """What came out of a checkpoint besides the pieces. `randomness` is applied later, when the loop is entered: until then others may draw."""

    name: str
    step: int
    generation: int
    progress: dict[str, Any]
    randomness: dict[str, Any]


def restore(path: Path, pieces: Pieces, *, rank: int, world_size: int) -> Restored:
    """Load the checkpoint in `path` into `pieces`; raises CheckpointCorrupt or CheckpointMismatch, and then `pieces` must not be trained on."""
    found = read_found(path)
    if found is None:
        verify(path)  # Says what is wrong with it.
        raise CheckpointCorrupt(f"checkpoint {path} came and went while it was read: another run is using the same directory.")
    if found.world_size != world_size:
        raise CheckpointMismatch(
            f"checkpoint {found.name} was written by {found.world_size} ranks and this run has {world_size}: "
            f"start it with {found.world_size}; restoring at another world size is not yet possible."
        )
    verify_sizes(found)
    own = _load(found, rank_file(rank))
    shared = _load(found, SHARED_FILE)["pieces"] if own["shared"] else {}
    apply(pieces, {**own["pieces"], **shared})
    return Restored(name=found.name, step=found.step, generation=found.generation, progress=own["progress"], randomness=own["randomness"])


def _load(found: CheckpointFound, name: str) -> dict[str, Any]:
    import torch

    file = next((one for one in found.manifest.files if one.name == name), None)
    if file is None:
        raise CheckpointCorrupt(f"checkpoint {found.path} has no {name} in its manifest: expected one, since {found.world_size} ranks wrote it.")
    verify_file(found.path, file)
    content = torch.load(found.path / name, map_location="cpu", weights_only=True)
    assert isinstance(content, dict), f"{name} holds a {type(content)}, which we never write"
    return content
