"""The soak: random faults, one after the other, in one job of real DDP ranks. It ends with the same weights as a run without faults, bit for bit."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from pathlib import Path

import pytest
from end_to_end.jobs import SCRIPTS, Job, eventually, is_alive

DDP = SCRIPTS / "ddp.py"
OPTIONS = ["--nproc", 2, "--nodes", 1, "--max-restarts", 100000]
KINDS = ("kill", "kill", "exception", "agent", "control", "warm parent", "stop")


def job_of(state: Path, name: str, steps: int) -> Job:
    return Job(state, name, options=OPTIONS, script=DDP, arguments=[state / f"kept-{name}", steps], torch=True)


def weights_of(job: Job) -> set[str]:
    return {(job.kept / f"weights-{rank}").read_text() for rank in range(2)}


def strike(job: Job, kind: str, rank: int) -> None:
    """One fault. Whoever is gone already needs none."""
    with contextlib.suppress(ProcessLookupError, IndexError):
        match kind:
            case "kill":
                os.kill(job.pid(rank), signal.SIGKILL)
            case "exception":
                os.kill(job.pid(rank), signal.SIGUSR1)
            case "stop":
                os.kill(job.pid(rank), signal.SIGSTOP)
            case "agent":
                os.kill(job.agent(), signal.SIGKILL)
            case "control":
                os.kill(job.control(), signal.SIGKILL)
            case "warm parent":
                os.kill(job.warm_parent(), signal.SIGKILL)


def storm(job: Job, chance: random.Random, *, faults: int, seconds: float) -> list[str]:
    """Strike, wait until training gets further, strike again; now and then twice at once. For so long from the first step on."""
    struck: list[str] = []
    job.wait_for_step(1)
    until_s = time.monotonic() + seconds
    while len(struck) < faults and time.monotonic() < until_s and job.process.poll() is None:
        for _ in range(chance.choice((1, 1, 1, 2))):
            struck.append(chance.choice(KINDS))
            strike(job, struck[-1], chance.randrange(2))
        generation = max(start.generation for start in job.starts())
        before = job.step()
        # Further than before, or, after a roll-back, some steps of a new generation.
        eventually(
            lambda before=before, generation=generation: job.process.poll() is not None or moved(job, before, generation), within_s=110.0,
            what=f"progress after {struck[-2:]} (fault {len(struck)})",
        )  # fmt: skip
        time.sleep(chance.random() * 0.3)  # Not a wait for anything: the next fault comes at a moment of its own.
    return struck


def moved(job: Job, before: int, generation: int) -> bool:
    newest = max(start.generation for start in job.starts())
    return (job.step() > before or (newest > generation and job.step() != before)) and all(is_alive(job.pid(rank)) for rank in range(2))


def soak(state: Path, seed: int, *, steps: int, faults: int, seconds: float) -> list[str]:
    with job_of(state, "storm", steps) as job:
        struck = storm(job, random.Random(seed), faults=faults, seconds=seconds)
        ended = job.finished(max(600.0, seconds))
    with job_of(state, "calm", steps) as calm:
        calm.finished(600.0)
    assert all(one.stands for one in calm.incidents())  # On a busy machine a rank may be slow, and it may be said; nothing was broken.
    assert weights_of(job) == weights_of(calm), f"seed {seed}: other weights after {len(struck)} faults and {len(ended.incidents)} incidents"
    assert len(weights_of(job)) == 1
    return struck


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_two_hundred_random_faults_change_no_bit_of_the_weights(state: Path, seed: int) -> None:
    struck = soak(state, seed, steps=12000, faults=200, seconds=2400.0)
    assert len(struck) >= 200, f"seed {seed}: the job ended after {len(struck)} faults; give it more steps"


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_a_slice_of_random_faults_changes_no_bit_of_the_weights(state: Path, seed: int, soak_seconds: float) -> None:
    assert soak(state, seed, steps=600, faults=1000, seconds=min(60.0, soak_seconds * 0.6))
