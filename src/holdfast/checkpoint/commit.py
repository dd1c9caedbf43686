"""The commit protocol: how the files of many ranks become one checkpoint, without a barrier and without anyone waiting.

    1. make the directory of this step and generation, sync its parent
    2. write this rank's files, hashed on the way, and sync them
    3. write this rank's receipt beside them: temporary name, sync, rename, sync the directory
    4. list the receipts; whoever finds all of them writes the manifest: sync the directory, temporary name, sync, rename, sync the directory
    5. only now may an older checkpoint go (`remove.py`)

The last rank to rename its receipt finds all of them, so somebody always commits. Two ranks may both find all of them; they write the same bytes.
The directory is synced once more before the manifest is written, because another rank's receipt can be seen before its directory entries are durable.
A rank that cannot write removes what it wrote and leaves a mark, so that the others know that this directory will never be complete.

This is the seam for a faster engine: it may call `commit` from another process, with files filled from a snapshot in memory.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from holdfast.checkpoint.disk import Disk, Output, write_whole
from holdfast.checkpoint.layout import (
    MANIFEST,
    Manifest,
    Receipt,
    WrittenFile,
    decode_receipt,
    directory_name,
    encode,
    failed_file,
    is_receipt,
    receipt_file,
    unite,
)

Fill = Callable[[Output], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """Which part of which checkpoint a rank is about to write."""

    step: int
    generation: int
    world_size: int
    rank: int

    def path(self, checkpoints: Path) -> Path:
        return checkpoints / directory_name(self.step, self.generation)


def commit(disk: Disk, checkpoints: Path, shard: Shard, files: Mapping[str, Fill]) -> Manifest | None:
    """Make this rank's files durable; the manifest when that made the checkpoint complete. When it raises, nothing of this rank is left behind."""
    path = shard.path(checkpoints)
    try:
        disk.make_directory(path)
        disk.sync_directory(checkpoints)
        written = tuple(_write(disk, path / name, fill) for name, fill in files.items())
        _write_receipt(disk, path, shard, written)
    except BaseException:
        _withdraw(disk, path, shard, files)
        raise
    return _complete(disk, path, shard)


def _write(disk: Disk, path: Path, fill: Fill) -> WrittenFile:
    with Output(disk, path) as output:
        fill(output)
        return output.finish()


def _write_receipt(disk: Disk, path: Path, shard: Shard, written: tuple[WrittenFile, ...]) -> None:
    receipt = Receipt(step=shard.step, generation=shard.generation, world_size=shard.world_size, rank=shard.rank, files=written)
    name = receipt_file(shard.rank)
    write_whole(disk, path / name, encode(receipt), temporary=path / f"{name}.part")


def _complete(disk: Disk, path: Path, shard: Shard) -> Manifest | None:
    manifest = unite(_read_receipts(path, shard))
    if manifest is not None:
        disk.sync_directory(path)
        write_whole(disk, path / MANIFEST, encode(manifest), temporary=path / f"{MANIFEST}.part-{shard.rank:05d}")
    return manifest


def _read_receipts(path: Path, shard: Shard) -> list[Receipt]:
    receipts = (decode_receipt(entry.read_bytes()) for entry in path.iterdir() if is_receipt(entry.name))
    return [one for one in receipts if one is not None and one.world_size == shard.world_size]


def _withdraw(disk: Disk, path: Path, shard: Shard, files: Mapping[str, Fill]) -> None:
    """Take back what this rank wrote, unless its receipt is out: then another rank may have counted on the files already."""
    name = receipt_file(shard.rank)
    with contextlib.suppress(OSError):
        if (path / name).exists():
            return
        for left in (f"{name}.part", *files):
            disk.remove(path / left)
        disk.create(path / failed_file(shard.rank)).close()
