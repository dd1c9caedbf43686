"""Recovery: a worker is killed; how long until every rank has finished a step again?

The same DDP script (4 ranks, gloo, a checkpoint every 10 steps) five ways, taking turns: under torchrun as it comes; under torchrun with
TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1, without which it rarely comes back; under Holdfast unchanged; with our lines; and with our lines in a function that
rejoins. That function once more with a sharded model (FSDP2), whose survivors go back to the newest save; and the same with all ranks started again
(`--never rejoin`). All are measured alike: the script writes a line per step, a random rank is killed with SIGKILL at a random moment, and the clock runs until
each rank has a line from a new process; where survivors are kept, until each has a line of the step that the new one has its first of. A launch of torchrun
takes up to three kills, one of Holdfast up to 25. Not back after 60 s is a failure.
"""

from __future__ import annotations

import importlib.util
import random
import signal
import time
from argparse import Namespace
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from harness.jobs import Gang, Job, Torchrun, scratch_directory
from harness.measure import Report, arguments, median, say
from harness.processes import TookTooLong, kill, wait_until

from holdfast.domain.event import EffectDone, WorkerExited

RANKS = 4
SAVE_EVERY = 10
PEER_KILLS, OUR_KILLS = 3, 25  # In one launch. torchrun as it comes mostly does not survive its first, and the reliable one needs many seconds for each.
BACK_WITHIN_S = 60.0
RELIABLE = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}

