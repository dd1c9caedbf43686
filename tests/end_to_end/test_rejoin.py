"""Rejoin, with real ranks: the others keep their processes, no step is lost, and what comes out is bit for bit that of a run without faults."""

from __future__ import annotations

import os
import runpy
import signal
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from end_to_end.jobs import SCRIPTS, Job, eventually, lose_node
from trainer.gang import run_gang

from holdfast.domain.incident import Incident, IncidentPhase
from holdfast.domain.plan import Rung

SCRIPT = SCRIPTS / "rejoins.py"
RANKS, STEP_S, FOREVER = 3, 0.01, 1 << 30
SAVE_EVERY = 50  # As in the script.
PATIENCE_S = 120.0


def job_of(state: Path, name: str, *, options: list[object], script: Path = SCRIPT, env: dict[str, str] | None = None) -> Job:
    return Job(state, name, options=options, script=script, arguments=[state / f"kept-{name}", FOREVER, STEP_S], torch=True, env=env)


def undisturbed(kept: str, steps: int, script: str = str(SCRIPT)) -> None:
    sys.argv = [script, kept, str(steps), "0"]
    runpy.run_path(script, run_name="__main__")


def used(kept: Path, rank: int) -> list[list[str]]:
    """Step, generation, process, a checksum of the state, samples; a line that is being written is left out."""
    path = kept / f"used-{rank}"
    return [line.split() for line in path.read_text().split("\n")[:-1]] if path.exists() else []


def step_of(job: Job, rank: int = 0) -> int:
    return max((int(row[0]) for row in used(job.kept, rank)), default=0)


def pids(job: Job, ranks: int = RANKS) -> list[int]:
    return [int(used(job.kept, rank)[-1][2]) for rank in range(ranks)]


def wait_for_steps(job: Job, more: int, ranks: int = RANKS) -> None:
    """So many further steps of every rank."""
    wanted = [step_of(job, rank) + more for rank in range(ranks)]
    eventually(
        lambda: job.process.poll() is not None or all(step_of(job, rank) >= wanted[rank] for rank in range(ranks)),
        within_s=PATIENCE_S, what=f"{more} more steps",
    )  # fmt: skip
    assert job.process.poll() is None, f"the job has ended:\n{job.said()}"


def wait_until_it_can(job: Job) -> None:
    """Until control has heard that every rank has finished a step, and can rejoin."""

    def look() -> bool:
        time.sleep(0.2)  # A look reads the whole journal.
        gang = job.state().gang
        return job.process.poll() is not None or (gang is not None and gang.rejoins)

    eventually(look, within_s=PATIENCE_S, what="a gang that rejoins")
    assert job.process.poll() is None, f"the job has ended:\n{job.said()}"


def wait_for_end_of(job: Job, incident: int) -> None:
    """Until control knows that every rank works again: from then on the gang can rejoin once more."""

    def look() -> bool:
        time.sleep(0.2)  # A look reads the whole journal.
        return job.process.poll() is not None or any(one.id == incident and one.phase is IncidentPhase.RESOLVED for one in job.incidents())

    eventually(look, within_s=PATIENCE_S, what=f"the end of incident {incident}")
    assert job.process.poll() is None, f"the job has ended:\n{job.said()}"


def answered(job: Job) -> list[Incident]:
    """Those in which something was done: that there were many of them is an incident too."""
    return [one for one in job.incidents() if one.plans]


def wait_for_answers(job: Job, faults: int) -> None:
    """Until so many faults were answered, and control knows that every rank works again."""

    def look() -> bool:
        time.sleep(0.2)  # A look reads the whole journal.
        done = answered(job)
        return job.process.poll() is not None or (len(done) >= faults and all(one.phase is IncidentPhase.RESOLVED for one in done))

    eventually(look, within_s=PATIENCE_S, what=f"the end of {faults} incidents")
    assert job.process.poll() is None, f"the job has ended:\n{job.said()}"


def end(job: Job) -> None:
    """Ctrl-C, and all the time it takes to leave nothing behind."""
    job.process.send_signal(signal.SIGINT)
    job.wait(PATIENCE_S)


