"""Storms: jobs of several shapes, each struck at random until its time is up, then let run to an end and held against a run that nobody disturbed.

    reference   the same training undisturbed: the samples and the state of every step. A job that left data out as a remedy has one of its own, which leaves
                out the same.
    lane        one job after the other, each of the next shape: struck, answered, struck again …, ended, compared. What takes minutes has lanes of its own.
    record      a line of JSON for each fault that was judged, each job that ended, each script that cannot work; added to as they come

Of a step that was taken more than once the last generation counts: that is what training went on from. A job whose gang had always the same size must have
come to the same bits in every step; one that was smaller at times, and so added up in another order, to the same weights within the noise of that.

All kinds of fault are in some shape. Not with all others: those of one shape need the same of a job (a disk, a network, a length of steps, leave to leave data
out). Where a machine lacks what a kind needs, that is recorded with the job. Nobody gives leave to change hyper-parameters here, so that none may be changed.

What is not survived, or not to the same end, is kept beside the record: journal, logs, and what each rank wrote down.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import time
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final

import numpy as np

from harness.jobs import Job
from harness.measure import commit, say
from harness.processes import TookTooLong, wait_until
from harness.staging import OURS, disk_at
from holdfast.chaos.faults import FAULTS
from holdfast.chaos.needs import look, why_not
from holdfast.chaos.storm import CALM_STEPS, LiveScene, Storm, Strike, ground_of, is_well, views
from holdfast.chaos.undo import UNDO, watchdog
from holdfast.cli.chaos import orders_of, tell
from holdfast.domain.job import Outcome
from holdfast.domain.plan import Rung
from holdfast.domain.state import State
from holdfast.domain.treatment import Treatment

SCRIPT: Final = "counted_ddp.py"
RANKS: Final = 2
PACE_S: Final = 0.02  # Of a step, beside what it computes: so that many jobs have room on a machine.
JOB_S: Final = 150.0  # After which a job is let run to its end, usually.
START_S: Final = 90.0  # So much must be left for another job to be begun,
ENDING_S: Final = 70.0  # and so much for those that run to end.
AHEAD_STEPS: Final = 100  # The end is a hundredth step, at least so far ahead.
PERMANENT_SHARE: Final = 0.2  # Of jobs, before which a script is run that cannot work.
BROKEN_MOST: Final = 3  # Jobs of a lane that could not be judged: more would say the same.
WRONG_STEPS: Final = 300  # After training went wrong. Replicas are compared every 64 steps or more: sooner, it would be the same place for all that is known.
CLEAR_STEPS: Final = 10  # What is shown of a job may be so far behind it.
GAP_STEPS: Final = 15  # Between faults, on average, beside those after which a gang counts as well again.
NOISE: Final = 1e-4  # Of the largest weight: what another order of adding up may come to in thousands of steps; 7e-8 was seen in 240.

# Kinds and how often each, against the others. What takes long to be noticed comes seldom.
_QUICK: Final = {"worker_killed": 8, "exception": 6, "exit_at_start": 4, "agent_killed": 4, "control_killed": 4}
_HANGS: Final = {"worker_stopped": 3, "rank_asleep": 1, "gil_held": 1, "deadlock": 1, "data_stuck": 1}
_WRONG: Final = {"nan_in_data": 1, "nan_from_rank": 1, "bit_flip": 1}
# Training goes on beside these, and it takes minutes until each is noticed, put right and over: in jobs of their own, and only where there is time for them.
_BESIDE: Final = {"disk_full": 1, "log_flood": 1, "data_slow": 1}
_BESIDE_NETWORK: Final = {"packets_lost": 1, "link_narrowed": 1, "packets_delayed": 1, "clock_shifted": 1}
_SLOWLY: Final = {"rank_held_back": 1, "memory_leak": 1, "disk_slow": 1}
# These too must know what is usual, and what they ruin is put right only where leave was given to leave data out.
_RUINED: Final = {"loss_spike": 1, "rate_too_high": 1, "wrong_labels": 1}
LONG_JOB_S: Final = 480.0
QUIET_RULES: Final = (*OURS, "SavesSkipped")  # The script saves five times a second, and all jobs to one disk: to skip some is right, and no fault.
RIDE_THROUGH: Final = "ride_through"  # Rung 0 is the loop's own, and no plan's.
RUNGS: Final = (RIDE_THROUGH, *(rung.name.lower() for rung in Rung))  # Each can be come to in one of the shapes below.


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A job, and what is done to it."""

    name: str
    faults: Mapping[str, int]
    nodes: int = 1
    least: int = 0  # Nodes it may go on with; 0: one size.
    spares: int = 0
    options: tuple[str, ...] = ()
    rejoins: bool = False
    own_disk: bool = False  # For its checkpoints.
    pace_s: float = PACE_S
    compute_s: float = 0.0  # Of a core in each step, beside what the model needs.
    lasts_s: float = JOB_S  # After which it is let run to its end.

    @property
    def per_node(self) -> int:
        return RANKS // self.nodes


