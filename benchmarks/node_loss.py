"""Node loss: a node is taken away as a power cut does; how long until every rank of the next gang has finished a step?

The same DDP script (3 nodes, a rank each, gloo, a checkpoint every 10 steps) with our lines, where all ranks start again, and in a function that rejoins, where
survivors keep their processes; with a spare, and with none, where the gang goes on smaller. The ways take turns, a launch for each loss. The clock runs from
the first kill; "noticed" is when control calls the node lost, which is by design some seconds later. Without a spare the node is then brought back, and the
longest time between two steps of a survivor says what it costs to take it in: the script saves every 10 steps, and the cool-down is off.
"""

from __future__ import annotations

import itertools
import random
import time
from argparse import Namespace
from dataclasses import asdict, dataclass
from pathlib import Path

from harness.jobs import Job, scratch_directory
from harness.measure import Report, arguments, median, say
from harness.processes import TookTooLong, wait_until

from holdfast.domain.event import EffectDone, NodeSilent

NODES = 3
BACK_WITHIN_S = 60.0
PARTS = ("noticed", "gang stopped or parted", "ranks told or forked", "first step of every rank")


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    name: str
    script: str
    spare: bool


REJOINING, RESPAWNING = "survivors rejoin", "all ranks start again"
WAYS = tuple(
    Way(name=f"{how}, {'a spare' if spare else 'no spare'}", script=script, spare=spare)
    for spare in (True, False) for how, script in ((REJOINING, "rejoining_ddp.py"), (RESPAWNING, "guarded_ddp.py"))
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """One lost node, and what came of it."""

    way: str
    back_s: float | None = None  # None: not back in time.
    parts_s: tuple[float, ...] = ()
    lost_steps: int = 0  # Steps that every rank had finished, and that were done again.
    kept: int = 0  # Survivors that are the same process.
    grown_s: float | None = None  # The longest pause of a survivor when the node came back.


def main() -> None:
    chosen = arguments(__doc__ or "", rounds=(7, 2, "losses each way"))
    random.seed(chosen.seed)
    report = Report("Node loss: until every rank of the next gang has finished a step")
    with scratch_directory(keep=chosen.keep) as scratch:
        losses = take_turns(chosen, scratch)
    tell(report, losses)
    report.finish(chosen)


def take_turns(chosen: Namespace, scratch: Path) -> list[Loss]:
    losses = []
    for number in range(chosen.rounds):
        for turn, way in enumerate(WAYS):
            options = ("--resize-every-s", "0", *(() if way.spare else ("--nnodes", f"2:{NODES}")))
            with Job(scratch, f"round-{number}-{turn}", way.script, nodes=NODES, spares=int(way.spare), options=options) as job:
                losses.append(lose(way, job))
            one = losses[-1]
            shown = "not back" if one.back_s is None else f"{one.back_s:.2f} s, of which {one.back_s - one.parts_s[0]:.2f} s after it was noticed"
            say(f"round {number + 1} of {chosen.rounds}, {way.name}: {shown}" + (f"; grown in {one.grown_s:.2f} s" if one.grown_s is not None else ""))
    return losses


def lose(way: Way, job: Job) -> Loss:
    job.wait_for_steps(30)
    nodes = wait_until(lambda: nodes_of(job), within_s=30.0, what="a gang whose first step control has heard of", every_s=0.1)
    time.sleep(random.uniform(0.0, 0.5))  # Anywhere between two saves, also within one.
    rank, pids = random.randrange(NODES), job.steps.newest_pids()
    node, wall_at, at = nodes[rank], time.time(), time.monotonic()
    spec = job.lose_node(node, [pids[rank]])
    try:
        started = wait_until(lambda: started_at(job, wall_at), within_s=BACK_WITHIN_S, what="the next gang", every_s=0.05)
        up_at = at + started - wall_at
        ranks = range(NODES if way.spare else NODES - 1)
        first = wait_until(lambda: first_after(job, ranks, up_at), within_s=BACK_WITHIN_S, what="a step of every rank")
    except TookTooLong:
        return Loss(way=way.name)
    back_s = max(step_at for step_at, _, _ in first.values()) - at
    before = min(max((step.step for step in job.steps.read()[other] if step.at < up_at), default=0) for other in range(NODES) if other != rank)
    resumed = min(step for _, step, _ in first.values()) - 1
    kept = len({pid for _, _, pid in first.values()} & set(pids.values()))
    grown_s = None if way.spare else grow(job, node, spec)
    return Loss(
        way=way.name, back_s=back_s, parts_s=parts_of(job, wall_at, back_s), lost_steps=max(0, before - resumed), kept=kept, grown_s=grown_s
    )


def nodes_of(job: Job) -> tuple[str, ...]:
    state = job.state()
    return state.gang.nodes if state is not None and state.gang is not None and state.gang.ready else ()


def started_at(job: Job, since: float) -> float:
    """When the ranks of the next gang were up, by the wall clock; 0: they are not yet."""
    state = job.state()
    if state is None or state.gang is None or state.gang.generation < 2 or len(state.gang.started) < len(state.gang.nodes):
        return 0.0
    return max(parts_at(job, since)[2], since)


def first_after(job: Job, ranks: range, up_at: float) -> dict[int, tuple[float, int, int]]:
    """When each rank finished its first step after `up_at`, which, and in which process; empty while one has not."""
    steps = job.steps.read()
    found = {rank: next(((step.at, step.step, step.pid) for step in steps.get(rank, ()) if step.at > up_at), None) for rank in ranks}
    return {rank: one for rank, one in found.items() if one is not None} if all(found.values()) else {}


def grow(job: Job, node: str, spec: bytes) -> float | None:
    """The longest time between two steps of a rank that was there, from the return of the node to a whole gang."""
    job.wait_for_steps(10)
    since = time.monotonic()
    job.bring_back(node, spec)
    try:
        wait_until(lambda: any(step.at > since for step in job.steps.read().get(NODES - 1, ())), within_s=BACK_WITHIN_S, what="the rank that came")
        time.sleep(0.2)
    except TookTooLong:
        return None
    times = [step.at for step in job.steps.read()[0] if step.at > since]
    return max(after - before for before, after in itertools.pairwise(times))


def parts_at(job: Job, since: float) -> tuple[float, float, float]:
    """When it was noticed, when the gang was stopped or parted, and when its ranks were told or forked."""
    asked: dict[str, str] = {}
    noticed = stopped = started = 0.0
    for entry in job.entries():
        asked |= {effect.id: type(effect).__name__ for effect in entry.effects if effect.generation <= 2}
        event = entry.event
        if event.at < since:
            continue
        if isinstance(event, NodeSilent):
            noticed = noticed or event.at
        if isinstance(event, EffectDone):
            stopped = event.at if asked.get(event.effect) in ("StopGang", "PartGang") and not started else stopped
            started = event.at if asked.get(event.effect) == "StartGang" else started
    return noticed, stopped, started


def parts_of(job: Job, wall_at: float, back_s: float) -> tuple[float, ...]:
    """Seconds that each part took. Ranks that fail by themselves may be stopped before the node is called lost."""
    noticed, stopped, started = parts_at(job, wall_at)
    ends = (noticed - wall_at, max(stopped, noticed) - wall_at, started - wall_at, back_s)
    return tuple(end - begin for begin, end in zip((0.0, *ends), ends, strict=False))


def tell(report: Report, losses: list[Loss]) -> None:
    after: dict[str, float | None] = {}
    for way in WAYS:
        of_it = [one for one in losses if one.way == way.name]
        back = [one for one in of_it if one.back_s is not None]
        report.series(way.name, "s", [one.back_s for one in back if one.back_s is not None], f"back {len(back)} times in {len(of_it)}")
        later = [one.back_s - one.parts_s[0] for one in back if one.back_s is not None]
        after[way.name] = median(later)
        steps, kept = sum(one.lost_steps for one in back), sum(one.kept for one in back)
        report.series("  after it was noticed", "s", later, f"{steps} steps done again, {kept} processes kept")
        for name, values in zip(PARTS, zip(*(one.parts_s for one in back), strict=True), strict=False):
            report.series(f"    until {name}", "s", values)
        grown = [one.grown_s for one in back if one.grown_s is not None]
        if grown:
            report.series("  the longest pause when it grows back", "s", grown)
    report.raw["losses"] = [asdict(one) for one in losses]
    for spare in (True, False):
        rejoining, respawning = (f"{how}, {'a spare' if spare else 'no spare'}" for how in (REJOINING, RESPAWNING))
        of_it = [one for one in losses if one.way == rejoining]
        mine, other = after[rejoining], after[respawning]
        report.bar(f"{rejoining}: comes back", 100 * sum(one.back_s is not None for one in of_it) / len(of_it), "% of losses", at_least=100)
        report.bar(f"{rejoining}: after it was noticed, median", mine, "s", at_most=3)
        report.bar(f"{rejoining}: most steps done again", max((one.lost_steps for one in of_it), default=None), "steps", at_most=1 if spare else 0)
        if mine and other:
            report.note(f"{'With' if spare else 'Without'} a spare, after it was noticed: {other / mine:.1f} times as fast as starting all ranks again.")


if __name__ == "__main__":
    main()
