"""guard and the loop: what is refused, what is said, and what never reaches the loop."""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy
import pytest
import torch
from trainer.gang import Gang, run_gang

import holdfast
from holdfast.checkpoint.errors import CheckpointCorrupt, CheckpointMismatch
from holdfast.checkpoint.found import list_complete, verify
from holdfast.errors import UserError
from holdfast.trainer.run import Run


@dataclass
class Best:
    loss: float = 9.0
    names: tuple[str, ...] = ()


def finish(run: Run, steps: int) -> list[int]:
    return list(run.steps(steps))


def test_everything_plain_survives_and_comes_back_as_it_was(tmp_path: Path) -> None:
    best, seen, generator = Best(), {}, torch.Generator().manual_seed(3)
    run = holdfast.guard(best=best, seen=seen, generator=generator, checkpoints=tmp_path)
    for _ in run.steps(2):
        best.loss, best.names = 0.5, ("a", "b")
        seen |= {"array": numpy.arange(6.0).reshape(2, 3), "count": Counter("aab"), "number": numpy.float32(2), "nested": [{"tensor": torch.eye(2)}], 7: None}
    drawn = torch.rand(3, generator=generator)
    again, seen_again, generator_again = Best(), {"old": 1}, torch.Generator()
    run = holdfast.guard(best=again, seen=seen_again, generator=generator_again, checkpoints=tmp_path)
    assert run.step == 2
    assert again == best
    assert seen_again.keys() == seen.keys()
    assert numpy.array_equal(seen_again["array"], seen["array"])
    assert seen_again["array"].dtype == numpy.float64
    assert seen_again["count"] == Counter("aab")
    assert torch.equal(seen_again["nested"][0]["tensor"], torch.eye(2))
    assert torch.equal(torch.rand(3, generator=generator_again), drawn)
    assert finish(run, 2) == []


def test_a_piece_whose_state_cannot_be_stored_is_refused_before_training(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="count is an int, which cannot be saved, because it has no state_dict and load_state_dict"):
        holdfast.guard(count=3, checkpoints=tmp_path)
    with pytest.raises(UserError, match=r"state\['open'\] holds a builtins.object, which cannot be stored without pickling"):
        holdfast.guard(state={"open": object()}, checkpoints=tmp_path)
    with pytest.raises(UserError, match=r"state\['sparse'\] is a tensor of layout torch.sparse_coo"):
        holdfast.guard(state={"sparse": torch.eye(3).to_sparse()}, checkpoints=tmp_path)
    with pytest.raises(UserError, match="there is no rule 'newest'; the rules are best, every, last, metric, older_s"):
        holdfast.guard(keep={"newest": 3})
    with pytest.raises(UserError, match="no rule below 0"):
        holdfast.guard(keep={"every": -1})
    with pytest.raises(UserError, match="save_every=-1"):
        holdfast.guard(save_every=-1)


def test_another_shape_of_model_or_other_names_are_refused_with_both_sides(tmp_path: Path) -> None:
    finish(holdfast.guard(model=torch.nn.Linear(2, 2), checkpoints=tmp_path), 1)
    with pytest.raises(CheckpointMismatch, match="holds model, and guard\\(\\) was given model, optimizer: optimizer not in the checkpoint"):
        holdfast.guard(model=torch.nn.Linear(2, 2), optimizer={}, checkpoints=tmp_path)
    with pytest.raises(CheckpointMismatch, match=r"the saved state of model does not fit this script's Linear: (.|\n)*size mismatch"):
        holdfast.guard(model=torch.nn.Linear(3, 2), checkpoints=tmp_path)


class EMA:
    """An average without the two methods."""


def test_an_object_without_its_two_methods_is_refused_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"ema is an EMA, which cannot be saved, because it has no state_dict and load_state_dict\. Give it these two methods"):
        holdfast.guard(ema=EMA(), checkpoints=tmp_path)


def test_names_that_differ_are_told_both_ways_with_what_to_write(tmp_path: Path) -> None:
    finish(holdfast.guard(a={"x": 1}, b={"x": 2}, checkpoints=tmp_path), 1)
    with pytest.raises(CheckpointMismatch) as refused:
        holdfast.guard(a={}, c={}, checkpoints=tmp_path)
    assert "the checkpoint holds a, b, and guard() was given a, c: c not in the checkpoint; b not given to guard()." in str(refused.value)
    assert "guard(…, new=('c',), dropped=('b',))" in str(refused.value)
    assert "another --name" in str(refused.value)