SHAPES: Final = (
    Shape(name="restart", faults=_QUICK | _HANGS | _WRONG),
    Shape(name="rejoin", faults=_QUICK | _HANGS | _WRONG, rejoins=True),
    Shape(name="spare", faults=_QUICK | _HANGS | _WRONG | {"node_lost": 5}, nodes=2, spares=1),
    Shape(name="spare-rejoin", faults=_QUICK | _HANGS | {"node_lost": 5}, nodes=2, spares=1, rejoins=True),
    Shape(name="elastic", faults=_QUICK | {"worker_stopped": 2, "node_lost": 8}, nodes=2, least=1, options=("--resize-every-s", "3")),
    Shape(name="elastic-rejoin", faults=_QUICK | {"worker_stopped": 2, "node_lost": 8}, nodes=2, least=1, rejoins=True, options=("--resize-every-s", "3")),
    Shape(name="memory", faults=_QUICK | {"out_of_memory": 4}, options=("--memory-per-worker", "1500MB")),
    Shape(name="network", faults=_QUICK | {"worker_stopped": 2, "node_cut_off": 4}, nodes=2, spares=1, options=("--own-network",)),
    Shape(name="beside", faults=_BESIDE, own_disk=True, lasts_s=LONG_JOB_S),
    Shape(name="beside-network", faults=_BESIDE_NETWORK, nodes=2, options=("--own-network",), lasts_s=LONG_JOB_S),
    # A rank that is held back is slow only where it computes; and in longer steps a leak is seen before memory is at its end.
    Shape(name="slowly", faults=_SLOWLY, options=("--memory-per-worker", "3GB"), own_disk=True, pace_s=0.05, compute_s=0.004, lasts_s=LONG_JOB_S),
    Shape(name="ruined", faults=_RUINED, options=("--skip-batches", "1000000"), lasts_s=LONG_JOB_S),
)


