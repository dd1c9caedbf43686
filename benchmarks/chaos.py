"""Chaos: does everything that can be survived get survived, what does it cost, and how do others do?

Side by side: the same small DDP script and the same faults (a worker killed, one that raises, one that is stopped, one that sleeps) under Holdfast, torchrun as
it comes and made reliable, and those peers that are installed (`--peers all` installs them into a cache of their own): how often every rank steps again, and
how soon. Watchers: control and agents killed while a job runs, and training does not stop. Random faults: jobs of many shapes at once, struck one fault after
the other (harness/storms.py): nothing unrecovered, every rung used, the samples and the weights of an undisturbed run, or of one with the same recorded
changes; and what cannot be survived is not tried again and again. With `--record FILE` it goes on counting from what FILE holds. Power cut: every process of a
job killed at once, and the job started again. Slow: a worker at a tenth of its speed is replaced. After each job: is anything left behind?
"""

from __future__ import annotations

import json
import math
import os
import random
import sys
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from signal import SIGKILL, SIGSTOP

from harness import storms
from harness.jobs import Gang, Job, Torchrun, scratch_directory
from harness.measure import Report, arguments, median, say
from harness.peers import PEERS, SCRIPT
from harness.processes import Launched, TookTooLong, kill, wait_until
from harness.staging import Steps

from holdfast.chaos.cores import hold_back
from holdfast.chaos.ground import Ground
from holdfast.chaos.judged import what
from holdfast.chaos.storm import WARM_S
from holdfast.chaos.undo import Undoing
from holdfast.cli.words import remedy_of
from holdfast.diagnose.together import leading
from holdfast.domain.state import Change

RANKS = 2
WARM_UP_STEPS = 100  # Who strikes a gang before all of it was seen to step measures its start: a rejoin is not possible yet.
KILLED, RAISES, STOPPED, ASLEEP = "worker killed", "exception in a worker", "worker stopped", "worker asleep"
FAULTS = (KILLED, RAISES, STOPPED, ASLEEP)
HOLDFAST, REJOINING, UNCHANGED = "holdfast", "holdfast, rejoining", "holdfast, script unchanged"
TOLD = ("--hang-limit", "5s")  # As the peers are that have such a limit: a rank that is asleep might go on by itself.
WITHIN_S = {(REJOINING, KILLED): 0.3, (REJOINING, RAISES): 1.0, (HOLDFAST, RAISES): 1.0}
AFTER_NOTICED_S = {(way, fault): 2.0 for way in (HOLDFAST, REJOINING) for fault in (STOPPED, ASLEEP)}
# A worker without our lines that sleeps looks like one that waits for something: nobody can tell, and nothing is promised.
PROMISED = {HOLDFAST: FAULTS, REJOINING: FAULTS, UNCHANGED: (KILLED, RAISES, STOPPED)}
PAUSE_S = 1.0  # More would be a stop.
AROUND_S = 3.0  # Before and after a kill: an agent or control that is there again has taken up its work within it.


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    way: str
    fault: str
    back_s: float | None  # Until every rank had finished a step again; None: not in time.
    noticed_s: float | None = None  # Until the incident was opened; only of ours, by its journal.

    @property
    def after_noticed_s(self) -> float | None:
        return self.back_s - self.noticed_s if self.back_s is not None and self.noticed_s is not None else None


