"""Other formats: `export_checkpoint` writes a checkpoint as others read it, `import_checkpoint` makes one of what others wrote.

    torch          one file of torch.save: {"pieces": …, "step": …, "progress": …, "randomness": …}, which loads with weights_only=True
    safetensors    one file of tensors, their names joined with dots; whatever is no tensor is left out, and that is said
    dcp            a directory of torch.distributed.checkpoint, with the same names; `holdfast.document` says how all of it fits together

What is written is there whole or not at all. What is read is not trusted: it is looked at before anything is written, and where a format can carry code
(all of DCP, and what torch.load refuses) it is read only when told to trust it.

Is wrong when ranks hold different stages of a pipeline: those are not put together, and each rank is exported by itself. Holds the whole state in memory.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import shutil
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from time import time
from typing import Any, Final

from holdfast.checkpoint.chunks import Store
from holdfast.checkpoint.commit import Shard, commit
from holdfast.checkpoint.digest import Bytes
from holdfast.checkpoint.disk import Disk
from holdfast.checkpoint.document import dtype_named, from_document, to_document
from holdfast.checkpoint.errors import CheckpointCorrupt
from holdfast.checkpoint.found import CheckpointFound, advice, list_directories
from holdfast.checkpoint.layout import MANIFEST, parse_directory_name
from holdfast.checkpoint.plain import DTENSOR, KIND, to_plain
from holdfast.checkpoint.read import note_of
from holdfast.checkpoint.state import Note, get_tensors, put_value
from holdfast.errors import HoldfastError, UserError

_BATCH_BYTES: Final = 64 << 20  # Read at a time, so that progress can be told.
_WRITE_BYTES: Final = 8 << 20
_HEADER_BYTES_MAX: Final = 100_000_000  # What the safetensors package reads.
_ENVELOPE: Final = frozenset(("pieces", "step", "progress", "randomness"))
_OURS: Final = "holdfast"
_DOCUMENT: Final = "holdfast.document"
_METADATA: Final = ".metadata"
_DTYPES: Final = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64", "I32": "int32", "I16": "int16", "I8": "int8",
    "U64": "uint64", "U32": "uint32", "U16": "uint16", "U8": "uint8", "BOOL": "bool", "C64": "complex64", "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2", "F8_E4M3FNUZ": "float8_e4m3fnuz", "F8_E5M2FNUZ": "float8_e5m2fnuz",
}  # fmt: skip

Told = Callable[[str, int, int], None]  # What goes on, how many bytes more are done, of how many in all.


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


@dataclass(slots=True, kw_only=True)
class _State:
    """What one process would have, with nothing in it but tensors and plain values."""

    pieces: dict[str, Any]
    step: int = 0
    progress: dict[str, Any] = field(default_factory=dict)
    randomness: dict[str, Any] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)

    def envelope(self) -> dict[str, Any]:
        return {"pieces": self.pieces, "step": self.step, "progress": self.progress, "randomness": self.randomness}


def silent(what: str, done: int, total: int) -> None:
    """Tell nobody."""


def need_torch() -> None:
    """Raise UserError with how to get torch when it is not there."""
    try:
        import torch  # noqa: F401
    except ImportError:
        raise UserError('this needs torch, which is not installed here: pip install "holdfast[torch]"') from None


# Export.


def export_checkpoint(
    found: CheckpointFound, to: Path, format: Format, *, rank: int | None = None, piece: str | None = None, force: bool = False, told: Told = silent
) -> Exported:
    """Write a checkpoint to `to`. Without a rank, tensors that are sharded over the ranks are put together, and of all else rank 0's is taken."""
    need_torch()
    if rank is not None and rank >= found.world_size:
        raise UserError(f"checkpoint {found.name} has no rank {rank}: it was written by {found.world_size}, from 0 to {found.world_size - 1}.")
    _check_target(to, format, force=force)
    state = _state_in(found, rank, told)
    state.pieces = _only(state.pieces, piece, f"checkpoint {found.name}")
    with _in_place(to) as temporary:
        match format:
            case Format.TORCH:
                tensors = _write_torch(temporary, state, told)
            case Format.SAFETENSORS:
                tensors = _write_safetensors(temporary, state, piece, told)
            case Format.DCP:
                tensors = _write_dcp(temporary, state, told)
    return Exported(tensors=tensors, size_bytes=_size_of(to), remarks=tuple(state.remarks))