def blow(scratch: Path, *, jobs: int, minutes: int, enough: int, seed: int, record: Path) -> None:
    """Lanes of jobs until the time is over, or the record holds enough faults."""
    until, at = time.time() + 60 * minutes, commit()
    short, long = ([shape for shape in SHAPES if _is_possible(shape) and (shape.lasts_s > JOB_S) == is_long] for is_long in (False, True))
    slow_lanes = min(len(long), jobs // 2) if 60 * minutes > LONG_JOB_S + START_S + ENDING_S else 0
    apart = {number: long[number::slow_lanes] for number in range(slow_lanes)}
    (scratch / "rules.yaml").write_text("rules:\n" + "".join(f"  - {{name: {rule}, disabled: true}}\n" for rule in QUIET_RULES))
    epochs = int((LONG_JOB_S + ENDING_S) / PACE_S / 60) + 2
    reference = Job(scratch, "reference", SCRIPT, str(epochs), "0", "reference", nproc=RANKS, options=["--checkpoint-every", "100000"])
    with reference, ProcessPoolExecutor(jobs, mp_context=get_context("fork")) as lanes:
        all_lanes = [
            Lane(number=number, scratch=scratch, shapes=apart.get(number, short), seed=seed, until=until, enough=enough, record=record, commit=at)
            for number in range(jobs)
        ]
        for one in [lanes.submit(_lane, lane) for lane in all_lanes]:
            one.result()


def _is_possible(shape: Shape) -> bool:
    needed = [*(["ip"] if "--own-network" in shape.options else []), *(["mkfs.ext4", "losetup"] if shape.own_disk else [])]
    return not needed or (os.geteuid() == 0 and all(map(shutil.which, needed)))


def read(record: Path, what: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in record.read_text().splitlines()] if record.exists() else []
    return [line for line in lines if line["what"] == what]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    number: int
    scratch: Path
    shapes: Sequence[Shape]
    seed: int
    until: float
    enough: int
    record: Path
    commit: str

    def add(self, what: str, **more: Any) -> None:
        with self.record.open("a") as file:  # One write at the end of it: lanes do not mix.
            file.write(json.dumps({"what": what, **more, "commit": self.commit}) + "\n")

    def left_s(self) -> float:
        return self.until - time.time()


def _lane(lane: Lane) -> None:
    dice, turn = random.Random(1000 * lane.seed + lane.number), lane.seed + lane.number
    time.sleep(0.3 * lane.number)  # So that not all import torch at once.
    broken = 0
    while broken < BROKEN_MOST and lane.left_s() > START_S + ENDING_S and len(read(lane.record, "fault")) < lane.enough:
        shape = lane.shapes[turn % len(lane.shapes)]
        try:
            if dice.random() < PERMANENT_SHARE:
                _permanent(lane, dice, turn)
            _strike(lane, shape, dice, f"{shape.name}-{lane.number}-{turn}")
        except Exception:  # One job that cannot be judged is told of, and is no reason to lose the others.
            broken += 1
            lane.add("broken", job=f"{shape.name}-{lane.number}-{turn}", because=traceback.format_exc())
            say(f"BROKEN: {shape.name}-{lane.number}-{turn}: {traceback.format_exc().strip().splitlines()[-1]}")
        turn += 1


# One job.


@dataclass(slots=True)
class Strikes(Sequence[Strike]):
    """What comes next, drawn when the job is ready for it: a little after where it is then, and only what it has the means to survive."""

    shape: Shape
    possible: Mapping[str, int]
    scene: LiveScene
    dice: random.Random
    closed: bool = False
    _furthest: int = 0
    _wrong_before: int = 0
    _made: list[Strike] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self._made) + (not self.closed)

    def __getitem__(self, at: Any) -> Any:
        while len(self._made) <= at:
            self._made.append(self._draw())
        return self._made[at]

    def close(self, struck: int) -> None:
        self.closed = True
        del self._made[struck:]

    def _draw(self) -> Strike:
        view = self.scene.view
        assert view is not None
        ready = sum(node.connected and node.state == "ready" and not node.service for node in view.nodes)
        whole = view.world_size == RANKS
        kinds = {key: weight for key, weight in self.possible.items() if key != "node_lost" or (whole and ready > (self.shape.least or self.shape.nodes))}
        if view.step < self._wrong_before:
            kinds = {key: weight for key, weight in kinds.items() if key not in _WRONG}
        key = self.dice.choices(list(kinds), list(kinds.values()))[0]
        # Beyond where it was before: a fault that came again at the same step would rightly be called permanent.
        self._furthest = max(view.step, self._furthest + CLEAR_STEPS)
        step = self._furthest + CALM_STEPS + int(self.dice.expovariate(1 / GAP_STEPS))
        if key in _WRONG:
            self._wrong_before = step + WRONG_STEPS
        return Strike(fault=FAULTS[key], rank=self.dice.randrange(RANKS), step=step)


