"""A snapshot: one rank's state in shared memory, taken by the worker and kept by the agent, whether the worker still lives or not.

    offset 0      seal: magic, a serial number, which step of which generation this is (-1: none, a copy is under way or was cut off), sizes
    offset 64     the agent's words: for which serial number it is durable, could not be made so, may be written over, is sound, …
    offset 4096   the bytes of the tensors, large ones at page borders
    behind them   the note: JSON; what the tensors are, which checkpoint they belong to, where it goes and what may be removed for it

Worker and agent each write only their own words, and the seal last. The serial number grows with every seal that is broken, so a word about an earlier content
is never taken for one about this. Beside the buffer lies its index: the checksums of all of it, made by the agent, by which a snapshot is verified before it is
restored, and after it was copied. Standard library only.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import struct
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any, Final

from holdfast.checkpoint.commit import Shard
from holdfast.checkpoint.layout import directory_name
from holdfast.checkpoint.remove import Retention

NONE: Final = -1
DATA: Final = 4096
SPARE_BYTES: Final = 1 << 20  # In a buffer, for the note and for state that grows a little.
STRETCH_BYTES: Final = 64 << 20  # What a GPU's driver is asked to register at a time.
_MAGIC: Final = 0x484F4C4446415354
_SEAL: Final = struct.Struct("<QQqqQQ")
_WORD: Final = struct.Struct("<Q")
_WORDS_AT: Final = 64
_PAGE: Final = 4096
_LINE: Final = 64


class Word(IntEnum):
    """What an agent can say of a content. The number is the word's place."""

    DURABLE = 0
    FAILED = 1  # It could not be made durable.
    FREE = 2  # It may be written over.
    SOUND = 3  # It was compared with its index since its writer is gone.
    DAMAGED = 4
    PERMIT = 5  # Not about a content: from this step on a save may write over one that could not be made durable.
    ERRNO = 6  # Of one that could not be made durable: what the system said, as a number; 0 when it was not the system. Written before FAILED.


HEAD_BYTES: Final = _WORDS_AT + _WORD.size * len(Word)

@dataclass(frozen=True, slots=True)
class Seal:
    serial: int
    step: int
    generation: int
    data_bytes: int
    note_bytes: int

    @property
    def key(self) -> tuple[int, int]:
        """Newer is greater."""
        return (self.generation, self.step)

    @property
    def name(self) -> str:
        """Of the checkpoint this is a part of."""
        return directory_name(self.step, self.generation)


@dataclass(frozen=True, slots=True)
class Head:
    """The first bytes of a buffer: what is in it, and what the agent has said of that."""

    seal: Seal
    words: tuple[int, ...]

    @property
    def is_sealed(self) -> bool:
        return self.seal.step != NONE

    def said(self, word: Word) -> bool:
        return self.is_sealed and self.words[word] == self.seal.serial

    @property
    def errno(self) -> int:
        """Why it could not be made durable, where it was the system that said so; else 0."""
        return self.words[Word.ERRNO] if self.said(Word.FAILED) else 0

    @property
    def is_waiting(self) -> bool:
        """Whether it is neither durable nor given up."""
        return self.is_sealed and not any(self.said(word) for word in (Word.DURABLE, Word.FAILED, Word.FREE))


def head_of(data: Any) -> Head | None:
    """The head in the first bytes of a buffer; None when it is none."""
    if len(data) < HEAD_BYTES:
        return None
    magic, *seal = _SEAL.unpack_from(data)
    words = tuple(_WORD.unpack_from(data, _WORDS_AT + _WORD.size * word)[0] for word in Word)
    return Head(Seal(*seal), words) if magic == _MAGIC else None


def peek(path: Path) -> Head | None:
    """The head of the buffer in a file, without mapping it; None when it is none."""
    try:
        with path.open("rb", buffering=0) as file:
            return head_of(file.read(HEAD_BYTES))
    except OSError:
        return None


def say(path: Path, word: Word, serial: int) -> None:
    """The agent's side: say something of the content with this serial number."""
    with contextlib.suppress(FileNotFoundError), path.open("r+b", buffering=0) as file:
        os.pwrite(file.fileno(), _WORD.pack(serial), _WORDS_AT + _WORD.size * word)


def offsets(sizes: Sequence[int]) -> tuple[list[int], int]:
    """Where in the data each tensor begins, and where the last one ends."""
    places, end = [], 0
    for size in sizes:
        border = _PAGE if size >= _PAGE else _LINE
        begin = -(-end // border) * border
        places.append(begin)
        end = begin + size
    return places, end


def within_stretches(offset: int, size: int) -> Iterator[tuple[int, int]]:
    """The bytes of the data from `offset` on, cut at the borders of stretches. An element is never cut, since `offsets` gives it a place that it divides."""
    while size > 0:
        end = min(offset + size, (offset // STRETCH_BYTES + 1) * STRETCH_BYTES)
        yield offset, end
        offset, size = end, size - (end - offset)


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
        return buffer if buffer is not None and head_of(buffer._memory) is not None else None

    @property
    def head(self) -> Head:
        head = head_of(self._memory)
        assert head is not None, "a buffer is opened only when it has one"
        return head

    def break_seal(self) -> None:
        """From here on the data means nothing, until `seal`."""
        _, serial, *_ = _SEAL.unpack_from(self._memory)
        _SEAL.pack_into(self._memory, 0, _MAGIC, serial + 1, NONE, NONE, 0, 0)

    def seal(self, step: int, generation: int, data_bytes: int, note: bytes) -> None:
        self.data[data_bytes : data_bytes + len(note)] = note
        _SEAL.pack_into(self._memory, 0, _MAGIC, self.head.seal.serial, step, generation, data_bytes, len(note))

    def is_writable(self, step: int) -> bool:
        """Whether nobody needs what is in it when `step` is saved."""
        head = self.head
        permitted = head.said(Word.FAILED) and head.seal.step < head.words[Word.PERMIT] <= step
        return not head.is_sealed or head.said(Word.FREE) or permitted

    @property
    def note_bytes(self) -> memoryview:
        seal = self.head.seal
        return self.data[seal.data_bytes : seal.data_bytes + seal.note_bytes]

    def note(self) -> dict[str, Any]:
        note: dict[str, Any] = json.loads(bytes(self.note_bytes))
        return note


def describe(shard: Shard, checkpoints: Path, retention: Retention, sections: dict[str, Any]) -> bytes:
    """The note of a snapshot. A section is a document with its tensors: kind, offset and size of each; one of which `kept` is true stays in memory."""
    note = {"shard": asdict(shard), "checkpoints": str(checkpoints), "retention": asdict(retention), "sections": sections}
    return json.dumps(note).encode()
