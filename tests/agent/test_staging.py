"""Staging: what a job named is on the node's disk before ranks start: whole, verified, resumed, and not made twice."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import pytest
from end_to_end.jobs import environment

from holdfast.agent import staging
from holdfast.agent.staging import NotStaged, Staging
from holdfast.domain.job import Stage

BLOCK = 4096


@pytest.fixture
def source(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """On another disk than the node's: shared memory."""
    monkeypatch.setattr(staging, "BLOCK_BYTES", BLOCK)
    directory = Path(tempfile.mkdtemp(dir="/dev/shm"))
    assert directory.stat().st_dev != tmp_path.stat().st_dev, "the tests keep their files elsewhere"
    yield directory
    shutil.rmtree(directory)


def stage(source: Path, into: Path, said: list[str] | None = None) -> Staging:
    one = Staging([Stage(source=str(source), target="data")], into, (said if said is not None else []).append)
    asyncio.run(one.ready())
    return one


def test_a_directory_is_there_whole_and_is_not_copied_twice(source: Path, tmp_path: Path) -> None:
    (source / "deep").mkdir()
    (source / "deep" / "shard-1").write_bytes(os.urandom(3 * BLOCK + 7))
    (source / "empty").touch()
    said: list[str] = []
    reading = stage(source, tmp_path, said).reading()
    assert reading is not None
    assert (reading.done_bytes, reading.total_bytes, reading.error) == (3 * BLOCK + 7, 3 * BLOCK + 7, "")
    staged = tmp_path / "data" / "deep" / "shard-1"
    assert staged.read_bytes() == (source / "deep" / "shard-1").read_bytes()
    assert (tmp_path / "data" / "empty").exists()
    before = staged.stat().st_ino
    stage(source, tmp_path, said)
    assert staged.stat().st_ino == before
    assert said == [f"staged 2 files in {tmp_path}; 0 were there"]


