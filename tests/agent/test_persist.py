"""Making snapshots durable: how long it takes, and what becomes of one that the other ranks never save."""

from __future__ import annotations

import asyncio
import errno
import io
import os
import shutil
import threading
from dataclasses import dataclass
from pathlib import Path

import pytest
from agent.test_copies import seal

from holdfast.agent.persist import Persist
from holdfast.checkpoint.commit import Shard, mark_failed
from holdfast.checkpoint.disk import Disk
from holdfast.checkpoint.layout import MANIFEST, directory_name
from holdfast.checkpoint.remove import sweep_failed
from holdfast.checkpoint.snapshot import Buffer, Word, peek

pytestmark = pytest.mark.unprivileged
OTHER = 1  # The rank that does not save.


@pytest.fixture
def kept(tmp_path: Path) -> Persist:
    """Of a node whose rank has saved steps 10 and 20, and made them durable, while another rank has saved neither."""
    memory, checkpoints = tmp_path / "memory", tmp_path / "checkpoints"
    memory.mkdir()
    checkpoints.mkdir()
    persist = Persist(memory, checkpoints)
    for which, step in enumerate((10, 20)):
        seal(memory, checkpoints, rank=0, step=step, world_size=2, which=which)
    asyncio.run(persist.settle(within_s=30.0))
    assert persist.durable_s > 0.0
    return persist


def give_up(tmp_path: Path, step: int) -> None:
    mark_failed(Disk(), tmp_path / "checkpoints", Shard(step=step, generation=1, world_size=2, rank=OTHER))


def free(tmp_path: Path, persist: Persist) -> list[bool]:
    """Whether step 10 and step 20 may be written over."""
    for path, rank, head in persist._heads.of_own():
        persist._free_if_it_may_go(rank, path, head)
    heads = [peek(tmp_path / "memory" / f"snapshot-0-{which}") for which in (0, 1)]
    return [head is not None and head.said(Word.DURABLE) and head.said(Word.FREE) for head in heads]


def test_memory_waits_for_the_other_ranks_until_one_says_that_it_will_not_save(tmp_path: Path, kept: Persist) -> None:
    assert free(tmp_path, kept) == [False, False]
    give_up(tmp_path, 20)
    assert free(tmp_path, kept) == [False, True]
    give_up(tmp_path, 10)
    assert free(tmp_path, kept) == [True, True]


def test_what_was_given_up_and_swept_before_anybody_looked_is_free_too(tmp_path: Path, kept: Persist) -> None:
    give_up(tmp_path, 10)
    sweep_failed(Disk(), tmp_path / "checkpoints", generation=1, before_step=20, world_size=2)
    assert not (tmp_path / "checkpoints" / directory_name(10, 1)).exists()
    assert free(tmp_path, kept) == [True, False]


def test_what_every_rank_has_in_memory_stays_although_a_disk_could_not_take_it(tmp_path: Path, kept: Persist) -> None:
    kept.whole((1, 20), (-1, -1), 0)
    give_up(tmp_path, 20)
    assert free(tmp_path, kept) == [False, False]


def test_what_the_disk_removed_for_a_newer_one_before_anybody_looked_is_free_although_every_rank_had_it_in_memory(tmp_path: Path, kept: Persist) -> None:
    kept.whole((1, 20), (-1, -1), 0)
    shutil.rmtree(tmp_path / "checkpoints" / directory_name(10, 1))
    assert free(tmp_path, kept) == [False, False], "nothing newer is whole on the disk"
    (tmp_path / "checkpoints" / directory_name(20, 1) / MANIFEST).write_text("all of it")
    assert free(tmp_path, kept) == [True, True]


def test_a_disk_that_is_gone_frees_nothing(tmp_path: Path, kept: Persist) -> None:
    (tmp_path / "checkpoints").rename(tmp_path / "aside")
    assert free(tmp_path, kept) == [False, False]
    (tmp_path / "checkpoints").write_text("no directory any more")
    assert free(tmp_path, kept) == [False, False]


def test_what_was_durable_on_a_disk_that_is_gone_may_be_written_over_when_nothing_newer_becomes_whole(tmp_path: Path, kept: Persist) -> None:
    checkpoints, memory = tmp_path / "checkpoints", tmp_path / "memory" / "snapshot-0-0"
    checkpoints.rename(tmp_path / "aside")
    for path, _, head in kept._heads.of_own():
        kept._doubt_if_the_disk_is_gone(path, head)
    kept.whole((-1, -1), (-1, -1), 25)
    buffer = Buffer.open(memory)
    assert buffer is not None
    assert (buffer.is_writable(24), buffer.is_writable(25)) == (False, True)
    (tmp_path / "aside").rename(checkpoints)
    kept.try_again()  # And what was not is offered to the disk again.
    asyncio.run(kept.settle(within_s=30.0))
    head = peek(memory)
    assert head is not None
    assert (head.said(Word.DURABLE), head.said(Word.FREE)) == (True, False)


def test_what_a_rank_saved_here_before_it_got_another_number_goes_when_nothing_is_lost_with_it(tmp_path: Path, kept: Persist) -> None:
    def look() -> list[str]:
        free(tmp_path, kept)
        for path, rank, head in kept._heads.of_own():
            kept._drop_if_it_is_nobodys(rank, path, head)
        return sorted(path.name for path in (tmp_path / "memory").glob("snapshot-?-?"))

    both = ["snapshot-0-0", "snapshot-0-1"]
    kept.live_on([0])
    give_up(tmp_path, 10)
    assert look() == both, "it is the same rank, and writes over what is free"
    kept.live_on([3])
    assert look() == both[1:], "step 20 may still be needed"
    give_up(tmp_path, 20)
    assert look() == []


