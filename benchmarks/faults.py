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
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from multiprocessing import get_context
from pathlib import Path

from harness.jobs import Job, scratch_directory
from harness.measure import Report, arguments, commit, say
from harness.processes import TookTooLong, kill, wait_until
from harness.staging import Ground, staged

from holdfast.diagnose.together import leading
from holdfast.domain.incident import Incident

WARM_S = 85.0  # Of a generation: the detectors that learn what is usual need 75 looks.
CALM_S = 20.0  # Before a fault, and after its incident was opened: long enough for a second one that tells the same story to show.
_LONG_S = 150.0
Deed = Callable[[Ground, int], object]  # At a rank.


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    name: str
    kinds: tuple[str, ...]  # The finding the story is named after, or the cause that was diagnosed: any of these is right.
    strike: Deed
    heal: Deed = lambda ground, rank: None
    culprit: str = "rank"  # "rank", "node" or "": nobody in particular.
    within_s: float = 60.0
    needs: str = ""  # A program, without which it cannot be staged.
    ruins: bool = False  # The gang is broken afterwards: what it trained is worth nothing, or what it counted (skipped saves) would stand for minutes.
    learned: bool = False  # Whoever is to see it must know what is usual.
    lasts_s: float = CALM_S  # So long it goes on after the first incident.


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


def inside(how: str, **more: float) -> Deed:
    return lambda ground, rank: ground.order(str(rank), how, **more)


def everywhere(how: str, **more: float) -> Deed:
    return lambda ground, _: ground.order("all", how, **more)


def back(ground: Ground, _: int) -> None:
    ground.restore()


def send(number: signal.Signals) -> Deed:
    return lambda ground, rank: kill(ground.pid(rank), number)


HANG = ("hang",)
FULL = ("disk_running_out", "failing_disk", "rule:DiskNearlyFull", "rule:DiskFull", "rule:DiskErrors")
SLOW_NETWORK = ("lossy_network", "slow_peer", "slow_communication")
FAULTS = (
    Fault(name="worker killed", kinds=("killed",), strike=send(signal.SIGKILL), within_s=10),
    Fault(name="worker stopped", kinds=HANG, strike=send(signal.SIGSTOP), within_s=60),
    Fault(name="busy loop that holds the GIL", kinds=HANG, strike=inside("gil"), within_s=90),
    Fault(name="deadlock in a collective", kinds=HANG, strike=inside("deadlock"), within_s=90),
    Fault(name="rank asleep", kinds=HANG, strike=inside("asleep"), within_s=90),
    Fault(name="data loader stuck", kinds=HANG, strike=inside("data_stuck"), within_s=90),
    Fault(name="rank held back to 70 % of its core", kinds=("slow_rank",), strike=lambda ground, rank: ground.hold_back(rank, 0.7), heal=Ground.let_go,
          within_s=90, learned=True),
    Fault(name="data slow on all ranks", kinds=("data_stall",), strike=everywhere("data_slow", for_s=45), culprit="", within_s=60, learned=True),
    Fault(name="memory leak", kinds=("memory_running_out",), strike=inside("leak", for_s=100), within_s=120, learned=True),
    Fault(name="out of memory", kinds=("out_of_memory",), strike=inside("out_of_memory"), within_s=60),
    Fault(name="disk full", kinds=FULL, strike=lambda ground, _: ground.fill(), heal=lambda ground, _: ground.empty(), culprit="", within_s=90,
          ruins=True),
    Fault(name="disk slow", kinds=("slow_disk", "slow_save", "rule:DiskSlow"), strike=lambda ground, _: ground.writes_a_second(1),
          heal=lambda ground, _: ground.writes_a_second(0), culprit="", within_s=240, lasts_s=90, ruins=True),
    Fault(name="packets lost", kinds=SLOW_NETWORK, strike=lambda ground, rank: ground.lose_packets(rank, 5), heal=Ground.mend_network, culprit="", within_s=120,
          needs="nft", learned=True),
    Fault(name="link narrowed", kinds=SLOW_NETWORK, strike=lambda ground, rank: ground.narrow(rank, 4000), heal=Ground.widen, culprit="", within_s=90,
          needs="tc", learned=True),
    Fault(name="packets delayed", kinds=SLOW_NETWORK, strike=lambda ground, rank: ground.delay(rank, 40), heal=lambda ground, _: ground.end_delay(), culprit="",
          within_s=90, learned=True),
    Fault(name="node cut off", kinds=("network", "hang", "node_lost"), strike=lambda ground, rank: ground.lose_packets(rank, 100), heal=Ground.mend_network,
          culprit="", within_s=120, needs="nft"),
    Fault(name="clock set forward by an hour", kinds=("clock_jump", "rule:ClockJump"), strike=lambda ground, rank: ground.shift_clock(rank, 3600),
          heal=lambda ground, rank: ground.shift_clock(rank, 0), culprit="node", within_s=60, needs="gcc"),
    Fault(name="NaN in a rank's data", kinds=("not_finite",), strike=inside("nan_from_data", for_s=1), within_s=20, ruins=True),
    Fault(name="NaN from a faulty rank", kinds=("not_finite",), strike=inside("nan_from_rank", for_s=1), within_s=20, ruins=True),
    Fault(name="parameter flipped on one rank", kinds=("replicas_disagree",), strike=inside("bit_flip"), within_s=60, ruins=True),
    Fault(name="loss spike", kinds=("loss_jump", "gradient_explosion"), strike=everywhere("loss_spike", for_s=25), heal=back, culprit="", within_s=40,
          ruins=True, learned=True),
    Fault(name="learning rate too high", kinds=("loss_jump", "gradient_explosion", "not_finite"), strike=everywhere("rate_too_high", for_s=25),
          heal=back, culprit="", within_s=40, ruins=True, learned=True),
    Fault(name="wrong labels midway", kinds=("loss_jump",), strike=everywhere("wrong_labels", for_s=30), heal=back, culprit="", within_s=40, ruins=True,
          learned=True),
    Fault(name="log flood", kinds=("log_flood", "rule:LogFlood"), strike=inside("log_flood", for_s=120), within_s=150),
)  # fmt: skip


