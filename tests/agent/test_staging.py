"""Staging: what a job named is on the node's disk before ranks start: whole, verified, resumed, and not made twice."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

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
        if (tmp_path / "data.part").stat().st_size >= 5 * BLOCK:
            broken.stop()
        return real(block)

    monkeypatch.setattr(staging, "_sum", after_five)
    with pytest.raises(OSError, match="the agent leaves"):
        asyncio.run(broken.ready())
    reading = broken.reading()
    assert reading is not None
    assert reading.error == "the agent leaves"
    with (tmp_path / "data.part").open("r+b") as part:  # The disk has lost a bit meanwhile.
        part.seek(3 * BLOCK)
        part.write(bytes([part.read(1)[0] ^ 1]))
    read: list[int] = []
    monkeypatch.setattr(staging, "_sum", lambda block: read.append(len(block)) or real(block))
    stage(file, tmp_path)
    assert (tmp_path / "data").read_bytes() == file.read_bytes()
    assert len(read) == 4 + 5 + 8, "four blocks of the old part are looked at, five copied, and all eight compared"


def test_a_source_that_changed_is_staged_again(source: Path, tmp_path: Path) -> None:
    file = source / "shard"
    for content in (b"a" * BLOCK, b"b" * BLOCK):
        file.write_bytes(content)
        os.utime(file, ns=(0, content[0]))
        stage(file, tmp_path)
        assert (tmp_path / "data").read_bytes() == content


def test_what_is_on_the_nodes_disk_is_linked(tmp_path: Path) -> None:
    (tmp_path / "shard").write_bytes(b"here")
    said: list[str] = []
    stage(tmp_path / "shard", tmp_path / "staged", said)
    assert (tmp_path / "staged" / "data").readlink() == tmp_path / "shard"
    assert "on this node's disk already" in said[0]


def test_what_is_missing_or_does_not_fit_is_said(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NotStaged, match="is not there on this node"):
        stage(source / "gone", tmp_path)
    (source / "shard").write_bytes(b"x")
    monkeypatch.setattr(staging, "_SPARE_BYTES", 1 << 60)
    with pytest.raises(NotStaged, match="make room, or stage less"):
        stage(source, tmp_path)
