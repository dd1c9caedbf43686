"""Rejoin of a sharded model (FSDP2), with real ranks: the others keep their processes, all go back to the newest step that every rank had saved, it is said how
many steps that loses, and what comes out is bit for bit that of a run without faults.
"""

from __future__ import annotations

import os
import signal
from functools import partial
from pathlib import Path

from end_to_end.jobs import SCRIPTS, Job, command, eventually, lose_node
from end_to_end.test_rejoin import PATIENCE_S, RANKS, end, job_of, pids, step_of, undisturbed, used, wait_for_end_of, wait_for_steps, wait_until_it_can
from trainer.gang import run_gang

from holdfast.domain.goodput import Bucket
from holdfast.domain.incident import Incident
from holdfast.domain.plan import Rung

SCRIPT = SCRIPTS / "shards.py"
SAVE_EVERY = 20


def sharded_job(state: Path, *, options: list[object], env: dict[str, str] | None = None) -> Job:
    return job_of(state, "job", options=options, script=SCRIPT, env=env)


def wait_until_saved(job: Job) -> None:
    """Until control knows of a checkpoint that all could go back to, and of steps since."""
    wait_for_steps(job, SAVE_EVERY)
    wait_until_it_can(job)
    eventually(lambda: job.process.poll() is not None or job.state().saved_step > 0, within_s=PATIENCE_S, what="a save")
    wait_for_steps(job, 3)


def expect_same(job: Job, reference: Path, *, steps: int) -> None:
    """Whoever did a step, and however often: the samples and the bits after it are those of a run that nobody disturbed, and no step is left out."""
    run_gang(reference, partial(undisturbed, script=str(SCRIPT)), ranks=RANKS, plugged=False, kept=str(reference), steps=steps)
    for rank in range(RANKS):
        right = {int(step): what for step, _, _, *what in used(reference, rank)}
        told = [(int(step), what) for step, _, _, *what in used(job.kept, rank) if int(step) <= steps]
        assert {step for step, _ in told} == set(range(1, steps + 1)), f"rank {rank} left out a step"
        wrong = next((step for step, what in told if right[step] != what), None)
        assert wrong is None, f"rank {rank} has something else after step {wrong}"


def expect_lost_since_the_save(job: Job, incident: Incident) -> None:
    """It is said where training went on, which is a step that was saved, and how many steps are done again for it."""
    assert incident.step_after >= 0
    assert incident.step_after % SAVE_EVERY == 0
    assert 0 <= incident.step_before - incident.step_after <= 2 * SAVE_EVERY
    for rank in range(RANKS):
        rows = [(int(step), int(generation)) for step, generation, *_ in used(job.kept, rank)]
        first = min(step for step, generation in rows if generation == incident.generation + 1)
        assert first == incident.step_after + 1, f"rank {rank} went on with step {first}, and the incident says {incident.step_after}"


def test_a_rank_that_is_killed_is_taken_in_again_and_all_go_back_to_what_was_saved(tmp_path: Path) -> None:
    with sharded_job(tmp_path, options=["--nproc", RANKS]) as job:
        wait_until_saved(job)
        lived = pids(job)
        os.kill(lived[1], signal.SIGKILL)
        wait_for_end_of(job, 1)
        wait_for_steps(job, SAVE_EVERY)
        now = pids(job)
        steps = min(step_of(job, rank) for rank in range(RANKS)) - 1
        incident = job.incidents()[0]
        end(job)
    assert ([now[0], now[2]], now[1] != lived[1]) == ([lived[0], lived[2]], True), "a rank that lived on has another process"
    assert [plan.rung for plan in incident.plans] == [Rung.REJOIN]
    assert "all go back to the newest checkpoint" in incident.plans[0].because
    expect_lost_since_the_save(job, incident)
    again = incident.step_before - incident.step_after
    assert f"step {incident.step_after} is restored" in job.stdout.read_text()
    assert incident.costs.get(Bucket.RECOMPUTE, 0.0) > 0.0 or not again
    told = command("incidents", "job", 1, HOLDFAST_STATE=str(tmp_path)).stdout
    assert f"{again} step" in told, told
    expect_same(job, tmp_path / "reference", steps=steps)