def expect_same(job: Job, reference: Path, *, steps: int, ranks: int = RANKS) -> None:
    """The same samples and the same bits after every step, on every rank; a step that was broken off counts when it was done."""
    for rank in range(ranks):
        told = {int(step): what for step, _, _, *what in used(job.kept, rank) if int(step) <= steps}
        gang = {int(step): generation for step, generation, *_ in used(job.kept, rank)}
        for step in set(range(1, steps + 1)) - told.keys():
            assert gang[step - 1] != gang[step + 1], f"rank {rank} left out step {step}, and no gang broke in it after the others had what they needed"
        right = {int(step): what for step, _, _, *what in used(reference, rank)}
        wrong = next((step for step in sorted(told) if told[step] != right[step]), None)
        assert wrong is None, f"rank {rank} has something else after step {wrong}: {used(job.kept, rank)[wrong - 1 :][:2]}"


def test_a_rank_that_is_killed_is_taken_in_again_and_every_step_comes_out_the_same(tmp_path: Path) -> None:
    with job_of(tmp_path, "job", options=["--nproc", RANKS]) as job:
        wait_for_steps(job, 10)
        wait_until_it_can(job)
        os.kill(pids(job)[1], signal.SIGKILL)
        wait_for_end_of(job, 1)
        wait_for_steps(job, 3)
        steps = min(step_of(job, rank) for rank in range(RANKS)) - 1
        incidents = job.incidents()
        end(job)
    reference = tmp_path / "reference"
    run_gang(reference, undisturbed, ranks=RANKS, plugged=False, kept=str(reference), steps=steps)
    expect_same(job, reference, steps=steps)
    assert [one.plans[0].rung for one in incidents] == [Rung.REJOIN]


def test_ranks_that_are_killed_or_raise_or_stop_are_taken_in_again_and_nothing_is_lost(tmp_path: Path) -> None:
    with job_of(tmp_path, "job", options=["--nproc", RANKS]) as job:
        wait_for_steps(job, 10)
        wait_until_it_can(job)
        lived = pids(job)
        faults = ((1, signal.SIGKILL), (0, signal.SIGKILL), (1, signal.SIGUSR1), (0, signal.SIGSTOP))
        for number, (rank, how) in enumerate(faults, start=1):
            os.kill(pids(job)[rank], how)
            wait_for_end_of(job, number)
            wait_for_steps(job, 3)
        assert pids(job)[2] == lived[2], "a rank nobody hurt has another process"
        os.kill(lived[2], signal.SIGUSR2)
        eventually((job.kept / "deaf").exists, within_s=PATIENCE_S)
        os.kill(pids(job)[1], signal.SIGKILL)
        wait_for_end_of(job, len(faults) + 1)
        wait_for_steps(job, 3)
        assert pids(job)[2] != lived[2], "a rank that swallows what it is told was kept"
        steps = min(step_of(job, rank) for rank in range(RANKS)) - 1
        incidents = job.incidents()[: len(faults) + 1]  # The next one tells that there were so many.
        end(job)
    reference = tmp_path / "reference"
    run_gang(reference, undisturbed, ranks=RANKS, plugged=False, kept=str(reference), steps=steps)
    expect_same(job, reference, steps=steps)
    assert [[plan.rung for plan in one.plans] for one in incidents] == [[Rung.REJOIN]] * (len(faults) + 1), [one.story[0].what for one in incidents]
    assert all(one.step_after >= one.step_before for one in incidents), "a step was lost"
    told = [moment.what for moment in incidents[-1].story]
    assert any("rank 2 did not leave within 2 s and is given up, to be started again: it was told" in what for what in told), told