@dataclass(frozen=True, slots=True)
class Waiting:
    """A node whose rank has saved steps 10 and 20, and whose disk takes nothing until it is let."""

    persist: Persist
    memory: Path
    disk: threading.Event


@pytest.fixture
def waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Waiting:
    memory, checkpoints, disk = tmp_path / "memory", tmp_path / "checkpoints", threading.Event()
    memory.mkdir()
    checkpoints.mkdir()
    monkeypatch.setattr(Disk, "create", lambda self, path: disk.wait(60.0) and io.FileIO(path, "wb"))
    for which, step in enumerate((10, 20)):
        seal(memory, checkpoints, rank=0, step=step, world_size=1, which=which)
    return Waiting(Persist(memory, checkpoints), memory, disk)


def test_what_waits_for_the_disk_can_be_restored_from_memory_meanwhile(waiting: Waiting) -> None:
    persist, memory = waiting.persist, waiting.memory

    async def steps() -> list[int]:
        await persist.settle_index(within_s=30.0)
        held = [one.step for one in persist.held()]
        assert peek(memory / "snapshot-0-0").is_waiting, "the disk has taken nothing yet"  # type: ignore[union-attr]
        waiting.disk.set()
        await persist.settle(within_s=30.0)
        return held

    assert asyncio.run(steps()) == [10, 20]
    assert not persist._ahead
    assert [peek(memory / f"snapshot-0-{which}").said(Word.DURABLE) for which in (0, 1)] == [True, True]  # type: ignore[union-attr]


def test_an_index_that_was_begun_for_what_is_given_up_is_given_up_too(waiting: Waiting) -> None:
    persist, memory = waiting.persist, waiting.memory

    async def given_up() -> None:
        await persist.settle_index(within_s=30.0)
        assert set(persist._ahead) == {memory / "snapshot-0-1"}
        persist.hand_over(2, ranks=(), restore=directory_name(10, 1))
        waiting.disk.set()
        await persist.settle(within_s=30.0)

    asyncio.run(given_up())
    assert not persist._ahead
    assert not (memory / "snapshot-0-1").exists()


# What the disk could not take.


@pytest.fixture
def refused(tmp_path: Path) -> Persist:
    """Of a node whose ranks 0 and 1 have sealed step 10, and whose disk takes neither: a file is in the way of the directory."""
    memory, checkpoints = tmp_path / "memory", tmp_path / "checkpoints"
    memory.mkdir()
    checkpoints.write_text("in the way")
    persist = Persist(memory, checkpoints)
    persist.whole((1, 10), (-1, -1), 0)
    for rank in (0, 1):
        seal(memory, checkpoints, rank=rank, step=10, world_size=2)
    asyncio.run(persist.settle(within_s=30.0))
    return persist


def test_a_save_that_failed_is_told_of_with_what_the_system_said(tmp_path: Path, refused: Persist) -> None:
    assert {one.key for one in refused.failures} == {(1, 10)}
    assert {(one.errno, one.said) for one in refused.failures} <= {(errno.ENOTDIR, "Not a directory"), (errno.EEXIST, "File exists")}
    head = peek(tmp_path / "memory" / "snapshot-0-0")
    assert head is not None
    assert head.said(Word.FAILED)
    assert head.errno in (errno.ENOTDIR, errno.EEXIST)


def test_all_ranks_offer_what_the_disk_could_not_take_once_more_and_it_becomes_complete(tmp_path: Path, refused: Persist) -> None:
    (tmp_path / "checkpoints").unlink()

    async def run() -> None:
        task = asyncio.create_task(refused.run())
        try:
            async with asyncio.timeout(30.0):
                while not (tmp_path / "checkpoints" / directory_name(10, 1) / MANIFEST).exists():
                    assert not task.done()
                    await asyncio.sleep(0.02)
        finally:
            task.cancel()

    asyncio.run(run())


def test_a_rank_keeps_what_all_have_in_memory_although_another_could_not_write_it(tmp_path: Path) -> None:
    memory, checkpoints = tmp_path / "memory", tmp_path / "checkpoints"
    memory.mkdir()
    persist = Persist(memory, checkpoints)
    seal(memory, checkpoints, rank=0, step=10, world_size=2)
    seal(memory, checkpoints, rank=0, step=20, world_size=2, which=1)
    persist.whole((1, 10), (-1, -1), 0)
    give_up(tmp_path, 10)
    give_up(tmp_path, 20)
    asyncio.run(persist.settle(within_s=30.0))
    heads = [peek(memory / f"snapshot-0-{which}") for which in (0, 1)]
    assert [head is not None and (head.said(Word.FAILED), head.said(Word.FREE)) for head in heads] == [(True, False), (False, True)]


def test_a_full_disk_is_not_filled_again_and_again(tmp_path: Path, refused: Persist, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its directory is on this machine's disk, which is told to have nothing left."""
    (tmp_path / "checkpoints").unlink()
    (tmp_path / "checkpoints").mkdir()
    refused._full, refused._again_at = True, 0.0
    real = os.statvfs(tmp_path)
    nothing = os.statvfs_result((*real[:3], 0, 0, *real[5:]))
    monkeypatch.setattr(os, "statvfs", lambda path: nothing)
    refused._offer_again(refused._heads.of_own())
    assert [head.is_waiting for _, _, head in refused._heads.of_own()] == [False, False]
    monkeypatch.undo()
    refused._again_at = 0.0
    refused._offer_again(refused._heads.of_own())
    assert [head.is_waiting for _, _, head in refused._heads.of_own()] == [True, True]
