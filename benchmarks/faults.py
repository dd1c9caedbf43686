"""Faults: real ones, injected into a real job of four ranks on two nodes; is exactly one incident of the right kind found, how soon, and is the culprit named?

Each injection is paired with an equal window before it, in which nothing is wrong: an incident there is a false alarm. Found means that exactly one incident
was opened within the limit of its kind, and that it is of the right kind. The time runs from the injection, by the injector's clock, to the moment control
opened the incident, by its journal's: both are this machine's.

Several jobs run at once, in lanes, each with faults of one sort: a gang that has learned what is usual keeps what it knows until a fault breaks it. With
`--record FILE`, each injection is added to that file as soon as it is over; what it holds already is counted, and only the rest is done. Needs root, for
control groups, network namespaces and mounts; kinds that cannot be staged here are named and left out.
"""

from __future__ import annotations

import json
import random
import shutil
import signal
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from multiprocessing import get_context
from pathlib import Path

from harness.jobs import Job, scratch_directory
from harness.measure import Report, arguments, commit, say
from harness.processes import TookTooLong, kill, wait_until
from harness.staging import Stage, staged

from holdfast.chaos.fault import Aim, Fault
from holdfast.chaos.faults import FAULTS as ALL_FAULTS
from holdfast.chaos.judged import named, right, what
from holdfast.chaos.storm import WARM_S

