"""A safetensors file: eight bytes with the length of the header, the header as JSON, the tensors one after the other.

Names are those of one module's state, unless the header says that Holdfast put the names of pieces in front of them. Whatever is no tensor is left out, and
that is said. A file is not believed: every number in its header is checked before it is used.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch

from holdfast.checkpoint.disk import Disk
from holdfast.checkpoint.document import dtype_named
from holdfast.checkpoint.portable import OURS, Portable, by_name, bytes_of, checked_name, is_state_dict, is_tensor
from holdfast.checkpoint.told import Told, gist_of, new_file
from holdfast.errors import UserError

_AT_ONCE_BYTES: Final = 8 << 20
_HEADER_BYTES_MAX: Final = 100_000_000  # What the safetensors package reads.
_DTYPES: Final = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64", "I32": "int32", "I16": "int16", "I8": "int8",
    "U64": "uint64", "U32": "uint32", "U16": "uint16", "U8": "uint8", "BOOL": "bool", "C64": "complex64", "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2", "F8_E4M3FNUZ": "float8_e4m3fnuz", "F8_E5M2FNUZ": "float8_e5m2fnuz",
}  # fmt: skip


# Writing.


def write(disk: Disk, path: Path, state: Portable, told: Told, *, piece: str | None) -> int:
    """How many tensors were written. Of one piece alone the names are its own."""
    words, everything = {name: word for word, name in _DTYPES.items()}, by_name(state.pieces)
    tensors = {name: leaf.contiguous() for name, leaf in everything.items() if is_tensor(leaf) and _dtype_of(leaf) in words}
    strange = {name: _dtype_of(leaf) for name, leaf in everything.items() if is_tensor(leaf) and name not in tensors}
    plain = [name for name, leaf in everything.items() if not is_tensor(leaf)]
    state.remarks += _left_out(strange, plain)
    about: dict[str, Any] = {"step": state.step}
    if piece is None:
        torn = {name.partition(".")[0] for name in (*strange, *plain)}
        about["pieces"] = [name for name, value in state.pieces.items() if is_state_dict(value) and name not in torn]
    header: dict[str, Any] = {"__metadata__": {"format": "pt", OURS: json.dumps(about)}}
    end, order = 0, sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))  # The widest first, so that all of them are aligned.
    for name in order:
        begin, end = end, end + tensors[name].nbytes
        short = name if piece is None else name.removeprefix(f"{piece}.")
        header[short] = {"dtype": words[_dtype_of(tensors[name])], "shape": list(tensors[name].shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with new_file(disk, path, end, told) as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in order:
            data = bytes_of(tensors[name])
            for start in range(0, data.nbytes, _AT_ONCE_BYTES):
                file.write(data[start : start + _AT_ONCE_BYTES])
    return len(order)


def _left_out(strange: Mapping[str, str], plain: list[str]) -> list[str]:
    remarks = [f"left out: {name}, because safetensors has no word for its dtype {dtype}" for name, dtype in strange.items()]
    if plain:
        some = ", ".join(plain[:3]) + (", …" if len(plain) > 3 else "")
        remarks.append(f"left out: {len(plain)} plain values ({some}), because safetensors holds tensors only")
    return [*remarks, "left out: how far the data was read, and the states of random number generators"]


def _dtype_of(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


# Reading.


def read(path: Path, told: Told, *, piece: str | None) -> Portable:
    tensors, metadata = _load(path, told)
    match _ours_in(metadata):
        case {"step": int(step), "pieces": [*names]} if step >= 0:
            wanted = [name for name in names if isinstance(name, str) and piece in (None, name)]
        case {"step": int(step)} if step >= 0:
            return Portable(pieces={piece or "model": tensors}, step=step)
        case _:
            return Portable(pieces={piece or "model": tensors})
    pieces = {one: {name.removeprefix(f"{one}."): tensor for name, tensor in tensors.items() if name.startswith(f"{one}.")} for one in wanted}
    left_out = sorted({name.partition(".")[0] for name in tensors} - set(wanted))
    remarks = [f"left out: {', '.join(left_out)}, of which safetensors does not hold enough to restore it"] if left_out else []
    return Portable(pieces=pieces, step=step, remarks=remarks)


def _ours_in(metadata: Mapping[str, Any]) -> Any:
    try:
        return json.loads(metadata.get(OURS, "null"))
    except (ValueError, TypeError, RecursionError):
        return None


@dataclass(frozen=True, slots=True)
class _Entry:
    """A tensor in a header; offsets count from where the data begins."""

    name: str
    dtype: Any
    shape: list[int]
    begin: int
    end: int


def _load(path: Path, told: Told) -> tuple[dict[str, Any], Mapping[str, Any]]:
    """Tensors by name, and what else is in the header."""
    tensors = {}
    with path.open("rb", buffering=0) as file:
        entries, metadata = _read_header(path, file)
        for entry in entries:
            try:
                tensors[entry.name] = torch.empty(entry.shape, dtype=entry.dtype)
            except (RuntimeError, TypeError, ValueError) as error:
                raise _unsound(path, f"no tensor can be made of the shape {str(entry.shape)[:60]} of {entry.name!r} ({gist_of(error)})") from error
            view = bytes_of(tensors[entry.name])
            while view.nbytes and (count := file.readinto(view[:_AT_ONCE_BYTES])):
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
        raise _unsound(path, f"its header is no JSON with each name once ({gist_of(error)})") from error
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
    checked_name(name)
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
