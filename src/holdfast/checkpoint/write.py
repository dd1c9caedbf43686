"""Save: `save` writes this rank's part of a checkpoint, and completes the checkpoint if it was the last.

It returns when the part is durable, so the live tensors can be written as they are. Under an agent most saves go through memory instead (`snapshot.py`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from holdfast.checkpoint.chunks import Store
from holdfast.checkpoint.commit import Shard, save_in_line
from holdfast.checkpoint.disk import Disk
from holdfast.checkpoint.layout import Manifest
from holdfast.checkpoint.pieces import Pieces, capture, shared_names
from holdfast.checkpoint.randomness import capture_randomness
from holdfast.checkpoint.remove import Retention
from holdfast.checkpoint.state import put_value


def save(
    checkpoints: Path, shard: Shard, pieces: Pieces, progress: Mapping[str, Any], retention: Retention, disk: Disk | None = None, *, refer: bool = True
) -> Manifest | None:  # fmt: skip
    """Make this rank's state durable; the manifest when the checkpoint is complete with it. Raises what went wrong."""
    return save_in_line(disk or Disk(), checkpoints, shard, lambda store: _put_state(store, shard, pieces, progress), retention, refer=refer)


def _put_state(store: Store, shard: Shard, pieces: Pieces, progress: Mapping[str, Any]) -> str:
    notes = {name: put_value(store, value) for name, value in sections_of(shard, pieces, progress).items()}
    return store.put(json.dumps(notes).encode()).digest


def sections_of(shard: Shard, pieces: Pieces, progress: Mapping[str, Any], *, keep_shared: bool = False) -> dict[str, Any]:
    """What this rank has to save. What all ranks hold alike is saved by rank 0, and by those who `keep_shared` for others; the rest find it there."""
    shared = shared_names(pieces)
    own = {
        "pieces": capture({name: piece for name, piece in pieces.items() if name not in shared}),
        "shared": sorted(shared),
        "randomness": capture_randomness(),
        "progress": dict(progress),
    }
    return {"own": own, "shared": capture({name: pieces[name] for name in sorted(shared)})} if shared and (shard.rank == 0 or keep_shared) else {"own": own}
