"""Snapshots in memory: what is in one is the state of its step, bit for bit, and nothing that waits is ever written over."""

from __future__ import annotations

import copy
import ctypes
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from holdfast.checkpoint import snapshot
from holdfast.checkpoint.commit import Shard
from holdfast.checkpoint.disk import Disk
from holdfast.checkpoint.found import list_complete, verify
from holdfast.checkpoint.memory import available_bytes
from holdfast.checkpoint.persist import persist, read_index
from holdfast.checkpoint.persist import verify as still_sound
from holdfast.checkpoint.read import note_of, recall, restore
from holdfast.checkpoint.remove import Retention
from holdfast.checkpoint.snapshot import Buffer, Word, offsets, peek
from holdfast.checkpoint.snapshot import say as say_of
from holdfast.checkpoint.write import sections_of
from holdfast.trainer import snapshots as snapshots_module
from holdfast.trainer.place import Place
from holdfast.trainer.saves import SavePlan, Saves
from holdfast.trainer.say import Say
from holdfast.trainer.snapshots import Snapshots


def trained() -> dict[str, Any]:
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.Flatten(), torch.nn.Linear(288, 4))
    model.to(memory_format=torch.channels_last)
    model(torch.randn(2, 3, 8, 8)).sum().backward()
    optimizer = torch.optim.AdamW(model.parameters())
    optimizer.step()
    return {"model": model, "optimizer": optimizer, "extra": {"empty": torch.empty(0, 3), "half": torch.randn(5).bfloat16(), "flag": torch.tensor(True)}}


def spoil(pieces: dict[str, Any]) -> None:
    """Change every tensor in place, as training does while its snapshot waits."""
    with torch.no_grad():
        for tensor in (*pieces["model"].state_dict().values(), *pieces["extra"].values()):
            tensor.copy_(torch.zeros_like(tensor))
        for state in pieces["optimizer"].state.values():
            for tensor in state.values():
                tensor.zero_()


def take(snapshots: Snapshots, checkpoints: Path, pieces: dict[str, Any], step: int) -> bool:
    shard = Shard(step=step, generation=1, world_size=1, rank=0)
    return snapshots.take(shard, checkpoints, Retention(), sections_of(shard, pieces, {}))


def the_agent(directory: Path, *, disk: Disk | None = None) -> list[int]:
    """Do what the agent does, in the order it does it; the steps made durable."""
    done = []
    for step, path in sorted((step, path) for path in directory.glob("snapshot-?-?") if (step := waiting_step(path)) != -1):
        buffer = Buffer.open(path)
        assert buffer is not None
        persist(buffer, disk)
        tell(path, Word.DURABLE)
        tell(path, Word.FREE)
        done.append(step)
    return done


def tell(path: Path, word: Word) -> None:
    """What the agent says of what is there now."""
    head = peek(path)
    assert head is not None
    say_of(path, word, head.seal.serial)


def waiting_step(path: Path) -> int:
    head = peek(path)
    return head.seal.step if head is not None and head.is_waiting else -1


def flat(pieces: dict[str, Any]) -> list[torch.Tensor]:
    states = list(pieces["optimizer"].state_dict()["state"].values())
    return [*pieces["model"].state_dict().values(), *pieces["extra"].values(), *(tensor for state in states for tensor in state.values())]


def test_what_becomes_durable_is_what_was_when_the_snapshot_was_taken(tmp_path: Path) -> None:
    memory, checkpoints = tmp_path / "memory", tmp_path / "checkpoints"
    memory.mkdir()
    pieces = trained()
    before = copy.deepcopy(pieces)
    assert take(Snapshots(memory, 1, Place(), pieces=pieces, say=Say(rank=0, world_size=1)), checkpoints, pieces, 10)
    spoil(pieces)
    assert the_agent(memory) == [10]
    (found,) = list_complete(checkpoints)
    verify(found.path)
    restore(found.path, pieces, rank=0, world_size=1)
    assert all(torch.equal(one, other) and one.stride() == other.stride() for one, other in zip(flat(before), flat(pieces), strict=True))


