"""A gang that may be smaller: it goes on without a node that is lost, takes it in again when it is back, and takes every step exactly once throughout. And what
a person says to a running job."""

from __future__ import annotations

import json
import os
import runpy
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from end_to_end.jobs import SCRIPTS, Job, bring_back, command, eventually, expected_result, lose_node
from trainer.gang import run_gang

from holdfast.domain.job import JobPhase
from holdfast.domain.plan import Rung

pytestmark = pytest.mark.unprivileged
RESIZES = SCRIPTS / "resizes.py"


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
        job.hurry()
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


def _newest(kept: Path) -> dict[int, tuple[int, float, list[int]]]:
    """Of each step of `gone_wrong.py`, as the newest generation did it: that, the loss of rank 0 before it, and the samples of all ranks."""
    found: dict[int, tuple[int, float, list[int]]] = {}
    for path in sorted(kept.glob("used-*")):
        for generation, step, loss, *samples in (line.split() for line in path.read_text().split("\n")[:-1]):
            newest = found.get(int(step))
            if newest is None or newest[0] < int(generation):
                found[int(step)] = (int(generation), float(loss), list(map(int, samples)))
            elif newest[0] == int(generation):
                newest[2].extend(map(int, samples))
    return found


def test_a_smaller_gang_may_have_a_smaller_batch_with_the_rate_that_goes_with_it_and_both_are_undone(state: Path) -> None:
    """Its loss falls by a factor that is the learning rate's alone, whatever the samples are: each step tells the rate it was made with."""
    steps, rate = 1500, 0.002
    options = ["--nnodes", "1:2", "--resize-every-s", 0, "--smaller-batch", "sqrt", "--slow-wait-s", 3600]
    arguments = [state / "kept-job", steps, 0.05, json.dumps({"rate": rate})]
    with Job(state, options=options, script=SCRIPTS / "gone_wrong.py", arguments=arguments, torch=True) as job:
        eventually(lambda: len(_newest(job.kept)) > 20, within_s=180.0, what="steps of both")
        gang = eventually(lambda: (gang := job.state().gang) is not None and gang.ready and gang, what="a gang whose first step control has heard of")
        lost = gang.nodes[1]
        spec = lose_node(job, lost)
        eventually(lambda: sum(of == 2 for of, *_ in _newest(job.kept).values()) > 20, within_s=180.0, what="steps of one rank")
        shown = " ".join(command("show", job.name, HOLDFAST_STATE=str(state), COLUMNS="200").stdout.split())
        assert "batch times 0.5, learning rate times 0.707 (--smaller-batch sqrt), until it is whole again" in shown
        assert json.loads(command("show", job.name, "--json", HOLDFAST_STATE=str(state)).stdout)["scaling"]["batch"] == 0.5
        bring_back(job, lost, spec)
        eventually(lambda: sum(of == 3 for of, *_ in _newest(job.kept).values()) > 5, within_s=180.0, what="steps of both again")
        job.hurry()
        ended = job.finished(180.0)
    assert "batch times 0.5" not in command("show", job.name, HOLDFAST_STATE=str(state), COLUMNS="200").stdout
    assert [(len(change.before), len(change.after)) for change in ended.changes] == [(2, 1), (1, 2)]
    done = _newest(job.kept)
    assert sorted(done) == list(range(1, len(done) + 1))
    assert sorted(sample for _, _, samples in done.values() for sample in samples) == list(range(steps * 8)), "each sample once"
    assert {(of, len(samples)) for step, (of, _, samples) in done.items() if step < len(done)} == {(1, 8), (2, 4), (3, 8)}
    fell: dict[int, list[float]] = {1: [], 2: [], 3: []}
    for step, (of, loss, _) in done.items():
        if step < len(done) and loss > 0.1:  # Below, its last bits count.
            fell[of].append((done[step + 1][1] / loss) ** 0.5)
    for of, right in ((1, 1 - rate), (2, 1 - rate * 0.5**0.5), (3, 1 - rate)):
        assert fell[of] == pytest.approx([right] * len(fell[of]), abs=1e-4)