def _check_target(to: Path, format: Format, *, force: bool) -> None:
    """Refuse before the work what would fail after it. What is replaced must be what we would have written ourselves."""
    if not to.parent.is_dir() or not os.access(to.parent, os.W_OK):
        raise UserError(f"{to} cannot be written: expected {to.parent} to be a directory that you may write to. Make one, or give another name with --to.")
    if to.exists() and to.is_dir() != (format is Format.DCP):
        raise UserError(f"{to} is a {'directory' if to.is_dir() else 'file'}, which an export of format {format} is not: give another name with --to.")
    if to.is_dir() and not _is_dcp(to):
        raise UserError(f"{to} is a directory that holds other things than a checkpoint of DCP, and is not replaced: give another name with --to.")
    if to.exists() and not force:
        raise UserError(f"{to} is there already: give another name with --to, or --force to replace it.")


def _is_dcp(path: Path) -> bool:
    names = [entry.name for entry in path.iterdir()]
    return _METADATA in names and all(name == _METADATA or name.endswith(".distcp") for name in names)


@contextlib.contextmanager
def _in_place(to: Path) -> Iterator[Path]:
    """A name to write to, which becomes `to` once it is written and durable; nothing is left of it when that fails."""
    disk, temporary, old = Disk(), *(to.with_name(f".{to.name}.{word}-{os.getpid()}") for word in ("part", "old"))
    try:
        yield temporary
        for path in temporary.iterdir() if temporary.is_dir() else [temporary]:
            with path.open("rb", buffering=0) as file:
                os.fsync(file.fileno())
        if temporary.is_dir():
            disk.sync_directory(temporary)
        if to.is_dir():  # Nothing can be renamed over a directory with files in it.
            disk.rename(to, old)
        disk.rename(temporary, to)
        disk.sync_directory(to.parent)
        _remove(old)
    except OSError as error:
        error.filename = str(to)  # The temporary name says nothing to anybody.
        raise
    finally:
        _remove(temporary)


def _remove(path: Path) -> None:
    """A file, or a directory of files, or nothing."""
    if path.is_dir():
        for entry in path.iterdir():
            entry.unlink()
        path.rmdir()
    else:
        path.unlink(missing_ok=True)


def _size_of(path: Path) -> int:
    return sum(entry.stat().st_size for entry in path.iterdir()) if path.is_dir() else path.stat().st_size


class _Counted:
    """A file that tells how far it is written. torch hides what a failed write raised, so it is kept here."""

    def __init__(self, file: io.FileIO, total: int, told: Told) -> None:
        self._file, self._total, self._told = file, total, told
        self.failed: OSError | None = None

    def write(self, data: Bytes) -> int:
        size = memoryview(data).nbytes
        try:
            Disk().write(self._file, data)
        except OSError as error:
            self.failed = self.failed or error
            raise
        self._told("writing", size, self._total)
        return size

    def flush(self) -> None:
        """Nothing is held back."""


# What a checkpoint holds, with sharded tensors put together.


def _state_in(found: CheckpointFound, rank: int | None, told: Told) -> _State:
    try:
        own = _load(found, rank or 0, "own", told)
        pieces = own["pieces"]
        sharded = [name for name, piece in pieces.items() if any(_marked(piece, DTENSOR))]
        if sharded and rank is None:
            _put_together(found, pieces, told)
        shared = _load(found, 0, "shared", told) if own["shared"] else {}
    except CheckpointCorrupt as corrupt:
        raise CheckpointCorrupt(f"checkpoint {found.name} cannot be exported: {corrupt} {advice(found.path)}") from corrupt
    remarks = []
    alone = sorted(pieces.keys() - sharded)
    if rank is None and found.world_size > 1 and alone:
        remarks.append(f"of {', '.join(alone)} each of the {found.world_size} ranks has its own, and this is rank 0's; --rank gives another's")
    if rank is not None and sharded:
        remarks.append(f"tensors of {', '.join(sharded)} are rank {rank}'s own parts of larger ones; without --rank they are put together")
    pieces = {**pieces, **shared}
    arrays = sum(1 for _ in _marked(pieces, "array"))
    if arrays:
        remarks.append(f"NumPy arrays, of which there are {arrays}, are written as tensors")
    return _State(pieces=_opened(pieces), step=found.step, progress=own["progress"], randomness=own["randomness"], remarks=remarks)


