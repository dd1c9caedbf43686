"""Scrub: what is kept is read again in the background, compared with its checksums, and mended from another copy before anybody needs it.

Each agent reads what its own ranks saved, on the disk and in memory, at a bounded rate. A damaged chunk on the disk is written again from memory, if the
same bytes are there, or from the remote store; a damaged copy of another node's snapshot is dropped and fetched again; a damaged snapshot of its own is not
used. What cannot be mended is said, once, and tried again in the next pass: a restore that meets it goes back to the checkpoint before.

Costs       what is read is paid for by a pause afterwards: a chunk of 32 MiB, or a whole snapshot, which would else be written over before it was read.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Collection, Iterator
from pathlib import Path
from typing import Final

from holdfast.agent.heads import COPY
from holdfast.agent.persist import Persist
from holdfast.checkpoint.chunks import verify_chunk
from holdfast.checkpoint.disk import Disk, put_file
from holdfast.checkpoint.errors import CheckpointCorrupt, CheckpointMismatch
from holdfast.checkpoint.found import CheckpointFound, list_complete
from holdfast.checkpoint.layout import Chunk, decode_receipt, receipt_file
from holdfast.checkpoint.persist import piece_with, read_index, verify
from holdfast.checkpoint.remote_files import Stop, temporary
from holdfast.checkpoint.snapshot import Buffer, Word, peek, say
from holdfast.errors import HoldfastError

Fetch = Callable[[Chunk, str], bytes | None]  # A chunk from somewhere else, by its algorithm: None when it is not there either.
_BYTES_PER_S: Final = 64 << 20
_PAUSE_S: Final = 60.0
_CHANGED: Final = (ValueError, KeyError, IndexError, TypeError)  # What reading a snapshot comes to that is written over meanwhile.


def from_remote(url: str, stop: Stop) -> Fetch:
    """Chunks as the remote store has kept them; with no `url`, nothing."""

    def fetch(chunk: Chunk, algorithm: str) -> bytes | None:
        if not url:
            return None
        from holdfast.checkpoint.remote_address import open_remote  # Only here: an agent that finds no damage stays light.

        try:
            return open_remote(url).fetch_chunk(chunk, algorithm, stop=stop)
        except HoldfastError:
            return None

    return fetch


class Scrub:
    """`ranks` says who runs here now; `fetch` gets a chunk from somewhere else; `wait` lets so many seconds pass."""

    def __init__(
        self, directory: Path, checkpoints: Path, persist: Persist, *, ranks: Callable[[], Collection[int]], fetch: Fetch = lambda chunk, algorithm: None,
        bytes_per_s: float = _BYTES_PER_S, pause_s: float = _PAUSE_S, wait: Callable[[float], Awaitable[None]] = asyncio.sleep,
        tell: Callable[[str], None] = lambda text: print(f"holdfast agent: scrub: {text}", file=sys.stderr, flush=True),
    ) -> None:  # fmt: skip
        self._directory, self._checkpoints, self._persist, self._ranks, self._fetch = directory, checkpoints, persist, ranks, fetch
        self._bytes_per_s, self._pause_s, self._wait, self._tell = bytes_per_s, pause_s, wait, tell
        self._told: set[Chunk] = set()
        self.repaired = 0

    async def run(self) -> None:
        while True:
            await self._wait(self._pause_s)
            await self.look_through()

    async def look_through(self) -> None:
        """One pass over all of it."""
        for path in self._in_memory():
            await self._pay_for(await asyncio.to_thread(self._look_at_memory, path))
        for chunk, algorithm in await asyncio.to_thread(self._on_disk, tuple(self._ranks())):
            await self._pay_for(await asyncio.to_thread(self._look_at_disk, chunk, algorithm))

    async def _pay_for(self, bytes_read: int) -> None:
        """The disk and the memory belong to the training: we take a bounded share."""
        await self._wait(bytes_read / self._bytes_per_s)

    # In memory.

    def _in_memory(self) -> list[Path]:
        copies = [path for path in self._directory.glob("copy-*") if COPY.fullmatch(path.name)]
        return sorted([*self._directory.glob("snapshot-*-?"), *copies])

    def _look_at_memory(self, path: Path) -> int:
        head, index, buffer = peek(path), read_index(path), Buffer.open(path)
        if head is None or index is None or buffer is None or head.said(Word.DAMAGED):
            return 0
        try:
            sound = verify(buffer, index)
        except _CHANGED:
            sound = False
        if not sound and buffer.head.seal == head.seal:  # Else it was written over meanwhile.
            is_copy = COPY.fullmatch(path.name)
            self._tell(f"{head.seal.name} in {path.name} is damaged: {'it is fetched again' if is_copy else 'it is not used'}")
            if is_copy:
                self._persist.drop(path)
            else:
                say(path, Word.DAMAGED, head.seal.serial)
        return head.seal.data_bytes

    # On the disk.

    def _on_disk(self, ranks: Collection[int]) -> list[tuple[Chunk, str]]:
        """What these ranks have on the disk, each chunk once."""
        found: dict[Chunk, str] = {}
        for one in list_complete(self._checkpoints):
            for rank in ranks:
                found |= dict.fromkeys(self._chunks_of(one, rank), one.manifest.algorithm)
        return sorted(found.items())

    def _chunks_of(self, found: CheckpointFound, rank: int) -> tuple[Chunk, ...]:
        """By its receipt. What came from a remote store has none: rank 0 answers for all of it."""
        try:
            return decode_receipt((found.path / receipt_file(rank)).read_bytes()).chunks
        except (OSError, CheckpointCorrupt, CheckpointMismatch):
            return found.manifest.chunks if rank == 0 else ()

    def _look_at_disk(self, chunk: Chunk, algorithm: str) -> int:
        try:
            verify_chunk(self._checkpoints, chunk, algorithm)
        except CheckpointCorrupt as corrupt:
            if self._is_still_needed(chunk):
                self._mend(chunk, algorithm, str(corrupt))
        return chunk.size_bytes

    def _is_still_needed(self, chunk: Chunk) -> bool:
        """Retention takes a manifest away before its chunks."""
        return any(chunk in found.manifest.chunks for found in list_complete(self._checkpoints))

    def _mend(self, chunk: Chunk, algorithm: str, why: str) -> None:
        data = next(self._copies_of(chunk, algorithm), None)
        if data is None:
            self._tell_once(chunk, f"{why} No other copy of it is left: a restore will go back to a checkpoint without it")
            return
        path, disk = self._checkpoints / chunk.path, Disk()
        try:
            put_file(disk, path, data, temporary=path.with_name(temporary(path.name)))
            disk.sync_directory(path.parent)
        except OSError as error:
            self._tell_once(chunk, f"{why} It cannot be written again: {error.strerror or error}")
            return
        self._told.discard(chunk)
        self.repaired += 1
        self._tell(f"{why} It was written again from another copy")

    def _copies_of(self, chunk: Chunk, algorithm: str) -> Iterator[bytes]:
        for path in self._in_memory():
            index, buffer = read_index(path), Buffer.open(path)
            try:
                data = piece_with(buffer, index, chunk.digest) if index is not None and buffer is not None else None
            except _CHANGED:
                continue
            if data is not None:
                yield data
        data = self._fetch(chunk, algorithm)
        if data is not None:
            yield data

    def _tell_once(self, chunk: Chunk, text: str) -> None:
        if chunk not in self._told:
            self._told.add(chunk)
            self._tell(text)