class Resized:
    """What the ranks of `resizes.py` wrote down."""

    def __init__(self, kept: Path) -> None:
        self.rows: dict[int, dict[int, list[str]]] = {}  # Step to rank to the row of the newest generation: a step that was broken off is done again.
        self.pids: dict[int, list[tuple[int, int]]] = {}  # Rank to generations and processes.
        for path in sorted(kept.glob("used-*")):
            rank = int(path.name.removeprefix("used-"))
            for step, generation, pid, *row in (line.split() for line in path.read_text().split("\n")[:-1]):
                self.pids.setdefault(rank, []).append((int(generation), int(pid)))
                newest = self.rows.setdefault(int(step), {})
                if max((int(one[0]) for one in newest.values()), default=0) < int(generation):
                    newest.clear()
                if all(int(one[0]) == int(generation) for one in newest.values()):
                    newest[rank] = [generation, *row]

    def ranks_at(self, step: int) -> int:
        return int(next(iter(self.rows[step].values()))[1])

    def pids_of(self, generation: int) -> list[int]:
        found = {rank: pid for rank, told in self.pids.items() for of, pid in told if of == generation}
        return [found[rank] for rank in sorted(found)]


def _saved_on(job: Job, node: str) -> set[int]:
    """Ranks of which the node's memory has something."""
    return {int(path.name.split("-")[1]) for path in job.directory.node_shared_memory(node).glob("snapshot-*-[01]")}


def _undisturbed(kept: str, steps: int) -> None:
    sys.argv = [str(RESIZES), kept, str(steps), "0"]
    runpy.run_path(str(RESIZES), run_name="__main__")


@pytest.mark.slow  # The reference runs are three gangs more.
def test_survivors_keep_process_and_state_when_the_gang_shrinks_and_when_it_grows(tmp_path: Path) -> None:
    with Job(tmp_path, options=["--nnodes", "2:3", "--resize-every-s", 0], script=RESIZES, arguments=[tmp_path / "kept-job", 1 << 30, 0.02], torch=True) as job:

        def wait_for(look: Callable[[], object], what: str) -> None:
            eventually(lambda: look() or job.process.poll() is not None, within_s=180.0, what=what)
            assert job.process.poll() is None, f"the job has ended:\n{job.said()}"

        def gang_of(generation: int) -> bool:
            time.sleep(0.2)  # A look reads the whole journal.
            gang = job.state().gang
            return gang is not None and gang.generation == generation and gang.ready and gang.rejoins

        wait_for(lambda: len(Resized(job.kept).pids_of(1)) == 3, "steps of all")
        wait_for(lambda: gang_of(1), "a gang that rejoins")
        gang = job.state().gang
        assert gang is not None
        lost = gang.nodes[1]
        spec = lose_node(job, lost)
        wait_for(lambda: gang_of(2), "a gang of two")
        wait_for(lambda: len(Resized(job.kept).pids_of(2)) == 2, "steps of both")
        bring_back(job, lost, spec)
        wait_for(lambda: gang_of(3), "a gang of three again")
        until = max(Resized(job.kept).rows) + 5
        wait_for(lambda: len(Resized(job.kept).rows.get(until, ())) == 3, "five steps more")
        said = job.state()
        assert said.gang is not None
        place = {name: rank for rank, name in enumerate(said.gang.nodes)}
        wait_for(lambda: all(_saved_on(job, name) <= {rank} for name, rank in place.items()), "memory without what was saved under other ranks")
        job.process.send_signal(signal.SIGINT)
        job.wait(120.0)
    (incident,) = said.incidents
    assert (incident.plans[0].rung, incident.plans[0].drop) == (Rung.SHRINK, (lost,))
    assert "survivors keep their processes and their state" in incident.plans[0].because
    assert incident.step_after >= incident.step_before, "a step was lost"
    assert [(len(change.before), len(change.after), change.by_choice) for change in said.changes] == [(3, 2, False), (2, 3, True)]
    told = Resized(job.kept)
    first, second, third = (told.pids_of(generation) for generation in (1, 2, 3))
    assert second == [first[0], first[2]], "whoever lived on has another process"
    assert third[:2] == second, "whoever was there when it grew has another process"
    _expect_same(told, tmp_path, until)


def _expect_same(told: Resized, directory: Path, until: int) -> None:
    """As three runs one after the other, each of one size and without a fault, have it."""
    assert sorted(told.rows)[:until] == list(range(1, until + 1)), "a step was left out"
    sizes = [told.ranks_at(step) for step in range(1, until + 1)]
    ends = [step for step in range(1, until) if sizes[step] != sizes[step - 1]]
    reference = directory / "reference"
    for steps in (*ends, until):
        run_gang(reference, _undisturbed, ranks=sizes[steps - 1], plugged=False, kept=str(reference), steps=steps)
    right = Resized(reference)
    for step in range(1, until + 1):
        mine, theirs = ({rank: row[1:] for rank, row in rows[step].items()} for rows in (told.rows, right.rows))
        assert mine.items() <= theirs.items(), f"something else after step {step} of a gang of {sizes[step - 1]}"
