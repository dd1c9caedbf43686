"""Save: `save` writes this rank's part of a checkpoint, and completes the checkpoint if it was the last.

It returns when the part is durable, so the live tensors can be written as they are. Under an agent most saves go through memory instead (`snapshot.py`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from holdfast.checkpoint.chunks import Store
from holdfast.checkpoint.commit import Shard, commit
from holdfast.checkpoint.disk import Disk
from holdfast.checkpoint.layout import Manifest
from holdfast.checkpoint.pieces import Pieces, capture, shared_names
from holdfast.checkpoint.randomness import capture_randomness
from holdfast.checkpoint.remove import Retention, line_of, prune, sweep_failed
from holdfast.checkpoint.state import put_value


def save(
    checkpoints: Path, shard: Shard, pieces: Pieces, progress: Mapping[str, Any], retention: Retention, disk: Disk | None = None, *, refer: bool = True
) -> Manifest | None:  # fmt: skip
    """Make this rank's state durable; the manifest when the checkpoint is complete with it. Raises what went wrong.

    Unless `refer`, everything is written anew: for a rank whose save before this one may still be under way.
    """
    disk = disk or Disk()
    sweep_failed(disk, checkpoints, generation=shard.generation, before_step=shard.step, world_size=shard.world_size)
    line = line_of(checkpoints, retention, generation=shard.generation)
    base = line[0].manifest if line and refer else None
    manifest = commit(disk, checkpoints, shard, lambda store: _put_state(store, shard, pieces, progress), base=base)
    if manifest is not None:
        prune(disk, checkpoints, retention, generation=shard.generation, now=shard.at)
    return manifest


def _put_state(store: Store, shard: Shard, pieces: Pieces, progress: Mapping[str, Any]) -> str:
    notes = {name: put_value(store, value) for name, value in sections_of(shard, pieces, progress).items()}
    return store.put(json.dumps(notes).encode()).digest


def sections_of(shard: Shard, pieces: Pieces, progress: Mapping[str, Any]) -> dict[str, Any]:
    """What this rank has to save. What all ranks hold alike is saved by rank 0 alone; the others find it in rank 0's note."""
    shared = shared_names(pieces)
    own = {
        "pieces": capture({name: piece for name, piece in pieces.items() if name not in shared}),
        "shared": sorted(shared),
        "randomness": capture_randomness(),
        "progress": dict(progress),
    }
    return {"own": own, "shared": capture({name: pieces[name] for name in sorted(shared)})} if shared and shard.rank == 0 else {"own": own}