def _load(found: CheckpointFound, rank: int, part: str, told: Told) -> dict[str, Any]:
    """A part of a rank's state, as `plain.py` leaves it."""
    note = note_of(found, rank)[part]
    total = sum(map(_bytes_in, note["tensors"]))
    tensors: list[Any] = []
    for batch in _batches(note["tensors"]):
        tensors += get_tensors(found.path.parent, found.manifest.by_digest(), found.manifest.algorithm, batch)
        told(f"reading rank {rank}" if found.world_size > 1 else "reading", sum(map(_bytes_in, batch)), total)
    value = from_document(note["document"], tensors)
    assert isinstance(value, dict), f"the {part} state is a {type(value)}, which we never write"
    return value


def _batches(kinds: Sequence[Note]) -> Iterator[list[Note]]:
    batch: list[Note] = []
    size = 0
    for kind in kinds:
        batch.append(kind)
        size += _bytes_in(kind)
        if size >= _BATCH_BYTES:
            yield batch
            batch, size = [], 0
    yield batch


def _bytes_in(kind: Note) -> int:
    return sum(size for _, _, size in kind["at"])


def _put_together(found: CheckpointFound, pieces: dict[str, Any], told: Told) -> None:
    """Give every note of a sharded tensor in `pieces`, which are rank 0's, the whole of it. One more rank's parts are in memory at a time."""
    import torch

    notes: dict[str, dict[str, Any]] = {}
    boxes: defaultdict[str, dict[tuple[int, ...], int]] = defaultdict(dict)
    for rank in range(found.world_size):
        theirs = pieces if rank == 0 else _load(found, rank, "own", told)["pieces"]
        for name, note in _marked(theirs, DTENSOR):
            first = notes.setdefault(name, note)
            if "whole" not in first:
                first["whole"] = torch.empty(note["shape"], dtype=note["dtype"])
            if not _place(first, note, boxes[name]):
                raise UserError(f"rank {rank} holds another tensor as {name} than the ranks before it. {_STAGES}")
        for name in theirs.keys() - pieces.keys():  # As DCP distributes what all ranks hold alike.
            pieces[name] = theirs[name]
    strangers = notes.keys() - dict(_marked(pieces, DTENSOR)).keys()
    if strangers:
        raise UserError(f"rank 0 knows nothing of {min(strangers)}, which another rank holds. {_STAGES}")
    for name, note in notes.items():
        if sum(boxes[name].values()) != note["whole"].numel():
            raise CheckpointCorrupt(f"{name} has {note['whole'].numel()} elements, and the parts that the ranks saved have {sum(boxes[name].values())}.")


_STAGES: Final = "So it is with the stages of a pipeline, and they cannot be put together: export each rank by itself with --rank."


def _place(first: dict[str, Any], note: dict[str, Any], boxes: dict[tuple[int, ...], int]) -> bool:
    """Put a part where it belongs in the whole; False if it cannot be a part of it. On a mesh of its own may lie a copy: what is there already, again."""
    local, box = note["local"], tuple(note["offset"])
    if (first["shape"], first["dtype"]) != (note["shape"], note["dtype"]):
        return False
    if not local.numel():
        return True
    target = first["whole"][tuple(slice(start, start + size) for start, size in zip(box, local.shape, strict=True))]
    if box in boxes:
        return first["mesh"] == note["mesh"] or _bytes_of(target.contiguous()) == _bytes_of(local.contiguous())
    boxes[box] = local.numel()
    target.copy_(local)
    return True


def _opened(value: Any) -> Any:
    """`value` with a tensor for every mark of `plain.py`. It is changed in place, since a module's state carries more than its items."""
    if isinstance(value, dict):
        if value.get(KIND) == DTENSOR:
            return value.get("whole", value["local"])
        if value.get(KIND) == "array":
            return _array(value)
        for key, item in value.items():
            value[key] = _opened(item)
    elif isinstance(value, list):
        value[:] = map(_opened, value)
    elif type(value) is tuple:
        return tuple(map(_opened, value))
    return value


def _array(note: Mapping[str, Any]) -> Any:
    import torch

    array = note["tensor"].numpy().view(note["dtype"]).reshape(note["shape"])
    return torch.from_numpy(array.astype(array.dtype.newbyteorder("=")))