def test_a_buffer_that_waits_is_never_written_over_and_the_third_save_is_skipped(tmp_path: Path) -> None:
    memory, checkpoints = tmp_path / "memory", tmp_path / "checkpoints"
    memory.mkdir()
    pieces = trained()
    snapshots = Snapshots(memory, 1, Place(), pieces=pieces, say=Say(rank=0, world_size=1))
    assert take(snapshots, checkpoints, pieces, 10)
    assert take(snapshots, checkpoints, pieces, 20)
    sealed = {path.name: path.read_bytes() for path in memory.iterdir()}
    assert not take(snapshots, checkpoints, pieces, 30)
    assert {path.name: path.read_bytes() for path in memory.iterdir()} == sealed
    assert the_agent(memory) == [10, 20]
    assert snapshots.durable == 20
    assert take(snapshots, checkpoints, pieces, 30)


def test_memory_for_a_large_state_is_made_beside_the_training(tmp_path: Path) -> None:
    memory, checkpoints = tmp_path / "memory", tmp_path / "checkpoints"
    memory.mkdir()
    pieces = {"state": {"large": torch.zeros(20 << 20)}}
    snapshots = Snapshots(memory, 1, Place(), pieces=pieces, say=Say(rank=0, world_size=1))
    snapshots.prepare(sections_of(Shard(step=1, generation=1, world_size=1, rank=0), pieces, {}))
    assert snapshots.settle(within_s=60.0)
    made = {path: path.stat().st_ino for path in memory.iterdir()}
    assert len(made) == 2
    assert take(snapshots, checkpoints, pieces, 1)
    assert {path: path.stat().st_ino for path in memory.iterdir()} == made, "what was prepared is what is used"
    assert the_agent(memory) == [1]


def test_a_copy_that_was_cut_off_is_known_to_mean_nothing(tmp_path: Path) -> None:
    buffer = Buffer.create(tmp_path / "snapshot-0-0", 1000)
    buffer.seal(10, 1, 100, b"{}")
    assert waiting_step(buffer.path) == 10
    buffer.break_seal()  # The next copy begins, and its writer dies.
    assert waiting_step(buffer.path) == -1
    assert waiting_step(tmp_path / "absent") == -1
    (tmp_path / "foreign").write_bytes(os.urandom(5000))
    assert waiting_step(tmp_path / "foreign") == -1
    assert Buffer.open(tmp_path / "foreign") is None


def test_offsets_keep_tensors_apart_and_large_ones_at_pages() -> None:
    sizes = [1, 5000, 0, 64, 4096, 3]
    places, end = offsets(sizes)
    assert all(begin + size <= after for begin, size, after in zip(places, sizes, [*places[1:], end], strict=True))
    assert all(begin % 4096 == 0 for begin, size in zip(places, sizes, strict=True) if size >= 4096)


def saves(tmp_path: Path, pieces: dict[str, Any]) -> Saves:
    (tmp_path / "memory").mkdir(exist_ok=True)
    plan = SavePlan(checkpoints=tmp_path / "checkpoints", every=1, generation=1, rank=0, world_size=1, retention=Retention())
    snapshots = Snapshots(tmp_path / "memory", 1, Place(), pieces=pieces, say=Say(rank=0, world_size=1))
    return Saves(plan, pieces, Say(rank=0, world_size=1), saved_step=-1, snapshots=snapshots)


def test_a_step_counts_as_saved_when_it_is_durable_and_not_before(tmp_path: Path) -> None:
    kept = saves(tmp_path, trained())
    kept.save(1, {}, {}, last=False)
    kept.look()
    assert kept.saved_step == -1
    assert not kept.due(1), "it is not taken twice"
    the_agent(tmp_path / "memory")
    kept.look()
    assert kept.saved_step == 1


def test_the_last_save_is_durable_when_it_returns(tmp_path: Path) -> None:
    kept = saves(tmp_path, trained())
    kept.save(1, {}, {}, last=False)
    the_agent(tmp_path / "memory")
    kept.save(2, {}, {"loss": 0.5}, last=True)
    assert kept.saved_step == 2
    newest = list_complete(tmp_path / "checkpoints")[0]
    assert newest.step == 2
    assert newest.manifest.numbers == {"loss": 0.5}


