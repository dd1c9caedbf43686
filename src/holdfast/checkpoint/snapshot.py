"""A snapshot: one rank's state in shared memory, taken by the worker and made durable by the agent, whether the worker still lives or not.

    offset 0      seal: magic, the step that is sealed (-1: none, a copy is under way or was cut off), size of data and note
    offset 64     answer: the step that is durable, the step that could not be made durable; written by the agent alone
    offset 4096   the bytes of the tensors, large ones at page borders
    behind them   the note: JSON; what the tensors are, which checkpoint they belong to, where it goes and what may be removed for it

Each side writes only its own words, and the seal last. A buffer may be written again when its step is durable or has failed. Standard library only.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from holdfast.checkpoint.chunks import Extent, Store, put_cut
from holdfast.checkpoint.commit import Shard, save_in_line
from holdfast.checkpoint.disk import Disk
from holdfast.checkpoint.layout import Manifest
from holdfast.checkpoint.remove import Retention

NONE: Final = -1
DATA: Final = 4096
_MAGIC: Final = 0x484F4C4446415354
_SEAL: Final = struct.Struct("<QqQQ")
_ANSWER: Final = struct.Struct("<qq")
_ANSWER_AT: Final = 64
_PAGE: Final = 4096
_LINE: Final = 64


@dataclass(frozen=True, slots=True)
class Seal:
    step: int
    data_bytes: int
    note_bytes: int


@dataclass(frozen=True, slots=True)
class Answer:
    """What the agent says about the steps of this buffer."""

    durable: int
    failed: int


def offsets(sizes: Sequence[int]) -> tuple[list[int], int]:
    """Where in the data each tensor begins, and where the last one ends."""
    places, end = [], 0
    for size in sizes:
        border = _PAGE if size >= _PAGE else _LINE
        begin = -(-end // border) * border
        places.append(begin)
        end = begin + size
    return places, end


class Buffer:
    """One buffer, mapped. `data` is what both sides see."""

    def __init__(self, path: Path, memory: mmap.mmap) -> None:
        self.path, self._memory = path, memory
        self.data = memoryview(memory)[DATA:]

    @staticmethod
    def create(path: Path, size_bytes: int) -> Buffer:
        """A new buffer with all its memory there: running out of it must be found now, not by a signal in the middle of a copy."""
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, DATA + size_bytes)
            buffer = Buffer(path, mmap.mmap(descriptor, DATA + size_bytes))
        except OSError:
            path.unlink(missing_ok=True)
            raise
        finally:
            os.close(descriptor)
        _ANSWER.pack_into(buffer._memory, _ANSWER_AT, NONE, NONE)
        buffer.break_seal()
        return buffer

    @staticmethod
    def open(path: Path) -> Buffer | None:
        """A buffer somebody made; None when it is none or not yet whole."""
        try:
            with path.open("r+b") as file:
                size = os.fstat(file.fileno()).st_size
                buffer = Buffer(path, mmap.mmap(file.fileno(), size)) if size > DATA else None
        except (OSError, ValueError):
            return None
        return buffer if buffer is not None and _SEAL.unpack_from(buffer._memory)[0] == _MAGIC else None

    def break_seal(self) -> None:
        """From here on the data means nothing, until `seal`."""
        _SEAL.pack_into(self._memory, 0, _MAGIC, NONE, 0, 0)

    def seal(self, step: int, data_bytes: int, note: bytes) -> None:
        self.data[data_bytes : data_bytes + len(note)] = note
        _SEAL.pack_into(self._memory, 0, _MAGIC, step, data_bytes, len(note))

    @property
    def sealed(self) -> Seal:
        return Seal(*_SEAL.unpack_from(self._memory)[1:])

    def note(self) -> dict[str, Any]:
        seal = self.sealed
        note: dict[str, Any] = json.loads(bytes(self.data[seal.data_bytes : seal.data_bytes + seal.note_bytes]))
        return note

    @property
    def answer(self) -> Answer:
        return Answer(*_ANSWER.unpack_from(self._memory, _ANSWER_AT))

    def answer_durable(self, step: int) -> None:
        _ANSWER.pack_into(self._memory, _ANSWER_AT, step, self.answer.failed)

    def answer_failed(self, step: int) -> None:
        _ANSWER.pack_into(self._memory, _ANSWER_AT, self.answer.durable, step)

    @property
    def is_waiting(self) -> bool:
        """Whether a sealed step is neither durable nor given up."""
        step, answer = self.sealed.step, self.answer
        return step not in (NONE, answer.durable, answer.failed)


def waiting_step(path: Path) -> int:
    """The step that a buffer holds and that waits to be made durable, NONE if there is none. Reads the first words and maps nothing."""
    try:
        with path.open("rb", buffering=0) as file:
            head = file.read(_ANSWER_AT + _ANSWER.size)
        magic, step, _, _ = _SEAL.unpack_from(head)
        answers = _ANSWER.unpack_from(head, _ANSWER_AT)
    except (OSError, struct.error):
        return NONE
    return step if magic == _MAGIC and step not in answers else NONE


def describe(shard: Shard, checkpoints: Path, retention: Retention, sections: dict[str, Any]) -> bytes:
    """The note of a snapshot. A section is a document with its tensors: kind, offset and size of each."""
    note = {"shard": asdict(shard), "checkpoints": str(checkpoints), "retention": asdict(retention), "sections": sections}
    return json.dumps(note).encode()


def persist(buffer: Buffer, disk: Disk | None = None) -> Manifest | None:
    """Make a sealed snapshot durable; the manifest when that completed its checkpoint. Raises what went wrong."""
    disk, note = disk or Disk(), buffer.note()
    shard, checkpoints = Shard(**note["shard"]), Path(note["checkpoints"])
    kept = note["retention"]
    retention = Retention(**{**kept, "restored": tuple(kept["restored"]) if kept["restored"] else None})

    def fill(store: Store) -> str:
        notes = {name: _put_section(store, buffer.data, section) for name, section in note["sections"].items()}
        return store.put(json.dumps(notes).encode()).digest

    return save_in_line(disk, checkpoints, shard, fill, retention)


def _put_section(store: Store, data: memoryview, section: dict[str, Any]) -> dict[str, Any]:
    tensors = section["tensors"]

    def read(extents: Sequence[tuple[Extent, ...]]) -> Iterator[memoryview]:
        for inside in extents:
            views = [data[(begin := tensors[one.tensor]["offset"] + one.start) : begin + one.size] for one in inside]
            yield views[0] if len(views) == 1 else memoryview(b"".join(views))

    places = put_cut(store, [tensor["size"] for tensor in tensors], read)
    return {"document": section["document"], "tensors": [{**tensor["kind"], "at": at} for tensor, at in zip(tensors, places, strict=True)]}