# Names. A value is gone through as DCP does it: dictionaries, and lists in which there is more than plain values.


def _leaves(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping) and KIND not in value:
        for key, item in value.items():
            yield from _leaves(item, f"{name}.{key}" if name else str(key))
    elif isinstance(value, (list, tuple)) and any(isinstance(item, (Mapping, list, tuple)) or _is_tensor(item) for item in value):
        for index, item in enumerate(value):
            yield from _leaves(item, f"{name}.{index}")
    else:
        yield name, value


def _flat(value: Any) -> dict[str, Any]:
    """By name; raises UserError where two things would have the same."""
    found: dict[str, Any] = {}
    for name, leaf in _leaves(value):
        if name in found:
            raise UserError(f"two values would both be called {name!r} once their names are joined with dots: use --format torch, which keeps them apart.")
        found[name] = leaf
    return found


def _marked(value: Any, kind: str) -> Iterator[tuple[str, dict[str, Any]]]:
    return ((name, leaf) for name, leaf in _leaves(value) if isinstance(leaf, dict) and leaf.get(KIND) == kind)


def _is_tensor(value: Any) -> bool:
    import torch

    return isinstance(value, torch.Tensor)


def _bytes_of(tensor: Any) -> memoryview:
    """The bytes of a contiguous tensor, in its own memory."""
    import torch

    return memoryview(tensor.detach().reshape(-1).view(torch.uint8).numpy())


def _only(pieces: Mapping[str, Any], piece: str | None, where: str) -> dict[str, Any]:
    if piece is not None and piece not in pieces:
        raise UserError(f"{where} has no piece {piece!r}; it has {', '.join(sorted(map(str, pieces)))}.")
    return {name: value for name, value in pieces.items() if piece in (None, name)}


# Import.


def import_checkpoint(
    source: Path, checkpoints: Path, *, format: Format | None = None, step: int | None = None, piece: str | None = None, trust: bool = False,
    told: Told = silent,
) -> Imported:  # fmt: skip
    """Make a complete checkpoint of one rank in `checkpoints`, newer than all that are there; raises UserError with what is wrong with the source."""
    need_torch()
    match format or format_of(source):
        case Format.TORCH:
            state = _sorted_out(_read_torch(source, trust, told), piece, source)
        case Format.SAFETENSORS:
            state = _sorted_out_flat(*_read_safetensors(source, told), piece)
        case Format.DCP:
            state = _read_dcp(source, trust, piece, told)
    if not any(True for _ in _leaves(state.pieces)):
        raise UserError(f"{source} holds nothing that could be a piece, such as the state of a model: nothing was imported.")
    state.step = state.step if step is None else step
    own = {
        "pieces": {name: to_plain(value, _checked_name(name)) for name, value in state.pieces.items()},
        "shared": [],
        "randomness": to_plain(state.randomness, "randomness"),
        "progress": to_plain(state.progress, "progress"),
    }
    sizes = [_checked_bytes(name, tensor) for name, tensor in _leaves(own["pieces"]) if _is_tensor(tensor)]
    name = _commit(checkpoints, state.step, own, sum(sizes), told)
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


def _commit(checkpoints: Path, step: int, own: dict[str, Any], size_bytes: int, told: Told) -> str:
    """Through the same door as every save. When it fails, nothing is left of it."""
    generations = [named[1] for path in list_directories(checkpoints) if (named := parse_directory_name(path.name))]
    shard = Shard(step=step, generation=max(generations, default=-1) + 1, world_size=1, rank=0, at=time())

    def fill(store: Store) -> str:
        return store.put(json.dumps({"own": put_value(store, own)}).encode()).digest

    made = _make(checkpoints)
    try:
        manifest = commit(_ToldDisk(size_bytes, told), checkpoints, shard, fill)
    except BaseException as error:
        if isinstance(error, OSError):
            error.filename = str(checkpoints)
        with contextlib.suppress(OSError):
            (shard.path(checkpoints) / MANIFEST).unlink(missing_ok=True)
            shutil.rmtree(shard.path(checkpoints), ignore_errors=True)  # The generation was unused, so nothing in there is anybody else's.
            for path in made:
                path.rmdir()
        raise
    assert manifest is not None, "the only rank has written, and the checkpoint is not complete"
    return manifest.name


