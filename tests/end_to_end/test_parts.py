"""Rejoin of a state that is split, and of which every part is held by several ranks (HSDP): a lost rank gets its part from one that holds the same, and no step
is lost. Where all holders of a part are lost at once, all go back to what was saved.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

from end_to_end.jobs import SCRIPTS, Job, eventually, lose_node
from end_to_end.test_rejoin import PATIENCE_S, end, expect_same, job_of, pids, step_of, undisturbed, used, wait_for_end_of, wait_for_steps, wait_until_it_can
from trainer.gang import run_gang

from holdfast.domain.plan import Rung

SCRIPT, HSDP = SCRIPTS / "shards.py", SCRIPTS / "hsdp.py"
RANKS = 4  # Two replicas of two: ranks 0 and 2 hold one half, 1 and 3 the other.
SPLIT = {"PARTS": "2"}


def split_job(state: Path) -> Job:
    return job_of(state, "job", options=["--nproc", RANKS], script=SCRIPT, env=SPLIT)


def wait_until_all_is_known(job: Job) -> None:
    """That it rejoins, and who holds what; and something is saved."""
    wait_for_steps(job, 25, RANKS)
    wait_until_it_can(job)
    eventually(lambda: job.process.poll() is not None or (job.state().mesh is not None and job.state().saved_step > 0), within_s=PATIENCE_S, what="the mesh")


def undisturbed_parts(kept: str, steps: int) -> None:
    os.environ.update(SPLIT)
    undisturbed(kept, steps, script=str(SCRIPT))


def test_a_lost_rank_gets_its_part_from_one_that_holds_the_same_and_no_step_is_lost(tmp_path: Path) -> None:
    with split_job(tmp_path) as job:
        wait_until_all_is_known(job)
        for number, (rank, how) in enumerate(((1, signal.SIGKILL), (2, signal.SIGUSR1), (0, signal.SIGSTOP)), start=1):
            before = pids(job, RANKS)
            os.kill(before[rank], how)
            wait_for_end_of(job, number)
            wait_for_steps(job, 3, RANKS)
            kept = [pid for other, pid in enumerate(pids(job, RANKS)) if other != rank]
            assert kept == [pid for other, pid in enumerate(before) if other != rank], f"a rank that lived on after fault {number} has another process"
            eventually(lambda: job.state().mesh is not None, within_s=PATIENCE_S, what="the mesh")
        steps = min(step_of(job, rank) for rank in range(RANKS)) - 1
        incidents = job.incidents()[:3]
        end(job)
    assert [[plan.rung for plan in one.plans] for one in incidents] == [[Rung.REJOIN]] * 3, [one.story for one in incidents]
    # Ranks that hold another part may have taken the optimizer's step just before, without its partner: then nobody holds either step, and all go back.
    unlost = [one for one in incidents if one.step_after >= one.step_before]
    assert len(unlost) >= 2, [(one.step_before, one.step_after, one.story) for one in incidents]
    told = {rank: f"rank {rank} was lost; rank {partner} holds the same" for rank, partner in ((1, 3), (2, 0), (0, 2))}
    assert all(one.plans[0].held == told[one.plans[0].lost[0]] for one in unlost)
    reference = tmp_path / "reference"
    run_gang(reference, undisturbed_parts, ranks=RANKS, plugged=False, kept=str(reference), steps=steps)
    expect_same(job, reference, steps=steps, ranks=RANKS)


def test_when_all_who_hold_a_part_are_lost_the_others_go_back_to_what_was_saved(tmp_path: Path) -> None:
    with split_job(tmp_path) as job:
        wait_until_all_is_known(job)
        before = pids(job, RANKS)
        for rank in (1, 3):
            os.kill(before[rank], signal.SIGKILL)
        wait_for_end_of(job, 1)
        wait_for_steps(job, 3, RANKS)
        steps = min(step_of(job, rank) for rank in range(RANKS)) - 1
        incident = job.incidents()[0]
        end(job)
    assert incident.step_after % 20 == 0, "what was saved"
    assert "back to the newest checkpoint" in incident.plans[-1].held, incident.plans
    reference = tmp_path / "reference"
    run_gang(reference, undisturbed_parts, ranks=RANKS, plugged=False, kept=str(reference), steps=steps)
    for rank in range(RANKS):
        right = {int(step): what for step, _, _, *what in used(reference, rank)}
        told = [(int(step), what) for step, _, _, *what in used(job.kept, rank) if int(step) <= steps]
        wrong = next((step for step, what in told if right[step] != what), None)
        assert wrong is None, f"rank {rank} has something else after step {wrong}"


def test_a_replica_that_is_whole_goes_on_without_one_that_is_not_and_loses_no_step(state: Path) -> None:
    options = ["--nnodes", "2:4", "--resize-every-s", 600, "--slow-wait-s", 3600]
    kept = state / "kept-job"
    with Job(state, options=options, script=HSDP, arguments=[kept, 100_000, 0.05], torch=True, env={"REJOINS": "1"}) as job:
        eventually(lambda: job.step() > 0, within_s=PATIENCE_S, what="a first step")
        wait_until_it_can(job)
        eventually(lambda: job.process.poll() is not None or job.state().mesh is not None, within_s=PATIENCE_S, what="the mesh")
        gang = job.state().gang
        assert gang is not None
        lose_node(job, gang.nodes[1])
        wait_for_end_of(job, 1)
        shrunk, incident = job.state(), job.incidents()[0]
        begins = [tuple(map(int, line.split())) for line in (kept / "begins").read_text().splitlines()]
        end(job)
    assert [(plan.rung, plan.lost, plan.held) for plan in incident.plans] == [(Rung.SHRINK, (1,), "rank 1 was lost; rank 3 holds the same")]
    assert shrunk.gang is not None
    assert (shrunk.gang.nodes, shrunk.left_over) == (gang.nodes[2:], gang.nodes[:1])
    assert incident.step_after >= incident.step_before, "a step was lost"
    assert begins[1] == (2, 2, incident.step_after)
