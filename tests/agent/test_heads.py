"""Which snapshots there are, and what stands at their beginning: looked at without listing and opening anew, and never behind."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from agent.test_copies import seal

from holdfast.agent import heads
from holdfast.agent.heads import Heads
from holdfast.checkpoint.snapshot import Word, peek, say

pytestmark = pytest.mark.unprivileged


@pytest.fixture
def memory(tmp_path: Path) -> Path:
    (tmp_path / "memory").mkdir()
    return tmp_path / "memory"


def sealed(memory: Path, *, rank: int, step: int, which: int = 0) -> Path:
    seal(memory, memory.parent / "checkpoints", rank=rank, step=step, world_size=2, which=which)
    return memory / f"snapshot-{rank}-{which}"


def settled(memory: Path) -> None:
    """As if nothing had changed in the directory for a long time, so that it is not listed to be safe."""
    os.utime(memory, ns=(0, 0))


def test_what_is_said_in_a_file_that_stays_is_seen_at_once(memory: Path) -> None:
    path = sealed(memory, rank=0, step=10)
    seen = Heads(memory)
    settled(memory)
    assert [(one, rank, head.seal.step) for one, rank, head in seen.of_own()] == [(path, 0, 10)]
    say(path, Word.DURABLE, seen.of_own()[0][2].seal.serial)
    assert seen.of_own()[0][2].said(Word.DURABLE)
    sealed(memory, rank=0, step=20)
    settled(memory)
    assert seen.head(path) == peek(path)
    assert seen.of_own()[0][2].seal.step == 20


def test_a_file_that_took_the_place_of_another_is_the_one_that_is_read(memory: Path) -> None:
    path = sealed(memory, rank=0, step=10)
    seen = Heads(memory)
    assert seen.of_own()[0][2].seal.step == 10
    sealed(memory, rank=1, step=30).rename(path)
    assert [(rank, head.seal.step) for _, rank, head in seen.of_own()] == [(0, 30)]


def test_a_file_that_was_removed_and_made_again_is_the_one_that_is_read(memory: Path) -> None:
    path = sealed(memory, rank=0, step=10)
    seen = Heads(memory)
    for step in range(20, 200, 10):  # Some file systems give the inode to the next file at once.
        assert seen.of_own()[0][2].seal.step == step - 10
        path.unlink()
        sealed(memory, rank=0, step=step)


def test_one_that_is_gone_is_let_go_and_so_is_its_memory(memory: Path) -> None:
    path = sealed(memory, rank=0, step=10)
    seen = Heads(memory)
    assert seen.own() == [(path, 0)]
    path.unlink()
    assert seen.own() == []
    assert seen.head(path) is None
    descriptors = [Path(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")]
    assert not any(os.readlink(one) == f"{path} (deleted)" for one in descriptors if one.is_symlink())


def test_two_changes_within_one_tick_of_the_clock_are_both_seen(memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = Heads(memory)
    seen.own()
    at_ns = memory.stat().st_mtime_ns
    monkeypatch.setattr(heads.time, "time_ns", lambda: at_ns + 1)
    sealed(memory, rank=0, step=10)
    os.utime(memory, ns=(at_ns, at_ns))  # The same tick.
    assert len(seen.own()) == 1


def test_a_directory_that_is_not_there_holds_nothing(tmp_path: Path) -> None:
    assert Heads(tmp_path / "nowhere").of_own() == []


def test_what_is_no_snapshot_is_left_alone_and_a_copy_is_told_from_ones_own(memory: Path) -> None:
    sealed(memory, rank=0, step=10).rename(memory / "copy-3")
    (memory / "beat-1-0").write_bytes(b"")
    (memory / "snapshot-0-0.index").write_bytes(b"")
    (memory / "snapshot-1-0").write_bytes(b"too short")
    seen = Heads(memory)
    assert seen.copies() == [memory / "copy-3"]
    assert seen.of_own() == []