def _make(directory: Path) -> list[Path]:
    """Make a directory and those above it, durably; those that were not there, the deepest first."""
    made = [path for path in (directory, *directory.parents) if not path.exists()]
    directory.mkdir(parents=True, exist_ok=True)
    for path in made:
        Disk().sync_directory(path.parent)
    return made


class _ToldDisk(Disk):
    """Tells what is written to it."""

    def __init__(self, total: int, told: Told) -> None:
        self._total, self._told = total, told

    def write(self, file: io.FileIO, data: Bytes) -> None:
        super().write(file, data)
        self._told("writing", memoryview(data).nbytes, self._total)


def _checked_name(name: Any) -> str:
    """A piece's or a tensor's name, as a script or a module might have given it."""
    if not isinstance(name, str) or not name or ".." in name or not name.isprintable():
        raise UserError(f"{name!r} cannot be the name of a piece or a tensor: expected words joined by single dots. Nothing was imported.")
    return name


def _checked_bytes(name: str, tensor: Any) -> int:
    import torch

    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.device.type != "cpu":
        raise UserError(f"{name} is a tensor of {tensor.layout} and {tensor.dtype} on {tensor.device}: expected a dense one with data. Nothing was imported.")
    return int(tensor.nbytes)


def _sorted_out(value: Any, piece: str | None, source: Path) -> _State:
    """Which pieces are in what somebody saved: our own export, a dictionary of states, or one bare state."""
    if not isinstance(value, Mapping):
        raise UserError(f"{source} holds a {type(value).__qualname__}: expected a dictionary of tensors, or of states such as model and optimizer.")
    if value.keys() == _ENVELOPE and isinstance(value["pieces"], Mapping):
        return _enveloped(value, piece, source)
    step = value.get("step")
    step = step if type(step) is int and step >= 0 else 0
    if piece is not None or _is_state_dict(value):
        return _State(pieces={piece or "model": value}, step=step)
    if {"state", "param_groups"} <= value.keys():
        return _State(pieces={"optimizer": value}, step=step)
    pieces = {name: item for name, item in value.items() if isinstance(item, Mapping) or _is_tensor(item)}
    left_out = sorted(f"{name} ({type(item).__qualname__})" for name, item in value.items() if name not in pieces and name != "step")
    remarks = [f"left out: {', '.join(left_out)}, because no piece of guard() is of such a kind; a dictionary would be"] if left_out else []
    return _State(pieces=pieces, step=step, remarks=remarks)


def _is_state_dict(value: Any) -> bool:
    """Whether this is what a module gives: tensors by name, beside them at most a module's extra state."""
    if not isinstance(value, Mapping) or not any(map(_is_tensor, value.values())):
        return False
    return not any(isinstance(item, Mapping) and not str(name).endswith("_extra_state") for name, item in value.items())


def _enveloped(value: Mapping[str, Any], piece: str | None, source: Path) -> _State:
    step, progress, randomness = value["step"], value["progress"], value["randomness"]
    sound = type(step) is int and step >= 0 and isinstance(progress, Mapping) and isinstance(randomness, Mapping)
    if not sound or (randomness and not {"python", "torch"} <= randomness.keys()):
        raise UserError(f"{source} has the keys of an export of Holdfast, but not its values: expected a step, the progress and the randomness of a run.")
    return _State(pieces=_only(value["pieces"], piece, str(source)), step=step, progress=dict(progress), randomness=dict(randomness))


def _sorted_out_flat(tensors: dict[str, Any], metadata: Mapping[str, Any], piece: str | None) -> _State:
    """Names are those of one module's state, unless the file says that Holdfast put the names of pieces in front of them."""
    match _ours_in(metadata):
        case {"step": int(step), "pieces": [*names]} if step >= 0:
            wanted = [name for name in names if isinstance(name, str) and piece in (None, name)]
        case {"step": int(step)} if step >= 0:
            return _State(pieces={piece or "model": tensors}, step=step)
        case _:
            return _State(pieces={piece or "model": tensors})
    pieces = {one: {name.removeprefix(f"{one}."): tensor for name, tensor in tensors.items() if name.startswith(f"{one}.")} for one in wanted}
    left_out = sorted({name.partition(".")[0] for name in tensors} - set(wanted))
    remarks = [f"left out: {', '.join(left_out)}, of which safetensors does not hold enough to restore it"] if left_out else []
    return _State(pieces=pieces, step=step, remarks=remarks)