def main() -> None:
    texts = {
        "peers": "names of peers to install if they are not there, or all", "ways": "launchers, separated by commas: those with one of these words in them",
        "only": "parts, separated by commas: peers, watchers, random, permanent, power, slow",
        "record": "file to which every random fault and every job that ended is added; what it holds counts too",
    }  # fmt: skip
    chosen = arguments(
        __doc__ or "", texts=texts, rounds=(10, 1, "of every fault under every launcher"), faults=(1000, 20, "random faults in all"),
        jobs=(4, 3, "jobs at once"), minutes=(60, 4, "of random faults, at most; it ends by itself within them"),
        cuts=(10, 1, "power cuts"), losses=(20, 3, "times that control and an agent are killed"), patience_s=(60, 40, "after which a job is not back"),
    )  # fmt: skip
    random.seed(chosen.seed)
    report = Report("Chaos: what is survived, beside others; random faults; power cuts")
    parts: dict[str, Callable[[Namespace, Path, Report], None]] = {
        "peers": side_by_side, "watchers": watchers_killed, "random": random_faults, "permanent": permanent_faults, "power": power_cuts, "slow": slow_worker,
    }  # fmt: skip
    left: list[str] = []
    with scratch_directory(keep=chosen.keep) as scratch:
        for name, part in parts.items():
            if not chosen.only or name in chosen.only.split(","):
                (scratch / name).mkdir()
                part(chosen, scratch / name, report)
                left += leftovers(scratch / name)
    for one in left:
        say(f"LEFT BEHIND: {one}")
    report.bar("left behind", len(left), "things", at_most=0)
    report.finish(chosen)


def leftovers(scratch: Path) -> list[str]:
    """Of all jobs under Holdfast, as each was seen when it had ended, before it was swept."""
    files = [path for job in sorted((scratch / "state" / "jobs").glob("*")) for path in sorted((scratch / job.name).glob("*.left"))]
    return [f"{path.parent.name}, {path.stem}: {one}" for path in files for one in path.read_text().splitlines()]


# Side by side.


def side_by_side(chosen: Namespace, scratch: Path, report: Report) -> None:
    tried: list[Tried] = []
    ways = launchers(chosen, report)
    for number in range(chosen.rounds):
        for turn, (way, launch) in enumerate(ways.items()):
            tried += strike_all(way, launch, faults_for(way, chosen), scratch, f"r{number}-{turn}", chosen.patience_s)
    for way in ways:
        if left_out := [fault for fault in FAULTS if fault not in faults_for(way, chosen)]:
            report.note(f"left out of a first look, {way}: {', '.join(left_out)}")
        for fault in faults_for(way, chosen):
            of_it = [one for one in tried if (one.way, one.fault) == (way, fault)]
            back, after = [one.back_s for one in of_it], [one.after_noticed_s for one in of_it]
            known = [one for one in back if one is not None]
            report.series(f"{way}: {fault}", "s", known, f"back {len(known)} times in {len(of_it)}")
            if any(one is not None for one in after) and fault in (STOPPED, ASLEEP):
                report.series("  after it was noticed", "s", [one for one in after if one is not None])
            if fault in PROMISED.get(way, ()):
                report.bar(f"{way}: {fault}, back", len(known), f"times in {len(of_it)}", at_least=len(of_it))
            if within_s := WITHIN_S.get((way, fault)):
                report.bar(f"{way}: {fault}, median", middle(back), "s", at_most=within_s)
            if within_s := AFTER_NOTICED_S.get((way, fault)):
                report.bar(f"{way}: {fault}, after it was noticed, median", middle(after), "s", at_most=within_s)
    report.raw["side by side"] = [asdict(one) for one in tried]


def faults_for(way: str, chosen: Namespace) -> Sequence[str]:
    """A first look does not wait for what others mostly never notice."""
    return PROMISED.get(way, (KILLED, RAISES)) if chosen.quick else FAULTS


def middle(values: Sequence[float | None]) -> float | None:
    """The median, to which what did not come counts as what came last of all; None when half of them did not come."""
    found = median([math.inf if one is None else one for one in values])
    return found if found is not None and math.isfinite(found) else None


