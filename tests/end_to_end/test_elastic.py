"""A gang that may be smaller: it goes on without a node that is lost, takes it in again when it is back, and takes every step exactly once throughout. And what
a person says to a running job."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from end_to_end.jobs import Job, bring_back, command, eventually, expected_result, lose_node

from holdfast.domain.job import JobPhase
from holdfast.domain.plan import Rung

pytestmark = pytest.mark.unprivileged


def _begins(job: Job) -> list[tuple[int, int, int]]:
    """Of each gang that began: generation, ranks, first step."""
    path = job.kept / "begins"
    return [(int(generation), int(ranks), int(step)) for generation, ranks, step in map(str.split, path.read_text().splitlines())] if path.exists() else []


def test_a_gang_goes_on_without_a_lost_node_and_takes_it_in_again(state: Path) -> None:
    with Job(state, options=["--nnodes", "2:3", "--resize-every-s", 0], arguments=["--step-s", 0.02, "--steps", 700]) as job:
        job.wait_for_step(20)
        gang = eventually(lambda: (gang := job.state().gang) is not None and gang.ready and gang, what="a gang whose first step control has heard of")
        lost = gang.nodes[1]  # Sooner, nobody would know what a restart takes, and it would be believed to be dear.
        spec = lose_node(job, lost)
        eventually(lambda: [one for one in _begins(job) if one[0] == 2], what="a second generation")
        job.wait_for_step(job.step() + 20)
        shrunk = job.state()
        assert shrunk.gang is not None
        assert shrunk.gang.nodes == tuple(name for name in gang.nodes if name != lost), "the others keep their order, and ranks are dense"
        assert shrunk.world_size == 2
        (incident,) = shrunk.incidents
        assert (incident.plans[0].rung, incident.plans[0].drop) == (Rung.SHRINK, (lost,))
        assert "W* =" in incident.plans[0].because, "the rule is told with its figures"
        bring_back(job, lost, spec)
        eventually(lambda: [one for one in _begins(job) if one[:2] == (3, 3)], what="a gang of three again")
        assert job.state().phase in (JobPhase.STARTING, JobPhase.RUNNING)
        ended = job.finished()
    begins = _begins(job)
    assert [ranks for _, ranks, _ in begins] == [3, 2, 3]
    assert job.result() == expected_result(700, lambda step: [ranks for _, ranks, first in begins if first <= step][-1])
    assert [(len(change.before), len(change.after), change.by_choice) for change in ended.changes] == [(3, 2, False), (2, 3, True)]
    assert len(ended.incidents) == 1, "to grow back is no incident"


def test_a_person_approves_a_plan_drains_a_node_and_gives_it_back(state: Path) -> None:
    with Job(state, options=["--nodes", 2, "--spares", 1, "--policy", "ask"], arguments=["--step-s", 0.02, "--steps", 100000]) as job:

        def say(*words: object) -> str:
            said = command(words[0], job.name, *words[1:], HOLDFAST_STATE=str(state))
            assert said.returncode == 0, said.stderr
            return said.stdout

        job.wait_for_step(20)
        refused = command("approve", job.name, HOLDFAST_STATE=str(state))
        assert (refused.returncode, "no plan waits for an answer" in refused.stderr) == (2, True)
        os.kill(job.pid(1), signal.SIGKILL)
        eventually(lambda: "holdfast approve" in job.state().because, what="a plan that waits")
        assert len(job.starts()) == 2, "nothing is done before somebody says so"
        assert "carried out" in say("approve")
        eventually(lambda: len(job.starts()) == 4, what="a second generation")
        before = job.state().gang
        assert before is not None
        job.wait_for_step(job.step() + 5)
        assert "leaves it at the next save" in say("drain", before.nodes[1], "--because", "its fan is loud")
        eventually(lambda: len(job.starts()) == 6, what="a third generation")
        moved = job.state()
        assert moved.gang is not None
        assert before.nodes[1] not in moved.gang.nodes
        assert [(change.by_choice, change.because) for change in moved.changes] == [(True, f"{before.nodes[1]} is drained: its fan is loud")]
        assert len(moved.incidents) == 1, "a drain is no incident"
        assert "cordoned: its fan is loud" in say("nodes")
        assert "may be given ranks again" in say("uncordon", before.nodes[1])
        assert "spare" in say("nodes")
        job.wait_for_step(job.step() + 5)
        os.kill(job.process.pid, signal.SIGINT)
        assert job.wait() == 130