CALM_S = 20.0  # Before a fault, and after its incident was opened: long enough for a second one that tells the same story to show.
_LONG_S = 150.0
# Those that need no spare node and no launcher that starts somebody again: benchmarks/detection.py and benchmarks/recovery.py have the others.
FAULTS = tuple(fault for fault in ALL_FAULTS.values() if fault.key not in ("agent_killed", "control_killed", "node_lost", "exception", "exit_at_start"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Injection:
    fault: str
    rank: int
    found: bool
    noticed_s: float | None
    named: bool
    false_alarms: int  # In the window before it.
    said: tuple[str, ...]
    commit: str
    story: tuple[str, ...] = ()  # Of what was said, where it was not found.


def main() -> None:
    texts = {"only": "names of faults, separated by commas", "record": "file to which each injection is added; what it holds is not done again"}
    chosen = arguments(
        __doc__ or "", texts=texts, repetitions=(15, 1, "injections of each kind"), lanes=(2, 2, "jobs at once"),
        minutes=(1440, 12, "in which it is to be done; what does not fit is left out"),
    )  # fmt: skip
    report = Report("Faults: found, named, and nothing else")
    missing = {fault.name: fault.program for fault in FAULTS if fault.program and shutil.which(fault.program) is None}
    for name, program in missing.items():
        report.note(f"left out: {name}, which needs {program}")
    wanted = [fault.name for fault in FAULTS if fault.name not in missing and (not chosen.only or fault.name in chosen.only.split(","))]
    record = Path(chosen.record) if chosen.record else None
    done = [Injection(**json.loads(line)) for line in record.read_text().splitlines()] if record and record.exists() else []
    left = Counter(dict.fromkeys(wanted, chosen.repetitions)) - Counter(one.fault for one in done)
    orders = share_out(list(left.elements()), chosen.lanes, random.Random(chosen.seed))
    until = time.time() + 60 * chosen.minutes
    with scratch_directory(keep=chosen.keep) as scratch, ProcessPoolExecutor(chosen.lanes, mp_context=get_context("fork")) as lanes:
        running = [lanes.submit(lane, scratch / f"lane-{n}", order, chosen.seed + len(done) + n, until, record) for n, order in enumerate(orders)]
        for one in running:
            done += one.result()
    tell(report, done)
    report.finish(chosen)


def by_name(name: str) -> Fault:
    return next(fault for fault in FAULTS if fault.name == name)


def share_out(names: list[str], lanes: int, dice: random.Random) -> list[list[str]]:
    """Lanes that take about as long, each with faults that are alike in what they need and what they leave."""
    dice.shuffle(names)
    faults = sorted(
        map(by_name, names), key=lambda fault: (fault.learned, fault.ruins, takes_s(fault) < _LONG_S)  # What takes long is begun first, or is not done in time.
    )
    each_s = sum(map(takes_s, faults)) / lanes
    shares: list[list[str]] = [[] for _ in range(lanes)]
    spent_s = 0.0
    for fault in faults:
        shares[min(lanes - 1, int(spent_s / each_s))].append(fault.name)
        spent_s += takes_s(fault)
    return shares


def takes_s(fault: Fault, *, at_most: bool = False) -> float:
    """About."""
    return (WARM_S if fault.learned and fault.ruins else CALM_S) + fault.lasts_s + (1.0 if at_most else 0.4) * fault.within_s


def lane(scratch: Path, order: list[str], seed: int, until: float, record: Path | None) -> list[Injection]:
    """One job, and the faults injected into it one after the other."""
    scratch.mkdir()
    random.seed(seed)
    done: list[Injection] = []
    with staged(scratch) as stage:
        for number, fault in enumerate(map(by_name, order), start=1):
            if time.time() + takes_s(fault, at_most=True) > until:
                say(f"{scratch.name}, {number} of {len(order)}: no time for {fault.name}")
                continue
            try:
                alarms = calm_down(stage, fault)
            except TookTooLong as error:
                say(f"{scratch.name}: THE JOB DID NOT COME BACK: {error}")
                break
            one = replace(inject(stage, fault), false_alarms=alarms)
            done.append(one)
            if record is not None:
                with record.open("a") as file:  # One short write at the end of it: lanes do not mix.
                    file.write(json.dumps(asdict(one)) + "\n")
            how = f"found after {one.noticed_s:.1f} s{'' if one.named else ', CULPRIT NOT NAMED'}" if one.found and one.noticed_s is not None else "NOT FOUND"
            say(f"{scratch.name}, {number} of {len(order)}: {fault.name} (rank {one.rank}): {how}; said: {'; '.join(one.said) or 'nothing'}")
    return done


def calm_down(stage: Stage, fault: Fault) -> int:
    """Wait until the gang has run for a while with nothing wrong; how many incidents were opened in that time."""
    job = stage.job
    wait_until(lambda: is_well(job), within_s=300.0, what="a job in which nothing is wrong", every_s=1.0)
    state = job.state()
    assert state is not None
    assert state.gang is not None
    known, until = len(state.incidents), max(time.time() + CALM_S, state.gang.started_at + WARM_S if fault.learned else 0.0)
    while time.time() < until:
        time.sleep(1.0)
    new = job.incidents()[known:]
    for one in new:
        say(f"FALSE ALARM: {one.story[0].what}")
    if not is_well(job):
        return len(new) + calm_down(stage, fault)
    return len(new)


def is_well(job: Job) -> bool:
    state = job.state()
    return state is not None and state.phase == "running" and state.gang is not None and state.gang.ready and not any(one.is_open for one in state.incidents)


def inject(stage: Stage, fault: Fault) -> Injection:
    job, ground, rank = stage.job, stage.ground, random.randrange(stage.job.world_size)
    node, known, at = ground.node(rank), len(job.incidents()), time.time()
    fault.strike(ground, rank)
    try:
        wait_until(lambda: len(job.incidents()) > known, within_s=fault.within_s, what=fault.name, every_s=0.2)
        time.sleep(fault.lasts_s)
    except TookTooLong:
        pass
    opened = job.incidents()[known:]
    stage.heal()
    if fault.ruins and fault.aim is Aim.ALL and fault.order:
        stage.restore()
    if fault.ruins:
        kill(ground.pid(0), signal.SIGKILL)
        time.sleep(2.0)
    try:
        wait_until(lambda: not any(one.is_open for one in job.incidents()), within_s=240.0, what="the end of it", every_s=1.0)
    except TookTooLong as error:
        say(f"{fault.name}: {error}")
    closed = [job.incidents()[one.id - 1] for one in opened]
    found = len(closed) == 1 and right(fault, closed[0])
    return Injection(
        fault=fault.name, rank=rank, found=found, noticed_s=opened[0].opened_at - at if opened else None, false_alarms=0,
        named=found and named(fault, closed[0], rank, node), said=tuple(what(one) for one in closed), commit=commit(),
        story=() if found else tuple(line.what for one in closed for line in one.story),
    )  # fmt: skip


def tell(report: Report, done: list[Injection]) -> None:
    for fault in FAULTS:
        of_it = [one for one in done if one.fault == fault.name]
        if of_it:
            times = [one.noticed_s for one in of_it if one.found and one.noticed_s is not None]
            report.series(fault.name, "s", times, f"found {sum(one.found for one in of_it)} of {len(of_it)}, culprit named {sum(one.named for one in of_it)}")
    found, alarms = sum(one.found for one in done), sum(one.false_alarms for one in done)
    extra = sum(max(0, len(one.said) - one.found) for one in done)
    kinds = len({one.fault for one in done})
    report.note(f"{len(done)} injections of {kinds} kinds; {alarms} incidents in the windows without one, {extra} beside the right one")
    report.note("injected at: " + ", ".join(f"{at[:12]} {count} times" for at, count in sorted(Counter(one.commit for one in done).items())))
    report.raw["injections"] = [asdict(one) for one in done]
    report.bar("recall", found / max(1, len(done)), "", at_least=0.99)
    report.bar("precision", found / max(1, found + alarms + extra), "", at_least=0.98)
    report.bar("culprit named, of those found", sum(one.named for one in done) / max(1, found), "", at_least=0.95)


if __name__ == "__main__":
    main()
