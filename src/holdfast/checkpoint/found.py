"""What is there to restore: `newest_complete`, `list_complete`, `verify`. Standard library only; control calls these.

A checkpoint exists when its manifest does. Newer means: of a later generation, then of a later step; so what a run writes after it was rolled back
outranks what it was rolled back from, although that had come further.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from holdfast.checkpoint.digest import checksum_of
from holdfast.checkpoint.errors import CheckpointCorrupt
from holdfast.checkpoint.layout import MANIFEST, Manifest, WrittenFile, decode_manifest, parse_directory_name


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
    """The checkpoint in this directory, if it is complete."""
    try:
        manifest = decode_manifest((path / MANIFEST).read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    if manifest is None or (manifest.step, manifest.generation) != parse_directory_name(path.name):
        return None
    return CheckpointFound(path=path, manifest=manifest)


def verify(path: Path) -> Manifest:
    """Read every byte of the checkpoint in `path`; raises CheckpointCorrupt with what was expected and what was seen."""
    found = read_found(path)
    if found is None:
        seen = "its manifest cannot be read" if (path / MANIFEST).exists() else "it has no manifest, so it was never completed or is being removed"
        raise CheckpointCorrupt(f"checkpoint {path} cannot be restored: {seen}. {_advice(path)}")
    for file in found.manifest.files:
        verify_file(path, file)
    return found.manifest


def verify_sizes(found: CheckpointFound) -> None:
    """See that every file is there with its size: what each rank can afford to ask of all other ranks' files."""
    for file in found.manifest.files:
        _verify_size(found.path, file)


def verify_file(path: Path, file: WrittenFile) -> None:
    """Read one file of the checkpoint in `path` and compare it with what was written."""
    _verify_size(path, file)
    try:
        seen = checksum_of(path / file.name, file.algorithm)
    except OSError as error:
        raise CheckpointCorrupt(f"checkpoint file {path / file.name} cannot be read: {error}. {_advice(path)}") from error
    if seen != file.checksum:
        raise CheckpointCorrupt(f"checkpoint file {path / file.name} is damaged: expected {file.algorithm} {file.checksum}, saw {seen}. {_advice(path)}")


def _verify_size(path: Path, file: WrittenFile) -> None:
    try:
        seen_bytes = (path / file.name).stat().st_size
    except OSError as error:
        raise CheckpointCorrupt(f"checkpoint file {path / file.name} cannot be read: {error}. {_advice(path)}") from error
    if seen_bytes != file.size_bytes:
        raise CheckpointCorrupt(f"checkpoint file {path / file.name} is damaged: expected {file.size_bytes} bytes, saw {seen_bytes}. {_advice(path)}")


def _advice(path: Path) -> str:
    older = [one for one in list_complete(path.parent) if one.path != path and (one.generation, one.step) < _age_key(path)]
    if not older:
        return "There is no older one: move this directory away to start from the beginning."
    return f"Restore {older[0].name} instead, or move this directory away and it will be chosen."


def _age_key(path: Path) -> tuple[int, int]:
    step, generation = parse_directory_name(path.name) or (0, 0)
    return (generation, step)
