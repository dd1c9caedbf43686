"""Scrub: damage is found before anybody needs what is damaged, and mended from wherever the same bytes are."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import textwrap
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from agent.test_copies import SIZE, cluster, content, in_two_domains, run, seal

from holdfast.agent.persist import Persist
from holdfast.agent.scrub import Fetch, Scrub, from_remote
from holdfast.checkpoint.disk import Disk
from holdfast.checkpoint.found import list_complete, verify
from holdfast.checkpoint.layout import MANIFEST, Chunk
from holdfast.checkpoint.remote_address import open_remote
from holdfast.checkpoint.remove import Retention, prune
from holdfast.checkpoint.snapshot import Buffer, Word, peek
from holdfast.domain.held import Held


@dataclass
class Bench:
    """One node with one rank, whose scrub waits for nothing and says what it would have."""

    directory: Path
    checkpoints: Path
    fetch: Fetch = lambda chunk, algorithm: None
    told: list[str] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.directory.mkdir(exist_ok=True)
        self.checkpoints.mkdir(exist_ok=True)
        self.persist = Persist(self.directory, self.checkpoints)
        self.scrub = Scrub(
            self.directory, self.checkpoints, self.persist, ranks=lambda: (0,), fetch=self.fetch, bytes_per_s=1 << 20, wait=self._wait, tell=self.told.append
        )

    async def _wait(self, seconds: float) -> None:
        self.waits.append(seconds)

    def save(self, step: int, *, which: int = 0) -> None:
        seal(self.directory, self.checkpoints, rank=0, step=step, world_size=1, which=which)
        asyncio.run(self.persist.settle(within_s=30.0))

    def look(self) -> None:
        asyncio.run(self.scrub.look_through())

    def forget_memory(self) -> None:
        for path in self.directory.iterdir():
            path.unlink()

    def largest(self) -> Chunk:
        return max(list_complete(self.checkpoints)[0].manifest.chunks, key=lambda chunk: chunk.size_bytes)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path / "memory", tmp_path / "checkpoints")


def damage(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def test_what_is_sound_is_left_alone_and_nothing_is_said(bench: Bench) -> None:
    bench.save(10)
    bench.look()
    assert (bench.told, bench.scrub.repaired) == ([], 0)


def test_a_damaged_chunk_on_the_disk_is_written_again_from_memory(bench: Bench) -> None:
    bench.save(10)
    damage(bench.checkpoints / bench.largest().path)
    bench.look()
    verify(list_complete(bench.checkpoints)[0].path)
    (said,) = bench.told
    assert "is damaged" in said
    assert "written again from another copy" in said
    bench.look()
    assert len(bench.told) == 1


def test_a_damaged_chunk_on_the_disk_is_written_again_from_the_remote_store(tmp_path: Path) -> None:
    (tmp_path / "mounted").mkdir()
    bench = Bench(tmp_path / "memory", tmp_path / "checkpoints", fetch=from_remote(str(tmp_path / "mounted"), lambda: False))
    bench.save(10)
    found = list_complete(bench.checkpoints)[0]
    open_remote(str(tmp_path / "mounted")).upload(bench.checkpoints, found.name)
    bench.forget_memory()
    for chunk in found.manifest.chunks:
        damage(bench.checkpoints / chunk.path)
    bench.look()
    verify(found.path)
    assert bench.scrub.repaired == len(found.manifest.chunks)


def test_what_came_from_the_remote_store_and_has_no_receipts_is_looked_at_too(tmp_path: Path) -> None:
    (tmp_path / "mounted").mkdir()
    bench = Bench(tmp_path / "memory", tmp_path / "checkpoints", fetch=from_remote(str(tmp_path / "mounted"), lambda: False))
    bench.save(10)
    name = list_complete(bench.checkpoints)[0].name
    remote = open_remote(str(tmp_path / "mounted"))
    remote.upload(bench.checkpoints, name)
    shutil.rmtree(bench.checkpoints)
    bench.forget_memory()
    remote.download(name, bench.checkpoints)
    damage(bench.checkpoints / bench.largest().path)
    bench.look()
    verify(bench.checkpoints / name)


def test_a_chunk_that_is_nowhere_else_is_said_once_and_mended_when_it_can_be(tmp_path: Path) -> None:
    (tmp_path / "mounted").mkdir()
    url = str(tmp_path / "mounted")
    bench = Bench(tmp_path / "memory", tmp_path / "checkpoints", fetch=from_remote(url, lambda: False))
    bench.save(10)
    found = list_complete(bench.checkpoints)[0]
    shutil.copytree(bench.checkpoints, tmp_path / "kept")
    bench.forget_memory()
    damage(bench.checkpoints / bench.largest().path)
    bench.look()
    bench.look()
    (said,) = bench.told
    assert "No other copy of it is left" in said
    open_remote(url).upload(tmp_path / "kept", found.name)
    bench.look()
    assert "written again" in bench.told[1]
    verify(found.path)


def test_a_disk_that_cannot_be_written_is_said_and_ends_nothing(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.save(10)
    damage(bench.checkpoints / bench.largest().path)

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("holdfast.agent.scrub.put_file", full)
    bench.look()
    bench.look()
    (said,) = bench.told
    assert "cannot be written again: No space left on device" in said


def test_a_damaged_snapshot_of_its_own_is_marked_and_no_longer_held(bench: Bench) -> None:
    bench.save(10)
    wanted = Held(generation=1, step=10, rank=0, world_size=1)
    assert bench.persist.held() == (wanted,)
    path = bench.directory / "snapshot-0-0"
    buffer = Buffer.open(path)
    assert buffer is not None
    buffer.data[SIZE // 2] ^= 1
    bench.look()
    head = peek(path)
    assert head is not None
    assert head.said(Word.DAMAGED)
    assert bench.persist.held() == ()
    assert "it is not used" in bench.told[0]
    bench.look()
    assert len(bench.told) == 1
    seal(bench.directory, bench.checkpoints, rank=0, step=20, world_size=1)
    asyncio.run(bench.persist.settle(within_s=30.0))
    bench.look()
    assert [held.step for held in bench.persist.held()] == [20], "the mark was about what was there before"


def test_a_snapshot_that_is_written_over_while_it_is_read_is_no_damage(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.save(10)

    def written_over(buffer: Buffer, index: object) -> bool:
        seal(bench.directory, bench.checkpoints, rank=0, step=20, world_size=1)
        raise ValueError("the note is another one by now")

    monkeypatch.setattr("holdfast.agent.scrub.verify", written_over)
    bench.look()
    assert bench.told == []


def test_a_damaged_copy_is_dropped_and_fetched_again(tmp_path: Path) -> None:
    async def work() -> None:
        async with cluster(tmp_path, nodes=2, domains=2) as cells:
            await cells.until(lambda: in_two_domains(cells.domains_with(10)), "a copy of each rank")
            holder = cells.machines["node-1"]
            buffer = Buffer.open(holder.directory / "copy-0")
            assert buffer is not None
            buffer.data[SIZE // 2] ^= 1
            told: list[str] = []
            scrub = Scrub(holder.directory, holder.checkpoints, holder.persist, ranks=lambda: (1,), bytes_per_s=1e12, tell=told.append)
            await scrub.look_through()
            assert ["it is fetched again" in one for one in told] == [True]
            await cells.until(lambda: in_two_domains(cells.domains_with(10)), "the copy, made again")
            assert cells.bytes_of(0, 10) == {content(0, 10)}
            await scrub.look_through()
            assert len(told) == 1

    run(work)


def test_what_is_read_is_paid_for_with_pauses(bench: Bench) -> None:
    bench.save(10)
    bench.look()
    found = list_complete(bench.checkpoints)[0]
    read = SIZE + sum(chunk.size_bytes for chunk in found.manifest.chunks)
    assert sum(bench.waits) == pytest.approx(read / (1 << 20)), "a second for each MiB, as was asked for"


def test_a_chunk_that_retention_removes_meanwhile_is_no_damage(bench: Bench) -> None:
    for number, step in enumerate((10, 20, 30)):
        bench.save(step, which=number % 2)
    oldest = list_complete(bench.checkpoints)[-1]
    doomed = [chunk for chunk in oldest.manifest.chunks if chunk.home == oldest.name]
    prune(Disk(), bench.checkpoints, Retention(last=2), generation=1, now=0.0)
    assert not (oldest.path / MANIFEST).exists()
    for chunk in doomed:
        bench.scrub._look_at_disk(chunk, oldest.manifest.algorithm)
    assert (bench.told, bench.scrub.repaired) == ([], 0)


def test_a_kill_in_the_middle_of_mending_leaves_the_old_file_or_the_new_one(bench: Bench) -> None:
    bench.save(10)
    path = bench.checkpoints / bench.largest().path
    sound = path.read_bytes()
    damage(path)
    damaged = path.read_bytes()
    script = f"""
        import os, signal, sys
        sys.path[:0] = {sys.path!r}
        from pathlib import Path
        from agent.test_scrub import Bench
        from holdfast.checkpoint.disk import Disk
        at, done = int(sys.argv[1]), 0
        def counted(name):
            real = getattr(Disk, name)
            def operation(*given):
                global done
                if done == at:
                    os.kill(os.getpid(), signal.SIGKILL)
                done += 1
                return real(*given)
            setattr(Disk, name, operation)
        for name in ("create", "write", "sync_file", "rename", "sync_directory"):
            counted(name)
        Bench(Path({str(bench.directory)!r}), Path({str(bench.checkpoints)!r})).look()
    """
    for at in range(20):
        path.write_bytes(damaged)
        done = subprocess.run([sys.executable, "-c", textwrap.dedent(script), str(at)], check=False, capture_output=True, env=os.environ)
        assert path.read_bytes() in (damaged, sound), f"killed before operation {at}"
        if done.returncode == 0:
            break
        assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    assert at == 5, "each of the five operations was died ahead of"
    assert path.read_bytes() == sound
    bench.look()
    verify(list_complete(bench.checkpoints)[0].path)