@pytest.mark.parametrize("rank", [0, 1])
def test_wherever_in_its_step_a_rank_is_killed_no_step_is_lost_or_done_twice(tmp_path: Path, rank: int) -> None:
    places = ("loader", "forward", "all-reduce", "optimizer", "stepped", "save")
    survivors = sorted({*range(RANKS)} - {rank})
    with job_of(tmp_path, "job", options=["--nproc", RANKS]) as job:
        wait_for_steps(job, 10)
        wait_until_it_can(job)
        lived = pids(job)
        last_of: dict[str, int] = {}
        for number, place in enumerate(places, start=1):
            victim = pids(job)[rank]
            order = job.kept / f"die-{rank}-{place}"
            order.touch()
            eventually(lambda order=order: not order.exists(), within_s=PATIENCE_S, what=f"rank {rank} to come by {place}")
            wait_for_answers(job, number)
            wait_for_steps(job, 3)
            last_of[place] = max(int(step) for step, _, pid, *_ in used(job.kept, rank) if int(pid) == victim)
        after = pids(job)
        steps = min(step_of(job, one) for one in range(RANKS)) - 1
        incidents = answered(job)
        end(job)
    reference = tmp_path / "reference"
    run_gang(reference, undisturbed, ranks=RANKS, plugged=False, kept=str(reference), steps=steps)
    expect_same(job, reference, steps=steps)
    assert [after[one] for one in survivors] == [lived[one] for one in survivors], "a rank nobody hurt has another process"
    for one in range(RANKS):
        done = Counter(int(step) for step, *_ in used(job.kept, one))
        assert not [step for step, times in done.items() if times > 1], f"rank {one} did steps twice"
    assert last_of["save"] % SAVE_EVERY == 0, "it was not killed in a save"
    assert [[plan.rung for plan in one.plans] for one in incidents] == [[Rung.REJOIN]] * len(places), [one.story[0].what for one in incidents]
    assert all(one.step_after >= one.step_before for one in incidents), "a step was lost"


def test_ranks_on_a_spare_get_their_state_from_those_who_live_on(tmp_path: Path) -> None:
    with job_of(tmp_path, "job", options=["--nodes", RANKS, "--nproc", 1, "--spares", 1]) as job:
        wait_for_steps(job, 10)
        wait_until_it_can(job)
        before = pids(job)
        furthest = step_of(job)
        gang = job.state().gang
        assert gang is not None
        lose_node(job, gang.nodes[1])  # Whoever came last is the spare.
        wait_for_end_of(job, 1)
        wait_for_steps(job, 3)
        after = pids(job)
        assert [after[0], after[2]] == [before[0], before[2]], "a rank that lived on has another process"
        assert after[1] != before[1]
        assert job.incidents()[0].plans[-1].rung is Rung.REPLACE
        first = min(int(step) for step, generation, *_ in used(job.kept, 1) if int(generation) > 1)
        assert first >= furthest, f"the spare began with step {first}, and the others had done {furthest}"
        end(job)


def test_when_one_that_lives_on_is_killed_while_it_rejoins_all_go_back_and_come_out_the_same(tmp_path: Path) -> None:
    with job_of(tmp_path, "job", options=["--nproc", RANKS]) as job:
        wait_for_steps(job, 60)
        wait_until_it_can(job)
        (job.kept / "die-2-rejoin").touch()
        (job.kept / "die-1-forward").touch()
        eventually(lambda: not (job.kept / "die-2-rejoin").exists(), within_s=PATIENCE_S, what="rank 2 to be killed")
        wait_for_answers(job, 1)
        wait_for_steps(job, 3)
        steps = min(step_of(job, rank) for rank in range(RANKS)) - 1
        (incident,) = answered(job)
        end(job)
    reference = tmp_path / "reference"
    run_gang(reference, undisturbed, ranks=RANKS, plugged=False, kept=str(reference), steps=steps)
    expect_same(job, reference, steps=steps)
    assert [plan.rung for plan in incident.plans] == [Rung.REJOIN, Rung.RESPAWN]
    again = [step for step, times in Counter(int(step) for step, *_ in used(job.kept, 0)).items() if times > 1]
    assert incident.step_after >= SAVE_EVERY
    assert again == list(range(incident.step_after + 1, incident.step_before + 1)), "what is told as lost is what was done again"
