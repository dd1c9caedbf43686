"""Detection: how long until a fault is noticed, and whether anything is noticed that is none.

Faults are injected into running jobs one after the other, each when training is well under way again: a worker killed (SIGKILL), stopped
(SIGSTOP), asleep for ever, or computing for ever with the GIL held; a whole node lost with its agent, processes, disk and memory. The time runs from
the injection to the moment control wrote it down: its journal's clock and ours are the same machine's. An agent killed alone is no node loss: it is
started again and adopts its workers; how soon it is heard again is told without a bar. A rank that is asleep or computes may go on by itself, so it is told as
a pause first; the job is started with --hang-limit 25s, so that each is also put right.

False alarms: a run with a slow first step, uneven steps, saves, and evaluations that all ranks but one sleep through, while another process keeps a
core busy.
"""

from __future__ import annotations

import random
import signal
import sys
import time
from argparse import Namespace
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

from harness.jobs import Job, scratch_directory
from harness.measure import Report, arguments, percentile, say
from harness.processes import Launched, TookTooLong, kill, wait_until

from holdfast.domain.event import NodeHeard, NodeSilent

KILLED, STOPPED, ASLEEP, SPINNING, NODE = "worker killed", "worker stopped (SIGSTOP)", "worker asleep", "worker spinning, GIL held", "node lost"
HANGS = (STOPPED, ASLEEP, SPINNING)
WELL_UNDER_WAY = 30  # Steps since the last start: more than the interval between saves, so that training is further than it ever was.
HANG_FLOOR_S, HANG_FACTOR = 30.0, 3.0
NODES_PER_JOB = 3
NOTICED_WITHIN_S = 120.0  # A fault that is not noticed by then never is, and counts with this time.


@dataclass(frozen=True, slots=True, kw_only=True)
class Injection:
    fault: str
    rank: int
    noticed_s: float
    named: bool  # The rank that was at fault, and no other, is in the diagnosis.


def main() -> None:
    chosen = arguments(
        __doc__ or "",
        kills=(100, 20, "workers killed"),
        stops=(14, 3, "workers stopped"),
        sleeps=(10, 2, "workers asleep"),
        spins=(10, 2, "workers spinning"),
        nodes=(9, 2, "nodes lost"),
        agents=(9, 2, "agents killed alone"),
        calm_s=(600, 120, "seconds of the run without faults"),
    )
    random.seed(chosen.seed)
    report = Report("Detection: how long until a fault is noticed")
    with scratch_directory(keep=chosen.keep) as scratch:
        injections, steps_s = break_workers(chosen, scratch)
        nodes = lose_nodes(chosen.nodes, scratch)
        agents = kill_agents(chosen.agents, scratch)
        alarms = stay_calm(chosen.calm_s, scratch)
    tell(report, injections + nodes, agents, steps_s)
    report.bar(f"false alarms in {chosen.calm_s} s with pauses and a busy core", alarms, "incidents", at_most=0)
    report.finish(chosen)


# Workers.


def break_workers(chosen: Namespace, scratch: Path) -> tuple[list[Injection], list[float]]:
    """All faults of workers, in random order, in one job. Also the times of its steps, which the bar for hangs depends on."""
    counts = {KILLED: chosen.kills, STOPPED: chosen.stops, ASLEEP: chosen.sleeps, SPINNING: chosen.spins}
    faults = [fault for fault, count in counts.items() for _ in range(count)]
    random.shuffle(faults)
    done: list[Injection] = []
    old: set[int] = set()
    with Job(scratch, "workers", "faulty_ddp.py", nproc=2, options=("--hang-limit", "25s")) as job:
        for number, fault in enumerate(faults):
            if done and done[-1].noticed_s >= NOTICED_WITHIN_S:
                break  # What comes after it would say nothing.
            job.wait_for_steps(WELL_UNDER_WAY, old=old)
            time.sleep(random.uniform(0.0, 0.3))
            old = job.steps.pids()
            done.append(break_worker(job, fault))
            if number % 10 == 0 or fault != KILLED or done[-1].noticed_s > 0.5:
                say(f"injection {number + 1} of {len(faults)}: {fault}, noticed after {done[-1].noticed_s:.2f} s")
        logs = job.steps.read()
        steps_s = [b.at - a.at for steps in logs.values() for a, b in pairwise(steps) if a.pid == b.pid]
    return done, steps_s


def break_worker(job: Job, fault: str) -> Injection:
    before, rank = len(job.incidents()), random.randrange(job.world_size)
    if fault in (KILLED, STOPPED):
        at = time.time()
        kill(job.steps.newest_pids()[rank], signal.SIGKILL if fault == KILLED else signal.SIGSTOP)
    else:
        at = hang(job, rank, "sleep" if fault == ASLEEP else "spin")
    try:
        incident = job.wait_for_incident(before, within_s=NOTICED_WITHIN_S)
        closed = job.wait_for_close(incident.id)
    except TookTooLong as error:
        say(f"NOT NOTICED, OR NOT PUT RIGHT: {fault}: {error}")
        return Injection(fault=fault, rank=rank, noticed_s=NOTICED_WITHIN_S, named=False)
    return Injection(fault=fault, rank=rank, noticed_s=incident.opened_at - at, named=any(one.ranks == (rank,) for one in closed.diagnoses))


