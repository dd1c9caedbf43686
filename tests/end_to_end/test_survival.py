"""A job goes on through every kind of fault, takes every step exactly once, and says afterwards who went wrong first and why."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from end_to_end.jobs import Job, eventually, expected_result, is_alive, lose_node

from holdfast.domain.diagnosis import Cause
from holdfast.domain.incident import Incident, IncidentPhase
from holdfast.domain.job import Outcome
from holdfast.domain.plan import Rung

LONG = ("--steps", 100000)


def judged(incidents: list[Incident]) -> list[tuple[str, tuple[int, ...]]]:
    """Cause and culprits of every diagnosis, in order."""
    return [(diagnosis.cause.value, diagnosis.ranks) for incident in incidents for diagnosis in incident.diagnoses]


def nodes_of(job: Job) -> tuple[str, ...]:
    """The nodes of the gang, by the ranks they hold. Which of them is the spare depends on who came first."""
    gang = job.state().gang
    assert gang is not None
    return gang.nodes


@pytest.mark.unprivileged
def test_each_fault_of_a_worker_is_survived_and_its_first_cause_is_named(state: Path) -> None:
    faults = ["exit@start@1", "exception@10@2", "kill@20@1", "segv@30@3", "exit@40@0"]
    with Job(state, options=["--nodes", 2, "--nproc", 2], arguments=[part for fault in faults for part in ("--fault", fault)]) as job:
        ended = job.finished()
    assert job.result() == expected_result(60, 4)
    assert judged(ended.incidents) == [("exit_code", (1,)), ("exception", (2,)), ("killed", (1,)), ("crash", (3,)), ("exit_code", (0,))]
    assert all(incident.phase is IncidentPhase.RESOLVED for incident in ended.incidents)
    assert all(plan.rung is Rung.RESPAWN for incident in ended.incidents for plan in incident.plans)
    assert any("the loss is a banana" in diagnosis.because for incident in ended.incidents for diagnosis in incident.diagnoses)


@pytest.mark.unprivileged
def test_survivors_that_wait_for_a_dead_peer_are_ended_at_once(state: Path) -> None:
    # Rank 0 sleeps for an hour and ignores SIGTERM; nothing but a kill ends it, and its silence alone would be believed only after ten seconds.
    with Job(state, options=["--nproc", 2], arguments=["--fault", "sleep@10@0", "--fault", "kill@11@1", "--fault", "kill@10@1", "--deaf"]) as job:
        ended = job.finished()
    assert judged(ended.incidents)[0] == ("killed", (1,))
    assert ended.incidents[0].costs.get("stop", 0.0) < 5.0
    assert job.result() == expected_result(60, 2)


@pytest.mark.unprivileged
def test_a_stopped_rank_is_found_and_its_stack_kept(state: Path) -> None:
    with Job(state, options=["--nproc", 2], arguments=["--fault", "stop@20@1"]) as job:
        ended = job.finished()
    assert judged(ended.incidents) == [("hang", (1,))]
    assert "state T" in ended.incidents[0].diagnoses[0].because
    assert ended.incidents[0].stacks.keys() == {"0", "1"}, "stacks of all ranks are captured before anything is killed"
    assert "_read" in ended.incidents[0].stacks["0"], "the waiting rank shows where it waits"


def test_a_stopped_worker_of_a_script_without_our_lines_is_started_again(state: Path) -> None:
    script = state / "plain.py"
    script.write_text("import os, signal, sys\nnew = not os.path.exists(sys.argv[1])\nopen(sys.argv[1], 'w')\nif new: os.kill(os.getpid(), signal.SIGSTOP)\n")
    with Job(state, script=script, arguments=[state / "stopped-once"]) as job:
        ended = job.finished()
    assert judged(ended.incidents) == [("hang", (0,))]
    assert ended.generation == 2


def test_a_rank_that_sleeps_and_a_rank_that_spins_are_both_found(state: Path) -> None:
    # Outside a collective either may go on by itself, so that a person says how long is too long. Two jobs at a time wait for it once.
    arguments = {kind: ["--fault", f"{kind}@250@1", "--steps", 270, "--step-s", 0.02] for kind in ("sleep", "spin")}
    with (
        Job(state, "sleep", options=["--nproc", 2, "--hang-limit", "10s"], arguments=arguments["sleep"]) as asleep,
        Job(state, "spin", options=["--nproc", 2, "--hang-limit", "10s"], arguments=arguments["spin"]) as spinning,
    ):
        for job in (asleep, spinning):
            ended = job.finished(100.0)
            assert [cause for cause, _ in judged(ended.incidents)] == ["hang"]
            assert "strike" in ended.incidents[0].stacks["1"], "the culprit's stack shows where it hangs"
            assert job.result() == expected_result(270, 2)


@pytest.mark.unprivileged
def test_a_lost_node_is_replaced_by_a_spare(state: Path) -> None:
    with Job(state, options=["--nodes", 2, "--spares", 1, "--max-restarts", 5], arguments=["--step-s", 0.02, *LONG]) as job:
        job.wait_for_step(20)
        kept, lost = nodes_of(job)
        (spare,) = {"node-0", "node-1", "node-2"} - {kept, lost}
        lose_node(job, lost)
        eventually(lambda: [start for start in job.starts() if start.generation == 2 and start.rank == 1], what="a second life of rank 1")
        job.wait_for_step(job.step() + 5)
        incident = job.incidents()[0]
        assert [(one.cause, one.node) for one in incident.diagnoses] == [(Cause.NODE_LOST, lost)]
        assert (incident.plans[0].rung, incident.plans[0].take) == (Rung.REPLACE, (spare,))
        assert nodes_of(job) == (kept, spare), "the spare takes over the ranks of the node it replaces"
        assert not job.directory.node_shared_memory(lost).exists()
        os.kill(job.process.pid, signal.SIGINT)
        assert job.wait() == 130


@pytest.mark.unprivileged
def test_agent_control_and_warm_parent_may_die_under_a_running_job(state: Path) -> None:
    with Job(state, options=["--nodes", 2], arguments=["--step-s", 0.02, "--steps", 400]) as job:
        job.wait_for_step(10)
        for victim in (job.control, lambda: job.agent("node-0"), lambda: job.agent("node-1")):
            before = victim()
            os.kill(before, signal.SIGKILL)
            eventually(lambda find=victim, old=before: find() != old, what="another process in its place")
            job.wait_for_step(job.step() + 20)
        assert len(job.starts()) == 2, "the workers were left alone"
        assert not job.incidents()
        workers = [start.pid for start in job.starts()]
        os.kill(job.warm_parent("node-1"), signal.SIGKILL)
        eventually(lambda: not any(map(is_alive, workers)), what="the end of the old workers")
        job.hurry()
        ended = job.finished()
    assert job.result() == expected_result(400, 2)
    assert [(start.generation, start.rank) for start in sorted(job.starts(), key=lambda one: (one.generation, one.rank))] == [(1, 0), (1, 1), (2, 0), (2, 1)]
    assert [cause for cause, _ in judged(ended.incidents)] == ["vanished"]


@pytest.mark.unprivileged
@pytest.mark.slow
def test_a_job_without_spares_waits_for_nodes_and_then_says_that_none_came(state: Path) -> None:
    with Job(state, options=["--nodes", 2], arguments=["--step-s", 0.02, *LONG]) as job:
        job.wait_for_step(20)
        lose_node(job, nodes_of(job)[1])
        assert job.wait(110.0) == 81
        ended = job.state()
    assert ended.outcome is Outcome.BROKEN
    assert "node" in ended.because
