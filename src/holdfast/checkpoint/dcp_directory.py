"""A directory of torch.distributed.checkpoint, with the names that tensors have when a script saves each piece under its own name.

What we write says under `holdfast.document` how all of it fits together. In what others wrote, torch's own paths tell. Its metadata is a pickle, so reading
one runs whatever code is in it: that is done only when told to trust it.
"""

from __future__ import annotations

import contextlib
import json
import os
import warnings
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import torch
from torch.distributed.checkpoint._nested_dict import unflatten_state_dict
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystem, FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from holdfast.checkpoint.disk import Disk
from holdfast.checkpoint.document import from_document, to_document
from holdfast.checkpoint.portable import OURS, Portable, by_name, checked_name, from_envelope, is_tensor, sorted_out
from holdfast.checkpoint.told import Told, disk_error_in, gist_of, new_file
from holdfast.errors import HoldfastError, UserError

_DOCUMENT: Final = f"{OURS}.document"
_METADATA: Final = ".metadata"


def is_dcp(path: Path) -> bool:
    """Whether a directory holds this and nothing else."""
    names = [entry.name for entry in path.iterdir()]
    return _METADATA in names and all(name == _METADATA or name.endswith(".distcp") for name in names)


# Writing.


def write(disk: Disk, path: Path, state: Portable, told: Told) -> int:
    """How many tensors were written."""
    if OURS in state.pieces:
        raise UserError(f"a piece called {OURS!r} cannot be exported to DCP, where that name says how the rest fits together: use --format torch.")
    whole = {**state.pieces, OURS: {"step": state.step, "progress": state.progress, "randomness": state.randomness}}
    flat, tensors = by_name(whole), list[Any]()
    document = to_document(whole, tensors)
    names = {id(leaf): name for name, leaf in flat.items()}
    flat[_DOCUMENT] = json.dumps({"document": document, "tensors": [names[id(tensor)] for tensor in tensors]})
    writer = FileSystemWriter(path, sync_files=False)  # `_Files` does, and every file.
    writer.fs = _Files(disk, sum(tensor.nbytes for tensor in tensors), told)
    try:
        with _one_process():
            save(flat, storage_writer=writer, no_dist=True)
    except (Exception, CheckpointException) as error:  # It wraps whatever went wrong into something of its own, which is no Exception.
        raise disk_error_in(error) or HoldfastError(f"torch.distributed.checkpoint could not write: {gist_of(error)}. Nothing was exported.") from error
    return sum(1 for name, leaf in flat.items() if is_tensor(leaf) and not name.startswith(f"{OURS}."))


class _Files(FileSystem):
    """Our disk, as torch.distributed.checkpoint knows one."""

    def __init__(self, disk: Disk, total: int, told: Told) -> None:
        self._disk, self._total, self._told = disk, total, told

    @contextlib.contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Iterator[Any]:
        assert mode == "wb", f"a stream to write was expected, and this is {mode}"
        with new_file(self._disk, Path(path), self._total, self._told) as file:
            yield file

    def mkdir(self, path: str | os.PathLike[str]) -> None:
        self._disk.make_directory(Path(path))

    def rename(self, path: str | os.PathLike[str], new_path: str | os.PathLike[str]) -> None:
        self._disk.rename(Path(path), Path(new_path))

    def rm_file(self, path: str | os.PathLike[str]) -> None:
        self._disk.remove(Path(path))


@contextlib.contextmanager
def _one_process() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # It says that there is one process, which is what was asked for.
        yield


# Reading.


def read(path: Path, told: Told, *, trust: bool, piece: str | None) -> Portable:
    if not (path / _METADATA).is_file():
        raise UserError(f"{path} has no file {_METADATA}, which torch.distributed.checkpoint writes last: it is something else, or half-written.")
    if not trust:
        raise UserError(
            f"{path / _METADATA} is a pickle, as in every checkpoint of torch.distributed.checkpoint, and reading one runs whatever code is in it: "
            "nothing was imported. Use --trust if you know who wrote it."
        )
    try:
        flat, paths = _load(path, told)
        return _fitted_together(flat, piece, path) if _DOCUMENT in flat else _unflattened(flat, paths, piece, path)
    except (HoldfastError, OSError, MemoryError):
        raise
    except (Exception, CheckpointException) as error:  # A pickle raises whatever is in it.
        raise UserError(f"{path} cannot be read as a checkpoint of torch.distributed.checkpoint: {gist_of(error)}. Nothing was imported.") from error


def _load(path: Path, told: Told) -> tuple[dict[str, Any], Mapping[str, tuple[Any, ...]]]:
    """All that is in it by name, and where each name belongs in the nest of dictionaries that was saved."""
    metadata = FileSystemReader(path).read_metadata()
    _check_files(path, metadata.storage_data.values())
    flat: dict[str, Any] = {}
    for name, kind in metadata.state_dict_metadata.items():
        flat[checked_name(name)] = torch.empty(kind.size, dtype=kind.properties.dtype) if isinstance(kind, TensorStorageMetadata) else None
    total = sum(tensor.nbytes for tensor in flat.values() if tensor is not None)
    told("reading", 0, total)
    with _one_process():
        load(flat, checkpoint_id=path, no_dist=True)
    told("reading", total, total)
    return flat, metadata.planner_data or {}


def _check_files(path: Path, stored: Any) -> None:
    needed: defaultdict[str, int] = defaultdict(int)
    for one in stored:
        needed[one.relative_path] = max(needed[one.relative_path], one.offset + one.length)
    for name, size in sorted(needed.items()):
        if Path(name).name != name or name == "..":
            raise UserError(f"{path / _METADATA} names the file {name!r}, which is not in this directory: nothing was imported.")
        seen = (path / name).stat().st_size if (path / name).is_file() else 0
        if seen < size:
            raise UserError(f"{path} is half-written: expected at least {size} bytes in its file {name}, saw {seen}. Nothing was imported.")


def _fitted_together(flat: Mapping[str, Any], piece: str | None, path: Path) -> Portable:
    ours = json.loads(flat[_DOCUMENT])
    whole = from_document(ours["document"], [flat[name] for name in ours["tensors"]])
    return from_envelope({**whole.pop(OURS), "pieces": whole}, piece, path)


def _unflattened(flat: dict[str, Any], paths: Mapping[str, tuple[Any, ...]], piece: str | None, path: Path) -> Portable:
    state = sorted_out(unflatten_state_dict(flat, {name: paths.get(name, (name,)) for name in flat}), piece, path)
    for one in state.pieces.values():
        if isinstance(one, dict) and isinstance(one.get("state"), dict) and "param_groups" in one:
            # An optimizer numbers its parameters, and DCP makes text of every key.
            one["state"] = {int(key) if str(key).isdecimal() else key: item for key, item in one["state"].items()}
    return state