def hang(job: Job, rank: int, how: str) -> float:
    """Tell a rank to hang; when it did."""
    began = job.scratch / "began"
    began.unlink(missing_ok=True)
    (job.scratch / "do.new").write_text(how)
    (job.scratch / "do.new").replace(job.scratch / f"do-{rank}")
    wait_until(began.exists, within_s=60.0, what=f"rank {rank} to hang")
    return float(began.read_text())


# Nodes and agents.


def lose_nodes(count: int, scratch: Path) -> list[Injection]:
    done: list[Injection] = []
    while len(done) < count:
        losses = min(NODES_PER_JOB, count - len(done))
        with Job(scratch, f"nodes-{len(done)}", "faulty_ddp.py", nproc=1, nodes=2, spares=losses) as job:
            old: set[int] = set()
            for _ in range(losses):
                job.wait_for_steps(WELL_UNDER_WAY, old=old, within_s=300)
                old = job.steps.pids()
                done.append(lose_node(job))
                say(f"node {len(done)} of {count} lost: noticed after {done[-1].noticed_s:.2f} s")
            job.wait_for_steps(1, old=old, within_s=300)
    return done


def lose_node(job: Job) -> Injection:
    rank, state = random.randrange(job.world_size), job.state()
    assert state is not None
    assert state.gang is not None
    node = state.gang.nodes[rank // job.ranks_per_node]
    before, at = len(state.incidents), time.time()
    job.lose_node(node, [job.steps.newest_pids()[rank]])
    silent = wait_for_event(job, NodeSilent, node, after=at)
    closed = job.wait_for_close(before + 1)
    return Injection(fault=NODE, rank=rank, noticed_s=silent - at, named=any(one.node == node for one in closed.diagnoses))


def kill_agents(count: int, scratch: Path) -> list[float]:
    """How long until an agent that was killed alone is heard again. Its workers must not notice."""
    heard: list[float] = []
    with Job(scratch, "agents", "faulty_ddp.py", nproc=1, nodes=2) as job:
        for number in range(count):
            job.wait_for_steps(WELL_UNDER_WAY * (number + 1))
            node, agent = random.choice(sorted(job.agents().items()))
            at = time.time()
            kill(agent.pid, signal.SIGKILL)
            heard.append(wait_for_event(job, NodeHeard, node, after=at) - at)
            say(f"agent {number + 1} of {count} killed: heard again after {heard[-1]:.2f} s")
        processes, incidents = len(job.steps.pids()), len(job.incidents())
    if incidents or processes != 2:
        say(f"KILLED AGENTS WERE NOTICED: {incidents} incidents, {processes} worker processes instead of 2")
    return heard


def wait_for_event(job: Job, kind: type[NodeSilent | NodeHeard], node: str, *, after: float) -> float:
    return float(wait_until(lambda: event_time(job, kind, node, after=after), within_s=60.0, what=f"{kind.__name__} of {node}", every_s=0.2))


def event_time(job: Job, kind: type[NodeSilent | NodeHeard], node: str, *, after: float) -> float | None:
    for entry in job.entries():
        if isinstance(entry.event, kind) and entry.event.node == node and entry.event.at > after:
            return entry.event.at
    return None


# No faults.


def stay_calm(lasts_s: int, scratch: Path) -> int:
    """Incidents of a run in which nothing is wrong."""
    spin = [sys.executable, "-c", "while True: pass"]
    with Launched(spin, log=scratch / "busy.log", cwd=scratch), Job(scratch, "calm", "calm_ddp.py", str(lasts_s), nproc=2) as job:
        job.wait_for_steps(1, within_s=300)
        deadline, said_at = time.monotonic() + lasts_s + 300, 0.0
        while job.process.poll() is None and time.monotonic() < deadline:
            if time.monotonic() - said_at > 30:
                said_at = time.monotonic()
                say(f"calm run: step {job.steps.furthest(job.steps.pids())}, {len(job.incidents())} incidents")
            time.sleep(0.5)
        incidents, code = job.incidents(), job.process.poll()
    for one in incidents:
        say(f"FALSE ALARM: {one.story[0].what}")
    if code != 0:
        say(f"THE CALM RUN LEFT WITH CODE {code}; it said:\n{job.last_words()}")
    return len(incidents) + (code != 0)


# The table.


def tell(report: Report, injections: list[Injection], agents: list[float], steps_s: list[float]) -> None:
    by_fault = {fault: [one for one in injections if one.fault == fault] for fault in (KILLED, *HANGS, NODE)}
    noticed = {fault: [one.noticed_s for one in of_it] for fault, of_it in by_fault.items()}
    for fault, of_it in by_fault.items():
        report.series(fault, "s", noticed[fault], f"the culprit was named {sum(one.named for one in of_it)} times")
    report.series("agent killed alone, until heard again", "s", agents)
    step_p99_s = percentile(steps_s, 0.99) or 0.0
    report.note(f"{len(injections)} injections. The 99th percentile of step time was {1e3 * step_p99_s:.0f} ms.")
    report.raw["injections"] = [asdict(one) for one in injections]
    report.raw["step_p99_s"] = step_p99_s
    hangs = [value for fault in HANGS for value in noticed[fault]]
    report.bar("worker death noticed, 99th percentile", percentile(noticed[KILLED], 0.99), "s", under=0.5)
    report.bar("agent death noticed (with its node), slowest", max(noticed[NODE], default=None), "s", under=5.0)
    report.bar("hang noticed, slowest", max(hangs, default=None), "s", under=max(HANG_FLOOR_S, HANG_FACTOR * step_p99_s))


if __name__ == "__main__":
    main()
