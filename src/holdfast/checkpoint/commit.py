"""The commit protocol: how the states of many ranks become one checkpoint, without a barrier and without anyone waiting.

    1. make the directory of this step and generation, sync its parent; and those above it as long as nobody has completed one here
    2. put this rank's chunks there, each under a temporary name, synced, renamed; then sync their directory
    3. write this rank's receipt: temporary name, rename. It is for the other ranks and not for after a power cut, which ends them all
    4. list the receipts; whoever finds all of them writes the manifest: sync the directory, temporary name, sync, rename, sync the directory
    5. only now may an older checkpoint go (`remove.py`)

The last rank to rename its receipt finds all of them, so somebody always commits. Two ranks may both find all of them; they write the same bytes.
A rank that cannot write takes its chunks back and leaves a mark, so that the others know that this directory will never be complete.

Chunks of an older checkpoint may be referred to only if it will outlive this save. The newest complete one does: the next can be completed only with
this rank's receipt, and the two newest are never removed. A rank that is ahead, with a receipt in one that the others have not completed yet, could see two
completed while it saves: it refers to nothing and writes all anew.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.checkpoint.chunks import Store, verify_size
from holdfast.checkpoint.digest import best_algorithm
from holdfast.checkpoint.disk import Disk, make_directories, put_file
from holdfast.checkpoint.errors import CheckpointCorrupt, CheckpointMismatch
from holdfast.checkpoint.found import list_directories
from holdfast.checkpoint.layout import (
    CHUNKS,
    MANIFEST,
    Manifest,
    Receipt,
    answered_by,
    decode_receipt,
    directory_name,
    encode,
    failed_file,
    is_receipt,
    parse_directory_name,
    receipt_file,
    unite,
)
from holdfast.checkpoint.remove import Retention, line_of, prune, sweep_failed

Fill = Callable[[Store], str]  # Puts a rank's state into the store, and returns the digest of the chunk from which the rest is found.


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """Which part of which checkpoint a rank is about to write."""

    step: int
    generation: int
    world_size: int
    rank: int
    job: str = ""
    at: float = 0.0
    numbers: Mapping[str, float] = field(default_factory=dict)

    @property
    def home(self) -> str:
        return directory_name(self.step, self.generation)

    def path(self, checkpoints: Path) -> Path:
        return checkpoints / self.home


def commit(disk: Disk, checkpoints: Path, shard: Shard, fill: Fill, *, base: Manifest | None = None) -> Manifest | None:
    """Make this rank's state durable; the manifest when that made the checkpoint complete. `base` is the newest complete checkpoint of the line."""
    path = shard.path(checkpoints)
    algorithm = best_algorithm()
    known = base.by_digest() if base is not None and base.algorithm == algorithm and not _is_ahead(checkpoints, shard, base) else {}
    store = Store(disk, checkpoints, shard.home, rank=shard.rank, known=known, algorithm=algorithm)
    try:
        make_directories(disk, checkpoints)
        disk.make_directory(path / CHUNKS)
        if base is None:  # Nobody has completed one here yet, so nobody may have seen to it that the place itself is durable.
            disk.sync_directory(checkpoints.parent)
        disk.sync_directory(checkpoints)
        state = fill(store)
        disk.sync_directory(path / CHUNKS)
        _write_receipt(disk, path, shard, store, state)
    except BaseException:
        _withdraw(disk, path, shard, store)
        raise
    return _complete(disk, checkpoints, shard)


def save_in_line(disk: Disk, checkpoints: Path, shard: Shard, fill: Fill, retention: Retention, *, refer: bool = True) -> Manifest | None:
    """A whole save: sweep what failed before, commit on top of this run's line, remove what no rule wants any more.

    Unless `refer`, everything is written anew: for a rank whose save before this one may still be under way.
    """
    sweep_failed(disk, checkpoints, generation=shard.generation, before_step=shard.step, world_size=shard.world_size)
    line = line_of(checkpoints, retention, generation=shard.generation)
    manifest = commit(disk, checkpoints, shard, fill, base=line[0].manifest if line and refer else None)
    if manifest is not None:
        prune(disk, checkpoints, retention, generation=shard.generation, now=shard.at)
    return manifest


def _is_ahead(checkpoints: Path, shard: Shard, base: Manifest) -> bool:
    """Whether this rank's receipt lies in a checkpoint of this generation that is newer than `base` and not complete."""
    for path in list_directories(checkpoints):
        step, generation = parse_directory_name(path.name) or (0, 0)
        between = generation == shard.generation and (base.generation, base.step) < (generation, step) < (shard.generation, shard.step)
        if between and (path / receipt_file(shard.rank)).exists() and not (path / MANIFEST).exists():
            return True
    return False


def mark_failed(disk: Disk, checkpoints: Path, shard: Shard) -> None:
    """Say that this rank will not take part in this checkpoint, so that what the others write for it is swept."""
    make_directories(disk, checkpoints)
    disk.make_directory(shard.path(checkpoints))
    disk.create(shard.path(checkpoints) / failed_file(shard.rank)).close()


def unmark_failed(path: Path, rank: int) -> None:
    """Take that back: this rank will try once more."""
    with contextlib.suppress(OSError):
        (path / failed_file(rank)).unlink()


def other_rank_failed(path: Path, rank: int) -> bool:
    """Whether a rank other than `rank` has said that this checkpoint will never be complete. What one could not write itself it may try again."""
    try:
        return bool(answered_by(entry.name for entry in path.iterdir())[1] - {rank})
    except OSError:
        return False


def _withdraw(disk: Disk, path: Path, shard: Shard, store: Store) -> None:
    """Take back what this rank wrote, unless its receipt is out: then another rank may complete the checkpoint with it."""
    with contextlib.suppress(OSError):
        if (path / receipt_file(shard.rank)).exists():
            return
        store.withdraw()
        disk.create(path / failed_file(shard.rank)).close()


def _write_receipt(disk: Disk, path: Path, shard: Shard, store: Store, state: str) -> None:
    receipt = Receipt(
        step=shard.step, generation=shard.generation, world_size=shard.world_size, rank=shard.rank, algorithm=store.algorithm, state=state,
        chunks=store.chunks, job=shard.job, at=shard.at, numbers=dict(shard.numbers),
    )  # fmt: skip
    name = receipt_file(shard.rank)
    put_file(disk, path / name, encode(receipt), temporary=path / f"{name}.part", durable=False)


def _complete(disk: Disk, checkpoints: Path, shard: Shard) -> Manifest | None:
    path = shard.path(checkpoints)
    manifest = unite(_read_receipts(path, shard))
    if manifest is not None:
        for chunk in manifest.chunks:
            verify_size(checkpoints, chunk)
        disk.sync_directory(path)
        put_file(disk, path / MANIFEST, encode(manifest), temporary=path / f"{MANIFEST}.part-{shard.rank:05d}")
        disk.sync_directory(path)
    return manifest


def _read_receipts(path: Path, shard: Shard) -> list[Receipt]:
    receipts = []
    for entry in path.iterdir():
        if is_receipt(entry.name):
            with contextlib.suppress(CheckpointCorrupt, CheckpointMismatch):
                receipts.append(decode_receipt(entry.read_bytes()))
    return [one for one in receipts if one.world_size == shard.world_size]