def test_a_piece_can_be_added_to_a_run_and_one_can_be_dropped_and_both_are_said_once(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    finish(holdfast.guard(a={"x": 1}, b={"x": 2}, checkpoints=tmp_path), 1)
    a, c = {"x": 0}, {"x": 3}
    run = holdfast.guard(a=a, c=c, new=("c",), dropped=("b",), checkpoints=tmp_path)
    assert (a, c) == ({"x": 1}, {"x": 3})
    said = capfd.readouterr().err
    assert "new: c. The checkpoint of step 1 has nothing for it, so it starts from what the script made." in said
    assert "dropped: b. The checkpoint of step 1 holds it, and it is in no checkpoint from now on." in said
    c["x"] = 4
    finish(run, 2)
    again = {"x": 0}
    holdfast.guard(a={}, c=again, new=("c",), dropped=("b",), checkpoints=tmp_path)
    assert again == {"x": 4}, "the checkpoint has it by now"
    assert capfd.readouterr().err == ""


def test_new_is_of_a_piece_and_dropped_is_of_none(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"guard\(new=\['ema'\]\): ema is no piece; the pieces are a"):
        holdfast.guard(a={}, new=("ema",), checkpoints=tmp_path)
    with pytest.raises(UserError, match=r"guard\(dropped=\['a'\]\): a is given as a piece"):
        holdfast.guard(a={}, dropped="a", checkpoints=tmp_path)


FORGETS = """
import sys, torch, holdfast
model, other = torch.nn.Linear(3, 1), torch.nn.Linear(2, 1)
apart = torch.optim.Adam(other.parameters())
apart_schedule = torch.optim.lr_scheduler.StepLR(apart, 5)
run = holdfast.guard(model=model, checkpoints=sys.argv[1])
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)  # After guard.
schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
average = torch.optim.swa_utils.AveragedModel(model)
for _ in run.steps(20):
    model(torch.ones(1, 3)).sum().backward()
    for one in (optimizer, apart, schedule, apart_schedule):
        one.step()
    average.update_parameters(model)
"""
GIVES_ALL = """
import sys, torch, holdfast
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
schedulers = torch.optim.lr_scheduler
schedule = schedulers.SequentialLR(optimizer, [schedulers.ConstantLR(optimizer), schedulers.ExponentialLR(optimizer, 0.9)], [5])
run = holdfast.guard(model=model, optimizer=optimizer, schedule=schedule, checkpoints=sys.argv[1])
for _ in run.steps(10):
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    schedule.step()
"""


def said_by(script: str, directory: Path) -> str:
    """What a process of its own says: in this one other tests have left models behind."""
    done = subprocess.run([sys.executable, "-c", script, str(directory)], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    return done.stderr


def test_what_guard_was_not_given_is_named_once_and_nothing_else_is(tmp_path: Path) -> None:
    said = [line.partition(" is not a piece")[0] for line in said_by(FORGETS, tmp_path).splitlines() if "is not a piece" in line]
    assert sorted(said) == [
        "holdfast: an AveragedModel that averages `model`", "holdfast: an ExponentialLR that sets the learning rate of an SGD",
        "holdfast: an SGD that holds parameters of `model`",
    ]  # fmt: skip


def test_nothing_is_named_that_is_a_piece_or_within_one(tmp_path: Path) -> None:
    assert "is not a piece" not in said_by(GIVES_ALL, tmp_path)


class Counting(torch.utils.data.SequentialSampler):
    """A sampler that keeps its place."""

    def state_dict(self) -> dict[str, int]:
        return {"place": 0}

    def load_state_dict(self, state: dict[str, int]) -> None:
        pass


def test_the_sampler_of_a_loader_that_keeps_a_state_is_named(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    data = torch.utils.data.TensorDataset(torch.arange(4.0))
    loader = torch.utils.data.DataLoader(data, sampler=Counting(data))
    list(holdfast.guard(state={}, checkpoints=tmp_path).steps(loader))
    assert "a Counting that orders the samples of the loader and keeps a state is not a piece" in capfd.readouterr().err


def test_steps_have_a_length_and_are_asked_one_by_one(tmp_path: Path) -> None:
    run = holdfast.guard(state={}, checkpoints=tmp_path)
    steps = run.steps(5)
    assert (len(steps), next(steps), next(steps), list(steps)) == (5, 0, 1, [2, 3, 4])
    assert len(run.steps([1, 2, 3], epochs=4)) == 12
    with pytest.raises(TypeError):
        len(run.steps(iter([1])))


def test_a_call_of_steps_that_gives_nothing_says_why_and_what_to_ask_for(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run = holdfast.guard(state={}, checkpoints=tmp_path)
    assert finish(run, 3) == [0, 1, 2]
    assert finish(run, 3) == []
    assert capfd.readouterr().err == (
        "holdfast: run.steps(3) gives nothing: this run has done 3 steps, and 3 is how many it does in all. "
        "For 3 more ask for run.steps(6); in a loop over epochs, for run.steps(3 * (epoch + 1)).\n"
    )
    assert finish(run, run.step + 3) == [3, 4, 5]


def test_names_and_the_run_can_be_looked_at(tmp_path: Path) -> None:
    assert {"guard", "Sampler", "rejoin"} <= set(dir(holdfast))
    run = holdfast.guard(state={}, checkpoints=tmp_path)
    finish(run, 2)
    assert repr(run) == "<holdfast run at step 2: state; step 2 is saved>"


def guarded(steps: int) -> None:
    state: dict[str, torch.Tensor] = {}
    did = []
    for step in holdfast.guard(state=state, save_every=1).steps(steps):
        state["tensor"] = torch.full((100,), float(step))
        did.append(step)
    print(f"did {did}")


def test_a_damaged_checkpoint_ends_the_worker_with_76_and_an_older_one_can_be_named(tmp_path: Path) -> None:
    env = {"HOLDFAST_CHECKPOINTS": str(tmp_path / "checkpoints"), "HOLDFAST_GENERATION": "1"}
    run_gang(tmp_path / "1", guarded, env=env, steps=3)
    newest, older = list_complete(tmp_path / "checkpoints")[:2]
    file = max((newest.path / "chunks").iterdir(), key=lambda chunk: chunk.stat().st_size)
    damaged = bytearray(file.read_bytes())
    damaged[100] ^= 4
    file.write_bytes(damaged)
    with Gang(tmp_path / "2", guarded, env=env | {"HOLDFAST_GENERATION": "2"}, steps=5) as gang:
        assert gang.wait() == [76]
        assert f"{file} is damaged: expected" in gang.log()
        assert f"Restore {older.name} instead" in gang.log()
    gang = run_gang(tmp_path / "3", guarded, env=env | {"HOLDFAST_GENERATION": "3", "HOLDFAST_RESTORE": older.name}, steps=5)
    assert "did [2, 3, 4]" in gang.log()
    with pytest.raises(CheckpointCorrupt):
        verify(newest.path)


def test_a_run_without_a_directory_trains_and_says_so_once(capfd: pytest.CaptureFixture[str]) -> None:
    assert finish(holdfast.guard(state={}, save_every=1), 3) == [0, 1, 2]
    assert capfd.readouterr().err == (
        "holdfast: no checkpoints will be saved: the script was not started by holdfast run, and guard() was given no checkpoints=.\n"
    )


def test_numbers_that_cannot_be_read_do_not_end_the_loop(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    run = holdfast.guard(checkpoints=tmp_path)
    for step in run.steps(2):
        run.report(loss=torch.ones((), requires_grad=True) * step, accuracy=numpy.float32(0.5))
        run.report(loss="much", grad_norm=torch.ones(3))
    assert run.numbers == {"loss": 1.0, "accuracy": 0.5}
    assert capfd.readouterr().err.count("a reported number could not be read") == 1


def test_calls_of_steps_add_up_to_epochs_and_a_group_ends_with_its_epoch(tmp_path: Path) -> None:
    def batches(run: Run, stop_at: int) -> list[tuple[int, bool]]:
        seen = []
        for _ in range(3):
            for batch in run.steps([10, 11, 12, 13, 14], accumulate=2):
                seen.append((batch, run.boundary))
                if run.step == stop_at:
                    return seen
        return seen

    epoch = [(10, False), (11, True), (12, False), (13, True), (14, True)]
    assert batches(holdfast.guard(save_every=1, checkpoints=tmp_path / "whole"), -1) == epoch * 3
    assert batches(holdfast.guard(save_every=1, checkpoints=tmp_path / "broken"), 4) == [*epoch, *epoch[:3]]
    assert batches(holdfast.guard(save_every=1, checkpoints=tmp_path / "broken"), 6) == [*epoch[2:], epoch[0]]
    assert batches(holdfast.guard(save_every=1, checkpoints=tmp_path / "broken"), -1) == epoch
    assert batches(holdfast.guard(save_every=1, checkpoints=tmp_path / "broken"), -1) == []


def fill_the_disk(limit_bytes: int) -> None:
    """Save small, then too much, then small again."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    state = {"tensor": torch.zeros(10)}
    run = holdfast.guard(state=state, save_every=1)
    for step in run.steps(6):
        state["tensor"] = torch.zeros(limit_bytes // 2 if step in (2, 3) else 10)
    print(f"done at {run.step}")


def small_files(limit_bytes: int) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, limit_bytes))
    fill_the_disk(limit_bytes)


def check_full_disk(tmp_path: Path, checkpoints: Path, gang: Gang, reason: str) -> None:
    log = gang.log()
    assert "done at 6" in log
    assert log.count("could not be saved") == 1
    assert f"step 3 could not be saved in {checkpoints}: [Errno" in log
    assert reason in log
    assert log.count("saving works again: step 5 is durable.") == 1
    assert [found.name for found in list_complete(checkpoints)] == ["step-00000006.g1", "step-00000005.g1", "step-00000002.g1"]
    assert not any((checkpoints / f"step-0000000{step}.g1").exists() for step in (3, 4)), "what did not fit is swept"
    for found in list_complete(checkpoints):
        verify(found.path)


def test_a_save_that_does_not_fit_costs_neither_the_run_nor_an_older_checkpoint(tmp_path: Path) -> None:
    checkpoints = tmp_path / "checkpoints"
    env = {"HOLDFAST_CHECKPOINTS": str(checkpoints), "HOLDFAST_GENERATION": "1"}
    gang = run_gang(tmp_path / "1", small_files, env=env, limit_bytes=1 << 20)
    check_full_disk(tmp_path, checkpoints, gang, os.strerror(errno.EFBIG))


@pytest.mark.root
def test_a_full_disk_costs_neither_the_run_nor_an_older_checkpoint(tmp_path: Path) -> None:
    checkpoints = tmp_path / "checkpoints"
    checkpoints.mkdir()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"tmpfs", str(checkpoints).encode(), b"tmpfs", 0, b"size=1m") != 0:
        pytest.skip(f"mounting a small disk is not permitted here: {os.strerror(ctypes.get_errno())}")
    try:
        env = {"HOLDFAST_CHECKPOINTS": str(checkpoints), "HOLDFAST_GENERATION": "1"}
        gang = run_gang(tmp_path / "1", fill_the_disk, env=env, limit_bytes=1 << 20)
        check_full_disk(tmp_path, checkpoints, gang, os.strerror(errno.ENOSPC))
    finally:
        assert libc.umount2(str(checkpoints).encode(), 2) == 0


def test_importing_holdfast_is_quick_and_brings_no_torch() -> None:
    code = (
        "import sys, time; t = time.process_time(); import holdfast; s = time.process_time() - t\n"
        "holdfast.guard, holdfast.Sampler\n"
        "assert not {'torch', 'numpy', 'msgspec', 'asyncio'} & set(sys.modules); print(s)"
    )
    times = [float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True).stdout) for _ in range(5)]
    assert min(times) < 0.05



def teacher_and_student(*, together: bool) -> None:
    teacher, student = {"step": 0}, {"step": 0}
    run = holdfast.guard(teacher=teacher, student=student) if together else holdfast.guard(teacher=teacher)
    for step in run.steps(3):
        teacher["step"] = step + 1
    if not together:
        run = holdfast.guard(student=student)
    for step in run.steps(8 if together else 5):
        student["step"] = step + 1
    print(f"end at {teacher} {student}")


def environment(tmp_path: Path, generation: int = 1, restore: str = "") -> dict[str, str]:
    return {"HOLDFAST_CHECKPOINTS": str(tmp_path / "checkpoints"), "HOLDFAST_GENERATION": str(generation), "HOLDFAST_RESTORE": restore}


def test_a_second_guard_is_told_what_a_restart_would_do_to_the_first(tmp_path: Path) -> None:
    gang = run_gang(tmp_path, teacher_and_student, together=False, env=environment(tmp_path))
    assert gang.log().count("this is the second guard of this script") == 1


def test_two_trainings_with_one_guard_go_on_in_the_second_where_they_stopped(tmp_path: Path) -> None:
    first = run_gang(tmp_path / "1", teacher_and_student, together=True, env=environment(tmp_path))
    assert "end at {'step': 3} {'step': 8}" in first.log()
    newest = max(list_complete(tmp_path / "checkpoints"), key=lambda one: one.step)
    again = run_gang(tmp_path / "2", teacher_and_student, together=True, env=environment(tmp_path, 2, newest.name))
    assert "end at {'step': 3} {'step': 8}" in again.log()
    for gang in (first, again):
        assert "second guard" not in gang.log()
