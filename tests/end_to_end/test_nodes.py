"""Nodes that will go are left before they do, nodes that failed are checked before they are used again, and what a job needs is on a node before its ranks."""

from __future__ import annotations

import json
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from end_to_end.jobs import SCRIPTS, Job, command, eventually, expected_result, is_alive

from holdfast.domain.goodput import Bucket
from holdfast.domain.job import JobPhase, Outcome

STEPS = 500


def _begins(job: Job) -> list[tuple[int, int, int]]:
    """Of each gang that began: generation, ranks, first step."""
    path = job.kept / "begins"
    return [(int(generation), int(ranks), int(step)) for generation, ranks, step in map(str.split, path.read_text().splitlines())] if path.exists() else []


def _ready(job: Job) -> tuple[str, ...]:
    """The nodes of a gang that control has seen stepping."""
    job.wait_for_step(20)
    return eventually(lambda: (gang := job.state().gang) is not None and gang.ready and gang, what="a gang that steps").nodes


@pytest.mark.unprivileged
def test_a_node_with_a_notice_is_left_for_the_spare_and_no_step_is_lost(state: Path) -> None:
    with Job(state, options=["--nodes", 2, "--spares", 1, "--notice-file", state / "notice-{node}"], arguments=["--step-s", 0.02, "--steps", STEPS]) as job:
        goes = _ready(job)[1]
        notice = state / f"notice-{goes}"
        notice.write_text(json.dumps({"at": time.time() + 120.0, "reason": "the spot market wants it back"}))
        eventually(lambda: [one for one in _begins(job) if one[0] == 2], what="a second generation")
        moved = job.state()
        assert moved.gang is not None
        assert goes not in moved.gang.nodes
        assert moved.notices[goes].because == "it is to go: the spot market wants it back"
        said = {one["node"]: one for one in json.loads(command("nodes", job.name, "--json", HOLDFAST_STATE=str(state)).stdout)}[goes]
        assert (said["role"], said["why"]) == ("out of service", "cordoned: it is to go: the spot market wants it back")
        assert said["goes_at"] == pytest.approx(time.time() + 120.0, abs=60.0)
        assert "goes in 1m" in command("nodes", job.name, HOLDFAST_STATE=str(state), COLUMNS="200").stdout
        assert f"{goes} (going)" in command("show", job.name, HOLDFAST_STATE=str(state), COLUMNS="200").stdout
        notice.unlink()
        eventually(lambda: not job.state().cordoned, what="a notice that is withdrawn")
        job.hurry()
        ended = job.finished()
    (first, second) = _begins(job)
    assert (first[1], second[1]) == (2, 2)
    assert job.result() == expected_result(STEPS, 2), "every step was taken once"
    assert second[2] > 20
    assert not ended.incidents, "it was told beforehand: nothing went wrong"
    assert [(change.by_choice, change.because) for change in ended.changes] == [(True, f"{goes} is drained: it is to go: the spot market wants it back")]


@pytest.mark.timeout(300)
def test_a_real_training_moves_at_the_step_it_is_at_and_ends_bit_for_bit_as_one_that_did_not(state: Path) -> None:
    weights = []
    for name, spares in (("moved", 1), ("still", 0)):
        options = ["--nodes", 2, "--spares", spares, "--notice-file", state / f"notice-{name}-{{node}}", "--checkpoint-every", 100000]
        with Job(state, name, options=options, script=SCRIPTS / "ddp.py", arguments=[state / f"kept-{name}", 250, 0.02], torch=True) as job:
            if name == "moved":
                goes = _ready(job)[1]
                (state / f"notice-{name}-{goes}").write_text("60 maintenance")
                eventually(lambda job=job: [start for start in job.starts() if start.generation == 2], what="a second generation")
            job.hurry()
            ended = job.finished(110.0)
        weights.append({(job.kept / f"weights-{rank}").read_text() for rank in range(2)})
        if name == "moved":
            assert [change.because for change in ended.changes] == [f"{goes} is drained: it is to go: maintenance"]
            assert ended.ledger.totals().get(Bucket.RECOMPUTE, 0.0) == 0.0, "nothing but the stop has saved, and no step was done again"
            assert not ended.incidents
    assert weights[0] == weights[1]
    assert len(weights[0]) == 1


@pytest.mark.unprivileged
def test_an_agent_that_is_told_to_end_is_left_first_and_then_goes(state: Path) -> None:
    with Job(state, options=["--nodes", 2, "--spares", 1], arguments=["--step-s", 0.02, "--steps", STEPS]) as job:
        goes = _ready(job)[1]
        agent = job.agent(goes)
        os.kill(agent, signal.SIGTERM)
        eventually(lambda: [one for one in _begins(job) if one[0] == 2], what="a second generation")
        eventually(lambda: not is_alive(agent), what="the end of the agent")
        job.hurry()
        ended = job.finished()
    assert job.result() == expected_result(STEPS, 2)
    assert not ended.incidents
    assert ended.gang is not None
    assert goes not in ended.gang.nodes