def test_what_the_agent_could_not_write_is_said_once_and_so_is_the_end_of_it(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    kept = saves(tmp_path, trained())
    for step in (1, 2):
        kept.save(step, {}, {}, last=False)
        for path in (tmp_path / "memory").iterdir():
            if waiting_step(path) != -1:
                tell(path, Word.FAILED)
                tell(path, Word.FREE)
        kept.look()
    kept.save(3, {}, {}, last=False)
    the_agent(tmp_path / "memory")
    kept.look()
    said = capfd.readouterr().err
    assert said.count("could not be saved") == 1
    assert said.count("saving works again: step 3 is durable.") == 1


@pytest.mark.root
def test_without_enough_memory_training_waits_for_the_disk_instead_and_says_so(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    memory = tmp_path / "memory"
    memory.mkdir()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"tmpfs", str(memory).encode(), b"tmpfs", 0, b"size=256k") != 0:
        pytest.skip(f"mounting a small memory is not permitted here: {os.strerror(ctypes.get_errno())}")
    try:
        kept = saves(tmp_path, trained())
        for step in (1, 2):
            kept.save(step, {}, {}, last=False)
            assert kept.saved_step == step
        assert not list(memory.iterdir()), "what did not fit is not left behind"
    finally:
        assert libc.umount2(str(memory).encode(), 2) == 0
    assert capfd.readouterr().err.count("there is no memory for a snapshot") == 1


def test_memory_that_the_node_cannot_spare_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(snapshots_module, "available_bytes", lambda: 1 << 20)
    kept = saves(tmp_path, trained())
    kept.prepare(1)
    kept.save(1, {}, {}, last=False)
    assert kept.saved_step == 1
    assert not list((tmp_path / "memory").iterdir())
    assert "GB are free): from now on training waits for the disk when it saves." in capfd.readouterr().err


def test_free_memory_is_what_the_machine_and_the_control_group_both_have(tmp_path: Path) -> None:
    group = tmp_path / "sys/fs/cgroup/box"
    group.mkdir(parents=True)
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text("MemTotal: 100 kB\nMemAvailable: 64 kB\n")
    assert available_bytes(tmp_path) == 64 << 10
    (tmp_path / "proc/self/cgroup").write_text("0::/box\n")
    (group / "memory.max").write_text("max\n")
    (group / "memory.current").write_text("3000\n")
    assert available_bytes(tmp_path) == 64 << 10
    (group / "memory.max").write_text("5000\n")
    (group / "memory.stat").write_text("anon 2000\ninactive_file 500\n")
    assert available_bytes(tmp_path) == 2500
    (group / "rank-0").mkdir()
    (tmp_path / "proc/self/cgroup").write_text("0::/box/rank-0\n")
    assert available_bytes(tmp_path) == 2500, "a limit above holds too"


def left_behind(tmp_path: Path, pieces: dict[str, Any], *, step: int = 10) -> Path:
    """The memory of a worker that saved a step and died; the agent has made it durable."""
    memory = tmp_path / "memory"
    memory.mkdir(exist_ok=True)
    assert take(Snapshots(memory, 1, Place(), pieces=pieces, say=Say(rank=0, world_size=1)), tmp_path / "checkpoints", pieces, step)
    assert the_agent(memory) == [step]
    return memory


def the_next(memory: Path) -> Snapshots:
    return Snapshots(memory, 2, Place(), pieces={}, say=Say(rank=0, world_size=1))


@pytest.mark.parametrize("stretch_bytes", [64, 64 << 20])
def test_the_next_worker_finds_the_state_in_memory_bit_for_bit_and_as_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stretch_bytes: int
) -> None:  # fmt: skip
    monkeypatch.setattr(snapshot, "STRETCH_BYTES", stretch_bytes)
    pieces = trained()
    before = copy.deepcopy(pieces)
    memory = left_behind(tmp_path, pieces)
    tell(memory / "snapshot-0-0", Word.SOUND)
    found = the_next(memory).find("step-00000010.g1")
    assert found is not None
    spoil(pieces)
    restored = recall(*found, pieces, world_size=1)
    assert restored is not None
    assert (restored.name, restored.step, restored.generation) == ("step-00000010.g1", 10, 1)
    assert all(torch.equal(one, other) and one.stride() == other.stride() for one, other in zip(flat(before), flat(pieces), strict=True))
    buffer = Buffer.open(memory / "snapshot-0-0")
    assert buffer is not None
    buffer.data[:] = bytes(len(buffer.data))  # The next save goes there while training goes on.
    assert all(torch.equal(one, other) for one, other in zip(flat(before), flat(pieces), strict=True)), "nothing that trains lies in the buffer"


