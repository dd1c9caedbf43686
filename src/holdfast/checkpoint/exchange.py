"""Other formats: `export_checkpoint` writes a checkpoint as others read it, `import_checkpoint` makes one of what others wrote.

    torch          one file of torch.save: `torch_file.py`
    safetensors    one file of tensors, their names joined with dots: `safetensors_file.py`
    dcp            a directory of torch.distributed.checkpoint, with the same names: `dcp_directory.py`

What is written is there whole or not at all. What is read is not trusted: it is looked at before anything is written, and where a format can carry code
(all of DCP, and what torch.load refuses) it is read only when told to trust it. The whole state is in memory meanwhile.

This module can be imported without torch; those that need it are imported where it is known to be there.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from time import time
from typing import TYPE_CHECKING, Any

from holdfast.checkpoint.chunks import Store
from holdfast.checkpoint.commit import Shard, commit
from holdfast.checkpoint.disk import Disk
from holdfast.checkpoint.found import CheckpointFound, list_directories
from holdfast.checkpoint.layout import CHUNKS, MANIFEST, parse_directory_name
from holdfast.checkpoint.plain import to_plain
from holdfast.checkpoint.state import put_value
from holdfast.checkpoint.told import Told, ToldDisk, silent
from holdfast.errors import UserError

if TYPE_CHECKING:
    from holdfast.checkpoint.portable import Portable


class Format(StrEnum):
    TORCH = "torch"
    SAFETENSORS = "safetensors"
    DCP = "dcp"


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """What was written, and in sentences what was not, or otherwise than one might think."""

    tensors: int
    size_bytes: int
    remarks: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """The checkpoint that came of it, and in sentences what did not come along."""

    name: str
    step: int
    pieces: tuple[str, ...]
    tensors: int
    size_bytes: int
    remarks: tuple[str, ...]


def need_torch() -> None:
    """Raise UserError with how to get torch when it is not there."""
    try:
        import torch  # noqa: F401
    except ImportError:
        raise UserError('this needs torch, which is not installed here: pip install "holdfast[torch]"') from None


# Export.


def export_checkpoint(
    found: CheckpointFound, to: Path, format: Format, *, rank: int | None = None, piece: str | None = None, force: bool = False, told: Told = silent,
    disk: Disk | None = None,
) -> Exported:  # fmt: skip
    """Write a checkpoint to `to`. Without a rank, tensors that are sharded over the ranks are put together, and of all else rank 0's is taken."""
    need_torch()
    from holdfast.checkpoint.gathered import gather
    from holdfast.checkpoint.portable import only

    if rank is not None and rank >= found.world_size:
        raise UserError(f"checkpoint {found.name} has no rank {rank}: it was written by {found.world_size}, from 0 to {found.world_size - 1}.")
    _check_target(to, format, force=force)
    state = gather(found, rank, told)
    state.pieces = only(state.pieces, piece, f"checkpoint {found.name}")
    disk = disk or Disk()
    with _in_place(disk, to) as temporary:
        tensors = _write(disk, temporary, format, state, piece, told)
    return Exported(tensors=tensors, size_bytes=_size_of(to), remarks=tuple(state.remarks))


def _check_target(to: Path, format: Format, *, force: bool) -> None:
    """Refuse before the work what would fail after it. What is replaced must be what we would have written ourselves."""
    if not to.parent.is_dir() or not os.access(to.parent, os.W_OK):
        raise UserError(f"{to} cannot be written: expected {to.parent} to be a directory that you may write to. Make one, or give another name with --to.")
    if to.exists() and to.is_dir() != (format is Format.DCP):
        raise UserError(f"{to} is a {'directory' if to.is_dir() else 'file'}, which an export of format {format} is not: give another name with --to.")
    if to.is_dir():
        from holdfast.checkpoint.dcp_directory import is_dcp

        if not is_dcp(to):
            raise UserError(f"{to} is a directory that holds other things than a checkpoint of DCP, and is not replaced: give another name with --to.")
    if to.exists() and not force:
        raise UserError(f"{to} is there already: give another name with --to, or --force to replace it.")


def _write(disk: Disk, path: Path, format: Format, state: Portable, piece: str | None, told: Told) -> int:
    match format:
        case Format.TORCH:
            from holdfast.checkpoint import torch_file

            return torch_file.write(disk, path, state, told)
        case Format.SAFETENSORS:
            from holdfast.checkpoint import safetensors_file

            return safetensors_file.write(disk, path, state, told, piece=piece)
        case Format.DCP:
            from holdfast.checkpoint import dcp_directory

            return dcp_directory.write(disk, path, state, told)


@contextlib.contextmanager
def _in_place(disk: Disk, to: Path) -> Iterator[Path]:
    """A name to write durable files to, which becomes `to` once they are there; nothing is left of it when that fails."""
    temporary, old = (to.with_name(f".{to.name}.{word}-{os.getpid()}") for word in ("part", "old"))
    try:
        yield temporary
        if temporary.is_dir():
            disk.sync_directory(temporary)
        if to.is_dir():  # Nothing can be renamed over a directory with files in it.
            disk.rename(to, old)
        disk.rename(temporary, to)
        disk.sync_directory(to.parent)
        _remove(disk, old)
    except OSError as error:
        error.filename = str(to)  # The temporary name says nothing to anybody.
        raise
    finally:
        _remove(disk, temporary)


