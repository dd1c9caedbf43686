"""What may go, and how: `prune` after a commit, `sweep_failed` before a save, `sweep_torn` after a restore.

Removal is the commit turned round: the manifest first, the directory synced, then the rest; but for the chunks that another manifest refers to. Whatever a
crash leaves is torn, and is swept later. A directory that is kept only for chunks that others need carries the mark `retired`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Final

from holdfast.checkpoint.disk import Disk
from holdfast.checkpoint.found import CheckpointFound, list_complete, list_directories, read_manifest
from holdfast.checkpoint.layout import CHUNKS, MANIFEST, RETIRED, answered_by, parse_directory_name

_NEWEST: Final = 2  # Never removed: a save that goes on now may refer to them (see `commit.py`).


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """Which checkpoints stay: those that any of the rules wants. And where this run's line began: the generation and step it restored."""

    last: int = 3  # The newest so many.
    every: int = 0  # Those of steps divisible by this, for ever; 0: none.
    best: int = 0  # Those with the lowest value of `metric`; a leading minus asks for the highest.
    metric: str = "loss"
    older_s: float = 0.0  # One that is older than this: from before whatever is noticed so late. 0: none.
    compared: tuple[int, ...] = ()  # Steps at which replicas were compared. The newest up to each: if they are told to differ later, one is from before.
    restored: tuple[int, int] | None = None
    hold: bool = False  # Remove nothing for this one: it may be worthless.


RULES: Final = frozenset(one.name for one in fields(Retention)) - {"compared", "restored", "hold"}


def line_of(checkpoints: Path, retention: Retention, *, generation: int) -> list[CheckpointFound]:
    """This run's line, newest first: what its generation wrote and what came up to the checkpoint it restored."""
    restored = retention.restored
    complete = [one for one in list_complete(checkpoints) if one.generation <= generation]
    return [one for one in complete if one.generation == generation or (restored is not None and one.age_key <= restored)]


def prune(disk: Disk, checkpoints: Path, retention: Retention, *, generation: int, now: float) -> tuple[str, ...]:
    """Remove what no rule wants of this run's line; the names removed.

    What lies beyond the line was left behind on purpose, by a rollback or because it is damaged: it does not count, and goes when this generation has
    enough of its own.
    """
    if retention.hold:
        return ()
    line = line_of(checkpoints, retention, generation=generation)
    wanted = kept(line, retention, now=now)
    doomed = [one for one in line if one.name not in wanted]
    if sum(one.generation == generation for one in line) >= max(retention.last, _NEWEST):
        names = {one.name for one in line}
        doomed += [one for one in list_complete(checkpoints) if one.generation <= generation and one.name not in names]
    for one in doomed:
        remove_checkpoint(disk, one)
    if doomed:
        _release(disk, checkpoints)
    return tuple(one.name for one in doomed)


def kept(line: Sequence[CheckpointFound], retention: Retention, *, now: float) -> set[str]:
    """Who stays, of checkpoints given newest first."""
    stay = [*line[: max(retention.last, _NEWEST)]]
    for step in retention.compared:
        stay += [one for one in line if one.step <= step][:1]
    if retention.every:
        stay += [one for one in line if one.step % retention.every == 0]
    if retention.best:
        judged = [(badness, -one.step, one) for one in line if (badness := _badness(one, retention.metric)) is not None]
        stay += [one for _, _, one in sorted(judged, key=lambda judged: judged[:2])[: retention.best]]
    if retention.older_s:
        stay += _one_in_each(line, retention.older_s / 2, since=now - 2 * retention.older_s)
    return {one.name for one in stay}


def _badness(one: CheckpointFound, metric: str) -> float | None:
    value = (one.manifest.numbers or {}).get(metric.removeprefix("-"))
    return None if value is None else -value if metric.startswith("-") else value


