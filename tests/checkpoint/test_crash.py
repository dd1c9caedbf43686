"""A crash at any moment of a save leaves the checkpoint before it or the one after it, complete and verified."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from checkpoint.disks import RANKS, PowerCut, WatchedDisk, dying_disk, save_step
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.checkpoint.disk import Disk
from holdfast.checkpoint.found import list_complete, newest_complete, verify
from holdfast.checkpoint.remove import sweep_torn


def save_all(disk: Disk, checkpoints: Path, step: int) -> None:
    for rank in range(RANKS):
        save_step(disk, checkpoints, step, rank)


def die_at(operations: int, checkpoints: Path) -> bool:
    """Save step 20 in a process that dies before that many operations are done; whether it died."""
    child = os.fork()
    if child == 0:
        save_all(dying_disk(operations), checkpoints, 20)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    assert code in (0, 137)
    return code == 137


def test_a_process_that_dies_at_any_file_operation_leaves_the_old_or_the_new_checkpoint_whole(tmp_path: Path) -> None:
    seen = set()
    for operations in range(1000):
        checkpoints = tmp_path / f"{operations}"
        save_all(Disk(), checkpoints, 10)
        died = die_at(operations, checkpoints)
        newest = newest_complete(checkpoints)
        assert newest is not None
        assert newest.step in (10, 20), f"died before operation {operations}"
        for found in list_complete(checkpoints):
            verify(found.path)
        seen.add(newest.step)
        if not died:
            break
    assert operations > 20
    assert seen == {10, 20}


def test_what_a_crash_left_is_swept_by_the_next_generation_and_does_not_disturb_it(tmp_path: Path) -> None:
    for operations in range(0, 40, 3):
        checkpoints = tmp_path / f"{operations}"
        save_all(Disk(), checkpoints, 10)
        die_at(operations, checkpoints)
        for rank in range(RANKS):
            save_step(Disk(), checkpoints, 20, rank, generation=2)
        sweep_torn(Disk(), checkpoints, generation=3, restored_step=20)
        assert all((path / "manifest.json").exists() for path in checkpoints.iterdir())
        newest = newest_complete(checkpoints)
        assert newest is not None
        assert newest.age_key == (2, 20)
        verify(newest.path)


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[list[tuple[Any, ...]], int]]:
    """Everything that happens to the disk while steps 10 and 20 are saved, and how much of it belongs to step 10.

    One trace for every operation of rank 0's second save at which rank 1 may do all of its own.
    """
    traces = []
    for together in range(20):
        root = tmp_path_factory.mktemp("trace")
        traces.append(record(root, root / "checkpoints", together))
    return traces


def record(root: Path, checkpoints: Path, together: int) -> tuple[list[tuple[Any, ...]], int]:
    operations: list[tuple[Any, ...]] = []
    first = together_at = -1

    def remember(name: str, *arguments: Any) -> None:
        nonlocal together_at
        if len(operations) == together_at:
            together_at = -1
            save_step(disk, checkpoints, 20, 1)
        operations.append((name, *(one.relative_to(root) if isinstance(one, Path) else one for one in arguments)))

    disk = WatchedDisk(remember)
    save_all(disk, checkpoints, 10)
    first = len(operations)
    together_at = first + together
    save_step(disk, checkpoints, 20, 0)
    if together_at >= 0:
        together_at = -1
        save_step(disk, checkpoints, 20, 1)
    return operations, first


@settings(max_examples=500)
@given(data=st.data())
def test_a_power_cut_at_any_moment_loses_no_checkpoint_that_was_complete(
    traces: list[tuple[list[tuple[Any, ...]], int]], tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    operations, first = data.draw(st.sampled_from(traces), label="how the ranks met")
    cut = data.draw(st.integers(0, len(operations)), label="operations done")
    root = tmp_path_factory.mktemp("cut")
    power = PowerCut(keeps=lambda: data.draw(st.booleans(), label="kept"))
    power.replay(operations[:cut])
    power.leave(root)
    complete = list_complete(root / "checkpoints")
    for found in complete:
        verify(found.path)
    if cut >= first:
        assert complete, "step 10 was complete before the power went"
    if cut == len(operations):
        assert complete[0].step == 20


def test_all_ranks_at_once_make_one_checkpoint_that_verifies(tmp_path: Path) -> None:
    for step in range(10, 60, 10):
        children = []
        for rank in range(RANKS):
            child = os.fork()
            if child == 0:
                save_step(Disk(), tmp_path, step, rank, keep=2)
                os._exit(0)
            children.append(child)
        assert [os.waitpid(child, 0)[1] for child in children] == [0, 0]
        newest = newest_complete(tmp_path)
        assert newest is not None
        assert newest.step == step
    assert [found.step for found in list_complete(tmp_path)] == [50, 40]
    for found in list_complete(tmp_path):
        verify(found.path)