@pytest.mark.unprivileged
def test_a_job_whose_last_machine_will_go_is_stopped_saved_and_goes_on_elsewhere(state: Path) -> None:
    notice = state / "notice"
    with Job(state, options=["--nodes", 2, "--notice-file", notice], arguments=["--step-s", 0.02, "--steps", STEPS]) as job:
        _ready(job)
        notice.write_text("TRUE")
        assert job.wait() == 143
        ended = job.state()
        step = job.step()
    assert (ended.phase, ended.outcome) == (JobPhase.ENDED, Outcome.STOPPED)
    assert "it is to go" in ended.because
    assert not ended.incidents
    notice.unlink()
    job.hurry()
    with Job(state, verb="resume") as again:
        again.finished()
    assert again.result() == expected_result(STEPS, 2)
    assert _begins(again)[-1][2] == step, "the last step before the stop was saved"


@pytest.mark.unprivileged
def test_a_node_that_was_left_for_another_is_checked_with_an_idle_one_and_returned(state: Path) -> None:
    faults = [word for step in (30, 31) for word in ("--fault", f"segv@{step}@1")]
    with Job(state, options=["--nodes", 2, "--spares", 2], arguments=["--step-s", 0.02, "--steps", 100000, *faults]) as job:
        left = _ready(job)[1]
        check = eventually(lambda: (check := job.state().checks.get(left)) and check.verdict and check, what="a verdict")
        assert check.verdict == "returned", check
        assert "the same fault was there again right after a respawn" in check.because
        assert [passed for *_, passed in check.results] == [True]
        seen = job.state()
        assert seen.gang is not None
        assert left not in (*seen.gang.nodes, *seen.cordoned)
        assert left in seen.avoided, "on probation"

        def say(*words: object) -> str:
            said = command(words[0], job.name, *words[1:], HOLDFAST_STATE=str(state), COLUMNS="300")
            return said.stdout + said.stderr

        assert "checked: returned: " in say("nodes")
        assert "a check would disturb it" in say("check", seen.gang.nodes[0])
        assert "there is no node 'node-9'" in say("check", "node-9")
        (spare,) = eventually(lambda: job.state().nodes.keys() - {*seen.gang.nodes, left}, what="the second spare")
        assert f"{spare} is checked" in say("check", spare)
        asked = eventually(lambda: (check := job.state().checks[spare]).verdict and check, what="the verdict on a spare")
        assert (asked.verdict, "exact and twice alike" in asked.said) == ("unclear", True), "the other idle one is on probation, and vouches for nobody"
        os.kill(job.process.pid, signal.SIGINT)
        assert job.wait() == 130


@pytest.fixture
def other_disk() -> Iterator[Path]:
    directory = Path(tempfile.mkdtemp(dir="/dev/shm"))
    yield directory
    shutil.rmtree(directory)


@pytest.mark.unprivileged
def test_what_a_job_names_lies_on_every_nodes_own_disk_before_its_ranks_start(state: Path, other_disk: Path) -> None:
    (other_disk / "shards").mkdir()
    (other_disk / "shards" / "one").write_bytes(os.urandom(3 << 20))
    options = ["--nodes", 2, "--spares", 1, "--stage", f"{other_disk}/shards=data/train"]
    with Job(state, options=options, script=SCRIPTS / "staged.py", arguments=[state]) as job:
        first = eventually(lambda: len(list(state.glob("saw-1-*"))) == 2 and job.state().gang, what="two ranks that see the file")
        seen = [path.read_text().split() for path in sorted(state.glob("saw-1-*"))]
        assert len({digest for digest, _, _ in seen}) == 1
        assert len({where for _, where, _ in seen}) == 2, "each node has its own"
        (spare,) = eventually(lambda: job.state().nodes.keys() - first.nodes, what="the spare")
        eventually(lambda: (job.directory.node_scratch(spare) / "staged/data/train/one").exists(), what="the spare's copy, ahead of time")
        os.kill(int(seen[0][2]), signal.SIGKILL)
        eventually(lambda: len(list(state.glob("saw-2-*"))) == 2, what="a second generation")
        os.kill(job.process.pid, signal.SIGINT)
        assert job.wait() == 130
    again = [path.read_text().split() for path in sorted(state.glob("saw-2-*"))]
    assert {(digest, where) for digest, where, _ in again} == {(digest, where) for digest, where, _ in seen}
    logs = "".join(path.read_text() for path in job.directory.logs.glob("node-*.log"))
    assert logs.count("staged 1 files") == 3, "once on each node, also where ranks started twice"
