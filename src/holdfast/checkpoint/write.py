"""Save: `save` writes this rank's part of a checkpoint, and completes the checkpoint if it was the last.

It returns when the part is durable, so the live tensors can be written as they are. A faster engine goes between `capture` and `commit`: it copies
what `capture` gives into memory of its own and lets training go on.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, cast

from holdfast.checkpoint.commit import Fill, Shard, commit
from holdfast.checkpoint.disk import Disk
from holdfast.checkpoint.layout import SHARED_FILE, Manifest, rank_file
from holdfast.checkpoint.pieces import Pieces, capture, shared_names
from holdfast.checkpoint.randomness import capture_randomness
from holdfast.checkpoint.remove import Retention, prune, sweep_failed


def save(checkpoints: Path, shard: Shard, pieces: Pieces, progress: Mapping[str, Any], retention: Retention, disk: Disk | None = None) -> Manifest | None:
    """Make this rank's state durable; the manifest when the checkpoint is complete with it. Raises what went wrong, with nothing left behind."""
    disk = disk or Disk()
    sweep_failed(disk, checkpoints, rank=shard.rank, generation=shard.generation, before_step=shard.step)
    manifest = commit(disk, checkpoints, shard, _files(shard, pieces, progress))
    if manifest is not None:
        prune(disk, checkpoints, retention, generation=shard.generation)
    return manifest


def _files(shard: Shard, pieces: Pieces, progress: Mapping[str, Any]) -> dict[str, Fill]:
    shared = shared_names(pieces)
    own = {
        "pieces": capture({name: piece for name, piece in pieces.items() if name not in shared}),
        "shared": sorted(shared),
        "randomness": capture_randomness(),
        "progress": dict(progress),
    }
    files = {rank_file(shard.rank): _filled_with(own)}
    if shared and shard.rank == 0:
        files[SHARED_FILE] = _filled_with({"pieces": capture({name: pieces[name] for name in sorted(shared)})})
    return files


def _filled_with(content: Mapping[str, Any]) -> Fill:
    import torch

    return lambda output: torch.save(content, cast("IO[bytes]", output))
