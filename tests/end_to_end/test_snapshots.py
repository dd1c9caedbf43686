"""Saving through memory: the agent makes durable what a worker has sealed, whoever of the two dies meanwhile."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import torch
from end_to_end.jobs import SCRIPTS, Job, eventually, is_alive

from holdfast.checkpoint.found import list_complete, newest_complete, verify

SAVER = SCRIPTS / "saver.py"


def saver(state: Path, name: str, *, steps: int, die_at: int = -1, step_s: float = 0.0) -> Job:
    kept = state / f"kept-{name}"
    return Job(state, name, script=SAVER, arguments=[kept, steps, die_at, step_s], torch=True)


def starts(job: Job) -> list[tuple[int, int]]:
    """Generation, and the step it began with."""
    return [(int(line.split()[0]), int(line.split()[1])) for line in (job.kept / "starts").read_text().splitlines()]


def reached(job: Job) -> int:
    try:
        return int((job.kept / "step").read_text())
    except (OSError, ValueError):
        return -1


def weights(job: Job) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = torch.load(job.kept / "weights.pt", weights_only=True)
    return found


def test_what_a_worker_sealed_just_before_it_died_is_what_it_goes_on_from(state: Path) -> None:
    with saver(state, "peace", steps=50) as peace:
        peace.finished(120.0)
    with saver(state, "job", steps=50, die_at=30, step_s=0.03) as job:  # Step 30 is saved and nothing is waited for: the next statement kills it.
        job.finished(120.0)
    assert starts(job) == [(1, 0), (2, 30)]
    assert all(torch.equal(one, weights(job)[name]) for name, one in weights(peace).items())
    for found in list_complete(job.directory.checkpoints):
        verify(found.path)
    assert not list(Path("/dev/shm").glob(f"{job.directory.shared_memory_prefix}*"))


def test_an_agent_that_is_killed_while_state_waits_leaves_it_to_the_next_one(state: Path) -> None:
    with saver(state, "job", steps=100000, step_s=0.01) as job:
        eventually(lambda: newest_complete(job.directory.checkpoints), what="a first checkpoint")
        for _ in range(3):
            agent = job.agent()
            os.kill(agent, signal.SIGSTOP)
            step = reached(job)
            eventually(lambda least=step: reached(job) >= least + 25, what="saves that wait for the agent")
            os.kill(agent, signal.SIGKILL)
            eventually(lambda old=agent: not is_alive(old) and job.agent() != old, what="another agent")
            eventually(lambda least=step: (newest := newest_complete(job.directory.checkpoints)) and newest.step > least, what="what waited, durable")
        job.process.send_signal(signal.SIGINT)
        assert job.wait() == 130
    assert [generation for generation, _ in starts(job)] == [1], "the worker went on through all of it"
    assert "was not saved: the disk is still busy" in job.said(), "both buffers were full, and none was written over"
    for found in list_complete(job.directory.checkpoints):
        verify(found.path)