def _ours_in(metadata: Mapping[str, Any]) -> Any:
    try:
        return json.loads(metadata.get(_OURS, "null"))
    except (ValueError, TypeError, RecursionError):
        return None


# torch.


def _write_torch(path: Path, state: _State, told: Told) -> int:
    import torch

    sizes = [leaf.nbytes for _, leaf in _leaves(state.pieces) if _is_tensor(leaf)]
    with contextlib.closing(Disk().create(path)) as raw:
        file = _Counted(raw, sum(sizes), told)
        try:
            torch.save(state.envelope(), file)  # type: ignore[arg-type]
        except RuntimeError as error:
            raise (file.failed or error) from None
    return len(sizes)


class _Watched(io.FileIO):
    """A file that tells how far it is read."""

    def __init__(self, path: Path, told: Told) -> None:
        super().__init__(path)
        self._total, self._told = path.stat().st_size, told

    def readinto(self, buffer: Any, /) -> int:
        count = super().readinto(buffer) or 0
        self._told("reading", count, self._total)
        return count


def _read_torch(path: Path, trust: bool, told: Told) -> Any:
    import pickle

    import torch

    try:
        with _Watched(path, told) as raw, io.BufferedReader(raw) as file, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            looks_saved = file.peek(4)[:4] == b"PK\x03\x04" or file.peek(1)[:1] == b"\x80"  # A zip archive; older versions wrote bare pickles.
            return torch.load(file, map_location="cpu", weights_only=not trust)
    except (OSError, MemoryError):
        raise
    except pickle.UnpicklingError as error:
        if trust or not looks_saved:
            raise UserError(f"{path} is no file of torch.save: {_line_of(error)}. Nothing was imported.") from error
        raise UserError(
            f"{path} holds more than tensors and plain values, and reading that runs code which the file brings along: nothing was imported. "
            f"Use --trust if you know who wrote it. What was found: {_line_of(error)}"
        ) from error
    except Exception as error:  # A broken file makes torch raise whatever it stumbles over.
        raise UserError(f"{path} cannot be read as a file of torch.save and may be cut short or damaged: {_line_of(error)}. Nothing was imported.") from error