def launchers(chosen: Namespace, report: Report) -> dict[str, Callable[[Path, str], Gang]]:
    ways: dict[str, Callable[[Path, str], Gang]] = {
        HOLDFAST: lambda scratch, name: Job(scratch, name, SCRIPT, "guard", nproc=RANKS, options=TOLD),
        REJOINING: lambda scratch, name: Job(scratch, name, SCRIPT, "rejoin", nproc=RANKS, options=TOLD),
        UNCHANGED: lambda scratch, name: Job(scratch, name, SCRIPT, "plain", nproc=RANKS),
        "torchrun, reliable": lambda scratch, name: Torchrun(scratch, name, SCRIPT, "plain", nproc=RANKS, env={"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}),
        "torchrun as it comes": lambda scratch, name: Torchrun(scratch, name, SCRIPT, "plain", nproc=RANKS),
    }
    wanted = {peer.key for peer in PEERS} if chosen.peers == "all" else set(filter(None, chosen.peers.split(",")))
    for peer in PEERS:
        if peer.is_there() or (peer.key in wanted and peer.install()):
            ways[peer.name] = lambda scratch, name, peer=peer: peer.launch(scratch, name, RANKS)  # type: ignore[misc]
        else:
            report.note(f"{peer.name} is not installed: `benchmarks/chaos.py --peers {peer.key}` installs it into {peer.place}")
    words = chosen.ways.split(",")
    return {way: launch for way, launch in ways.items() if any(word in way for word in words)}


def strike_all(way: str, launch: Callable[[Path, str], Gang], faults: Sequence[str], scratch: Path, name: str, patience_s: float) -> list[Tried]:
    """Every fault, in one launch while it lasts."""
    tried: list[Tried] = []
    while len(tried) < len(faults):
        with launch(scratch, f"{name}-{len(tried)}") as gang:
            try:
                gang.wait_for_steps(WARM_UP_STEPS, within_s=180)
            except (TookTooLong, RuntimeError) as error:
                say(f"{way} DOES NOT START, which counts as not back: {str(error).splitlines()[0]}")
                tried.append(Tried(way=way, fault=faults[len(tried)], back_s=None))
                continue
            for fault in faults[len(tried) :]:
                at = time.time()
                back_s = strike(gang, fault, patience_s)
                back_s = back_s if back_s is not None and settles(gang) else None
                tried.append(Tried(way=way, fault=fault, back_s=back_s, noticed_s=noticed_s(gang, at)))
                say(f"{way}: {fault}: " + (f"{back_s:.2f} s" if back_s is not None else "NOT BACK"))
                if back_s is None:
                    break
    return tried


def strike(gang: Gang, fault: str, patience_s: float) -> float | None:
    """Seconds until the struck rank has finished a step in another process, and every rank one since."""
    rank = random.randrange(gang.world_size)
    before = gang.steps.newest_pids()[rank]
    at = time.monotonic()
    if fault in (KILLED, STOPPED):
        kill(before, SIGKILL if fault == KILLED else SIGSTOP)
    else:
        (gang.scratch / f"do-{rank}").write_text(json.dumps({"id": str(at), "how": "exception" if fault == RAISES else "asleep"}))
    try:
        back: float = wait_until(lambda: gang.steps.all_again(rank, at, before), within_s=patience_s, what="every rank")
    except TookTooLong:
        return None
    return back - at


def noticed_s(gang: Gang, at: float) -> float | None:
    """How long after `at` the incident was opened that the gang was stopped for."""
    opened = [one.opened_at for one in gang.incidents() if one.opened_at >= at and not one.stands] if isinstance(gang, Job) else []
    return opened[0] - at if opened else None


def settles(gang: Gang) -> bool:
    """Whether it stays: some steps of every rank, so that one fault is not taken for the echo of another."""
    counted = {rank: len(steps) for rank, steps in gang.steps.read().items()}
    try:
        wait_until(lambda: all(len(steps) >= counted[rank] + WARM_UP_STEPS for rank, steps in gang.steps.read().items()), within_s=60.0, what="some steps")
    except TookTooLong:
        return False
    return True


# Those who watch.


def watchers_killed(chosen: Namespace, scratch: Path, report: Report) -> None:
    """Control, and in turn the agent of a node, killed again and again: training does not stop. The ranks keep their processes, and step as they did before."""
    pauses: dict[str, list[float]] = {"control": [], "agent": []}
    usual: list[float] = []
    with Job(scratch, "watched", SCRIPT, "guard", nproc=1, nodes=RANKS) as job:
        job.wait_for_steps(WARM_UP_STEPS, within_s=180)
        workers = job.steps.newest_pids()
        for _ in range(chosen.losses):
            for whose, found in pauses.items():
                name = whose if whose == "control" else f"node-{random.randrange(RANKS)}"
                began = time.monotonic()
                time.sleep(AROUND_S)
                lost = wait_until(lambda name=name: watcher(job, name), within_s=60, what=f"the process of {name}")
                at = time.monotonic()
                kill(lost, SIGKILL)
                time.sleep(AROUND_S)
                going_on = settles(job)
                usual.append(longest_pause_s(job, began, at))
                found.append(longest_pause_s(job, at, time.monotonic()) if going_on else math.inf)
                say(f"{name} killed: the longest pause was {found[-1]:.3f} s, and {usual[-1]:.3f} s before")
        others = [rank for rank, pid in job.steps.newest_pids().items() if pid != workers[rank]]
        incidents = len(job.incidents())
        back_s = strike(job, KILLED, chosen.patience_s)  # Whoever is there instead does what they did.
    longest = max(pauses["control"] + pauses["agent"], default=math.inf)
    report.series("nothing wrong: longest pause between two steps of a rank", "s", usual)
    for whose, found in pauses.items():
        report.series(f"{whose} killed: longest pause between two steps of a rank", "s", [one for one in found if math.isfinite(one)])
    report.note(f"control or an agent killed {2 * chosen.losses} times: {incidents} incidents")
    report.bar("control or agent killed: ranks that got another process", len(others), "ranks", at_most=0)
    report.bar("control or agent killed: longest pause between two steps of a rank", longest if math.isfinite(longest) else None, "s", at_most=PAUSE_S)
    report.bar("control or agent killed: a worker killed after all that is back", float(back_s is not None), "", at_least=1)


def watcher(job: Job, name: str) -> int:
    """The process of control, or of a node's agent; 0: there is none."""
    agent = job.agents().get(name)
    return (job.control_pid() or 0) if name == "control" else agent.pid if agent is not None else 0


def longest_pause_s(job: Job, since: float, until: float) -> float:
    """Of those that ended then."""
    pairs = [pair for steps in job.steps.read().values() for pair in pairwise(steps)]
    return max((after.at - before.at for before, after in pairs if since < after.at <= until), default=math.inf)


# Random faults.


def random_faults(chosen: Namespace, scratch: Path, report: Report) -> None:
    """Lanes of jobs for so many minutes; what the record holds already counts too."""
    record = Path(chosen.record).resolve() if chosen.record else scratch / "record.jsonl"
    storms.blow(scratch, jobs=chosen.jobs, minutes=chosen.minutes, enough=chosen.faults, seed=chosen.seed + len(storms.read(record, "job")), record=record)
    struck, jobs, permanent, broken = (storms.read(record, what) for what in ("fault", "job", "permanent", "broken"))
    report.raw |= {"faults": struck, "jobs": jobs, "permanent": permanent, "broken": broken}
    for not_done in sorted({f"{key} to {job['shape']} jobs" for job in jobs for key in job["not_done"]}):
        report.note(f"not possible here: {not_done}")
    report.note(f"{len(struck)} random faults over {len(jobs)} jobs: {_counted(told['fault'] for told in struck)}")
    report.note(f"remedies: {_counted(told['remedy'] for told in struck)}; jobs: {_counted(job['shape'] for job in jobs)}")
    report.note(f"done at: {_counted(one['commit'][:12] for one in struck)}")
    for problem in [f"{job['job']}: {problem} ({job['evidence']})" for job in jobs for problem in job["problems"]][:20]:
        say(f"NOT THE SAME END: {problem}")
    unanswered = [one for one in struck if not one["recovered"]]
    # Nothing was broken by these: they have a bar of their own, and whether their job came to the same end is judged with the others.
    beside = [one for one in struck if storms.FAULTS[one["fault"]].stands]
    unnoticed = [one for one in beside if not one["recovered"] and one["called"] == "nothing"]
    unrecovered = [one for one in unanswered if one not in unnoticed]
    for told in unnoticed[:20]:
        say(f"NOT NOTICED, while training went on beside it: {told['job']}: {told['said']} ({told['evidence']})")
    for told in unrecovered[:20]:
        say(f"NOT RECOVERED: {told['job']}: {told['said']}, called {told['called']} ({told['evidence']})")
    report.series("random faults: until the job was well again", "s", [told["back_s"] for told in struck if told["back_s"] is not None])
    report.series("random faults: seconds lost for each", "s", [sum(told["lost_s"].values()) for told in struck])
    report.series("faults that one job went through", "", [sum(told["job"] == job["job"] for told in struck) for job in jobs])
    report.bar("random faults", len(struck), "faults", at_least=chosen.faults)
    report.bar("random faults: unrecovered", len(unrecovered), "faults", at_most=0)
    report.bar("random faults beside which training goes on: not noticed", len(unnoticed), f"faults of {len(beside)}", at_most=0)
    report.bar("random faults: called by the right name", 100 * sum(told["right"] for told in struck) / max(1, len(struck)), "%", at_least=95)
    report.bar("jobs that did not end, or with other samples, or other weights", sum(bool(job["problems"]) for job in jobs), "jobs", at_most=0)
    report.bar("jobs after which something was left behind", sum(bool(job["left"]) for job in jobs), "jobs", at_most=0)
    report.bar("jobs that could not be judged", len(broken), "jobs", at_most=0)
    report.bar("permanent faults that were tried again and again, beside them", sum(not one["good"] for one in permanent), "scripts", at_most=0)
    used = storms.rungs_used(struck, jobs, permanent)
    report.note(f"rungs used: {', '.join(f'{rung} {used[rung]}' for rung in storms.RUNGS)}")
    report.raw["rungs used"] = used
    if not chosen.quick:  # A first look has too few faults to come to all.
        report.bar("random faults: rungs used", len(used), f"of {len(storms.RUNGS)}", at_least=len(storms.RUNGS))
    for job in jobs:
        if job["treated"]:
            report.note(f"{job['job']} was held against a run that was given the same changes: {job['treated']}")


def _counted(names: Iterable[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(Counter(names).items()))


def run_counted(scratch: Path, name: str, epochs: int, shape: storms.Shape = storms.SHAPES[0]) -> Job:
    more = ["rejoin"] if shape.rejoins else []
    options = ["--chaos", *(["--nnodes", f"{shape.least}:{shape.nodes}"] if shape.least else []), *shape.options]
    return Job(scratch, name, storms.SCRIPT, str(epochs), *more, nproc=shape.per_node, nodes=shape.nodes, spares=shape.spares, options=options)


def weights_of(job: Job) -> list[str]:
    return sorted({path.read_text() for path in job.scratch.glob("weights-?")})


# What cannot be survived.


def permanent_faults(chosen: Namespace, scratch: Path, report: Report) -> None:
    """A script that cannot work is given up, after as few tries as it takes to be sure."""
    tried = [storms.run_permanent(scratch, f"permanent-{number}", case) for number, case in enumerate(storms.PERMANENT)]
    for one in tried:
        say(f"{one.case}: {one.outcome} after {one.starts} starts")
        report.note(f"{one.case}: {one.outcome} after {one.starts} starts")
    report.bar("permanent faults that were tried again and again", sum(not one.good for one in tried), "faults", at_most=0)


# Power cuts.


def power_cuts(chosen: Namespace, scratch: Path, report: Report) -> None:
    """Everything of a job killed at once, by its number, and the job run again: it goes on without a person, and ends with the same samples and weights."""
    epochs, back, lost, wrong = 8, list[float](), list[int](), 0
    shapes = [shape for shape in storms.SHAPES if shape.lasts_s <= storms.JOB_S and "--own-network" not in shape.options]
    with run_counted(scratch, "uncut", epochs) as calm:
        calm.process.wait(900)
    for number in range(chosen.cuts):
        shape = shapes[number % len(shapes)]
        job = run_counted(scratch, f"cut-{number}", epochs, shape)
        with job:
            job.wait_for_steps(random.randrange(20, 200), within_s=300)
            furthest, old, at = job.steps.newest_step(), job.steps.pids(), time.monotonic()
            for one in job.processes():
                kill(one.pid, SIGKILL)
            job.sweep()
            resume = [sys.executable, "-m", "holdfast.cli", "resume", job.name, "--state", str(scratch / "state")]
            with Launched(resume, log=job.scratch / "again.log", cwd=job.scratch, env=job.surroundings) as again:
                wait_until(lambda old=old, job=job: job.steps.first_since(old), within_s=120, what=f"job {job.name} to go on")
                first = job.steps.first_since(old)
                assert first is not None
                back.append(max(step.at for step in first.values()) - at)
                lost.append(furthest - min(step.step for step in first.values()) + 1)
                code = again.process.wait(900)
        mine, expected = storms.used_in(job.scratch), storms.used_in(calm.scratch)
        others = [step for step in expected if sorted(mine.get(step, ())) != sorted(expected[step])]
        good = code == 0 and weights_of(job) == weights_of(calm) and not others
        wrong += not good
        ended = "the same end" if good else f"ANOTHER END (code {code}, other samples in {len(others)} steps)"
        say(f"power cut {number + 1} of {chosen.cuts}, {shape.name}, at step {furthest}: back after {back[-1]:.1f} s, {lost[-1]} steps again, {ended}")
    report.series("power cut: until every rank had stepped again, the launch included", "s", back)
    report.series("power cut: steps done again", "steps", lost)
    report.bar("power cuts after which a job did not go on, or not to the same end", wrong, "cuts", at_most=0)


# A slow worker.


def slow_worker(chosen: Namespace, scratch: Path, report: Report) -> None:
    """One worker of a job that may be smaller gets a tenth of the core it uses: it is named, the spare takes its place, and the job is as fast as before."""
    if os.geteuid() != 0:
        report.note("the slow worker was left out: it needs root, for a control group")
        return
    undoing = Undoing(scratch / "undo")
    with Job(scratch, "slow", "faults_inside.py", "0.02", "0.002", nproc=1, nodes=2, spares=1, options=["--nnodes", "1:2"]) as job:
        job.wait_for_steps(100, within_s=300)
        time.sleep(WARM_S)
        rank, known, usual = random.randrange(job.world_size), len(job.incidents()), pace_of(job)
        ground = Ground(scene=Steps(job), orders=job.scratch, undoing=undoing, group=f"holdfast-chaos-{os.getpid()}")
        node, at = ground.node(rank), time.time()
        hold_back(ground, rank, 0.1)
        try:
            found = job.wait_for_incident(known, within_s=180)
            slow = pace_of(job)
            change = wait_until(lambda: moved(job), within_s=300, what="the gang to leave the slow node", every_s=0.5)
            replaced = node not in change.after and len(change.after) == job.world_size
            wait_until(lambda: (state := job.state()) is not None and state.gang is not None and state.gang.ready, within_s=120, what="the next gang")
            time.sleep(10)
            again = pace_of(job)
            found = job.incidents()[found.id - 1]  # Its story is named after what explains the rest, which may be seen later.
            named = leading(found.findings).ranks == (rank,)
            said = (f"noticed after {found.opened_at - at:.1f} s: {what(found)}, ranks {leading(found.findings).ranks}; {remedy_of(found)} after "
                    f"{change.at - at:.1f} s; {usual:.1f} steps a second, {slow:.1f} while it was slow, {again:.1f} afterwards")  # fmt: skip
        except TookTooLong as error:
            said, named, replaced, again = str(error), False, False, 0.0
        undoing.heal()
    say(f"rank {rank} ten times slower: {said}")
    report.note(f"A worker ten times slower: {said}")
    report.bar("a worker ten times slower: named", float(named), "", at_least=1)
    report.bar("a worker ten times slower: replaced", float(replaced), "", at_least=1)
    report.bar("a worker ten times slower: speed afterwards", again / usual, "of before", at_least=0.7)


def moved(job: Job) -> Change | None:
    state = job.state()
    return state.changes[-1] if state is not None and state.changes else None


def pace_of(job: Job) -> float:
    """Steps a second, over some."""
    before, at = job.steps.newest_step(), time.monotonic()
    time.sleep(8)
    return (job.steps.newest_step() - before) / (time.monotonic() - at)


if __name__ == "__main__":
    main()
