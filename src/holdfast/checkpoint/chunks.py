"""Chunks: how the bytes of a state are cut, written once, and read back checked.

    cut        tensors ─► extents ─► chunks: a large tensor has chunks of its own, small ones share one
    Store      puts chunks into a checkpoint's directory; what an older checkpoint holds already is referred to and not written again
    fetch      gets the bytes of many chunks back, each checked before it is used; `verify_all` only checks them

A tensor's chunks begin where it begins, so that what is frozen is never mixed with what is trained and is found again as it was.
"""

from __future__ import annotations

import mmap
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import sleep
from typing import Any, Final, TypeVar

from holdfast.checkpoint.digest import Bytes, digest_of, new_digest
from holdfast.checkpoint.disk import Disk, put_file, read_past_the_cache, read_some
from holdfast.checkpoint.errors import CheckpointCorrupt
from holdfast.checkpoint.layout import CHUNKS, Chunk
from holdfast.checkpoint.passing import passes

_CHUNK_BYTES: Final = 32 << 20
_OWN_BYTES: Final = 256 << 10  # From this size on a tensor has chunks of its own.
_PACK_BYTES: Final = 1 << 20  # Smaller ones share chunks of about this size.
_READERS: Final = 8
_READ_BYTES: Final = 1 << 20
_AGAIN_AFTER_S: Final = (0.1, 0.5, 2.0)  # An older checkpoint costs more than this.

Content = Bytes | tuple[Bytes, Callable[[], str]]  # With what gives its digest, where somebody makes it already.
Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Extent:
    """A stretch of one tensor's bytes."""

    tensor: int
    start: int
    size: int


def cut(sizes: Sequence[int]) -> Iterator[tuple[Extent, ...]]:
    """The chunks for tensors of these sizes, in order; together they hold every byte once."""
    pack: list[Extent] = []
    for tensor, size in enumerate(sizes):
        if size >= _OWN_BYTES:
            for start in range(0, size, _CHUNK_BYTES):
                yield (Extent(tensor, start, min(_CHUNK_BYTES, size - start)),)
        elif size:
            if sum(one.size for one in pack) + size > _PACK_BYTES:
                yield tuple(pack)
                pack = []
            pack.append(Extent(tensor, 0, size))
    if pack:
        yield tuple(pack)


def put_cut(store: Store, sizes: Sequence[int], read: Callable[[Sequence[tuple[Extent, ...]]], Iterator[Content]]) -> list[list[list[Any]]]:
    """Store tensors of these sizes, whose bytes `read` gives chunk by chunk; for each the places of its bytes: digest, offset, size."""
    places: list[list[list[Any]]] = [[] for _ in sizes]
    extents = list(cut(sizes))
    for chunk, inside in zip(store.put_all(read(extents)), extents, strict=True):
        offset = 0
        for extent in inside:
            places[extent.tensor].append([chunk.digest, offset, extent.size])
            offset += extent.size
    return places


class Store:
    """Where the chunks of one rank's part of a checkpoint go. `known` are those of an older checkpoint that will outlive this save."""

    def __init__(self, disk: Disk, checkpoints: Path, home: str, *, rank: int, known: Mapping[str, Chunk], algorithm: str) -> None:
        self._disk, self._home, self._rank, self._known = disk, home, rank, known
        self._checkpoints, self._directory = checkpoints, checkpoints / home / CHUNKS
        self._lock = threading.Lock()
        self._taken: dict[str, Chunk] = {}
        self._written: list[str] = []
        self.algorithm = algorithm

    @property
    def chunks(self) -> tuple[Chunk, ...]:
        return tuple(sorted(self._taken.values()))

    def put(self, content: Content) -> Chunk:
        """See that these bytes are durable once the directory is; the same bytes may be put often, by several threads and ranks at a time."""
        data, digest = (content[0], content[1]()) if isinstance(content, tuple) else (content, digest_of(content, self.algorithm))
        size = memoryview(data).nbytes
        with self._lock:
            if digest in self._taken:
                return self._taken[digest]
            known = self._known.get(digest)
            if known is not None and known.size_bytes == size == _size_of(self._checkpoints / known.path):
                self._taken[digest] = known
                return known
            self._taken[digest] = chunk = Chunk(digest, size, self._home)
        if _size_of(self._directory / digest) != size:  # Else another rank has written the same.
            self._written.append(digest)
            put_file(self._disk, self._directory / digest, data, temporary=self._directory / f"{digest}.part-{self._rank:05d}")
        return chunk

    def withdraw(self) -> None:
        """Remove what this rank wrote."""
        for digest in self._written:
            self._disk.remove(self._directory / digest)

    def put_all(self, data: Iterable[Content]) -> list[Chunk]:
        """`put` each, several at a time; the next ones are asked for only when there is somebody free to write them."""
        return list(several_at_a_time(self.put, data, workers=self._disk.writers))


