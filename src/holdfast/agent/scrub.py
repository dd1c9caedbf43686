"""Scrub: what is kept is read again in the background, compared with its checksums, and mended from another copy before anybody needs it.

Each agent reads what its own ranks saved, on the disk and in memory, at a bounded rate. A damaged chunk on the disk is written again from memory, if the
same bytes are there, or from the remote store; a damaged copy of another node's snapshot is dropped and fetched again; a damaged snapshot of its own is not
used. What cannot be mended is said: a restore that meets it goes back to the checkpoint before.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Final

from holdfast.agent.persist import COPY, Persist
from holdfast.checkpoint.chunks import verify_chunk
from holdfast.checkpoint.disk import Disk, put_file
from holdfast.checkpoint.errors import CheckpointCorrupt, CheckpointMismatch
from holdfast.checkpoint.found import list_complete
from holdfast.checkpoint.layout import Chunk, decode_receipt, receipt_file
from holdfast.checkpoint.persist import piece_with, read_index, verify
from holdfast.checkpoint.snapshot import Buffer, Word, peek, say

Fetch = Callable[[Chunk, str], bytes | None]  # A chunk from somewhere else, by its algorithm: None when it is not there either.
_BYTES_PER_S: Final = 64 << 20
_PAUSE_S: Final = 60.0


class Scrub:
    """`ranks` says who runs here now; `fetch` gets a chunk from the remote store."""

    def __init__(
        self, directory: Path, checkpoints: Path, persist: Persist, *, ranks: Callable[[], Collection[int]], fetch: Fetch = lambda chunk, algorithm: None,
        bytes_per_s: float = _BYTES_PER_S, pause_s: float = _PAUSE_S,
    ) -> None:  # fmt: skip
        self._directory, self._checkpoints, self._persist, self._ranks, self._fetch = directory, checkpoints, persist, ranks, fetch
        self._bytes_per_s, self._pause_s = bytes_per_s, pause_s
        self._told: set[Chunk] = set()
        self.passes = self.repaired = 0

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self._pause_s)
            await self.look_through()

    async def look_through(self) -> None:
        """One pass over all of it."""
        for path in [*self._directory.glob("snapshot-*-?"), *self._directory.glob("copy-*")]:
            if path.suffix != ".index":
                await self._wait_for(await asyncio.to_thread(self._look_at_memory, path))
        for chunk, algorithm in list(self._on_disk()):
            await self._wait_for(await asyncio.to_thread(self._look_at_disk, chunk, algorithm))
        self.passes += 1

    async def _wait_for(self, bytes_read: int) -> None:
        """The disk and the memory belong to the training: we take a bounded share."""
        await asyncio.sleep(bytes_read / self._bytes_per_s)

    def _look_at_memory(self, path: Path) -> int:
        head, index, buffer = peek(path), read_index(path), Buffer.open(path)
        if head is None or index is None or buffer is None or head.said(Word.DAMAGED):
            return 0
        sound = verify(buffer, index)
        if not sound and buffer.head.seal == head.seal:  # Else it was written over meanwhile.
            _tell(f"{head.seal.name} in {path.name} is damaged: {'it is fetched again' if COPY.fullmatch(path.name) else 'it is not used'}")
            if COPY.fullmatch(path.name):
                self._persist.drop(path)
            else:
                say(path, Word.DAMAGED, head.seal.serial)
        return head.seal.data_bytes

    def _on_disk(self) -> Iterator[tuple[Chunk, str]]:
        """What the ranks of this node have on the disk, each chunk once."""
        seen: set[Chunk] = set()
        for found in list_complete(self._checkpoints):
            for rank in self._ranks():
                try:
                    receipt = decode_receipt((found.path / receipt_file(rank)).read_bytes())
                except (OSError, CheckpointCorrupt, CheckpointMismatch):
                    continue
                yield from ((chunk, receipt.algorithm) for chunk in receipt.chunks if chunk not in seen)
                seen |= set(receipt.chunks)

    def _look_at_disk(self, chunk: Chunk, algorithm: str) -> int:
        try:
            verify_chunk(self._checkpoints, chunk, algorithm)
        except CheckpointCorrupt as corrupt:
            if self._is_still_needed(chunk) and chunk not in self._told:
                self._mend(chunk, algorithm, str(corrupt))
        return chunk.size_bytes

    def _is_still_needed(self, chunk: Chunk) -> bool:
        return any(chunk in found.manifest.chunks for found in list_complete(self._checkpoints))

    def _mend(self, chunk: Chunk, algorithm: str, why: str) -> None:
        data = self._in_memory(chunk) or self._fetch(chunk, algorithm)
        if data is None:
            self._told.add(chunk)
            _tell(f"{why} No other copy of it is left: a restore will go back to a checkpoint without it")
            return
        path = self._checkpoints / chunk.path
        disk = Disk()
        put_file(disk, path, data, temporary=path.with_name(f"{path.name}.part-scrub"))
        disk.sync_directory(path.parent)
        self.repaired += 1
        _tell(f"{why} It was written again from another copy")

    def _in_memory(self, chunk: Chunk) -> bytes | None:
        for path in [*self._directory.glob("snapshot-*-?"), *self._directory.glob("copy-*")]:
            index, buffer = read_index(path), Buffer.open(path)
            if index is not None and buffer is not None and (data := piece_with(buffer, index, chunk.digest)) is not None:
                return data
        return None


def _tell(text: str) -> None:
    print(f"holdfast agent: scrub: {text}", file=sys.stderr, flush=True)