def _line_of(error: BaseException) -> str:
    """The line of a long message that says what was seen."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return next((line for line in lines if "Unsupported" in line or "GLOBAL" in line), lines[0] if lines else type(error).__name__)[:200]


# safetensors: eight bytes with the length of the header, the header as JSON, the tensors one after the other.


def _write_safetensors(path: Path, state: _State, piece: str | None, told: Told) -> int:
    words, flat = {name: word for word, name in _DTYPES.items()}, _flat(state.pieces)
    tensors = {name: leaf.contiguous() for name, leaf in flat.items() if _is_tensor(leaf) and _dtype_of(leaf) in words}
    strange = [name for name, leaf in flat.items() if _is_tensor(leaf) and name not in tensors]
    plain = [name for name, leaf in flat.items() if not _is_tensor(leaf)]
    state.remarks += [f"left out: {name}, because safetensors has no word for its dtype {_dtype_of(flat[name])}" for name in strange]
    if plain:
        some = ", ".join(plain[:3]) + (", …" if len(plain) > 3 else "")
        state.remarks.append(f"left out: {len(plain)} plain values ({some}), because safetensors holds tensors only")
    state.remarks.append("left out: how far the data was read, and the states of random number generators")
    about: dict[str, Any] = {"step": state.step}
    if piece is None:
        torn = {name.partition(".")[0] for name in (*strange, *plain)}
        about["pieces"] = [name for name, value in state.pieces.items() if _is_state_dict(value) and name not in torn]
    header: dict[str, Any] = {"__metadata__": {"format": "pt", _OURS: json.dumps(about)}}
    end, order = 0, sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))  # The widest first, so that all of them are aligned.
    for name in order:
        begin, end = end, end + tensors[name].nbytes
        short = name if piece is None else name.removeprefix(f"{piece}.")
        header[short] = {"dtype": words[_dtype_of(tensors[name])], "shape": list(tensors[name].shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with contextlib.closing(Disk().create(path)) as raw:
        file = _Counted(raw, end, told)
        file.write(len(text).to_bytes(8, "little") + text)
        for name in order:
            data = _bytes_of(tensors[name])
            for start in range(0, data.nbytes, _WRITE_BYTES):
                file.write(data[start : start + _WRITE_BYTES])
    return len(order)


def _dtype_of(tensor: Any) -> str:
    return str(tensor.dtype).removeprefix("torch.")


@dataclass(frozen=True, slots=True)
class _Entry:
    """A tensor in a header; offsets count from where the data begins."""

    name: str
    dtype: Any
    shape: list[int]
    begin: int
    end: int


def _read_safetensors(path: Path, told: Told) -> tuple[dict[str, Any], Mapping[str, Any]]:
    """Tensors by name, and what else is in the header."""
    import torch

    tensors = {}
    with path.open("rb", buffering=0) as file:
        entries, metadata = _read_header(path, file)
        for entry in entries:
            try:
                tensors[entry.name] = torch.empty(entry.shape, dtype=entry.dtype)
            except (RuntimeError, TypeError, ValueError) as error:
                raise _unsound(path, f"no tensor can be made of the shape {str(entry.shape)[:60]} of {entry.name!r} ({_line_of(error)})") from error
            view = _bytes_of(tensors[entry.name])
            while view.nbytes and (count := file.readinto(view[:_WRITE_BYTES])):
                view = view[count:]
                told("reading", count, entries[-1].end)
            if view.nbytes:
                raise _unsound(path, f"it ends {view.nbytes} bytes before the end of {entry.name!r}")
    return tensors, metadata


def _read_header(path: Path, file: io.FileIO) -> tuple[list[_Entry], Mapping[str, Any]]:
    """The tensors in the order in which they lie there, and what else the header says. Believes nothing. The file is left where the data begins."""
    size = path.stat().st_size
    length = int.from_bytes(file.read(8), "little")
    if size < 8 or length > min(size - 8, _HEADER_BYTES_MAX):
        raise _unsound(path, f"its header should have {length} bytes, and the file has {size} (a header has at most {_HEADER_BYTES_MAX})")
    try:
        header = json.loads(file.read(length), object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        raise _unsound(path, f"its header is no JSON with each name once ({_line_of(error)})") from error
    if not isinstance(header, dict) or not isinstance(metadata := header.pop("__metadata__", {}), dict):
        raise _unsound(path, "its header is no dictionary of tensors")
    entries = sorted((_entry(path, name, said) for name, said in header.items()), key=lambda entry: (entry.begin, entry.end))
    reached = 0
    for entry in entries:
        if entry.begin != reached:
            raise _unsound(path, f"{entry.name!r} begins at byte {entry.begin}, and what is before it ends at {reached}: expected neither gap nor overlap")
        reached = entry.end
    if reached != size - 8 - length:
        raise _unsound(path, f"its tensors take {reached} bytes and its data has {size - 8 - length}: it may be cut short")
    return entries, metadata


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name is there twice")
    return found


def _entry(path: Path, name: str, said: Any) -> _Entry:
    _checked_name(name)
    match said:
        case {"dtype": str(word), "shape": [*shape], "data_offsets": [int(begin), int(end)]} if all(type(size) is int and size >= 0 for size in shape):
            if word not in _DTYPES:
                raise _unsound(path, f"{name!r} is of dtype {word[:20]!r}, and those known are {', '.join(_DTYPES)}")
            dtype = dtype_named(_DTYPES[word])
            expected = math.prod(shape) * dtype.itemsize
            if not 0 <= begin <= end or end - begin != expected:
                raise _unsound(path, f"{name!r} lies from byte {begin} to {end}, and a tensor of {word} {str(shape)[:60]} has {expected} bytes")
            return _Entry(name, dtype, shape, begin, end)
    raise _unsound(path, f"{name!r} has no dtype, shape and data_offsets as they should be")


def _unsound(path: Path, why: str) -> UserError:
    return UserError(f"{path} is no sound safetensors file: {why}. Nothing was imported.")


# torch.distributed.checkpoint.


def _write_dcp(path: Path, state: _State, told: Told) -> int:
    """With the names that the tensors of each piece have when a script saves it under its own name."""
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.state_dict_saver import save

    if _OURS in state.pieces:
        raise UserError(f"a piece called {_OURS!r} cannot be exported to DCP, where that name says how the rest fits together: use --format torch.")
    whole = {**state.pieces, _OURS: {"step": state.step, "progress": state.progress, "randomness": state.randomness}}
    flat, tensors = _flat(whole), list[Any]()
    document = to_document(whole, tensors)
    names = {id(leaf): name for name, leaf in flat.items()}
    flat[_DOCUMENT] = json.dumps({"document": document, "tensors": [names[id(tensor)] for tensor in tensors]})
    total = sum(tensor.nbytes for tensor in tensors)
    told("writing", 0, total)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # It says that there is one process, which is what was asked for.
            save(flat, checkpoint_id=path, no_dist=True)
    except (Exception, CheckpointException) as error:  # It wraps whatever went wrong into something of its own, which is no Exception.
        raise _disk_error_in(error) or HoldfastError(f"torch.distributed.checkpoint could not write: {_line_of(error)}. Nothing was exported.") from error
    told("writing", total, total)
    return sum(1 for name, leaf in flat.items() if _is_tensor(leaf) and not name.startswith(f"{_OURS}."))


def _disk_error_in(error: BaseException) -> OSError | None:
    """What the disk said, below what torch made of it."""
    inner: BaseException | None = next(iter(getattr(error, "failures", {}).values()), (error,))[0]
    while inner is not None and not isinstance(inner, OSError):
        inner = inner.__context__
    return inner


def _read_dcp(path: Path, trust: bool, piece: str | None, told: Told) -> _State:
    if not (path / _METADATA).is_file():
        raise UserError(f"{path} has no file {_METADATA}, which torch.distributed.checkpoint writes last: it is something else, or half-written.")
    if not trust:
        raise UserError(
            f"{path / _METADATA} is a pickle, as in every checkpoint of torch.distributed.checkpoint, and reading one runs whatever code is in it: "
            "nothing was imported. Use --trust if you know who wrote it."
        )
    from torch.distributed.checkpoint.api import CheckpointException

    try:
        flat, paths = _load_dcp(path, told)
        return _fitted_together(flat, piece, path) if _DOCUMENT in flat else _unflattened(flat, paths, piece, path)
    except (HoldfastError, OSError, MemoryError):
        raise
    except (Exception, CheckpointException) as error:  # A pickle raises whatever is in it.
        raise UserError(f"{path} cannot be read as a checkpoint of torch.distributed.checkpoint: {_line_of(error)}. Nothing was imported.") from error


def _load_dcp(path: Path, told: Told) -> tuple[dict[str, Any], Mapping[str, tuple[Any, ...]]]:
    """All that is in it by name, and where each name belongs in the nest of dictionaries that was saved."""
    import torch
    from torch.distributed.checkpoint.filesystem import FileSystemReader
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata
    from torch.distributed.checkpoint.state_dict_loader import load

    metadata = FileSystemReader(path).read_metadata()
    _check_files(path, metadata.storage_data.values())
    flat: dict[str, Any] = {}
    for name, kind in metadata.state_dict_metadata.items():
        flat[_checked_name(name)] = torch.empty(kind.size, dtype=kind.properties.dtype) if isinstance(kind, TensorStorageMetadata) else None
    total = sum(tensor.nbytes for tensor in flat.values() if tensor is not None)
    told("reading", 0, total)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # It says that there is one process, which is what was asked for.
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


def _fitted_together(flat: Mapping[str, Any], piece: str | None, path: Path) -> _State:
    ours = json.loads(flat[_DOCUMENT])
    whole = from_document(ours["document"], [flat[name] for name in ours["tensors"]])
    return _enveloped({**whole.pop(_OURS), "pieces": whole}, piece, path)


def _unflattened(flat: dict[str, Any], paths: Mapping[str, tuple[Any, ...]], piece: str | None, path: Path) -> _State:
    from torch.distributed.checkpoint._nested_dict import unflatten_state_dict

    state = _sorted_out(unflatten_state_dict(flat, {name: paths.get(name, (name,)) for name in flat}), piece, path)
    for one in state.pieces.values():
        if isinstance(one, dict) and isinstance(one.get("state"), dict) and "param_groups" in one:
            # An optimizer numbers its parameters, and DCP makes text of every key.
            one["state"] = {int(key) if str(key).isdecimal() else key: item for key, item in one["state"].items()}
    return state
