"""Faults: real ones, injected into a real job of four ranks on two nodes; is exactly one incident of the right kind found, how soon, and is the culprit named?

Each injection is paired with an equal window before it, in which nothing is wrong: an incident there is a false alarm. Found means that exactly one incident
was opened within the limit of its kind, and that it is of the right kind. The time runs from the injection, by the injector's clock, to the moment control
opened the incident, by its journal's: both are this machine's.

Needs root, for control groups, network namespaces and mounts; kinds that cannot be staged here are named and left out.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from harness.jobs import Job, scratch_directory
from harness.measure import Report, arguments, say
from harness.processes import TookTooLong, kill, wait_until

from holdfast.diagnose.together import leading
from holdfast.domain.incident import Incident

COMPUTE_S = 0.01
WARM_S = 85.0  # Of a generation: the detectors that learn what is usual need 75 looks.
CALM_S = 20.0  # After an incident was opened: long enough for a second one that tells the same story to show.
OURS = ("RestartedOften", "GoodputLow", "IncidentOpenLong")  # What is right to say of a job that is broken on purpose every other minute, and no fault.
MEMORY_BYTES = 3 << 30
DISK_BYTES = 768 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    name: str
    kinds: tuple[str, ...]  # The finding the story is named after, or the cause that was diagnosed: any of these is right.
    strike: Callable[[Ground, int], None]  # At a rank.
    heal: Callable[[Ground, int], None] = lambda ground, rank: None
    culprit: str = "rank"  # "rank", "node" or "": nobody in particular.
    within_s: float = 60.0
    needs: str = ""  # A program, without which it cannot be staged.
    ruins: bool = False  # What was trained is worth nothing afterwards: the gang is broken, to go on from before.


@dataclass(slots=True)
class Ground:
    job: Job
    disk: Path
    groups: Path | None
    orders: int = 0

    def order(self, who: str, how: str, **more: float) -> None:
        self.orders += 1
        path = self.job.scratch / f"do-{who}"
        path.with_suffix(".new").write_text(json.dumps({"id": f"{self.orders}-{time.time()}", "how": how, **more}))
        path.with_suffix(".new").replace(path)

    def pid(self, rank: int) -> int:
        return self.job.steps.newest_pids()[rank]

    def node(self, rank: int) -> str:
        state = self.job.state()
        assert state is not None
        assert state.gang is not None
        return state.gang.nodes[rank // self.job.ranks_per_node]


@dataclass(frozen=True, slots=True, kw_only=True)
class Injection:
    fault: str
    rank: int
    found: bool
    noticed_s: float | None
    named: bool
    false_alarms: int  # In the window before it.
    said: tuple[str, ...]


def inside(how: str, **more: float) -> Callable[[Ground, int], None]:
    return lambda ground, rank: ground.order(str(rank), how, **more)


def everywhere(how: str, **more: float) -> Callable[[Ground, int], None]:
    return lambda ground, _: ground.order("all", how, **more)


def send(number: signal.Signals) -> Callable[[Ground, int], None]:
    return lambda ground, rank: kill(ground.pid(rank), number)


def hold_back(ground: Ground, rank: int) -> None:
    """Let a rank have seven tenths of the core it uses now."""
    assert ground.groups is not None
    pid = ground.pid(rank)
    used = cpu_s(pid)
    time.sleep(5.0)
    share = (cpu_s(pid) - used) / 5.0
    group = ground.groups / "held_back"
    group.mkdir(exist_ok=True)
    (group / "cpu.cfs_period_us").write_text("20000")
    (group / "cpu.cfs_quota_us").write_text(str(max(1000, int(0.7 * share * 20000))))
    (group / "cgroup.procs").write_text(str(pid))


def let_go(ground: Ground, rank: int) -> None:
    assert ground.groups is not None
    (ground.groups / "cgroup.procs").write_text(str(ground.pid(rank)))


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def fill(ground: Ground, _: int) -> None:
    with (ground.disk / "filler").open("wb") as file:
        try:
            while True:
                file.write(bytes(1 << 20))
        except OSError:
            pass


def empty(ground: Ground, _: int) -> None:
    (ground.disk / "filler").unlink(missing_ok=True)


def in_network_of(ground: Ground, rank: int, *command: str) -> None:
    agent = ground.job.agents()[ground.node(rank)]
    subprocess.run(["nsenter", "-t", str(agent.pid), "-n", *command], check=True, timeout=20, capture_output=True)


def lose_packets(share: int) -> Callable[[Ground, int], None]:
    def strike(ground: Ground, rank: int) -> None:
        chain = "add table inet fault; add chain inet fault in { type filter hook input priority 0; }"
        some = f"numgen random mod 100 < {share} " if share < 100 else ""
        in_network_of(ground, rank, "nft", f"{chain}; add rule inet fault in iif != lo {some}drop")

    return strike


def mend_network(ground: Ground, rank: int) -> None:
    in_network_of(ground, rank, "nft", "delete table inet fault")


HANG = ("hang",)
FAULTS = (
    Fault(name="worker killed", kinds=("killed",), strike=send(signal.SIGKILL), within_s=10),
    Fault(name="worker stopped", kinds=HANG, strike=send(signal.SIGSTOP), within_s=60),
    Fault(name="busy loop that holds the GIL", kinds=HANG, strike=inside("gil"), within_s=90),
    Fault(name="deadlock in a collective", kinds=HANG, strike=inside("deadlock"), within_s=90),
    Fault(name="rank asleep", kinds=HANG, strike=inside("asleep"), within_s=90),
    Fault(name="data loader stuck", kinds=HANG, strike=inside("data_stuck"), within_s=90),
    Fault(name="rank held back to 70 % of its core", kinds=("slow_rank",), strike=hold_back, heal=let_go, within_s=90),
    Fault(name="data slow on all ranks", kinds=("data_stall",), strike=everywhere("data_slow", for_s=45), culprit="", within_s=60),
    Fault(name="memory leak", kinds=("memory_running_out",), strike=inside("leak", for_s=100), within_s=120),
    Fault(name="out of memory", kinds=("out_of_memory",), strike=inside("out_of_memory"), within_s=60),
    Fault(name="disk full", kinds=("disk_running_out", "failing_disk", "rule:DiskNearlyFull", "rule:DiskFull", "rule:DiskErrors"), strike=fill, heal=empty,
          culprit="node", within_s=90),
    Fault(name="packets lost", kinds=("lossy_network", "slow_communication"), strike=lose_packets(5), heal=mend_network, culprit="node",
          within_s=120, needs="nft"),
    Fault(name="node cut off", kinds=("network", "hang", "node_lost"), strike=lose_packets(100), heal=mend_network, culprit="", within_s=120,
          needs="nft"),
    Fault(name="NaN in a rank's data", kinds=("not_finite",), strike=inside("nan_from_data", for_s=1), within_s=20, ruins=True),
    Fault(name="NaN from a faulty rank", kinds=("not_finite",), strike=inside("nan_from_rank", for_s=1), within_s=20, ruins=True),
    Fault(name="parameter flipped on one rank", kinds=("replicas_disagree",), strike=inside("bit_flip"), within_s=60, ruins=True),
    Fault(name="loss spike", kinds=("loss_jump", "gradient_explosion"), strike=everywhere("loss_spike", for_s=25), culprit="", within_s=40, ruins=True),
    Fault(name="learning rate too high", kinds=("loss_jump", "gradient_explosion", "not_finite"), strike=everywhere("rate_too_high", for_s=25), culprit="",
          within_s=40, ruins=True),
    Fault(name="wrong labels midway", kinds=("loss_jump",), strike=everywhere("wrong_labels", for_s=30), culprit="", within_s=40, ruins=True),
    Fault(name="log flood", kinds=("log_flood", "rule:LogFlood"), strike=inside("log_flood", for_s=120), within_s=150),
)  # fmt: skip


def main() -> None:
    chosen = arguments(__doc__ or "", texts={"only": "names of faults, separated by commas"}, repetitions=(15, 1, "injections of each kind"))
    random.seed(chosen.seed)
    report = Report("Faults: found, named, and nothing else")
    missing = {fault.name: fault.needs for fault in FAULTS if fault.needs and shutil.which(fault.needs) is None}
    for name, program in missing.items():
        report.note(f"left out: {name}, which needs {program}")
    wanted = [fault for fault in FAULTS if fault.name not in missing and (not chosen.only or fault.name in chosen.only.split(","))]
    with scratch_directory(keep=chosen.keep) as scratch, ExitStack() as stack:
        ground = stack.enter_context(prepared(scratch))
        done = inject_all(ground, wanted, chosen.repetitions)
    tell(report, done)
    report.finish(chosen)


@contextmanager
def prepared(scratch: Path):
    """A job on a disk of its own, in control groups of its own."""
    with ExitStack() as stack:
        disk = scratch / "state"
        disk.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(disk)], check=True, timeout=20)
        stack.callback(subprocess.run, ["umount", "-l", str(disk)], check=False, timeout=20)
        memory, cpu = (Path(f"/sys/fs/cgroup/{name}/holdfast-faults-{os.getpid()}") for name in ("memory", "cpu"))
        for group in (memory, cpu):
            group.mkdir()
        (memory / "memory.limit_in_bytes").write_text(str(MEMORY_BYTES))
        (memory / "cgroup.procs").write_text(str(os.getpid()))
        stack.callback(leave_groups, memory, cpu)
        rules = scratch / "rules.yaml"
        rules.write_text("rules:\n" + "".join(f"  - {{name: {name}, disabled: true}}\n" for name in OURS))
        options = ["--own-network", "--rules", str(rules)]
        job = stack.enter_context(Job(scratch, "faults", "faults_inside.py", str(COMPUTE_S), nproc=2, nodes=2, options=options, env={"OMP_NUM_THREADS": "1"}))
        yield Ground(job=job, disk=disk, groups=cpu)


def leave_groups(*groups: Path) -> None:
    for group in groups:
        (group.parent / "cgroup.procs").write_text(str(os.getpid()))
        for inner in [*group.glob("*/"), group]:
            try:
                inner.rmdir()
            except OSError as error:
                say(f"{inner} stays: {error}")


def inject_all(ground: Ground, faults: list[Fault], repetitions: int) -> list[Injection]:
    order = [fault for _ in range(repetitions) for fault in random.sample(faults, len(faults))]
    done: list[Injection] = []
    for number, fault in enumerate(order, start=1):
        try:
            alarms = calm_down(ground)
        except TookTooLong as error:
            say(f"THE JOB DID NOT COME BACK: {error}")
            break
        done.append(replace(inject(ground, fault), false_alarms=alarms))
        one = done[-1]
        how = f"found after {one.noticed_s:.1f} s{'' if one.named else ', CULPRIT NOT NAMED'}" if one.found and one.noticed_s is not None else "NOT FOUND"
        say(f"{number} of {len(order)}: {fault.name} (rank {one.rank}): {how}; said: {'; '.join(one.said) or 'nothing'}")
    return done


def calm_down(ground: Ground) -> int:
    """Wait until the gang has run for a while with nothing wrong; how many incidents were opened in that time."""
    job = ground.job
    wait_until(lambda: is_well(job), within_s=300.0, what="a job in which nothing is wrong", every_s=1.0)
    state = job.state()
    assert state is not None
    assert state.gang is not None
    known, until = len(state.incidents), max(time.time() + CALM_S, state.gang.started_at + WARM_S)
    while time.time() < until:
        time.sleep(1.0)
    new = job.incidents()[known:]
    for one in new:
        say(f"FALSE ALARM: {one.story[0].what}")
    if not is_well(job):
        return len(new) + calm_down(ground)
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
        time.sleep(CALM_S)
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
        named=found and named(fault, closed[0], rank, node), said=tuple(what(one) for one in closed),
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
    report.raw["injections"] = [asdict(one) for one in done]
    report.bar("recall", found / max(1, len(done)), "", at_least=0.99)
    report.bar("precision", found / max(1, found + alarms + extra), "", at_least=0.98)
    report.bar("culprit named, of those found", sum(one.named for one in done) / max(1, found), "", at_least=0.95)


if __name__ == "__main__":
    main()
