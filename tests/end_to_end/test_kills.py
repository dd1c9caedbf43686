"""Kills at random moments: workers, agents, whole nodes with their memory, control. What comes back is always the old state or the new one, bit for bit.

The ranks of `scripts/exact.py` know what every byte must be and leave with a code of their own when one is not. From here it is seen that no generation
goes back behind what was complete on the disk before the kill, and what is left on the disk and in memory when all is over.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from pathlib import Path

import pytest
from end_to_end.jobs import SCRIPTS, Job, eventually, is_alive, lose_node

from holdfast.checkpoint.found import list_complete, list_directories, newest_complete, verify
from holdfast.checkpoint.layout import CHUNKS, MANIFEST, RETIRED, parse_directory_name
from holdfast.diagnose.first_cause import CHECKPOINT_CORRUPT_CODE, is_echo
from holdfast.domain.exit import Exit, ExitKind

EXACT = SCRIPTS / "exact.py"
KEEP, STEP_S, RANKS = 3, 0.015, 2
APART = ["--nodes", 2, "--nproc", 1]  # Each node holds copies of the other's state.
TOGETHER = ["--nodes", 1, "--nproc", 2]  # What both ranks hold alike is in memory once, and nobody has a copy.
PATIENCE_S = 150.0  # A node that starts again imports torch, on cores that others use too.
FULL = {"worker": 305, "agent": 110, "node": 40, "worker and agent": 30, "control": 15}
MIX = [kind for kind, count in FULL.items() for _ in range(count)]

Key = tuple[int, int]  # Generation and step of a checkpoint.


@dataclass
class Story:
    """What was done to a job and what it did then, over all of its runs."""

    chance: random.Random
    struck: Counter[str] = field(default_factory=Counter)
    floors: list[tuple[int, Key]] = field(default_factory=list)  # Generations after this one restore nothing older than this.
    judged: int = 0
    seen: set[Key] = field(default_factory=set)  # Checkpoints that were the newest complete one when somebody looked.
    said: list[str] = field(default_factory=list)


def job_of(state: Path, name: str, *, options: Sequence[object] = (), verb: str = "run") -> Job:
    options = [*options, "--max-restarts", 100000] if verb == "run" else ()
    return Job(state, name, options=options, script=EXACT, arguments=[state / f"kept-{name}", STEP_S], torch=True, verb=verb)


# What the ranks write down.


def rows(job: Job, name: str) -> list[list[str]]:
    path = job.kept / name
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


def progress(job: Job, rank: int) -> Key:
    """Of which generation its newest process is, and how many steps are done."""
    with contextlib.suppress(OSError, ValueError):
        generation, step = (job.kept / f"rank-{rank}").read_text().split()
        return int(generation), int(step)
    return -1, -1


def started(job: Job) -> int:
    return max((int(row[0]) for row in rows(job, "starts")), default=0)


def newest_key(job: Job) -> Key:
    found = newest_complete(job.directory.checkpoints)
    return found.age_key if found else (-1, -1)


# Kills.


def kill(pid: int) -> bool:
    if not is_alive(pid):
        return False
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
        return True
    return False


def kill_all(pids: Sequence[int]) -> int:
    """How many of them were alive."""
    return sum([kill(pid) for pid in pids])


def mark_of(pid: int) -> str:
    """What the warm parent of a node, its store and its workers carry; nothing for anybody else, and for the dead."""
    with contextlib.suppress(OSError):
        entries = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        return next((entry.decode().removeprefix("HOLDFAST_NODE=") for entry in entries if entry.startswith(b"HOLDFAST_NODE=")), "")
    return ""


def marked(job: Job, node: str) -> list[int]:
    mark = job.directory.node_shared_memory(node).name
    return [int(name) for name in os.listdir("/proc") if name.isdecimal() and mark_of(int(name)) == mark]


def nodes(job: Job) -> list[str]:
    return sorted(path.parent.parent.name for path in job.directory.nodes.glob("*/state/node.json"))


def worker_of(job: Job, rank: int) -> int:
    """The newest process of a rank if it lives; 0 if not."""
    pids = [int(pid) for _, its_rank, pid in rows(job, "starts") if int(its_rank) == rank][-1:]
    return next((pid for pid in pids if mark_of(pid).startswith(job.directory.shared_memory_prefix)), 0)


def agent_of(job: Job, node: str) -> int:
    return next(iter(job.processes("holdfast.agent", f"{node}/state")), 0)


def kill_node(job: Job, node: str) -> bool:
    """All processes of a node at one instant, and its memory with them. Its disk stays, and it is started again, empty.

    They are stopped first: between the first kill and the last nobody moves, so nobody sees a part of it. The agent is the last to go, because whoever
    starts it again does so at once.
    """
    agent = agent_of(job, node)
    if not agent:
        return False
    with contextlib.suppress(ProcessLookupError):
        for pid in (agent, *marked(job, node)):
            os.kill(pid, signal.SIGSTOP)
    eventually(lambda: not kill_all(marked(job, node)), what=f"the end of {node}'s processes")
    for path in job.directory.node_shared_memory(node).iterdir():
        path.unlink()
    return kill(agent)


class Hit(Enum):
    NOBODY = auto()
    NO_RANK = auto()  # The generation that runs goes on.
    RANKS = auto()


def strike(job: Job, kind: str, chance: random.Random) -> Hit:
    rank, node = chance.randrange(RANKS), chance.choice(nodes(job))
    worker, agent = worker_of(job, rank), agent_of(job, node)
    match kind:
        case "worker":
            return Hit.RANKS if kill(worker) else Hit.NOBODY
        case "agent":
            return Hit.NO_RANK if kill(agent) else Hit.NOBODY
        case "node":
            here = set(marked(job, node))
            took = any(worker_of(job, one) in here for one in range(RANKS))
            return Hit.NOBODY if not kill_node(job, node) else Hit.RANKS if took else Hit.NO_RANK
        case "worker and agent":
            return Hit.RANKS if worker and agent and kill(agent) and kill(worker) else Hit.NOBODY
        case _:
            return Hit.NO_RANK if kill_all(job.processes("holdfast.control")) else Hit.NOBODY


# Waiting, and judging what is seen meanwhile.


def until(job: Job, story: Story, look: Callable[[], bool], what: str) -> None:
    """Wait, and fail at the first sign of anything wrong."""

    def seen() -> bool:
        wrong = job.kept / "wrong"
        assert not wrong.exists(), f"after {story.said[-3:]}: {wrong.read_text()}\n{job.said()}"
        assert job.process.poll() is None, f"the job ended after {story.said[-3:]}:\n{job.said()}"
        story.seen.add(newest_key(job))
        return look()

    try:
        eventually(seen, within_s=PATIENCE_S, what=f"{what} after {story.said[-3:]}")
    finally:
        judge_restores(job, story)


def judge_restores(job: Job, story: Story) -> None:
    """No generation went back behind what was complete on the disk before the kill that ended the one before."""
    restored = rows(job, "restored")
    for row in restored[story.judged :]:
        generation, _, step, name = int(row[0]), int(row[1]), int(row[2]), row[3]
        its_step, its_generation = parse_directory_name(name) or (-1, -1)
        floor = max((key for after, key in story.floors if generation > after), default=(-1, -1))
        assert (its_generation, its_step) >= floor, f"generation {generation} restored {name} (step {step}), and {floor} was complete before {story.said[-3:]}"
    story.judged = len(restored)


def going(job: Job, after: int) -> bool:
    """Whether all ranks of one generation beyond `after` have done a step."""
    there = [progress(job, rank) for rank in range(RANKS)]
    return there[0][0] > after and len({generation for generation, _ in there}) == 1 and all(worker_of(job, rank) for rank in range(RANKS))


def strike_once(job: Job, story: Story, kind: str) -> None:
    """One kill that hits, and what must follow."""
    chance = story.chance
    generation = started(job)
    floor = newest_key(job)
    view = job.view()
    if view is not None:
        story.floors.append((view.generation, floor))  # Whatever is formed after this looks for its checkpoint after this.
    time.sleep(min(1.0, chance.expovariate(6.0)))  # Not a wait for anything: the kill comes at a moment of its own.
    hit = strike(job, kind, chance)
    if hit is Hit.NOBODY:
        time.sleep(0.05)
        return
    story.struck[kind] += 1
    story.said.append(f"{kind} (kill {story.struck.total()})")
    if story.struck.total() % 50 == 0:
        print(f"{dict(story.struck)}", flush=True)
    then = chance.choice(("at once", "going", "going", "going", "saved"))
    if then == "at once":  # While it recovers.
        time.sleep(chance.random() * 1.5)
        return
    until(job, story, lambda: going(job, generation if hit is Hit.RANKS else generation - 1), "steps")
    if then == "saved":
        newest = newest_key(job)
        until(job, story, lambda: newest_key(job) > newest, "a newer checkpoint")


def storm(job: Job, story: Story, kinds: Sequence[str], seconds: float) -> None:
    """For so long from the first checkpoint on."""
    until(job, story, lambda: going(job, started(job) - 1) and newest_key(job) > (-1, -1), "a first checkpoint")
    until_s = time.monotonic() + seconds
    for kind in kinds:
        before = story.struck.total()
        while story.struck.total() == before and time.monotonic() < until_s:
            strike_once(job, story, kind)


def leave(job: Job, story: Story) -> None:
    """Ask the job to stop when it runs again, and look at all that is left."""
    until(job, story, lambda: going(job, started(job) - 1), "steps")
    generation, step = progress(job, 0)
    until(job, story, lambda: progress(job, 0)[0] > generation or newest_key(job) >= (generation, step), "a checkpoint of what is done now")
    job.process.send_signal(signal.SIGINT)
    assert job.wait(PATIENCE_S) == 130, job.said()
    judge_restores(job, story)
    wrong = [exit for incident in job.incidents() for exit in incident.exits if not is_excused(exit)]
    assert not wrong, f"{wrong[:3]}\n{job.said()}"
    assert not list(Path("/dev/shm").glob(f"{job.directory.shared_memory_prefix}*"))
    for found in list_complete(job.directory.checkpoints):
        verify(found.path)


def is_excused(exit: Exit) -> bool:
    """Killed by us, stopped because another was, or gone with its parent; and what a rank says when it loses another.

    And what is chosen because all of it is in memory may be killed out of that memory before it is restored: then an older one is.
    """
    if exit.code == CHECKPOINT_CORRUPT_CODE:
        return "it was never completed" in exit.tail
    return exit.stopped_by_us or exit.signal == signal.SIGKILL or exit.kind in (ExitKind.VANISHED, ExitKind.FINISHED) or is_echo(exit)


def judge_disk(job: Job) -> None:
    """What retention wants is there and no more. The rest are chunks that others need, and what the last generation had not swept yet."""
    complete = list_complete(job.directory.checkpoints)
    assert len(complete) == KEEP, [found.name for found in complete]
    needed = {chunk.path for found in complete for chunk in found.manifest.chunks}
    last = started(job)
    restored = max(int(row[2]) for row in rows(job, "restored") if int(row[0]) == last)
    for path in list_directories(job.directory.checkpoints):
        step, generation = parse_directory_name(path.name) or (0, 0)
        inside = {f"{path.name}/{CHUNKS}/{chunk.name}" for chunk in (path / CHUNKS).glob("*")}
        if (path / RETIRED).exists():
            assert inside, f"{path.name} is retired and empty"
            assert inside <= needed, f"{path.name} is kept for chunks that nobody needs: {sorted(inside - needed)}"
        elif not (path / MANIFEST).exists():
            beyond = complete[-1].step if generation == last else restored
            assert step > beyond, f"{path.name} is torn, older than {beyond}, and was not swept by generation {last}: {os.listdir(path)}"


def tell(job: Job, story: Story, seconds: float) -> None:
    log = job.directory.rank_log(0)
    from_memory = len(re.findall(r"step \d+ is restored from memory", log.read_text(errors="replace"))) if log.exists() else 0
    restores = {row[0] for row in rows(job, "restored") if row[3] != "nothing"}
    steps = max(int((job.kept / f"done-{rank}").read_text()) for rank in range(RANKS))
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(story.struck.items()))
    print(
        f"\n{job.name}: {story.struck.total()} kills in {seconds / 60:.1f} minutes: {kinds}; {started(job)} generations, {len(restores)} restores, "
        f"{from_memory} of them from memory, {len(story.seen)} checkpoints seen complete, {steps} steps, {len(job.incidents())} incidents",
        flush=True,
    )


def go_through(state: Path, name: str, options: Sequence[object], chance: random.Random, kinds: Sequence[str]) -> Story:
    """A job that is killed and killed, and in the end every checkpoint that is left is read by the ranks themselves."""
    began, story = time.monotonic(), Story(chance)
    with job_of(state, name, options=options) as job:
        storm(job, story, kinds, 1700.0)
        if "--spares" in options:
            lose_node(job, chance.choice(nodes(job)))
            story.struck["node, for good"] += 1
            story.said.append("a node lost for good")
        leave(job, story)
    (job.kept / "look-at-all").touch()
    with job_of(state, name, verb="resume") as job:
        until(job, story, lambda: going(job, started(job) - 1), "steps after the resume")
        for _ in range(KEEP):
            newest = newest_key(job)
            until(job, story, lambda newest=newest: newest_key(job) > newest, "a newer checkpoint")  # type: ignore[misc]
        leave(job, story)
    assert len(rows(job, "looked-at")) >= KEEP * RANKS
    judge_disk(job)
    tell(job, story, time.monotonic() - began)
    return story


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_five_hundred_kills_lose_nothing_and_load_nothing_wrong(state: Path, seed: int) -> None:
    print(f"seed {seed}")
    chance = random.Random(seed)
    kinds = chance.sample(MIX, len(MIX))
    apart = go_through(state, "apart", [*APART, "--spares", 1], chance, kinds[::2])
    together = go_through(state, "together", TOGETHER, chance, kinds[1::2])
    struck = apart.struck + together.struck
    assert struck.total() >= 500, f"seed {seed}: there was time for {struck} only"


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_a_slice_of_random_kills_loses_nothing_and_loads_nothing_wrong(state: Path, seed: int, soak_seconds: float) -> None:
    began, chance = time.monotonic(), random.Random(seed)
    story, options = Story(chance), chance.choice((APART, TOGETHER))
    with job_of(state, "slice", options=options) as job:
        storm(job, story, chance.choices(MIX, k=500), min(60.0, soak_seconds) * 0.6)
        leave(job, story)
    tell(job, story, time.monotonic() - began)
    assert story.struck.total() > 0, f"seed {seed}: nothing was struck"
