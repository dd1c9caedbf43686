"""Copies: snapshots of other nodes' ranks, held here so that the loss of a whole failure domain loses nothing; and the way back, when a rank moves.

    the holder asks (Fetch, anything newer) ─► the owner's agent answers when it has something ─► parts ─► verified ─► held

A holder has one copy of each rank it holds, in the memory of one: the old copy goes before the new one comes, so it is sent only when nothing is lost with the
old one, or when the disk has failed and nothing better can come. While training runs, an agent sends for no more than half of the time.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import sys
import time
from collections.abc import AsyncIterator, Collection, Mapping
from pathlib import Path
from typing import Final

from holdfast.agent.heads import COPY
from holdfast.agent.persist import Persist
from holdfast.checkpoint.memory import available_bytes
from holdfast.checkpoint.persist import decode_index, encode_index, persist, read_index, verify, write_index
from holdfast.checkpoint.snapshot import NONE, Buffer, Word, peek
from holdfast.domain.held import Held
from holdfast.errors import HoldfastError
from holdfast.wire.frames import BadFrame, Channel, connect
from holdfast.wire.messages import AnyMessage, Fetch, Part, Refused, Sending

_PART_BYTES: Final = 1 << 20
_SHARE: Final = 0.5  # Of the time, at most, a copy is on its way while training runs.
_ANSWER_WITHIN_S: Final = 10.0  # Then "nothing newer" is the answer, so that either side notices when the other is gone.
_SILENT_S: Final = 30.0
_AGAIN_S: Final = 0.5
_SHARE_OF_MEMORY: Final = 0.4  # Of what is free: a copy must not cost the run of this node its life.


class NotHeld(HoldfastError):
    """A copy could not be had, or not be held."""


class Copies:
    """What this node holds for others, and what it gives them."""

    def __init__(self, directory: Path, persist: Persist) -> None:
        self._directory, self._persist = directory, persist
        self._of: dict[int, str] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._said: dict[int, str] = {}

    def hold(self, of: Mapping[int, str]) -> None:
        """Hold copies of these ranks, from these peers; let go of the others when nothing is lost with them."""
        for rank in [rank for rank in self._tasks if of.get(rank) != self._of.get(rank)]:
            self._tasks.pop(rank).cancel()
        self._of = dict(of)
        for rank, peer in self._of.items():
            if rank not in self._tasks:
                self._tasks[rank] = asyncio.create_task(self._keep(rank, peer))

    async def run(self) -> None:
        while True:
            for path in self._directory.glob("copy-*"):
                name, head = COPY.fullmatch(path.name), peek(path)
                if name and int(name[1]) not in self._of and (head is None or not head.is_sealed or self._persist.may_go(head.seal.key)):
                    self._persist.drop(path)
            await asyncio.sleep(1.0)

    def close(self) -> None:
        self.hold({})

    async def persist(self, ranks: Collection[int]) -> None:
        """Make durable the copies of these ranks: nobody else can any more."""
        for rank in ranks:
            buffer = Buffer.open(self._directory / f"copy-{rank}")
            if buffer is not None and buffer.head.is_sealed and read_index(buffer.path) is not None:
                with contextlib.suppress(Exception):  # Whatever it was, there is no more that could be done; the older checkpoints are kept.
                    await asyncio.to_thread(persist, buffer)

    async def make_durable(self, key: tuple[int, int]) -> None:
        """The copies of one state, whoever's they are: those who own the others make theirs durable themselves."""
        ranks = {int(name[1]): peek(path) for path in self._directory.glob("copy-*") if (name := COPY.fullmatch(path.name))}
        await self.persist([rank for rank, head in ranks.items() if head is not None and head.is_sealed and head.seal.key == key])

    # Getting.

    async def fetch(self, wanted: Held, peer: str) -> None:
        """Get the state of a rank that is to run here into its own memory; raises NotHeld."""
        if self._persist.where(wanted) is not None:
            return
        both = [self._directory / f"snapshot-{wanted.rank}-{which}" for which in (0, 1)]
        path = next((path for path in both if (head := peek(path)) is None or not head.is_waiting), both[0])
        ask = Fetch(rank=wanted.rank, generation=wanted.generation, step=wanted.step, newer=False)
        try:
            channel = await connect(Path(peer))
        except OSError as error:
            raise NotHeld(f"the peer that has rank {wanted.rank} in memory cannot be reached: {error}") from error
        try:
            await self._receive(channel, ask, path)
        finally:
            await channel.closed()

    async def _keep(self, rank: int, peer: str) -> None:
        path = self._directory / f"copy-{rank}"
        while True:
            try:
                channel = await connect(Path(peer))
            except OSError:
                await asyncio.sleep(_AGAIN_S)
                continue
            try:
                while True:
                    head = peek(path)
                    generation, step = head.seal.key if head is not None and read_index(path) is not None else (NONE, NONE)
                    await self._receive(channel, Fetch(rank=rank, generation=generation, step=step, newer=True), path)
                    self._said.pop(rank, None)
            except NotHeld as error:
                self._tell(rank, str(error))
            finally:
                await channel.closed()
            await asyncio.sleep(_AGAIN_S)

    def _tell(self, rank: int, why: str) -> None:
        if why and self._said.get(rank) != why:
            self._said[rank] = why
            print(f"holdfast agent: no copy of rank {rank} is held here: {why}", file=sys.stderr, flush=True)

    async def _receive(self, channel: Channel, ask: Fetch, path: Path) -> None:
        channel.send(ask)
        messages = aiter(channel)
        first = await _next(messages)
        if isinstance(first, Refused) and not first.because:
            return  # Nothing newer yet.
        if isinstance(first, Refused):
            raise NotHeld(first.because)
        if not isinstance(first, Sending):
            raise NotHeld("the peer did not answer with a snapshot")
        buffer = self._room(path, first.data_bytes + first.note_bytes)
        buffer.break_seal()
        done, size = 0, first.data_bytes + first.note_bytes
        while done < size:
            part = await _next(messages)
            if not isinstance(part, Part) or done + len(part.data) > size:
                raise NotHeld("" if isinstance(part, Refused) else "the peer sent something else than the snapshot")
            buffer.data[done : done + len(part.data)] = part.data
            done += len(part.data)
        buffer.seal(first.step, first.generation, first.data_bytes, bytes(buffer.data[first.data_bytes : size]))
        index = dataclasses.replace(decode_index(first.index), serial=buffer.head.seal.serial)
        if not await asyncio.to_thread(verify, buffer, index):
            buffer.break_seal()
            raise NotHeld("what arrived is not what was sealed")
        write_index(path, index)

    def _room(self, path: Path, size_bytes: int) -> Buffer:
        buffer = Buffer.open(path)
        if buffer is not None and buffer.data.nbytes >= size_bytes:
            return buffer
        self._persist.drop(path)
        free_bytes = available_bytes()
        if size_bytes > _SHARE_OF_MEMORY * free_bytes:
            raise NotHeld(f"it takes {size_bytes / 1e9:.1f} GB, and {free_bytes / 1e9:.1f} GB are free")
        try:
            return Buffer.create(path, size_bytes)
        except OSError as error:
            raise NotHeld(f"there is no memory for it: {error}") from error

    # Giving.

    async def serve(self, channel: Channel) -> None:
        """One agent that asks, until it hangs up."""
        with contextlib.suppress(BadFrame, ConnectionError, asyncio.CancelledError):  # The last when the agent leaves.
            async for message in channel:
                if isinstance(message, Fetch):
                    await self._answer(channel, message)

    async def _answer(self, channel: Channel, ask: Fetch) -> None:
        path = await self._find(ask)
        buffer, index = (Buffer.open(path), read_index(path)) if path is not None else (None, None)
        if path is None or buffer is None or index is None:
            channel.send(Refused(because="" if ask.newer else f"rank {ask.rank} of step {ask.step} is not in memory here"))
            return
        with self._persist.sending(path):
            seal = buffer.head.seal
            size = seal.data_bytes + seal.note_bytes
            channel.send(
                Sending(generation=seal.generation, step=seal.step, data_bytes=seal.data_bytes, note_bytes=seal.note_bytes, index=encode_index(index))
            )
            for begin in range(0, size, _PART_BYTES):
                began = time.monotonic()
                channel.send(Part(data=bytes(buffer.data[begin : min(begin + _PART_BYTES, size)])))
                await channel.flush()
                if buffer.head.seal != seal and begin + _PART_BYTES < size:  # Behind the last part nobody waits for a refusal: what is torn does not verify.
                    channel.send(Refused(because=""))  # It was written over, so there is something newer.
                    return
                if ask.newer:
                    await asyncio.sleep((time.monotonic() - began) * (1 / _SHARE - 1))

    async def _find(self, ask: Fetch) -> Path | None:
        """What is asked for: at once, or for something newer within a while."""
        deadline = time.monotonic() + _ANSWER_WITHIN_S
        asked = (ask.generation, ask.step)
        while True:
            of_rank = [held for held in self._persist.held() if held.rank == ask.rank]
            fitting = [held for held in of_rank if (_key(held) > asked if ask.newer else _key(held) == asked)]
            path = self._persist.where(max(fitting, key=_key)) if fitting else None
            if path is not None and (not ask.newer or asked == (NONE, NONE) or self._persist.may_go(asked) or self._is_all_there_is(path)):
                return path
            if not ask.newer or time.monotonic() > deadline:
                return None
            await asyncio.sleep(0.05)

    def _is_all_there_is(self, path: Path) -> bool:
        """Whether the disk could not take it, and every rank has it in memory."""
        head = peek(path)
        return head is not None and head.said(Word.FAILED) and head.seal.key <= self._persist.sealed


def _key(held: Held) -> tuple[int, int]:
    return (held.generation, held.step)


async def _next(messages: AsyncIterator[AnyMessage]) -> AnyMessage:
    try:
        async with asyncio.timeout(_SILENT_S):
            return await anext(messages)
    except (StopAsyncIteration, TimeoutError, BadFrame) as error:
        raise NotHeld("the peer hung up, or sends nothing any more") from error