def test_ranks_that_are_killed_or_raise_or_stop_are_taken_in_again_one_after_the_other(tmp_path: Path) -> None:
    with sharded_job(tmp_path, options=["--nproc", RANKS]) as job:
        wait_until_saved(job)
        lived = pids(job)
        faults = ((0, signal.SIGKILL), (1, signal.SIGUSR1), (0, signal.SIGSTOP), (1, signal.SIGKILL))
        for number, (rank, how) in enumerate(faults, start=1):
            before = pids(job)
            os.kill(before[rank], how)
            wait_for_end_of(job, number)
            wait_for_steps(job, 3)
            kept = [pid for other, pid in enumerate(pids(job)) if other != rank]
            assert kept == [pid for other, pid in enumerate(before) if other != rank], f"a rank that lived on after fault {number} has another process"
        assert pids(job)[2] == lived[2], "a rank nobody hurt has another process"
        steps = min(step_of(job, rank) for rank in range(RANKS)) - 1
        incidents = job.incidents()[: len(faults)]  # The next one tells that there were so many.
        end(job)
    assert [[plan.rung for plan in one.plans] for one in incidents] == [[Rung.REJOIN]] * len(faults), [one.story[0].what for one in incidents]
    for incident in incidents:
        expect_lost_since_the_save(job, incident)
    expect_same(job, tmp_path / "reference", steps=steps)


def test_a_rank_that_dies_before_it_has_saved_takes_all_back_to_the_save_before(tmp_path: Path) -> None:
    with sharded_job(tmp_path, options=["--nproc", RANKS]) as job:
        wait_until_saved(job)
        lived = pids(job)
        os.kill(lived[1], signal.SIGUSR2)
        wait_for_end_of(job, 1)
        wait_for_steps(job, 3)
        assert [pids(job)[0], pids(job)[2]] == [lived[0], lived[2]]
        steps = min(step_of(job, rank) for rank in range(RANKS)) - 1
        incident = job.incidents()[0]
        end(job)
    died_after = max(int(step) for step, generation, *_ in used(job.kept, 1) if int(generation) == 1)
    assert died_after % SAVE_EVERY == 0
    assert incident.step_after == died_after - SAVE_EVERY, "what one rank has not saved does not exist"
    expect_lost_since_the_save(job, incident)
    expect_same(job, tmp_path / "reference", steps=steps)


def test_ranks_on_a_spare_restore_what_the_others_go_back_to(tmp_path: Path) -> None:
    with sharded_job(tmp_path, options=["--nodes", RANKS, "--nproc", 1, "--spares", 1]) as job:
        wait_until_saved(job)
        before = pids(job)
        gang = job.state().gang
        assert gang is not None
        lose_node(job, gang.nodes[1])  # Whoever came last is the spare.
        wait_for_end_of(job, 1)
        wait_for_steps(job, 3)
        after = pids(job)
        assert ([after[0], after[2]], after[1] != before[1]) == ([before[0], before[2]], True), "a rank that lived on has another process"
        steps = min(step_of(job, rank) for rank in range(RANKS)) - 1
        incident = job.incidents()[0]
        end(job)
    assert [plan.rung for plan in incident.plans] == [Rung.REPLACE]
    expect_lost_since_the_save(job, incident)
    expect_same(job, tmp_path / "reference", steps=steps)


def test_a_rejoin_in_which_another_rank_is_lost_is_followed_by_a_start_of_all(tmp_path: Path) -> None:
    with sharded_job(tmp_path, options=["--nproc", RANKS]) as job:
        wait_until_saved(job)
        lived = pids(job)
        (job.kept / "dies").write_text("2")
        os.kill(lived[1], signal.SIGKILL)
        wait_for_end_of(job, 1)
        wait_for_steps(job, 3)
        assert not set(lived) & set(pids(job))
        steps = min(step_of(job, rank) for rank in range(RANKS)) - 1
        incident = job.incidents()[0]
        end(job)
    assert [plan.rung for plan in incident.plans] == [Rung.REJOIN, Rung.RESPAWN]
    expect_same(job, tmp_path / "reference", steps=steps)


def test_a_model_that_is_made_outside_is_found_out_once_and_then_all_start_again(tmp_path: Path) -> None:
    with sharded_job(tmp_path, options=["--nproc", RANKS], env={"WHERE": "outside"}) as job:
        wait_until_saved(job)
        for number in (1, 2):
            os.kill(pids(job)[1], signal.SIGKILL)
            wait_for_end_of(job, number)
            wait_for_steps(job, 3)
        steps = min(step_of(job, rank) for rank in range(RANKS)) - 1
        incidents = job.incidents()[:2]
        end(job)
    assert [[plan.rung for plan in one.plans] for one in incidents] == [[Rung.REJOIN, Rung.RESPAWN], [Rung.RESPAWN]]
    assert "this function cannot be called again, and all ranks start again" in job.stdout.read_text()
    expect_same(job, tmp_path / "reference", steps=steps)