def main() -> None:
    texts = {"only": "names of faults, separated by commas", "record": "file to which each injection is added; what it holds is not done again"}
    chosen = arguments(
        __doc__ or "", texts=texts, repetitions=(15, 1, "injections of each kind"), lanes=(2, 2, "jobs at once"),
        minutes=(1440, 12, "in which it is to be done; what does not fit is left out"),
    )  # fmt: skip
    report = Report("Faults: found, named, and nothing else")
    missing = {fault.name: fault.needs for fault in FAULTS if fault.needs and shutil.which(fault.needs) is None}
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
    with staged(scratch) as ground:
        for number, fault in enumerate(map(by_name, order), start=1):
            if time.time() + takes_s(fault, at_most=True) > until:
                say(f"{scratch.name}, {number} of {len(order)}: no time for {fault.name}")
                continue
            try:
                alarms = calm_down(ground, fault)
            except TookTooLong as error:
                say(f"{scratch.name}: THE JOB DID NOT COME BACK: {error}")
                break
            one = replace(inject(ground, fault), false_alarms=alarms)
            done.append(one)
            if record is not None:
                with record.open("a") as file:  # One short write at the end of it: lanes do not mix.
                    file.write(json.dumps(asdict(one)) + "\n")
            how = f"found after {one.noticed_s:.1f} s{'' if one.named else ', CULPRIT NOT NAMED'}" if one.found and one.noticed_s is not None else "NOT FOUND"
            say(f"{scratch.name}, {number} of {len(order)}: {fault.name} (rank {one.rank}): {how}; said: {'; '.join(one.said) or 'nothing'}")
    return done


def calm_down(ground: Ground, fault: Fault) -> int:
    """Wait until the gang has run for a while with nothing wrong; how many incidents were opened in that time."""
    job = ground.job
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
        return len(new) + calm_down(ground, fault)
    return len(new)


def is_well(job: Job) -> bool:
    state = job.state()
    return state is not None and state.phase == "running" and state.gang is not None and state.gang.ready and not any(one.is_open for one in state.incidents)


def inject(ground: Ground, fault: Fault) -> Injection:
    job, rank = ground.job, random.randrange(ground.job.world_size)
    node, known, at = ground.node(rank), len(job.incidents()), time.time()
    fault.strike(ground, rank)
    try:
        wait_until(lambda: len(job.incidents()) > known, within_s=fault.within_s, what=fault.name, every_s=0.2)
        time.sleep(fault.lasts_s)
    except TookTooLong:
        pass
    opened = job.incidents()[known:]
    fault.heal(ground, rank)
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


def right(fault: Fault, incident: Incident) -> bool:
    causes = {str(diagnosis.cause) for diagnosis in incident.diagnoses[:1]}
    return bool(({leading(incident.findings).kind} | causes) & set(fault.kinds))


def named(fault: Fault, incident: Incident, rank: int, node: str) -> bool:
    blamed = incident.diagnoses[0] if incident.diagnoses and str(incident.diagnoses[0].cause) in fault.kinds else leading(incident.findings)
    match fault.culprit:
        case "rank":
            return blamed.ranks == (rank,)
        case "node":
            return blamed.node == node
        case _:
            return True


def what(incident: Incident) -> str:
    cause = f" → {incident.diagnoses[0].cause}" if incident.diagnoses else ""
    return f"{leading(incident.findings).kind}{cause} ({', '.join(sorted({finding.kind for finding in incident.findings}))})"


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
