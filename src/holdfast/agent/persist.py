"""Persist: what an agent does for the snapshots in its node's memory, whether the workers who took them still live or not.

    sealed by a worker ─► index ─► durable ─► free to be written over, when nothing is lost with it
                              └─► held: can be restored from here, and copied to another node

Each rank's snapshots are made durable one after the other, the oldest first: a checkpoint may refer to the newest complete one only because no rank has two
saves under way (see checkpoint/commit.py). Work is done in threads; what it costs the workers is bounded by the number of them.

What the disk could not take stays in memory, and the newest of it is offered to the disk again: after a pause that doubles, and where it was full as soon as
there is room. All ranks that hold the same step do so, so that it becomes complete.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import sys
import time
from collections import Counter, defaultdict, deque
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from holdfast.agent.heads import Heads
from holdfast.checkpoint.commit import Shard, mark_failed, other_rank_failed, unmark_failed
from holdfast.checkpoint.disk import Disk
from holdfast.checkpoint.found import list_directories, newest_complete
from holdfast.checkpoint.layout import MANIFEST, directory_name, parse_directory_name
from holdfast.checkpoint.persist import Indexing, index_path, persist, read_index, verify
from holdfast.checkpoint.snapshot import DATA, NONE, SPARE_BYTES, Buffer, Head, Word, peek, say
from holdfast.domain.held import Held

_LOOK_EVERY_S: Final = 0.05
_IDLE_EVERY_S: Final = 0.2  # While there is nothing that waits for us.
_RECENT: Final = 8  # Snapshots of a rank that say how long one takes to be durable.
_AGAIN_AFTER_S: Final = 1.0  # From a failure to the next try; doubled by each that follows,
_AGAIN_AFTER_S_MAX: Final = 30.0  # up to this.
_SEALED_WAIT_S: Final = 1.0  # Control says within this which step every rank has in memory.


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """A snapshot that the disk did not take."""

    key: tuple[int, int]  # Generation and step.
    errno: int  # 0: it was not the system that said so.
    said: str
    free_bytes: int | None  # What was free then, where that could be asked.


class Persist:
    """All snapshots below one node's memory."""

    def __init__(self, directory: Path, checkpoints: Path) -> None:
        self._directory, self._checkpoints, self._heads = directory, checkpoints, Heads(directory)
        self._busy: dict[int, asyncio.Task[None]] = {}  # By rank.
        self._ahead: dict[Path, Indexing] = {}  # Of snapshots that wait for the one before them.
        self._verifying: dict[Path, asyncio.Task[None]] = {}
        self._sending: Counter[Path] = Counter()
        self.sealed = self._safe = (NONE, NONE)  # The newest generation and step that every rank has in memory; and a copy of.
        self._generation, self._wanted = 0, (NONE, NONE)  # Which runs here now, and what it restored.
        self._ranks: Collection[int] | None = None  # Those that run here, where they lived on; None: all were started, and others may come for what is here.
        self._held: dict[Path, tuple[int, Held]] = {}  # With the serial number it is about.
        self._took_s: dict[int, deque[float]] = {}  # By rank.
        self.failures: deque[Refused] = deque(maxlen=64)  # Saves the disk did not take, until somebody takes note of them.
        self._tries = 0  # That failed since one succeeded,
        self._again_at = 0.0  # and when the next is made.
        self._full = False  # The last failed for lack of room.
        self._retried: dict[Path, int] = {}  # Serial numbers of contents that are offered once more.

    @property
    def generation(self) -> int:
        return self._generation

    @property
    def is_busy(self) -> bool:
        return bool(self._busy)

    def prepared_bytes(self) -> int:
        """What the buffer of rank 0 may hold: so much a save takes at least. 0 where that rank is not here."""
        sizes = [path.stat().st_size for path, rank in self._heads.own() if rank == 0 and path.exists()]
        return max(0, max(sizes, default=0) - DATA - SPARE_BYTES)

    async def run(self) -> None:
        while True:
            heads = self._heads.of_own()
            self._offer_again(heads)
            self._begin_what_waits(heads)
            self._verify_what_was_left(heads)
            for path, rank, head in heads:
                self._free_if_it_may_go(rank, path, head)
                self._doubt_if_the_disk_is_gone(path, head)
                self._drop_if_it_is_nobodys(rank, path, head)
            under_way = self._busy or any(head.is_sealed and not head.said(Word.FREE) for _, _, head in heads)
            await asyncio.sleep(_LOOK_EVERY_S if under_way else _IDLE_EVERY_S)

    # What is here.

    def held(self) -> tuple[Held, ...]:
        """What could be restored from here: own snapshots and copies of others, with an index and not known to be damaged."""
        found = {}
        for path in (*(path for path, _ in self._heads.own()), *self._heads.copies()):
            head = self._heads.head(path)
            if head is None or not head.is_sealed or head.said(Word.DAMAGED):
                continue
            known = self._held.get(path)
            if known is None or known[0] != head.seal.serial:
                index = read_index(path)
                if index is None:
                    continue
                known = head.seal.serial, Held(generation=index.generation, step=index.step, rank=index.rank, world_size=index.world_size)
            found[path] = known
        self._held = found
        return tuple(sorted({held for _, held in found.values()}, key=lambda one: (one.generation, one.step, one.rank)))

    def where(self, wanted: Held) -> Path | None:
        """The file that holds it."""
        self.held()
        return next((path for path, (_, held) in self._held.items() if held == wanted), None)

    @contextlib.contextmanager
    def sending(self, path: Path) -> Iterator[None]:
        """While its content is sent somewhere it is not written over."""
        self._sending[path] += 1
        try:
            yield
        finally:
            self._sending[path] -= 1

    def whole(self, sealed: tuple[int, int], safe: tuple[int, int], permit: int) -> None:
        """What control says is whole in memory."""
        self.sealed, self._safe = max(self.sealed, sealed), max(self._safe, safe)
        for path, _ in self._heads.own():
            head = peek(path)
            if head is not None and head.said(Word.FAILED) and head.seal.key > self._safe and permit > head.seal.step:
                say(path, Word.PERMIT, permit)

    def may_go(self, key: tuple[int, int]) -> bool:
        """Whether nothing is lost with a content: it was given up, every rank has a newer one in memory, or the disk has the whole checkpoint, or had it
        and has removed it for a newer one.
        """
        generation, step = key
        given_up = generation < self._generation and key != self._wanted
        path = self._checkpoints / directory_name(step, generation)
        return given_up or key < self._safe or (path / MANIFEST).exists() or (not path.exists() and self._disk_has_newer(key))

    def _disk_has_newer(self, key: tuple[int, int]) -> bool:
        found = ((parse_directory_name(path.name), path) for path in list_directories(self._checkpoints))
        return any(name is not None and (name[1], name[0]) > key and (path / MANIFEST).exists() for name, path in found)

    # From one generation to the next.

    def hand_over(self, generation: int, ranks: Collection[int], restore: str) -> None:
        """The memory of the generation before is for those who come now. What they are to restore stays as it is; all else may be written over."""
        wanted = parse_directory_name(restore)
        self._ranks = None
        self._generation, self._wanted = generation, (wanted[1], wanted[0]) if wanted else (NONE, NONE)
        for path, rank in self._heads.own():
            head = peek(path)
            if rank not in ranks and (head is None or head.seal.key != self._wanted):
                self.drop(path)
        for path in self._heads.copies():
            head, rank = peek(path), int(path.name.removeprefix("copy-"))
            if rank in ranks and head is not None and head.is_sealed and head.seal.key == self._wanted:
                self._make_own(path, rank)
        self.try_again()

    def live_on(self, ranks: Collection[int]) -> None:
        """The workers of the generation before go on as these ranks. What they saved when they had others stays until nothing is lost with it."""
        self._ranks = ranks

    def try_again(self) -> None:
        """What the disk could not take is offered to it once more: at a failure, and before this memory is gone."""
        for path, _ in self._heads.own():
            head = peek(path)
            if head is not None and head.said(Word.FAILED) and not head.said(Word.FREE):
                say(path, Word.FAILED, 0)

    def _offer_again(self, heads: list[tuple[Path, int, Head]]) -> None:
        """The newest that the disk could not take of each rank, once it is time and there is room for it."""
        failed = {}
        for path, rank, head in sorted(heads, key=lambda one: one[2].seal.key):
            if head.said(Word.FAILED) and not head.said(Word.FREE):
                failed[rank] = path, head
        if not failed or self._busy or time.monotonic() < self._again_at or any(head.is_waiting for _, _, head in heads):
            return
        self._again_at = time.monotonic() + _AGAIN_AFTER_S
        if self._full and not self._has_room(sum(head.seal.data_bytes for _, head in failed.values())):
            return
        for rank, (path, head) in failed.items():
            # From here on it is no longer swept as one that all ranks have answered for.
            unmark_failed(self._checkpoints / head.seal.name, rank)
            self._retried[path] = head.seal.serial
            say(path, Word.FAILED, 0)

    def _has_room(self, data_bytes: int) -> bool:
        """Whether it is worth a try. Less than all of it may be enough, where chunks did not change: then the newest checkpoint tells."""
        newest = newest_complete(self._checkpoints)
        needs_bytes = min(data_bytes, newest.manifest.own_bytes) if newest is not None and newest.manifest.own_bytes else data_bytes
        try:
            left = os.statvfs(self._checkpoints)
        except OSError:
            return True  # The next try says what is wrong now.
        return free_bytes(left) >= needs_bytes and (not left.f_files or left.f_favail > 0)

    def _make_own(self, copy: Path, rank: int) -> None:
        """What was held for another node is for a rank that runs here now. If it ran here before, what it left then goes for it."""
        both = [self._directory / f"snapshot-{rank}-{which}" for which in (0, 1)]
        heads = {path: head for path in both if (head := peek(path)) is not None}
        if any(head.seal.key == self._wanted for head in heads.values()):
            self.drop(copy)
        elif index_path(copy).exists():
            idle = [path for path in both if path not in heads or not heads[path].is_waiting]
            # Of two that wait the older one is being made durable.
            target = min(idle, key=lambda path: path.exists()) if idle else max(both, key=lambda path: heads[path].seal.key)
            copy.rename(target)
            index_path(copy).rename(index_path(target))

    def drop(self, path: Path) -> None:
        path.unlink(missing_ok=True)
        index_path(path).unlink(missing_ok=True)

    # Making durable.

    @property
    def durable_s(self) -> float:
        """How long a snapshot takes to be durable, on the slowest rank."""
        recent = [tuple(took) for took in tuple(self._took_s.values())]  # Copied at once: threads add to them.
        return max((sum(took) / len(took) for took in recent if took), default=0.0)

    async def settle(self, *, within_s: float) -> None:
        """Until all that is sealed is durable or has failed, or the time is up."""
        with contextlib.suppress(asyncio.TimeoutError):
            async with asyncio.timeout(within_s):
                while self._begin_what_waits(self._heads.of_own()):
                    await asyncio.wait(list(self._busy.values()), return_when=asyncio.FIRST_COMPLETED)

    async def settle_index(self, *, within_s: float) -> None:
        """Until all that is sealed can be restored from memory, or the time is up."""
        with contextlib.suppress(asyncio.TimeoutError):
            async with asyncio.timeout(within_s):
                while self._begin_what_waits(heads := self._heads.of_own()) and any(read_index(path) is None for path, _, head in heads if head.is_waiting):
                    await asyncio.sleep(0.005)

    def _begin_what_waits(self, heads: list[tuple[Path, int, Head]]) -> bool:
        """Whether anything waits or is under way."""
        waiting: dict[int, list[tuple[tuple[int, int], Path]]] = defaultdict(list)
        for path, rank, head in heads:
            if head.is_waiting:
                waiting[rank].append((head.seal.key, path))
        for rank, found in waiting.items():
            if rank not in self._busy:
                path = min(found)[1]
                task = self._busy[rank] = asyncio.create_task(asyncio.to_thread(self._make_durable, rank, path, self._ahead.pop(path, None)))
                task.add_done_callback(lambda _, rank=rank: self._busy.pop(rank, None))  # type: ignore[misc]
            if len(found) > 1:
                self._index_ahead(max(found)[1])
        for path in self._ahead.keys() - {path for found in waiting.values() for _, path in found}:
            self._ahead.pop(path).give_up()
        return bool(self._busy)

    def _index_ahead(self, path: Path) -> None:
        """The disk takes seconds for the snapshot before, and until this one has an index a failure would have to wait for it, or do without."""
        if path not in self._ahead and (buffer := Buffer.open(path)) is not None:
            self._ahead[path] = Indexing(buffer)

    def _make_durable(self, rank: int, path: Path, indexing: Indexing | None) -> None:
        buffer = Buffer.open(path)
        head = buffer.head if buffer is not None else None
        if buffer is None or head is None or not head.is_waiting:
            return
        again = self._retried.pop(path, None) == head.seal.serial
        try:
            if not again and other_rank_failed(self._checkpoints / head.seal.name, rank):
                with contextlib.suppress(OSError):  # What all ranks have answered for is swept; without this rank's word it would stay.
                    mark_failed(Disk(), self._checkpoints, Shard(**buffer.note()["shard"]))
                # What not all ranks have will never be complete, so that the next save can be: all are free for it. Else all of them try it again.
                say(path, Word.FAILED if self._is_sealed_soon(path, head.seal.key) else Word.FREE, head.seal.serial)
                return
            if not (self._checkpoints / head.seal.name / MANIFEST).exists():  # A disk that was gone may come back with it.
                began = time.monotonic()
                persist(buffer, indexing=indexing)
                self._took_s.setdefault(rank, deque(maxlen=_RECENT)).append(time.monotonic() - began)
            say(path, Word.DURABLE, head.seal.serial)
            self._tries = 0
        except Exception as error:  # Whatever it was: the worker is told, older checkpoints are kept, and it is tried again.
            self._note_failure(path, head, error)
        now = peek(path)
        if now is not None:
            self._free_if_it_may_go(rank, path, now)

    def _note_failure(self, path: Path, head: Head, error: Exception) -> None:
        number = error.errno or 0 if isinstance(error, OSError) else 0
        self._full = number in (errno.ENOSPC, errno.EDQUOT)
        self._again_at = time.monotonic() + min(_AGAIN_AFTER_S * 2**self._tries, _AGAIN_AFTER_S_MAX)
        self._tries = min(self._tries + 1, 16)
        try:
            left = free_bytes(os.statvfs(self._checkpoints))
        except OSError:
            left = None
        self.failures.append(Refused(key=head.seal.key, errno=number, said=os.strerror(number) if number else str(error), free_bytes=left))
        with contextlib.suppress(OSError):  # Our log may be on the same disk.
            print(f"holdfast agent: {head.seal.name} in {path.name} could not be made durable: {error!r}", file=sys.stderr, flush=True)
        say(path, Word.ERRNO, number)
        say(path, Word.FAILED, head.seal.serial)

    def _is_sealed_soon(self, path: Path, key: tuple[int, int]) -> bool:
        """Whether every rank has it in memory. The last may have sealed it just now; unless the next save needs this buffer, that is waited for."""
        other, deadline = path.with_name(f"{path.name[:-1]}{1 - int(path.name[-1])}"), time.monotonic() + _SEALED_WAIT_S
        while key > self.sealed and time.monotonic() < deadline:
            beside = peek(other)
            if beside is None or (beside.is_sealed and not beside.said(Word.FREE)):
                break
            time.sleep(_LOOK_EVERY_S)
        return key <= self.sealed

    def _free_if_it_may_go(self, rank: int, path: Path, head: Head) -> None:
        if not head.is_sealed or head.is_waiting or head.said(Word.FREE) or self._sending[path]:
            return
        if self.may_go(head.seal.key) or self._never_whole(rank, head) or (head.said(Word.FAILED) and self._disk_has_newer(head.seal.key)):
            say(path, Word.FREE, head.seal.serial)

    def _doubt_if_the_disk_is_gone(self, path: Path, head: Head) -> None:
        """Durable, and whether the checkpoint became whole cannot be seen any more: as if the disk had not taken it, or it would never be written over."""
        if head.said(Word.DURABLE) and not head.said(Word.FREE) and not self._checkpoints.is_dir() and not self.may_go(head.seal.key):
            say(path, Word.DURABLE, 0)
            say(path, Word.FAILED, head.seal.serial)

    def _drop_if_it_is_nobodys(self, rank: int, path: Path, head: Head) -> None:
        """A rank that is no longer here would not write over what it left."""
        is_free = (head.said(Word.FREE) or not head.is_sealed) and rank not in self._busy and not self._sending[path]
        if is_free and self._ranks is not None and rank not in self._ranks:
            self.drop(path)

    def _never_whole(self, rank: int, head: Head) -> bool:
        """Durable here and not in everybody's memory; and another rank has said that it will not save it, or what was written was swept since."""
        path = self._checkpoints / head.seal.name
        given_up = other_rank_failed(path, rank) or (self._checkpoints.is_dir() and not path.exists())
        return head.said(Word.DURABLE) and head.seal.key > self.sealed and given_up

    # Verifying what a worker will restore.

    def _verify_what_was_left(self, heads: list[tuple[Path, int, Head]]) -> None:
        """A worker that is to restore what is here waits until we say that it is sound."""
        for path, _, head in heads:
            if not head.is_sealed or head.seal.key != self._wanted or path in self._verifying:
                continue
            if not (head.said(Word.SOUND) or head.said(Word.DAMAGED)):
                task = self._verifying[path] = asyncio.create_task(asyncio.to_thread(_verify, path, head))
                task.add_done_callback(lambda _, path=path: self._verifying.pop(path, None))  # type: ignore[misc]


def free_bytes(disk: os.statvfs_result) -> int:
    """What may still be written. Some is kept back, and only root may use it."""
    return (disk.f_bfree if os.geteuid() == 0 else disk.f_bavail) * disk.f_frsize


def _verify(path: Path, head: Head) -> None:
    index, buffer = read_index(path), Buffer.open(path)
    if index is None or buffer is None or not verify(buffer, index):
        print(f"holdfast agent: {head.seal.name} in {path.name} is not what it was: it is not used", file=sys.stderr, flush=True)
        say(path, Word.DAMAGED, head.seal.serial)
    else:
        say(path, Word.SOUND, head.seal.serial)
