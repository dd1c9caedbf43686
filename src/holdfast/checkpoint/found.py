"""What is there to restore: `newest_complete`, `list_complete`, `verify`. Standard library only; control calls these.

A checkpoint exists when its manifest does. Newer means: of a later generation, then of a later step; so what a run writes after it was rolled back
outranks what it was rolled back from, although that had come further.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from holdfast.checkpoint.chunks import verify_all
from holdfast.checkpoint.errors import CheckpointCorrupt, CheckpointMismatch
from holdfast.checkpoint.layout import MANIFEST, Chunk, Manifest, decode_manifest, parse_directory_name


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointFound:
    """A complete checkpoint: its manifest could be read and belongs to its directory."""

    path: Path
    manifest: Manifest

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def step(self) -> int:
        return self.manifest.step

    @property
    def generation(self) -> int:
        return self.manifest.generation

    @property
    def world_size(self) -> int:
        return self.manifest.world_size

    @property
    def age_key(self) -> tuple[int, int]:
        return (self.generation, self.step)


def newest_complete(directory: Path) -> CheckpointFound | None:
    """The newest complete checkpoint under `directory`; None when there is none."""
    return next(iter(list_complete(directory)), None)


def list_complete(directory: Path) -> tuple[CheckpointFound, ...]:
    """All complete checkpoints under `directory`, newest first. Torn ones are passed over, and so is a directory that is not there."""
    found = (read_found(path) for path in list_directories(directory))
    return tuple(sorted((one for one in found if one is not None), key=lambda one: one.age_key, reverse=True))


def list_directories(directory: Path) -> tuple[Path, ...]:
    """Every directory that carries a checkpoint's name, complete or torn."""
    try:
        return tuple(sorted(path for path in directory.iterdir() if parse_directory_name(path.name)))
    except (FileNotFoundError, NotADirectoryError):
        return ()


def read_found(path: Path) -> CheckpointFound | None:
    """The checkpoint in this directory, if it is complete and sound as far as its manifest tells."""
    try:
        return _read(path)
    except (CheckpointCorrupt, CheckpointMismatch):
        return None


def read_manifest(path: Path, name: str) -> Manifest | None:
    """The manifest under this name in a checkpoint's directory, if there is a sound one."""
    try:
        return decode_manifest((path / name).read_bytes())
    except (OSError, CheckpointCorrupt, CheckpointMismatch):
        return None


def look_at(path: Path) -> CheckpointFound:
    """The checkpoint in this directory; raises CheckpointCorrupt or CheckpointMismatch with what is wrong with it and what to do."""
    try:
        return _read(path)
    except (CheckpointCorrupt, CheckpointMismatch) as error:
        raise type(error)(f"checkpoint {path} cannot be restored: {error}. {advice(path)}") from error


def _read(path: Path) -> CheckpointFound:
    try:
        manifest = decode_manifest((path / MANIFEST).read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        raise CheckpointCorrupt("it has no manifest, so it was never completed or is being removed") from None
    except OSError as error:
        raise CheckpointCorrupt(f"its manifest cannot be read: {error.strerror or error}") from error
    except (CheckpointCorrupt, CheckpointMismatch) as error:
        raise type(error)(f"its manifest cannot be read: {error}") from error
    if manifest.name != path.name:
        raise CheckpointCorrupt(f"its manifest is that of {manifest.name}")
    return CheckpointFound(path=path, manifest=manifest)


def verify(path: Path, *, progress: Callable[[Chunk], None] = lambda chunk: None) -> Manifest:
    """Read every byte of the checkpoint in `path`; raises CheckpointCorrupt with what was expected and what was seen."""
    manifest = look_at(path).manifest
    try:
        for chunk in verify_all(path.parent, manifest.chunks, manifest.algorithm):
            progress(chunk)
    except CheckpointCorrupt as corrupt:
        raise CheckpointCorrupt(f"checkpoint {path.name} cannot be restored: {corrupt} {advice(path, corrupt.chunk)}") from corrupt
    return manifest


def advice(path: Path, damaged: Chunk | None = None) -> str:
    """What to do about a checkpoint that cannot be restored, because of a `damaged` chunk if that is known: others may refer to the same."""
    step, generation = parse_directory_name(path.name) or (0, 0)
    older = [one for one in list_complete(path.parent) if one.age_key < (generation, step) and damaged not in one.manifest.chunks]
    if not older:
        return "There is no older one: move this directory away to start from the beginning."
    return f"Restore {older[0].name} instead, or move this directory away and it will be chosen."