def _remove(disk: Disk, path: Path) -> None:
    """A file, or a directory of files, or nothing."""
    if path.is_dir():
        for entry in path.iterdir():
            disk.remove(entry)
        disk.remove_directory(path)
    elif path.exists():
        disk.remove(path)


def _size_of(path: Path) -> int:
    return sum(entry.stat().st_size for entry in path.iterdir()) if path.is_dir() else path.stat().st_size


# Import.


def import_checkpoint(
    source: Path, checkpoints: Path, *, format: Format | None = None, step: int | None = None, piece: str | None = None, trust: bool = False,
    told: Told = silent, disk: Disk | None = None,
) -> Imported:  # fmt: skip
    """Make a complete checkpoint of one rank in `checkpoints`, newer than all that are there; raises UserError with what is wrong with the source."""
    need_torch()
    from holdfast.checkpoint.portable import checked_name, is_tensor, leaves

    state = _read(source, format or format_of(source), piece, told, trust=trust)
    if not any(True for _ in leaves(state.pieces)):
        raise UserError(f"{source} holds nothing that could be a piece, such as the state of a model: nothing was imported.")
    state.step = state.step if step is None else step
    own = {
        "pieces": {name: to_plain(value, checked_name(name)) for name, value in state.pieces.items()},
        "shared": [],
        "randomness": to_plain(state.randomness, "randomness"),
        "progress": to_plain(state.progress, "progress"),
    }
    sizes = [_checked_bytes(name, tensor) for name, tensor in leaves(own["pieces"]) if is_tensor(tensor)]
    name = _commit(disk or ToldDisk(sum(sizes), told), checkpoints, state.step, own)
    return Imported(name=name, step=state.step, pieces=tuple(state.pieces), tensors=len(sizes), size_bytes=sum(sizes), remarks=tuple(state.remarks))


def format_of(source: Path) -> Format:
    """What a file or directory looks like; raises UserError when it is neither."""
    if source.is_dir():
        return Format.DCP
    if not source.is_file():
        seen = "no plain file" if source.exists() else "not there"
        raise UserError(f"{source} is {seen}: expected a file of torch.save or of safetensors, or a directory of torch.distributed.checkpoint.")
    with source.open("rb") as file:
        head = file.read(9)
    return Format.SAFETENSORS if source.suffix == ".safetensors" or head[8:] == b"{" else Format.TORCH


def _read(source: Path, format: Format, piece: str | None, told: Told, *, trust: bool) -> Portable:
    match format:
        case Format.TORCH:
            from holdfast.checkpoint import torch_file

            return torch_file.read(source, told, trust=trust, piece=piece)
        case Format.SAFETENSORS:
            from holdfast.checkpoint import safetensors_file

            return safetensors_file.read(source, told, piece=piece)
        case Format.DCP:
            from holdfast.checkpoint import dcp_directory

            return dcp_directory.read(source, told, trust=trust, piece=piece)


def _checked_bytes(name: str, tensor: Any) -> int:
    import torch

    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.device.type != "cpu":
        raise UserError(f"{name} is a tensor of {tensor.layout} and {tensor.dtype} on {tensor.device}: expected a dense one with data. Nothing was imported.")
    return int(tensor.nbytes)


def _commit(disk: Disk, checkpoints: Path, step: int, own: dict[str, Any]) -> str:
    """Through the same door as every save. When it fails, nothing is left of it."""
    generations = [named[1] for path in list_directories(checkpoints) if (named := parse_directory_name(path.name))]
    shard = Shard(step=step, generation=max(generations, default=-1) + 1, world_size=1, rank=0, at=time())

    def fill(store: Store) -> str:
        return store.put(json.dumps({"own": put_value(store, own)}).encode()).digest

    missing = [path for path in (checkpoints, *checkpoints.parents) if not path.exists()]
    try:
        manifest = commit(disk, checkpoints, shard, fill)
    except BaseException as error:
        if isinstance(error, OSError):
            error.filename = str(checkpoints)
        with contextlib.suppress(OSError):
            _take_back(disk, shard.path(checkpoints))
        for path in missing:
            disk.remove_directory(path)
        raise
    assert manifest is not None, "the only rank has written, and the checkpoint is not complete"
    return manifest.name


def _take_back(disk: Disk, path: Path) -> None:
    """Remove what was written of a checkpoint. Its generation was unused, so nothing in there is anybody else's."""
    if (path / MANIFEST).exists():
        disk.remove(path / MANIFEST)
        disk.sync_directory(path)  # Else a power cut might bring it back, and not what it speaks of.
    _remove(disk, path / CHUNKS)
    _remove(disk, path)