def _one_in_each(line: Sequence[CheckpointFound], span_s: float, *, since: float) -> list[CheckpointFound]:
    """The oldest of each span: so that one of the right age is still there when its time comes, and few are kept until then."""
    first: dict[int, CheckpointFound] = {}
    for one in sorted(line, key=lambda one: one.manifest.at):
        if one.manifest.at >= since:
            first.setdefault(int(one.manifest.at // span_s), one)
    return list(first.values())


def remove_checkpoint(disk: Disk, found: CheckpointFound) -> None:
    """From here on it is no checkpoint any more; `_release` empties its directory, at once or when nobody needs its chunks."""
    with contextlib.suppress(FileNotFoundError):  # Another rank has just done the same.
        disk.rename(found.path / MANIFEST, found.path / RETIRED)


def _release(disk: Disk, checkpoints: Path) -> None:
    retired = [path for path in list_directories(checkpoints) if (path / RETIRED).exists()]
    needed = _needed(disk, checkpoints, retired)
    for path in retired:
        _empty(disk, path, needed=needed.get(path.name, frozenset()))


def sweep_failed(disk: Disk, checkpoints: Path, *, generation: int, before_step: int, world_size: int) -> None:
    """Empty directories that will never be complete because a rank could not write, once no rank writes there: a full disk must not fill further."""
    for path in list_directories(checkpoints):
        step, its_generation = parse_directory_name(path.name) or (0, 0)
        if its_generation != generation or step >= before_step or (path / MANIFEST).exists() or (path / RETIRED).exists():
            continue
        receipts, failed = answered_by(_names_in(path))
        if failed and len(receipts | failed) >= world_size:
            _empty(disk, path, needed=frozenset())


def _names_in(path: Path) -> list[str]:
    try:
        return [entry.name for entry in path.iterdir()]
    except FileNotFoundError:  # Another rank has just removed it.
        return []


def sweep_torn(disk: Disk, checkpoints: Path, *, generation: int, restored_step: int) -> tuple[str, ...]:
    """Remove torn directories that nobody can be writing any more: of an older generation, and not beyond the step restored."""
    torn = []
    for path in list_directories(checkpoints):
        step, its_generation = parse_directory_name(path.name) or (0, 0)
        if its_generation < generation and step <= restored_step and not (path / MANIFEST).exists():
            torn.append(path)
    needed = _needed(disk, checkpoints, torn)
    for path in torn:
        _empty(disk, path, needed=needed.get(path.name, frozenset()))
    return tuple(path.name for path in torn if not path.exists())


def _needed(disk: Disk, checkpoints: Path, gone: Sequence[Path]) -> dict[str, frozenset[str]]:
    """By home, the chunks that some manifest refers to, or may refer to after a power cut: whoever retired a checkpoint may not have synced that yet.

    So those that are `gone` are synced first; one that somebody retires meanwhile counts as if it were complete.
    """
    for path in gone:
        with contextlib.suppress(FileNotFoundError):  # Another rank has just removed it.
            disk.sync_directory(path)
    needed: dict[str, set[str]] = {}
    for path in list_directories(checkpoints):
        manifest = read_manifest(path, MANIFEST) or (read_manifest(path, RETIRED) if path not in gone else None)
        for chunk in manifest.chunks if manifest is not None else ():
            needed.setdefault(chunk.home, set()).add(chunk.digest)
    return {home: frozenset(digests) for home, digests in needed.items()}


def _empty(disk: Disk, path: Path, *, needed: frozenset[str]) -> None:
    """Remove all but the chunks that are needed. The mark that says so goes last: a directory without one might be somebody's save."""
    with contextlib.suppress(FileNotFoundError):  # Another rank is removing the same directory.
        for entry in path.iterdir():
            if entry.name not in (CHUNKS, RETIRED):
                disk.remove(entry)
        for entry in (path / CHUNKS).iterdir():
            if entry.name not in needed:
                disk.remove(entry)
    if not needed:
        disk.remove_directory(path / CHUNKS)
        disk.remove(path / RETIRED)
        disk.remove_directory(path)