def test_what_is_not_the_state_asked_for_or_of_another_world_is_not_taken_from_memory(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    pieces = trained()
    memory = left_behind(tmp_path, pieces)
    assert the_next(memory).find("step-00000010.g2") is None
    assert the_next(memory).find("step-00000020.g1") is None
    tell(memory / "snapshot-0-0", Word.SOUND)
    found = the_next(memory).find("step-00000010.g1")
    assert found is not None
    assert recall(*found, pieces, world_size=2) is None
    say_of(memory / "snapshot-0-0", Word.SOUND, 0)
    tell(memory / "snapshot-0-0", Word.DAMAGED)
    assert the_next(memory).find("step-00000010.g1") is None
    assert "in this node's memory is damaged: it is read from the disk." in capfd.readouterr().err


def test_every_flipped_byte_of_a_snapshot_in_memory_is_found(tmp_path: Path) -> None:
    memory = left_behind(tmp_path, trained())
    path = memory / "snapshot-0-0"
    buffer, index = Buffer.open(path), read_index(path)
    assert buffer is not None
    assert index is not None
    assert still_sound(buffer, index)
    note = buffer.note()
    meant = [place for section in note["sections"].values() for one in section["tensors"] for place in range(one["offset"], one["offset"] + one["size"])]
    seal = buffer.head.seal
    meant += range(seal.data_bytes, seal.data_bytes + seal.note_bytes)
    for place in meant[:: max(1, len(meant) // 500)]:
        buffer.data[place] ^= 1
        assert not still_sound(buffer, index), place
        buffer.data[place] ^= 1
    assert still_sound(buffer, index)


def test_what_all_ranks_hold_alike_is_kept_once_on_each_node_and_made_durable_once(tmp_path: Path) -> None:
    memory, checkpoints = tmp_path / "memory", tmp_path / "checkpoints"
    memory.mkdir()
    sections = {"own": {"pieces": {}, "shared": ["model"], "randomness": {}, "progress": {}}, "shared": {"model": {"weight": torch.arange(4.0)}}}
    for rank in (0, 1):  # One node each: both are the first of theirs.
        place = Place(rank=rank, world_size=2)
        shard = Shard(step=5, generation=1, world_size=2, rank=rank)
        assert Snapshots(memory, 1, place, pieces={}, say=Say(rank=rank, world_size=2)).take(shard, checkpoints, Retention(), sections)
    assert the_agent(memory) == [5, 5]
    (found,) = list_complete(checkpoints)
    notes = [note_of(found, rank) for rank in (0, 1)]
    assert [sorted(note) for note in notes] == [["own", "shared"], ["own"]]
    kept = Buffer.open(memory / "snapshot-1-0")
    assert kept is not None
    assert kept.note()["sections"]["shared"]["kept"]


def test_a_step_whose_loss_is_not_finite_is_not_saved_and_nothing_is_removed_for_it(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    kept = saves(tmp_path, trained())
    for step in range(1, 5):
        kept.save(step, {}, {"loss": 0.5}, last=False)
        the_agent(tmp_path / "memory")
    before = {found.name for found in list_complete(tmp_path / "checkpoints")}
    for step in range(5, 9):
        kept.save(step, {}, {"loss": float("nan")}, last=False)
        assert the_agent(tmp_path / "memory") == []
    assert capfd.readouterr().err.count("is not saved: its loss is not a finite number") == 1
    kept.save(9, {}, {"loss": float("inf")}, last=True)
    assert before | {"step-00000009.g1"} == {found.name for found in list_complete(tmp_path / "checkpoints")}, "the last one is saved, and none removed"
    kept.save(10, {}, {"loss": 0.4}, last=False)
    assert the_agent(tmp_path / "memory") == [10]
