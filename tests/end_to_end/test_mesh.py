"""The mesh of a real job: it is seen by what its ranks hold, a lost node is told with who holds the same, and a gang is made of whole replicas."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

from end_to_end.jobs import SCRIPTS, Job, bring_back, command, eventually, lose_node

from holdfast.domain.plan import Rung
from holdfast.domain.state import State

HSDP, DDP = SCRIPTS / "hsdp.py", SCRIPTS / "ddp.py"
WITHIN_S = 180.0  # Four ranks with torch on a few cores.


def _begins(job: Job) -> list[tuple[int, int, int]]:
    """Of each gang that began: generation, ranks, first step."""
    path = job.kept / "begins"
    return [(int(generation), int(ranks), int(step)) for generation, ranks, step in map(str.split, path.read_text().splitlines())] if path.exists() else []


def _seen(job: Job) -> State:
    """When every node has said what its ranks hold, and control has heard of a step."""
    eventually(lambda: job.step() > 0, within_s=WITHIN_S, what="a first step")

    def look() -> State | None:
        state = job.state()
        return state if state.gang is not None and state.gang.ready and len(state.gang.holds) == state.world_size else None

    found = eventually(look, within_s=WITHIN_S, what="a gang whose mesh is seen")
    assert found is not None
    return found


def test_a_replica_that_lost_a_node_leaves_whole_and_its_partner_stands_by(state: Path) -> None:
    """Two replicas of two nodes, nothing said: the gang goes on with one of them, and both are there again when the node is."""
    options = ["--nnodes", "2:4", "--resize-every-s", 0, "--slow-wait-s", 3600]
    kept = state / "kept-job"
    with Job(state, options=options, script=HSDP, arguments=[kept, 100_000, 0.05], torch=True) as job:
        seen = _seen(job)
        assert (str(seen.mesh), seen.mesh_said) == ("dp=2,fsdp=2", "")
        assert seen.gang is not None
        first, second, third, fourth = seen.gang.nodes
        eventually(lambda: job.state().saved_step > 0, within_s=WITHIN_S, what="a save")
        spec = lose_node(job, second)
        eventually(lambda: [one for one in _begins(job) if one[:2] == (2, 2)], within_s=WITHIN_S, what="a gang of one replica")
        shrunk = _seen(job)
        assert shrunk.gang is not None
        assert shrunk.gang.nodes == (third, fourth), "the replica that is whole"
        assert shrunk.left_over == (first,)
        (incident,) = shrunk.incidents
        (plan,) = incident.plans
        assert (plan.rung, plan.drop, plan.lost) == (Rung.SHRINK, (second,), (1,))
        assert "1 of 2 replicas of 2 nodes go on" in plan.because
        assert plan.held == "rank 1 was lost; rank 3 held the same, and did not live on: back to the newest checkpoint"
        told = command("show", job.name, HOLDFAST_STATE=str(state)).stdout
        assert f"{first} stands by: the replica is not whole" in " ".join(told.split())
        story = command("incidents", job.name, 1, HOLDFAST_STATE=str(state)).stdout
        assert [line for line in story.splitlines() if line.split()[:2] == ["replica", "0"] and "1 ✗" in line]
        bring_back(job, second, spec)
        eventually(lambda: [one for one in _begins(job) if one[:2] == (3, 4)], within_s=WITHIN_S, what="a gang of both replicas again")
        grown = _seen(job)
        assert grown.gang is not None
        assert (grown.gang.nodes[:2], set(grown.gang.nodes[2:])) == ((third, fourth), {first, second})
        assert grown.left_over == ()
        shown = json.loads(command("show", job.name, "--json", HOLDFAST_STATE=str(state)).stdout)["mesh"]
        assert (shown["copies"], shown["shards"], shown["nodes_of_a_replica"], [one["lost"] for one in shown["replicas"]]) == (2, 2, 2, [[], []])
        os.kill(job.process.pid, signal.SIGINT)
        assert job.wait(WITHIN_S) == 130
    begins = _begins(job)
    assert [ranks for _, ranks, _ in begins] == [4, 2, 4]
    assert begins[1][2] >= seen.saved_step > 0 or begins[1][2] > 0, "from a checkpoint"
    assert begins[2][2] >= begins[1][2], "to grow back loses nothing that was saved"


def test_a_gang_is_made_of_the_replicas_that_were_said(state: Path) -> None:
    """A script in which nothing can be seen, three replicas of two nodes: one node is lost, two replicas go on, its partner takes the place of the next one."""
    options = ["--nnodes", "2:6", "--mesh", "dp=3,pp=2", "--resize-every-s", 0, "--slow-wait-s", 3600]
    with Job(state, options=options, arguments=["--step-s", 0.02, "--steps", 100_000]) as job:
        job.wait_for_step(20)
        gang = eventually(lambda: (gang := job.state().gang) is not None and gang.ready and gang, what="a gang whose first step control has heard of")
        spec = lose_node(job, gang.nodes[2])
        eventually(lambda: [one for one in _begins(job) if one[:2] == (2, 4)], what="a gang of two replicas")
        shrunk = eventually(lambda: (now := job.state()).gang is not None and now.gang.generation == 2 and now.gang.ready and now, what="its first step")
        assert shrunk.gang is not None
        assert shrunk.gang.nodes == (*gang.nodes[:2], *gang.nodes[4:])
        assert shrunk.left_over == (gang.nodes[3],)
        assert shrunk.incidents[0].plans[0].held.startswith("rank 2 was lost; ranks 0, 4 held the same")
        lose_node(job, gang.nodes[0])
        replaced = eventually(lambda: (now := job.state()).gang is not None and now.gang.generation == 3 and now.gang.ready and now, what="the next gang")
        assert replaced.gang is not None
        assert replaced.gang.nodes == (gang.nodes[3], gang.nodes[1], *gang.nodes[4:]), "who stood by is taken first"
        assert (replaced.incidents[1].plans[0].rung, replaced.left_over) == (Rung.REPLACE, ())
        bring_back(job, gang.nodes[2], spec)
        eventually(lambda: job.state().nodes[gang.nodes[2]].state == "ready", what="the node back")
        job.wait_for_step(job.step() + 20)
        assert len(job.state().gang.nodes) == 4, "one node makes no replica"  # type: ignore[union-attr]
        os.kill(job.process.pid, signal.SIGINT)
        assert job.wait() == 130


def test_what_is_seen_counts_before_what_was_said(state: Path) -> None:
    """DDP keeps all ranks alike; the user says that a replica is two of them."""
    kept = state / "kept-job"
    with Job(state, options=["--nodes", 2, "--mesh", "tp=2"], script=DDP, arguments=[kept, 100_000, 0.05], torch=True) as job:
        seen = _seen(job)
        assert str(seen.mesh) == "replicate=2"
        assert seen.mesh_said == "--mesh says tp=2, and by what its ranks hold it is replicate=2: what was seen counts"
        os.kill(job.pid(1), signal.SIGKILL)
        (incident,) = eventually(lambda: [one for one in job.incidents() if one.plans], what="a plan")
        assert incident.plans[0].held.startswith("rank 1 was lost; rank 0 held the same")
        assert "what was seen counts" in " ".join(command("show", job.name, HOLDFAST_STATE=str(state)).stdout.split())
        os.kill(job.process.pid, signal.SIGINT)
        assert job.wait() == 130


def test_a_mesh_that_cannot_be_is_refused_with_a_sentence(state: Path) -> None:
    for mesh, nodes, said in (
        ("dp=3", "2", "is of 3 ranks, and the job has 2 ranks (2 x 1)"),
        ("dp=2,tp", "2", "'tp' is no dimension"),
        ("dp=1,xy=2", "2", "what a dimension 'xy' does is not known"),
        ("dp=2,tp=2", "1:4", "a replica of --mesh dp=2,tp=2 is on 2 nodes, and 1 is no multiple of it; write 2:4"),
        ("pp=2", "1:2", "no dimension of --mesh pp=2 can have another size"),
    ):
        refused = command("run", "--nnodes", nodes, "--mesh", mesh, DDP, HOLDFAST_STATE=str(state))
        assert refused.returncode == 2
        assert said in " ".join(refused.stderr.split()), refused.stderr
