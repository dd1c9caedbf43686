"""What may go, and how: `prune` after a commit, `sweep_failed` before a save, `sweep_torn` after a restore.

Removal is the commit turned round: the manifest first, the directory synced, then the rest. Whatever a crash leaves is torn, and is swept later.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

from holdfast.checkpoint.disk import Disk
from holdfast.checkpoint.found import CheckpointFound, list_complete, list_directories
from holdfast.checkpoint.layout import MANIFEST, SHARED_FILE, parse_directory_name, rank_file, receipt_file


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """How many checkpoints stay, and where this run's line began: the generation and step it restored, None for a fresh start."""

    keep: int = 3
    restored: tuple[int, int] | None = None


def prune(disk: Disk, checkpoints: Path, retention: Retention, *, generation: int) -> tuple[str, ...]:
    """Remove all but the newest `keep` of this run's line; the names removed.

    The line is what this generation wrote and what came up to the checkpoint it restored. What lies beyond that was left behind on purpose, by a
    rollback or because it is damaged: it does not count, and goes when this generation has `keep` of its own.
    """
    keep, restored = retention.keep, retention.restored
    complete = [one for one in list_complete(checkpoints) if one.generation <= generation]
    line = [one for one in complete if one.generation == generation or (restored is not None and one.age_key <= restored)]
    beyond = [one for one in complete if one not in line]
    own = sum(one.generation == generation for one in line)
    doomed = [*line[keep:], *(beyond if own >= keep else ())]
    for one in doomed:
        remove_checkpoint(disk, one)
    return tuple(one.name for one in doomed)


def remove_checkpoint(disk: Disk, found: CheckpointFound) -> None:
    disk.remove(found.path / MANIFEST)
    disk.sync_directory(found.path)
    _remove_torn(disk, found.path)


def sweep_failed(disk: Disk, checkpoints: Path, *, rank: int, generation: int, before_step: int) -> None:
    """Take this rank's files out of directories that will never be complete because another rank could not write: a full disk must not fill further."""
    for path in list_directories(checkpoints):
        step, its_generation = parse_directory_name(path.name) or (0, 0)
        if its_generation != generation or step >= before_step or (path / MANIFEST).exists() or not any(path.glob("*.failed")):
            continue
        for name in (receipt_file(rank), rank_file(rank), *((SHARED_FILE,) if rank == 0 else ())):
            disk.remove(path / name)
        if not any(entry.name.endswith((".pt", ".json", ".part")) for entry in path.glob("*")):
            _remove_torn(disk, path)


def sweep_torn(disk: Disk, checkpoints: Path, *, generation: int, restored_step: int) -> tuple[str, ...]:
    """Remove torn directories that nobody can be writing any more: of an older generation, and not beyond the step restored."""
    swept = []
    for path in list_directories(checkpoints):
        step, its_generation = parse_directory_name(path.name) or (0, 0)
        if its_generation < generation and step <= restored_step and not (path / MANIFEST).exists():
            _remove_torn(disk, path)
            swept.append(path.name)
    return tuple(swept)


def _remove_torn(disk: Disk, path: Path) -> None:
    with contextlib.suppress(FileNotFoundError):  # Another rank is removing the same directory.
        for entry in path.iterdir():
            disk.remove(entry)
    disk.remove_directory(path)