def test_a_copy_that_was_broken_off_goes_on_behind_its_last_block_that_reads_back(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = source / "shard"
    file.write_bytes(os.urandom(8 * BLOCK))
    broken = Staging([Stage(source=str(file), target="data")], tmp_path, print)
    real = staging._sum

    def after_five(block: bytes) -> str:
        if (tmp_path / "data.holdfast-part").stat().st_size >= 5 * BLOCK:
            broken.stop()
        return real(block)

    monkeypatch.setattr(staging, "_sum", after_five)
    with pytest.raises(OSError, match="the agent leaves"):
        asyncio.run(broken.ready())
    reading = broken.reading()
    assert reading is not None
    assert reading.error == "the agent leaves"
    with (tmp_path / "data.holdfast-part").open("r+b") as part:  # The disk has lost some of it meanwhile.
        part.seek(3 * BLOCK)
        part.write(b"\0" * 16)
    read: list[int] = []
    monkeypatch.setattr(staging, "_sum", lambda block: read.append(len(block)) or real(block))
    stage(file, tmp_path)
    assert (tmp_path / "data").read_bytes() == file.read_bytes()
    assert sorted(read) == [BLOCK] * (5 + 4 + 8), "of the old part four blocks are good, the one in the middle and what follows is copied, and all are compared"


def test_a_source_that_changed_is_staged_again(source: Path, tmp_path: Path) -> None:
    file = source / "shard"
    for content in (b"a" * BLOCK, b"b" * BLOCK):
        file.write_bytes(content)
        os.utime(file, ns=(0, content[0]))
        stage(file, tmp_path)
        assert (tmp_path / "data").read_bytes() == content


def fetched_from(file: Path, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The blocks that are read of it from here on."""
    fetched: list[int] = []
    real = staging._block

    def block(at: BinaryIO, number: int) -> bytes:
        if at.name == str(file):
            fetched.append(number)
        return real(at, number)

    monkeypatch.setattr(staging, "_block", block)
    return fetched


def changed(path: Path, content: bytes) -> None:
    """Other content of the same size, and the time of the old: nobody sees that from outside but by when it was done."""
    before = path.stat()
    while path.stat().st_ctime_ns == before.st_ctime_ns:
        with path.open("r+b") as file:
            file.write(content)
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)


def test_other_content_of_the_same_size_and_time_is_seen_in_the_source_and_in_the_copy(source: Path, tmp_path: Path) -> None:
    file, copy = source / "shard", tmp_path / "data"
    file.write_bytes(b"a" * 3 * BLOCK)
    said: list[str] = []
    stage(file, tmp_path, said)
    changed(copy, b"b" * BLOCK)
    stage(file, tmp_path, said)
    assert copy.read_bytes() == b"a" * 3 * BLOCK
    changed(file, b"c" * BLOCK)
    stage(file, tmp_path, said)
    assert copy.read_bytes() == b"c" * BLOCK + b"a" * 2 * BLOCK
    assert len(said) == 3


@pytest.mark.parametrize("torn", [0, 1, BLOCK, 3 * BLOCK - 1, 3 * BLOCK + 1])
def test_a_copy_that_is_torn_is_mended_and_what_is_good_of_it_stays(source: Path, tmp_path: Path, torn: int, monkeypatch: pytest.MonkeyPatch) -> None:
    file, copy = source / "shard", tmp_path / "data"
    file.write_bytes(os.urandom(3 * BLOCK))
    stage(file, tmp_path)
    os.truncate(copy, torn)
    fetched = fetched_from(file, monkeypatch)
    stage(file, tmp_path)
    assert copy.read_bytes() == file.read_bytes()
    assert fetched == list(range(torn // BLOCK, 3))


def test_a_copy_that_is_only_compared_again_counts_as_what_it_holds(source: Path, tmp_path: Path) -> None:
    file = source / "shard"
    file.write_bytes(os.urandom(BLOCK + 7))
    stage(file, tmp_path)
    os.utime(tmp_path / "data", ns=(0, 0))
    reading = stage(file, tmp_path).reading()
    assert reading is not None
    assert (reading.done_bytes, reading.total_bytes) == (BLOCK + 7, BLOCK + 7)


def test_what_is_no_longer_in_the_source_or_no_longer_asked_for_goes_and_what_others_put_there_stays(source: Path, tmp_path: Path) -> None:
    for name in ("deep/one", "deep/two", "old"):
        (source / name).parent.mkdir(exist_ok=True)
        (source / name).write_bytes(name.encode())
    stage(source, tmp_path)
    (tmp_path / "data" / "index").write_text("made by the job")
    shutil.rmtree(source / "deep")
    (source / "old").unlink()
    (source / "old").mkdir()
    (source / "old" / "new").write_bytes(b"now a directory")
    stage(source, tmp_path)
    assert sorted(path.name for path in (tmp_path / "data").rglob("*")) == ["index", "new", "old"]
    one = Staging([Stage(source=str(source / "old" / "new"), target="other")], tmp_path, print)
    asyncio.run(one.ready())
    assert sorted(path.name for path in tmp_path.iterdir()) == [".records", "data", "other"]
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["index"]
    assert len(list((tmp_path / ".records").iterdir())) == 1


def test_a_link_to_the_source_is_never_written_through(source: Path, tmp_path: Path) -> None:
    """What was linked on one disk is copied from another: nothing may land in the directory that was linked to."""
    ours = tmp_path / "ours"
    ours.mkdir()
    (source / "shard").write_bytes(b"x")
    (tmp_path / "staged").mkdir()
    (tmp_path / "staged" / "data").symlink_to(ours)
    stage(source, tmp_path / "staged")
    assert not list(ours.iterdir())
    assert (tmp_path / "staged" / "data" / "shard").read_bytes() == b"x"
    stage(ours, tmp_path / "staged")
    assert (tmp_path / "staged" / "data").readlink() == ours


KILLED = """
import asyncio, os, signal, sys
from pathlib import Path
from typing import BinaryIO
from holdfast.agent import staging
from holdfast.domain.job import Stage
staging.BLOCK_BYTES = 4096
kill_at, seen = int(sys.argv[3]), 0
def watched(one):
    def call(*given, **named):
        global seen
        seen += 1
        if seen == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        return one(*given, **named)
    return call
staging._block, Path.rename, os.fsync = watched(staging._block), watched(Path.rename), watched(os.fsync)
asyncio.run(staging.Staging([Stage(source=sys.argv[1], target="data")], Path(sys.argv[2]), print).ready())
"""


def test_a_kill_at_any_moment_leaves_nothing_that_is_taken_for_whole_and_nothing_is_copied_twice(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed for real before each block, each sync and each rename, and each time it is begun anew with what is there."""
    file, copy = source / "shard", tmp_path / "data"
    file.write_bytes(os.urandom(4 * BLOCK + 5))
    kills = 0
    for kill_at in range(1, 20):
        command = [sys.executable, "-c", KILLED, str(file), str(tmp_path), str(kill_at)]
        ended = subprocess.run(command, env=environment(), check=False, capture_output=True, timeout=60)
        assert not copy.exists() or copy.read_bytes() == file.read_bytes(), f"after the kill at {kill_at}"
        if ended.returncode == 0:
            break
        assert ended.returncode == -signal.SIGKILL, ended.stderr
        kills += 1
    assert kills >= 3
    fetched = fetched_from(file, monkeypatch)
    stage(file, tmp_path)
    assert copy.read_bytes() == file.read_bytes()
    assert not fetched, "all of it was there"


def test_a_bit_that_the_disk_loses_is_found_in_the_background_and_mended_where_it_is(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, copy = source / "shard", tmp_path / "data"
    file.write_bytes(os.urandom(3 * BLOCK + 5))
    said: list[str] = []
    one = stage(file, tmp_path, said)
    real = staging._Record.describes
    monkeypatch.setattr(staging._Record, "describes", lambda record, copy: True)  # A disk that loses a bit tells nobody when.
    with copy.open("r+b") as at, copy.open("rb") as ranks:
        at.seek(2 * BLOCK)
        at.write(b"\0" * 16)
        at.flush()
        waited: list[float] = []

        async def wait(seconds: float) -> None:
            waited.append(seconds)

        asyncio.run(one.look_through(wait))
        assert ranks.read() == file.read_bytes(), "also for who has it open"
    assert said[1:] == [f"{copy} was damaged at block 2 of 4, and is mended from {file}"]
    assert len(waited) == 4, "the disk belongs to the training"
    monkeypatch.setattr(staging._Record, "describes", real)
    stage(file, tmp_path, said)
    assert len(said) == 2, "it is not staged again for having been mended"


def test_what_is_on_the_nodes_disk_is_linked(tmp_path: Path) -> None:
    (tmp_path / "shard").write_bytes(b"here")
    said: list[str] = []
    stage(tmp_path / "shard", tmp_path / "staged", said)
    assert (tmp_path / "staged" / "data").readlink() == tmp_path / "shard"
    assert "on this node's disk already" in said[0]


def test_links_to_files_and_directories_are_followed_and_one_without_an_end_is_refused(source: Path, tmp_path: Path) -> None:
    (source / "elsewhere" / "deep").mkdir(parents=True)
    (source / "elsewhere" / "deep" / "shard-1").write_bytes(b"one")
    (source / "asked").mkdir()
    (source / "asked" / "all").symlink_to("../elsewhere")
    (source / "asked" / "again").symlink_to("../elsewhere/deep")
    (source / "asked" / "shard-2").symlink_to("../elsewhere/deep/shard-1")
    (source / "asked" / "nowhere").symlink_to("gone")
    stage(source / "asked", tmp_path)
    there = {str(path.relative_to(tmp_path / "data")): path.read_bytes() for path in (tmp_path / "data").rglob("*") if path.is_file()}
    assert there == {"all/deep/shard-1": b"one", "again/shard-1": b"one", "shard-2": b"one"}
    assert not any(path.is_symlink() for path in (tmp_path / "data").rglob("*")), "on the node's own disk"
    (source / "elsewhere" / "deep" / "back").symlink_to("../../asked")
    with pytest.raises(NotStaged, match=r"leads back to .*asked, which it lies in"):
        stage(source / "asked", tmp_path)


def test_a_file_that_is_staged_anew_does_not_take_one_whose_name_goes_on_behind_its_own(source: Path, tmp_path: Path) -> None:
    (source / "shard").write_bytes(b"x" * 3 * BLOCK)
    (source / "shard.part").write_bytes(b"another")
    stage(source, tmp_path)
    (source / "shard").write_bytes(b"y" * BLOCK)
    stage(source, tmp_path)
    assert (tmp_path / "data" / "shard").read_bytes() == b"y" * BLOCK
    assert (tmp_path / "data" / "shard.part").read_bytes() == b"another"


def test_what_is_missing_or_does_not_fit_is_said(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NotStaged, match="is not there on this node"):
        stage(source / "gone", tmp_path)
    (source / "shard").write_bytes(b"x")
    monkeypatch.setattr(staging, "_SPARE_BYTES", 1 << 60)
    with pytest.raises(NotStaged, match="make room, or stage less"):
        stage(source, tmp_path)
