"""What an agent does with a snapshot: makes its index, makes it durable, and can say later whether it is still what it was.

The index is made in a thread of its own, ahead of the disk, which may still be busy with the snapshot before: as soon as it is there the snapshot can be
restored from memory and copied, whatever the disk does.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from holdfast.checkpoint.chunks import Extent, Store, cut, put_cut
from holdfast.checkpoint.commit import Shard, save_in_line
from holdfast.checkpoint.digest import best_algorithm, digest_of
from holdfast.checkpoint.disk import Disk
from holdfast.checkpoint.layout import Manifest
from holdfast.checkpoint.remove import Retention
from holdfast.checkpoint.snapshot import Buffer, peek

_VERIFIERS: Final = 4  # Threads for each buffer. One took 1.1 s for 7.5 GB.


def persist(buffer: Buffer, disk: Disk | None = None, indexing: Indexing | None = None) -> Manifest | None:
    """Make a sealed snapshot durable, and its index, unless that was begun before; the manifest when that completed its checkpoint. Raises what went wrong with
    the disk."""
    disk, note = disk or Disk(), buffer.note()
    shard, checkpoints = Shard(**note["shard"]), Path(note["checkpoints"])
    kept = note["retention"]
    retention = Retention(**{**kept, "restored": tuple(kept["restored"]) if kept["restored"] else None, "compared": tuple(kept["compared"])})
    if indexing is None or indexing.seal != buffer.head.seal:
        indexing = Indexing(buffer)

    def fill(store: Store) -> str:
        notes = {name: _put_section(store, buffer.data, section, indexing) for name, section in note["sections"].items() if not section.get("kept")}
        return store.put(json.dumps(notes).encode()).digest

    try:
        return save_in_line(disk, checkpoints, shard, fill, retention)
    finally:
        indexing.finish()


def _put_section(store: Store, data: memoryview, section: dict[str, Any], indexing: Indexing) -> dict[str, Any]:
    tensors = section["tensors"]

    def read(extents: Sequence[tuple[Extent, ...]]) -> Iterator[tuple[memoryview, Callable[[], str]]]:
        for inside, digest in zip(extents, indexing.take(len(extents)), strict=True):
            yield _bytes_of(data, tensors, inside), digest.result

    places = put_cut(store, [tensor["size"] for tensor in tensors], read)
    return {"document": section["document"], "tensors": [{**tensor["kind"], "at": at} for tensor, at in zip(tensors, places, strict=True)]}


# The index.


@dataclass(frozen=True, slots=True)
class Index:
    """The checksums of one content: of its note, and of the tensors in the pieces in which they become chunks."""

    serial: int
    generation: int
    step: int
    rank: int
    world_size: int
    algorithm: str
    note: str
    data: tuple[str, ...]


def index_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.index")


def read_index(path: Path) -> Index | None:
    """The index beside a buffer, if it is about what is in it now."""
    head = peek(path)
    try:
        index = decode_index(index_path(path).read_bytes())
    except (OSError, ValueError, TypeError):
        return None
    return index if head is not None and (index.serial, index.generation, index.step) == (head.seal.serial, *head.seal.key) else None


def encode_index(index: Index) -> bytes:
    return json.dumps(asdict(index)).encode()


def decode_index(text: bytes) -> Index:
    fields = json.loads(text)
    return Index(**{**fields, "data": tuple(fields["data"])})


def write_index(path: Path, index: Index) -> None:
    temporary = index_path(path).with_suffix(".part")
    temporary.write_bytes(encode_index(index))
    temporary.rename(index_path(path))


def verify(buffer: Buffer, index: Index) -> bool:
    """Whether every byte that means something is what it was when the index was made."""
    if digest_of(buffer.note_bytes, index.algorithm) != index.note:
        return False
    pieces = list(_pieces(buffer.data, buffer.note()))
    with ThreadPoolExecutor(_VERIFIERS, thread_name_prefix="holdfast-verify") as pool:  # A worker stands still until it is known.
        return list(pool.map(_digest, pieces, [index.algorithm] * len(pieces))) == list(index.data)


def piece_with(buffer: Buffer, index: Index, digest: str) -> bytes | None:
    """The bytes with this checksum, if they are in the buffer and sound."""
    if digest in index.data:
        data = bytes(list(_pieces(buffer.data, buffer.note()))[index.data.index(digest)]())
        if digest_of(data, index.algorithm) == digest:
            return data
    return None


class Indexing:
    """The checksums of a content, made in a thread of their own so that they do not wait for the disk. Written down as its index when all are there."""

    def __init__(self, buffer: Buffer) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="holdfast-index")
        note, self._algorithm = buffer.note(), best_algorithm()
        self._buffer, self._shard, self.seal = buffer, note["shard"], buffer.head.seal
        self._note = self._pool.submit(digest_of, buffer.note_bytes, self._algorithm)
        self._data: list[Future[str]] = [self._pool.submit(_digest, data, self._algorithm) for data in _pieces(buffer.data, note)]
        self._pool.submit(self._write)
        self._next = 0

    def take(self, count: int) -> list[Future[str]]:
        """The next so many, in order."""
        self._next += count
        return self._data[self._next - count : self._next]

    def _write(self) -> None:
        seal, shard = self.seal, self._shard
        index = Index(
            seal.serial, seal.generation, seal.step, shard["rank"], shard["world_size"], self._algorithm, self._note.result(),
            tuple(one.result() for one in self._data),
        )  # fmt: skip
        if self._buffer.head.seal == seal:
            write_index(self._buffer.path, index)

    def finish(self) -> None:
        self._pool.shutdown(wait=True)

    def give_up(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)


def _pieces(data: memoryview, note: dict[str, Any]) -> Iterator[Callable[[], memoryview]]:
    """How to get the bytes of each piece of the tensors, section by section."""
    for section in note["sections"].values():
        tensors = section["tensors"]
        for inside in cut([tensor["size"] for tensor in tensors]):
            yield partial(_bytes_of, data, tensors, inside)


def _digest(data: Callable[[], memoryview], algorithm: str) -> str:
    return digest_of(data(), algorithm)


def _bytes_of(data: memoryview, tensors: Sequence[dict[str, Any]], inside: Sequence[Extent]) -> memoryview:
    views = [data[(begin := tensors[one.tensor]["offset"] + one.start) : begin + one.size] for one in inside]
    return views[0] if len(views) == 1 else memoryview(b"".join(views))