def _strike(lane: Lane, shape: Shape, dice: random.Random, name: str) -> None:
    name = f"{name}-{os.getpid()}"
    rules = lane.scratch / "rules.yaml"
    options = ["--chaos", "--rules", str(rules), *(["--nnodes", f"{shape.least}:{shape.nodes}"] if shape.least else []), *shape.options]
    arguments = [str(1 << 20), str(shape.pace_s), str(shape.compute_s), *(["rejoin"] if shape.rejoins else [])]
    with ExitStack() as stack:
        if shape.own_disk:
            stack.enter_context(disk_at(lane.scratch / "state" / "jobs" / name / "checkpoints", lane.scratch / f"{name}.img"))
        job = stack.enter_context(
            Job(lane.scratch, name, SCRIPT, *arguments, nproc=shape.per_node, nodes=shape.nodes, spares=shape.spares, options=options)
        )
        job.wait_for_steps(3, within_s=max(1.0, min(180.0, lane.left_s() - ENDING_S)))
        with watchdog(job.directory.path / UNDO):
            unanswered, not_done = asyncio.run(_storm(lane, shape, job, dice))
        code = _end(lane, job)
        left = job.left() if code is not None else []  # Before it is swept. One that has not ended has all of it yet, which is told as that.
        state = job.state()
    assert state is not None
    problems = [f"{one}, and its job has not ended since" for one in unanswered] if code != 0 else []
    problems += [f"it left with {code}: {state.because}"] if code != 0 else [*compared(job, lane.scratch, state)]
    kept = _keep(lane, job) if problems or left else ""
    sizes = sorted({len(change.after) for change in state.changes} | {shape.nodes})
    lane.add(
        "job", job=name, shape=shape.name, steps=state.step_best + 1, generations=state.generation, incidents=len(state.incidents), problems=problems,
        left=left, sizes=sizes, moves=len(state.changes), because=state.because, evidence=kept, not_done=sorted(not_done),
        treated=str(state.treatment) if state.treatment != Treatment() else "",
        rungs=rungs_of(state),
    )  # fmt: skip
    for problem in (*problems, *(f"LEFT BEHIND: {one}" for one in left)):
        say(f"{name}: {problem}; see {kept}")
    if not problems:
        say(f"{name}: {state.step_best + 1} steps, {state.generation} generations, the same end")


async def _storm(lane: Lane, shape: Shape, job: Job, dice: random.Random) -> tuple[list[str], list[str]]:
    """What was struck and not answered when the time was up, and what could not be done here."""
    spec_files = {node: job.directory.node_spec(node).read_bytes() for node in _nodes(shape)}
    scene = LiveScene(directory=job.directory)
    state = job.state()
    assert state is not None
    assert state.spec is not None
    here = look(job.directory, state.spec, orders_of(job.directory))
    possible = {key: weight for key, weight in shape.faults.items() if not why_not(FAULTS[key], here)}
    strikes = Strikes(shape, possible, scene, dice)
    storm = Storm(ground=ground_of(scene, orders_of(job.directory)), scene=scene, strikes=strikes, say=lambda _: None)
    end, told = time.time() + min(shape.lasts_s, lane.left_s() - ENDING_S), 0
    try:
        async with asyncio.timeout(max(1.0, min(shape.lasts_s + 240.0, lane.left_s() - ENDING_S / 2))):
            async for view in views(job.directory):
                if view.outcome:
                    break
                storm.look(view)
                if storm.judged > told:
                    _judge(lane, shape, job, storm, told)
                    told = storm.judged
                if not strikes.closed and time.time() > end:
                    strikes.close(storm.begun)
                for node in [name for name in spec_files if storm.judged == len(storm.struck) and not job.directory.node_spec(name).exists()]:
                    job.bring_back(node, spec_files[node])  # The machine is there again, empty: the next one may be lost.
                if strikes.closed and storm.over and is_well(view):
                    break
    except TimeoutError:
        pass
    finally:
        for problem in storm.ground.undoing.heal():
            say(f"{job.name}: could not be put right: {problem}")
    return [one.said for one in storm.struck[told:]], sorted(shape.faults.keys() - possible.keys() | storm.refused.keys())


def _nodes(shape: Shape) -> list[str]:
    return [f"node-{number}" for number in range(shape.nodes + shape.spares)]


def _judge(lane: Lane, shape: Shape, job: Job, storm: Storm, first: int) -> None:
    state = job.state()
    assert state is not None
    for one in storm.struck[first : storm.judged]:
        said = tell(one, state)
        kept = _keep(lane, job) if not said.recovered else ""
        lane.add("fault", job=job.name, shape=shape.name, evidence=kept, **asdict(said))
        if not said.recovered or not said.right:
            say(f"{job.name}: {said.said}: {'called' if said.recovered else 'NOT RECOVERED, called'} {said.called}, {said.remedy}; {kept}")