AS_IT_COMES, RELIABLY, UNCHANGED, WITH_LINES = "torchrun as it comes", "torchrun, reliable", "holdfast, unchanged", "holdfast, with our lines"
REJOINING, SHARDED, SHARDED_ANEW = "holdfast, rejoining", "holdfast, sharded, rejoining", "holdfast, sharded, all started again"
KEPT = (REJOINING, SHARDED)  # Survivors keep their processes.
WAYS: dict[str, Callable[[Path, str], Gang]] = {
    AS_IT_COMES: lambda scratch, name: Torchrun(scratch, name, "plain_ddp.py", nproc=RANKS),
    RELIABLY: lambda scratch, name: Torchrun(scratch, name, "plain_ddp.py", nproc=RANKS, env=RELIABLE),
    UNCHANGED: lambda scratch, name: Job(scratch, name, "plain_ddp.py", nproc=RANKS),
    WITH_LINES: lambda scratch, name: Job(scratch, name, "guarded_ddp.py", nproc=RANKS),
    REJOINING: lambda scratch, name: Job(scratch, name, "rejoining_ddp.py", nproc=RANKS),
    SHARDED: lambda scratch, name: Job(scratch, name, "rejoining_fsdp2.py", nproc=RANKS),
    SHARDED_ANEW: lambda scratch, name: Job(scratch, name, "rejoining_fsdp2.py", nproc=RANKS, options=("--never", "rejoin")),
}
PREIMPORT = ("--preimport", "transformers.models.gpt2.modeling_gpt2")
BIG_WAYS: dict[str, Callable[[Path, str], Gang]] = {
    RELIABLY: lambda scratch, name: Torchrun(scratch, name, "transformers_ddp.py", nproc=2, env=RELIABLE),
    UNCHANGED: lambda scratch, name: Job(scratch, name, "transformers_ddp.py", nproc=2),
    "holdfast --preimport transformers": lambda scratch, name: Job(scratch, name, "transformers_ddp.py", nproc=2, options=PREIMPORT),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """One kill and what came of it."""

    way: str
    rank: int
    wall_at: float
    back_s: float | None  # None: not back in time.
    repeated: int = 0
    unsaved: int = 0  # Steps since the last save at the moment of the kill: the most that may be repeated.
    pid: int = 0
    kept: bool = False  # All others are the processes they were.


def main() -> None:
    chosen = arguments(
        __doc__ or "",
        rounds=(4, 3, f"launches each way, with up to {OUR_KILLS} kills of ours and {PEER_KILLS} of the peers"),
        kills=(OUR_KILLS, 5, "kills in one launch of Holdfast"),
        big_kills=(7, 3, "kills of the script that imports transformers, where that is installed"),
    )
    random.seed(chosen.seed)
    report = Report("Recovery: one worker killed, until every rank has finished a step again")
    with scratch_directory(keep=chosen.keep) as scratch:
        kills, parts = take_turns(chosen, scratch)
        tell_kills(report, kills)
        tell_parts(report, parts)
        launcher_killed(report, scratch)
        big_script(report, scratch, chosen.big_kills)
    report.finish(chosen)


def take_turns(chosen: Namespace, scratch: Path) -> tuple[list[Kill], dict[str, list[tuple[float, ...]]]]:
    kills: list[Kill] = []
    parts: dict[str, list[tuple[float, ...]]] = {UNCHANGED: [], WITH_LINES: [], REJOINING: [], SHARDED: [], SHARDED_ANEW: []}
    for number in range(chosen.rounds):
        for turn, (way, launch) in enumerate(WAYS.items()):
            with launch(scratch, f"round-{number}-{turn}") as gang:
                # Survivors of a sharded model are kept once a save is known to be durable.
                warm_up_steps = 40 if way in (SHARDED, SHARDED_ANEW) else 12
                done = kill_again_and_again(way, gang, PEER_KILLS if way in (AS_IT_COMES, RELIABLY) else chosen.kills, warm_up_steps=warm_up_steps)
                if isinstance(gang, Job):
                    parts[way] += [part for one in done if (part := parts_of(gang, one)) is not None]
            kills += done
            shown = ", ".join(f"{one.back_s:.2f} s" if one.back_s is not None else "not back" for one in done)
            say(f"round {number + 1} of {chosen.rounds}, {way}: {shown}")
    return kills, parts


def kill_again_and_again(way: str, gang: Gang, times: int, *, warm_up_steps: int = 12) -> list[Kill]:
    kills: list[Kill] = []
    old: set[int] = set()
    for _ in range(times):
        try:
            gang.wait_for_steps(warm_up_steps, old=old)
        except (TookTooLong, RuntimeError) as error:
            say(f"{way}: {error}")
            if kills:  # It came back and did not stay.
                kills[-1] = replace(kills[-1], back_s=None)
            break
        time.sleep(random.uniform(0.0, 0.5))  # Anywhere between two saves, also within one.
        if way in KEPT:
            kills.append(kill_one_of_those_who_rejoin(way, gang))
            old.add(kills[-1].pid)
        else:
            old = gang.steps.pids()
            kills.append(kill_one(way, gang, old))
        if kills[-1].back_s is None:
            break
    return kills


def kill_one(way: str, gang: Gang, old: set[int]) -> Kill:
    rank = random.randrange(gang.world_size)
    pid = gang.steps.newest_pids()[rank]
    wall_at, at = time.time(), time.monotonic()
    kill(pid, signal.SIGKILL)
    try:
        wait_until(lambda: gang.steps.first_since(old) or gang.process.poll() is not None, within_s=BACK_WITHIN_S, what="every rank")
    except TookTooLong:
        return Kill(way=way, rank=rank, wall_at=wall_at, back_s=None)
    first = gang.steps.first_since(old)
    if first is None:
        return Kill(way=way, rank=rank, wall_at=wall_at, back_s=None)
    furthest, resumed = gang.steps.furthest(old), min(step.step for step in first.values()) - 1
    # A rank that has finished a step shows that all ranks had begun it, and so that the save before it was complete.
    saved = SAVE_EVERY * ((furthest - 1) // SAVE_EVERY)
    back_s = max(step.at for step in first.values()) - at
    return Kill(way=way, rank=rank, wall_at=wall_at, back_s=back_s, repeated=furthest - resumed, unsaved=furthest - saved)


def kill_one_of_those_who_rejoin(way: str, gang: Gang) -> Kill:
    """The others are the same processes afterwards. What was done before is done for good where they hold it: no step may be repeated that all ranks had
    finished; of a sharded model, none that was saved."""
    rank = random.randrange(gang.world_size)
    pid = gang.steps.newest_pids()[rank]
    wall_at, at = time.time(), time.monotonic()
    kill(pid, signal.SIGKILL)
    try:
        wait_until(lambda: gang.steps.all_again(rank, at, pid) or gang.process.poll() is not None, within_s=BACK_WITHIN_S, what="every rank")
    except TookTooLong:
        return Kill(way=way, rank=rank, wall_at=wall_at, back_s=None, pid=pid)
    again_at = gang.steps.all_again(rank, at, pid)
    if again_at is None:
        return Kill(way=way, rank=rank, wall_at=wall_at, back_s=None, pid=pid)
    steps = gang.steps.read()
    first = next(step for step in steps[rank] if step.at > at and step.pid != pid)
    before = min(max((step.step for step in of_rank if step.at < first.at and step.step < first.step), default=0) for of_rank in steps.values())
    unsaved = 0
    if way == SHARDED:
        before = max(step.step for of_rank in steps.values() for step in of_rank if step.at < at)
        unsaved = before - SAVE_EVERY * ((before - 1) // SAVE_EVERY)
    kept = sum(of_rank[-1].pid in {step.pid for step in of_rank if step.at < at} for other, of_rank in steps.items() if other != rank) == gang.world_size - 1
    repeated = max(0, before - (first.step - 1)) if kept or way == SHARDED else SAVE_EVERY + 1  # Not kept: then it was no rejoin.
    return Kill(way=way, rank=rank, wall_at=wall_at, back_s=again_at - at, repeated=repeated, unsaved=unsaved, pid=pid, kept=kept)


def parts_of(job: Job, one: Kill) -> tuple[float, ...] | None:
    """Seconds until: the exit was seen, the gang was stopped, its workers were forked anew, every rank had finished a step."""
    if one.back_s is None:
        return None
    asked: dict[str, str] = {}
    seen = stopped = forked = 0.0
    for entry in job.entries():
        asked |= {effect.id: type(effect).__name__ for effect in entry.effects}
        event = entry.event
        if event.at < one.wall_at or event.at > one.wall_at + one.back_s:
            continue
        if isinstance(event, WorkerExited) and not seen:
            seen = event.at
        if isinstance(event, EffectDone):
            stopped = event.at if asked.get(event.effect) in ("StopGang", "PartGang") else stopped
            forked = event.at if asked.get(event.effect) == "StartGang" else forked
    if not 0 < seen <= stopped <= forked:
        return None
    return seen - one.wall_at, stopped - seen, forked - stopped, one.wall_at + one.back_s - forked


def tell_kills(report: Report, kills: list[Kill]) -> None:
    medians: dict[str, float | None] = {}
    for way in WAYS:
        of_it = [one for one in kills if one.way == way]
        back = [one.back_s for one in of_it if one.back_s is not None]
        medians[way] = median(back)
        report.series(way, "s", back, f"back {len(back)} times in {len(of_it)}")
    report.raw["kills"] = [asdict(one) for one in kills]
    for way, at_least in ((UNCHANGED, 8.0), (WITH_LINES, 16.0), (REJOINING, 16.0)):
        of_it = [one for one in kills if one.way == way]
        came_back = [one for one in of_it if one.back_s is not None]
        report.bar(f"{way}: comes back", 100 * len(came_back) / len(of_it) if of_it else None, "% of kills", at_least=100)
        peer, ours = medians[RELIABLY], medians[way]
        report.bar(f"{way}: faster than reliable torchrun", peer / ours if peer and ours else None, "times", at_least=at_least)
        too_many = sum(one.repeated > one.unsaved for one in came_back)
        what = "a step was repeated" if way == REJOINING else "more than the unsaved steps were repeated"
        report.bar(f"{way}: kills after which {what}", too_many, "kills", at_most=0)
    report.bar(f"{REJOINING}: every rank steps again, median", medians[REJOINING], "s", at_most=0.3)
    tell_sharded(report, [one for one in kills if one.way == SHARDED], medians[SHARDED_ANEW])


def tell_sharded(report: Report, kills: list[Kill], anew_s: float | None) -> None:
    back = [one for one in kills if one.back_s is not None]
    kept_s = median([one.back_s for one in back if one.back_s is not None and one.kept])
    report.bar(f"{SHARDED}: comes back", 100 * len(back) / len(kills) if kills else None, "% of kills", at_least=100)
    report.bar(f"{SHARDED}: kills after which more than the unsaved steps were repeated", sum(one.repeated > one.unsaved for one in back), "kills", at_most=0)
    report.bar(f"{SHARDED}: survivors kept", 100 * sum(one.kept for one in back) / len(back) if back else None, "% of kills", at_least=90)
    # No faster where a start is cheap: all wait for the rank that is new.
    report.bar(f"{SHARDED}: as long as all started again, where they were", kept_s / anew_s if anew_s and kept_s else None, "times", at_most=1.25)


def tell_parts(report: Report, parts: dict[str, list[tuple[float, ...]]]) -> None:
    names = ("exit seen", "gang stopped or parted", "workers forked", "first step of every rank")
    for way, rows in parts.items():
        report.raw[f"parts of {way}"] = rows
        for name, values in zip(names, zip(*rows, strict=True), strict=False):
            report.series(f"  {way}: until {name}", "s", values)


def launcher_killed(report: Report, scratch: Path) -> None:
    """SIGKILL of the launcher itself: its workers must not train on for ever, unseen."""
    for way, within_s in ((RELIABLY, 20.0), (WITH_LINES, 60.0)):
        with WAYS[way](scratch, f"launcher-{'ours' if way == WITH_LINES else 'torchrun'}") as gang:
            gang.wait_for_steps(5)
            gang.process.kill()
            gang.process.wait()
            began = time.monotonic()
            while (left := gang.processes()) and time.monotonic() - began < within_s:
                time.sleep(0.1)
        took_s = time.monotonic() - began
        outcome = f"{len(left)} processes still ran after {took_s:.0f} s" if left else f"nothing was left after {took_s:.1f} s"
        report.note(f"Launcher killed, {way}: {outcome}.")
        say(f"launcher killed, {way}: {outcome}")
        if way == WITH_LINES:
            report.bar("holdfast run itself killed: processes left", len(left), "processes", at_most=0)


def big_script(report: Report, scratch: Path, times: int) -> None:
    """Without a bar: what a script costs that is slow to import and to build."""
    if importlib.util.find_spec("transformers") is None:
        report.note("The script that imports transformers was left out: transformers is not installed here.")
        return
    for turn, (way, launch) in enumerate(BIG_WAYS.items()):
        kills: list[Kill] = []
        for first in range(0, times, PEER_KILLS):
            with launch(scratch, f"big-{turn}-{first}") as gang:
                kills += kill_again_and_again(way, gang, min(PEER_KILLS, times - first), warm_up_steps=2)
        back = [one.back_s for one in kills if one.back_s is not None]
        report.series(f"transformers, 100 M parameters, 2 ranks: {way}", "s", back, f"back {len(back)} times in {len(kills)}")
        report.raw[f"big kills, {way}"] = [asdict(one) for one in kills]
        say(f"transformers, {way}: {[round(value, 2) for value in back]} s")


if __name__ == "__main__":
    main()