def fetch(
    checkpoints: Path, chunks: Iterable[Chunk], algorithm: str, into: Callable[[Chunk], memoryview], use: Callable[[Chunk, memoryview], None], *, alone: bool
) -> None:  # fmt: skip
    """Read each chunk where `into` says, and `use` it once it is checked, both in one of several threads; raises CheckpointCorrupt.

    `alone` when nobody else on this node reads the same now: it need not be kept in the page cache then.
    """

    def get(chunk: Chunk) -> None:
        view = into(chunk)
        read_chunk(checkpoints, chunk, algorithm, view, alone=alone)
        use(chunk, view)

    for _ in several_at_a_time(get, chunks, workers=_READERS):
        pass


def verify_all(checkpoints: Path, chunks: Iterable[Chunk], algorithm: str) -> Iterator[Chunk]:
    """Each chunk once it is checked; raises CheckpointCorrupt at the first that is damaged."""

    def check(chunk: Chunk) -> Chunk:
        verify_chunk(checkpoints, chunk, algorithm)
        return chunk

    return several_at_a_time(check, chunks, workers=_READERS)


def read_chunk(checkpoints: Path, chunk: Chunk, algorithm: str, into: memoryview, *, alone: bool = False) -> None:
    """Fill `into`, which has the chunk's size; raises CheckpointCorrupt when that is not what was written."""
    _read(checkpoints / chunk.path, chunk, algorithm, lambda done: into[done : done + _READ_BYTES], alone=alone)


def verify_chunk(checkpoints: Path, chunk: Chunk, algorithm: str) -> None:
    """Read a chunk and keep nothing of it; raises CheckpointCorrupt when it is not what was written."""
    if not hasattr(_scratch, "memory"):
        _scratch.memory = memoryview(mmap.mmap(-1, _READ_BYTES))
    _read(checkpoints / chunk.path, chunk, algorithm, lambda done: _scratch.memory[: chunk.size_bytes - done], alone=True)


_scratch = threading.local()


def _read(path: Path, chunk: Chunk, algorithm: str, place: Callable[[int], memoryview], *, alone: bool) -> None:
    """A disk that stumbles is asked again; what it gives in the end must be what was written."""
    for wait_s in (*_AGAIN_AFTER_S, 0.0):
        try:
            hasher, done, beyond = _read_once(path, chunk, algorithm, place, alone=alone)
            break
        except OSError as error:
            if not wait_s or not passes(error):
                raise CheckpointCorrupt(f"chunk {path} cannot be read: {error}.", chunk) from error
            sleep(wait_s)
    if done != chunk.size_bytes or beyond:
        raise CheckpointCorrupt(f"chunk {path} is damaged: expected {chunk.size_bytes} bytes, saw {'more' if beyond else done}.", chunk)
    if hasher.hexdigest() != chunk.digest:
        raise CheckpointCorrupt(f"chunk {path} is damaged: expected {algorithm} {chunk.digest}, saw {hasher.hexdigest()}.", chunk)


def _read_once(path: Path, chunk: Chunk, algorithm: str, place: Callable[[int], memoryview], *, alone: bool) -> tuple[Any, int, int]:
    """Read and hash in pieces that are still in the processor's cache when they are hashed; how much that was, and whether there is more."""
    hasher, done = new_digest(algorithm), 0
    with path.open("rb", buffering=0) as file:
        if alone and chunk.size_bytes >= _READ_BYTES:
            read_past_the_cache(file)
        while (piece := place(done)).nbytes and (count := read_some(file, piece)):
            hasher.update(piece[:count])
            done += count
        return hasher, done, read_some(file, memoryview(bytearray(1)))


def verify_size(checkpoints: Path, chunk: Chunk) -> None:
    """What can be asked of every chunk without reading it; raises CheckpointCorrupt."""
    seen = _size_of(checkpoints / chunk.path)
    if seen != chunk.size_bytes:
        saw = "none is there" if seen is None else f"saw {seen}"
        raise CheckpointCorrupt(f"chunk {checkpoints / chunk.path} is damaged: expected {chunk.size_bytes} bytes, {saw}.", chunk)


def several_at_a_time(work: Callable[[Item], Result], items: Iterable[Item], *, workers: int) -> Iterator[Result]:
    """The results in order. At most two items for each worker are taken ahead, so that what is not needed yet is not made yet."""
    if workers == 1:
        yield from map(work, items)
        return
    from collections import deque
    from concurrent.futures import Future, ThreadPoolExecutor  # Only here: it takes milliseconds to load.

    ahead: deque[Future[Result]] = deque()
    with ThreadPoolExecutor(workers, thread_name_prefix="holdfast-chunks") as pool:
        try:
            for item in items:
                ahead.append(pool.submit(work, item))
                if len(ahead) >= 2 * workers:
                    yield ahead.popleft().result()
            while ahead:
                yield ahead.popleft().result()
        finally:
            for future in ahead:
                future.cancel()


def _size_of(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None