def _end(lane: Lane, job: Job) -> int | None:
    """Let it run to a step that it will come to in a moment; its exit status, None when it did not leave in time."""
    _end_at(job, (job.steps.newest_step() + 2 * AHEAD_STEPS) // AHEAD_STEPS * AHEAD_STEPS)
    try:
        wait_until(lambda: job.process.poll() is not None, within_s=max(5.0, min(120.0, lane.left_s() - 10.0)), what="its end", every_s=0.2)
    except TookTooLong:
        return None
    return job.process.returncode


def _end_at(job: Job, step: int) -> None:
    new = job.scratch / "until.new"
    new.write_text(str(step))
    new.replace(job.scratch / "until")


def _keep(lane: Lane, job: Job) -> str:
    """What is needed to see what happened, beside the record."""
    target = lane.record.with_suffix(".evidence") / job.name
    shutil.copytree(job.directory.path, target / "job", ignore=shutil.ignore_patterns("checkpoints", "nodes", "*.sock*"), dirs_exist_ok=True)
    for path in job.scratch.iterdir():
        if path.is_file():
            shutil.copy(path, target)
    return str(target)


# What came out.


def compared(job: Job, scratch: Path, state: State) -> Iterator[str]:
    """In what a job that ran to its end differs from the one that nobody disturbed, or from one that was given the changes recorded with the job."""
    end = int((job.scratch / "end-0").read_bytes().partition(b"\n")[0])
    if state.treatment.tunes:
        yield f"its hyper-parameters were changed, for which nobody gave leave: {state.treatment}"
        return
    reference = scratch / "reference"
    try:
        if state.treatment != Treatment():
            reference = run_changed(scratch, f"{job.name}-changed", state.treatment, end)
        wait_until(lambda: (reference / f"weights-at-{end}").exists(), within_s=60.0, what=f"step {end} of the reference", every_s=0.5)
    except TookTooLong as error:
        yield str(error)
        return
    expected, states = used_in(reference), _states(reference)
    mine, reached = used_in(job.scratch), _states(job.scratch)
    wrong = [step for step in range(end) if sorted(mine.get(step, ())) != sorted(expected[step])]
    if wrong:
        yield f"samples of {len(wrong)} steps of {end}: step {wrong[0]} used {sorted(mine.get(wrong[0], ()))} and not {sorted(expected[wrong[0]])}"
    one_size = {len(change.after) for change in state.changes} <= {state.spec.nodes if state.spec is not None else 0}
    others = [step for step in range(1, end + 1) if reached.get(step) != states[step]] if one_size else []
    if others:
        yield f"state after {len(others)} steps of {end}: after step {others[0]} it is {reached.get(others[0])} and not {states[others[0]]}"
    far = _difference((job.scratch / "end-0").read_bytes().partition(b"\n")[2], (reference / f"weights-at-{end}").read_bytes())
    if far > (0.0 if one_size else NOISE):
        yield f"weights after step {end} differ by {far:.1e} of the largest"


def run_changed(scratch: Path, name: str, treatment: Treatment, end: int) -> Path:
    """Undisturbed, with data left out from its first step on. Where a job leaves data out it goes back before it, so that there is no difference."""
    again = Job(scratch, name, SCRIPT, str(1 << 20), "0", "reference", nproc=RANKS, options=["--checkpoint-every", "100000"], env=treatment.environment())
    with again:
        _end_at(again, end)
        wait_until(lambda: again.process.poll() is not None, within_s=600.0, what=f"the end of {name}", every_s=0.2)
    return again.scratch


def used_in(scratch: Path) -> dict[int, list[str]]:
    """Step to the samples of all ranks, in the last generation that took it."""
    found: dict[int, tuple[int, dict[int, str]]] = {}
    for rank in range(RANKS):
        for step, generation, samples in _lines(scratch / f"used-{rank}"):
            known, of_ranks = found.setdefault(int(step), (int(generation), {}))
            if int(generation) > known:
                found[int(step)] = (int(generation), {rank: samples})
            elif int(generation) == known:
                of_ranks[rank] = samples
    return {step: [one for samples in of_ranks.values() for one in samples.split(",")] for step, (_, of_ranks) in found.items()}


def rungs_of(state: State) -> Counter[str]:
    """How often each was planned; but a gang is smaller also when a wait for a node came to its end."""
    used = Counter(plan.rung.name.lower() for incident in state.incidents for plan in incident.plans if plan.rung is not Rung.SHRINK)
    used[Rung.SHRINK.name.lower()] = sum(len(change.after) < len(change.before) for change in state.changes)
    return +used


def rungs_used(struck: Iterable[Mapping[str, Any]], jobs: Iterable[Mapping[str, Any]], permanent: Iterable[Mapping[str, Any]]) -> Counter[str]:
    """How often each was, by the record."""
    used = Counter[str]()
    for job in jobs:
        used.update(job.get("rungs", {}))  # Lines of an earlier commit have none.
    used[RIDE_THROUGH] += sum(one["remedy"] == "ridden through" for one in struck)
    used[Rung.STOP.name.lower()] += sum(one["good"] and one["outcome"] != REFUSED for one in permanent)
    return +used


def _states(scratch: Path) -> dict[int, frozenset[str]]:
    """Step to what its ranks had come to, in the last generation that took it: one digest, if they agree."""
    found: dict[int, tuple[int, frozenset[str]]] = {}
    for rank in range(RANKS):
        for step, generation, digest in _lines(scratch / f"state-{rank}"):
            known, digests = found.get(int(step), (-1, frozenset()))
            if int(generation) >= known:
                found[int(step)] = (int(generation), frozenset({digest}) | (digests if int(generation) == known else frozenset()))
    return {step: digests for step, (_, digests) in found.items()}


def _lines(path: Path) -> Iterator[list[str]]:
    """A line that was being written when its process died is left out."""
    text = path.read_text() if path.exists() else ""
    return (line.split(" ") for line in text.split("\n")[:-1])


def _difference(mine: bytes, other: bytes) -> float:
    a, b = np.frombuffer(mine, np.float32), np.frombuffer(other, np.float32)
    return float(np.abs(a - b).max() / np.abs(b).max()) if a.shape == b.shape else float("inf")


# What cannot be survived.

PERMANENT: Final = {
    "a module that is not there": "import no_such_module_anywhere",
    "a syntax error": "def train(:\n    pass",
    "a file that is not there": "import holdfast\nopen('/no/such/directory/data.bin')",
    "a wrong argument": "import argparse\nargparse.ArgumentParser().parse_args(['--no-such-option'])",
    "the same exception at the same step": """
import holdfast, torch
model = torch.nn.Linear(4, 4)
run = holdfast.guard(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), save_every=2)
for step in run.steps(100):
    if step == 5:
        raise ValueError("the data of step 5 cannot be read")
""",
}
REFUSED: Final = "refused"
STARTS_MOST: Final = 3  # To be sure that it is the same again, of a script that says no step.


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """A script that cannot work was run."""

    case: str
    outcome: str
    starts: int

    @property
    def good(self) -> bool:
        return self.outcome in (REFUSED, Outcome.PERMANENT, Outcome.FAILED) and self.starts <= STARTS_MOST


def run_permanent(scratch: Path, name: str, case: str, *, within_s: float = 300.0) -> Tried:
    script = scratch / f"{name}.py"
    script.write_text(PERMANENT[case])
    with Job(scratch, name, str(script), nproc=RANKS) as job:
        wait_until(lambda: job.process.poll() is not None, within_s=within_s, what=f"the end of {case}", every_s=0.2)
        state = job.state()
    if state is None:  # It was not even begun.
        return Tried(case=case, outcome=REFUSED if job.process.returncode == 2 else f"left with {job.process.returncode}", starts=0)
    return Tried(case=case, outcome=str(state.outcome), starts=state.generation)


def _permanent(lane: Lane, dice: random.Random, turn: int) -> None:
    case = dice.choice(list(PERMANENT))
    tried = run_permanent(lane.scratch, f"permanent-{lane.number}-{turn}-{os.getpid()}", case, within_s=min(120.0, lane.left_s() - 20.0))
    lane.add("permanent", **asdict(tried), good=tried.good)
    say(f"{case}: {tried.outcome} after {tried.starts} starts")
