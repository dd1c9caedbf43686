"""Chaos: does everything that can be survived get survived, what does it cost, and how do others do?

Side by side: the same small DDP script and the same faults (a worker killed, one that raises, one that is stopped, one that sleeps) under Holdfast, torchrun as
it comes and made reliable, and those peers that are installed (`--peers all` installs them into a cache of their own): how often every rank steps again, and
how soon. Random faults: several jobs at once, each through `holdfast chaos`: nothing unrecovered, every sample used once an epoch, the weights of an
undisturbed run bit for bit; and what cannot be survived is not tried again and again. Power cut: every process of a job killed at once, and the job started
again. After each: is anything left behind?
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from signal import SIGKILL, SIGSTOP

from harness.jobs import Gang, Job, Torchrun, scratch_directory
from harness.measure import Report, arguments, percentile, say
from harness.peers import PEERS, SCRIPT
from harness.processes import Launched, TookTooLong, kill, wait_until
from harness.staging import Steps

from holdfast.chaos.cores import hold_back
from holdfast.chaos.ground import Ground
from holdfast.chaos.judged import what
from holdfast.chaos.storm import WARM_S, left_behind
from holdfast.chaos.undo import Undoing
from holdfast.cli.words import remedy_of
from holdfast.diagnose.together import leading
from holdfast.domain.job import Outcome
from holdfast.launch.layout import JobDirectory

RANKS = 2
WARM_UP_STEPS = 15
KILLED, RAISES, STOPPED, ASLEEP = "worker killed", "exception in a worker", "worker stopped", "worker asleep"
FAULTS = (KILLED, RAISES, STOPPED, ASLEEP)
# Those that any script survives on one node with a spare, and that take seconds: what only a gang sees that knows what is usual is in benchmarks/faults.py.
RANDOM = "worker_killed,worker_stopped,exception,exit_at_start,rank_asleep,gil_held,agent_killed,control_killed"
STEPS_PER_EPOCH, STEPS_PER_FAULT = 60, 60
HOLDFAST, REJOINING, UNCHANGED = "holdfast", "holdfast, rejoining", "holdfast, script unchanged"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    way: str
    fault: str
    back_s: float | None  # Until every rank had finished a step again; None: not in time.


def main() -> None:
    texts = {
        "peers": "names of peers to install if they are not there, or all", "ways": "launchers, separated by commas: those with one of these words in them",
        "only": "parts, separated by commas: peers, random, permanent, power, slow",
    }  # fmt: skip
    chosen = arguments(
        __doc__ or "", texts=texts, rounds=(10, 1, "of every fault under every launcher"), faults=(1000, 40, "random faults in all"),
        jobs=(4, 2, "jobs at once"), cuts=(10, 2, "power cuts"), patience_s=(60, 45, "after which a job is not back"),
    )  # fmt: skip
    random.seed(chosen.seed)
    report = Report("Chaos: what is survived, beside others; random faults; power cuts")
    parts: dict[str, Callable[[Namespace, Path, Report], None]] = {
        "peers": side_by_side, "random": random_faults, "permanent": permanent_faults, "power": power_cuts, "slow": slow_worker,
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
    jobs = [path for path in (scratch / "state" / "jobs").glob("*") if path.is_dir()]
    return [one for path in jobs for one in left_behind(JobDirectory(path), [f"node-{number}" for number in range(4)])]


# Side by side.


def side_by_side(chosen: Namespace, scratch: Path, report: Report) -> None:
    tried: list[Tried] = []
    ways = launchers(chosen, report)
    for number in range(chosen.rounds):
        for turn, (way, launch) in enumerate(ways.items()):
            tried += strike_all(way, launch, scratch, f"r{number}-{turn}", chosen.patience_s)
    for way in ways:
        for fault in FAULTS:
            of_it = [one for one in tried if (one.way, one.fault) == (way, fault)]
            back = [one.back_s for one in of_it if one.back_s is not None]
            report.series(f"{way}: {fault}", "s", back, f"back {len(back)} times in {len(of_it)}")
    report.raw["side by side"] = [asdict(one) for one in tried]
    ours = [one for one in tried if one.way in (HOLDFAST, REJOINING)]
    if ours:
        report.bar("holdfast: comes back", 100 * sum(one.back_s is not None for one in ours) / len(ours), "% of faults", at_least=100)


def launchers(chosen: Namespace, report: Report) -> dict[str, Callable[[Path, str], Gang]]:
    ways: dict[str, Callable[[Path, str], Gang]] = {
        HOLDFAST: lambda scratch, name: Job(scratch, name, SCRIPT, "guard", nproc=RANKS),
        REJOINING: lambda scratch, name: Job(scratch, name, SCRIPT, "rejoin", nproc=RANKS),
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


def strike_all(way: str, launch: Callable[[Path, str], Gang], scratch: Path, name: str, patience_s: float) -> list[Tried]:
    """Every fault, in one launch while it lasts."""
    tried: list[Tried] = []
    while len(tried) < len(FAULTS):
        with launch(scratch, f"{name}-{len(tried)}") as gang:
            try:
                gang.wait_for_steps(WARM_UP_STEPS, within_s=180)
            except (TookTooLong, RuntimeError) as error:
                say(f"{way} DOES NOT START, which counts as not back: {str(error).splitlines()[0]}")
                tried.append(Tried(way=way, fault=FAULTS[len(tried)], back_s=None))
                continue
            for fault in FAULTS[len(tried) :]:
                back_s = strike(gang, fault, patience_s)
                back_s = back_s if back_s is not None and settles(gang) else None
                tried.append(Tried(way=way, fault=fault, back_s=back_s))
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


def settles(gang: Gang) -> bool:
    """Whether it stays: some steps of every rank, so that one fault is not taken for the echo of another."""
    counted = {rank: len(steps) for rank, steps in gang.steps.read().items()}
    try:
        wait_until(lambda: all(len(steps) >= counted[rank] + WARM_UP_STEPS for rank, steps in gang.steps.read().items()), within_s=60.0, what="some steps")
    except TookTooLong:
        return False
    return True


# Random faults.


def random_faults(chosen: Namespace, scratch: Path, report: Report) -> None:
    each = -(-chosen.faults // chosen.jobs)
    epochs = 1 + each * STEPS_PER_FAULT // STEPS_PER_EPOCH
    with run_counted(scratch, "calm", epochs) as calm:
        calm.process.wait(600 + epochs)
    said = []
    with ExitStack() as stack:
        jobs = [stack.enter_context(run_counted(scratch, f"struck-{number}", epochs)) for number in range(chosen.jobs)]
        storms = [storm(scratch, job, each, chosen.seed + number) for number, job in enumerate(jobs)]
        for one in storms:
            stack.callback(one.kill)  # Its watchdog puts right what it did.
        for job, one in zip(jobs, storms, strict=True):
            text, complaint = one.communicate(timeout=60 * each + 600)
            said.append(json.loads(text) if text.strip().startswith("{") else {"struck": [], "not_struck": [complaint.strip()[-300:]]})
            job.process.wait(600)
    struck = [told for one in said for told in one["struck"]]
    report.raw["random"] = said
    report.note(f"{len(struck)} random faults over {chosen.jobs} jobs: {dict(sorted(Counter(told['fault'] for told in struck).items()))}")
    for left_out in {reason for one in said for reason in one["not_struck"]}:
        report.note(f"not struck: {left_out}")
    report.series("random faults: until the job was well again", "s", [told["back_s"] for told in struck if told["back_s"] is not None])
    report.series("random faults: seconds lost for each", "s", [sum(told["lost_s"].values()) for told in struck])
    report.bar("random faults: unrecovered", sum(not told["recovered"] for told in struck), "faults", at_most=0)
    report.bar("random faults: called by the right name", 100 * sum(told["right"] for told in struck) / max(1, len(struck)), "%", at_least=95)
    wrong = [f"{job.name}: {problem}" for job in (calm, *jobs) for problem in miscounted(job, epochs)]
    for problem in wrong[:5]:
        say(f"SAMPLES: {problem}")
    report.bar("samples lost or doubled", len(wrong), "samples", at_most=0)
    weights = {job.name: weights_of(job) for job in (calm, *jobs)}
    report.raw["weights"] = weights
    report.bar("jobs with other weights than the undisturbed one", sum(one != weights["calm"] or not one for one in weights.values()), "jobs", at_most=0)


def run_counted(scratch: Path, name: str, epochs: int) -> Job:
    return Job(scratch, name, "counted_ddp.py", str(epochs), nproc=RANKS, options=["--chaos"])


def storm(scratch: Path, job: Job, count: int, seed: int) -> subprocess.Popen[str]:
    wait_until(job.directory.journal.exists, within_s=120, what=f"the journal of {job.name}")
    rate = 1000.0 / 20  # Some steps are done again after each, and the rest of those for each is left as a reserve.
    command = [sys.executable, "-m", "holdfast.cli", "chaos", job.name, "--state", str(scratch / "state"), "--json", "--count", str(count), "--seed", str(seed),
               "--rate", f"{rate}", "--minutes", str(count), "--faults", RANDOM]  # fmt: skip
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def miscounted(job: Job, epochs: int) -> Iterator[str]:
    """Samples that were not used exactly once an epoch. A step that was done again counts once, and must have used the same ones."""
    used: dict[int, dict[int, str]] = {}  # Step, rank, samples.
    for rank in range(RANKS):
        path = job.scratch / f"used-{rank}"
        for line in path.read_text().splitlines() if path.exists() else ():
            step, samples = line.split()
            if used.setdefault(int(step), {}).setdefault(rank, samples) != samples:
                yield f"rank {rank} used other samples in step {step} the second time"
    for epoch in range(epochs):
        steps = range(epoch * STEPS_PER_EPOCH, (epoch + 1) * STEPS_PER_EPOCH)
        counts = Counter(sample for step in steps for samples in used.get(step, {}).values() for sample in samples.split(","))
        yield from (f"epoch {epoch}: sample {sample} used {count} times" for sample, count in counts.items() if count != 1)
        if len(counts) != STEPS_PER_EPOCH * 8:
            yield f"epoch {epoch}: {len(counts)} of {STEPS_PER_EPOCH * 8} samples were used"


def weights_of(job: Job) -> list[str]:
    return sorted({path.read_text() for path in job.scratch.glob("weights-*")})


# What cannot be survived.


def permanent_faults(chosen: Namespace, scratch: Path, report: Report) -> None:
    """A script that cannot work is given up, after as few tries as it takes to be sure."""
    scripts = {
        "a module that is not there": "import no_such_module_anywhere",
        "the same exception at the same step": _RAISES,
    }
    retried = 0
    for number, (case, text) in enumerate(scripts.items()):
        script = scratch / f"permanent_{number}.py"
        script.write_text(text)
        with Job(scratch, f"permanent-{number}", str(script), nproc=RANKS) as job:
            code = job.process.wait(300)
            state = job.state()
        outcome, generations = (state.outcome, state.generation) if state is not None else (None, 0)
        say(f"{case}: {outcome} with code {code} after {generations} generations")
        report.note(f"{case}: {outcome} after {generations} starts")
        retried += outcome not in (Outcome.PERMANENT, Outcome.FAILED) or generations > 3
    report.bar("permanent faults that were tried again and again", retried, "faults", at_most=0)


_RAISES = """
import holdfast, torch
model = torch.nn.Linear(4, 4)
run = holdfast.guard(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), save_every=2)
for step in run.steps(100):
    if step == 5:
        raise ValueError("the data of step 5 cannot be read")
"""


# Power cuts.


def power_cuts(chosen: Namespace, scratch: Path, report: Report) -> None:
    """Everything of a job killed at once, by its number, and the job run again: it goes on without a person, and ends with the same weights."""
    epochs, back, lost, wrong = 8, [], [], 0
    with run_counted(scratch, "uncut", epochs) as calm:
        calm.process.wait(900)
    for number in range(chosen.cuts):
        job = run_counted(scratch, f"cut-{number}", epochs)
        with job:
            job.wait_for_steps(random.randrange(20, 200), within_s=300)
            furthest, old, at = job.steps.newest_step(), job.steps.pids(), time.monotonic()
            for one in job.processes():
                kill(one.pid, SIGKILL)
            job.sweep()
            resume = [sys.executable, "-m", "holdfast.cli", "resume", job.name, "--state", str(scratch / "state")]
            with Launched(resume, log=job.scratch / "again.log", cwd=job.scratch) as again:
                wait_until(lambda old=old, job=job: job.steps.first_since(old), within_s=120, what=f"job {job.name} to go on")
                first = job.steps.first_since(old)
                assert first is not None
                back.append(max(step.at for step in first.values()) - at)
                lost.append(furthest - min(step.step for step in first.values()) + 1)
                code = again.process.wait(900)
        problems = list(miscounted(job, epochs))
        good = code == 0 and weights_of(job) == weights_of(calm) and not problems
        wrong += not good
        ended = "the same end" if good else f"ANOTHER END (code {code})"
        say(f"power cut {number + 1} of {chosen.cuts} at step {furthest}: back after {back[-1]:.1f} s, {lost[-1]} steps again, {ended}")
    report.series("power cut: until every rank had stepped again, the launch included", "s", back, f"99th percentile {percentile(back, 0.99) or 0:.1f}")
    report.series("power cut: steps done again", "steps", lost)
    report.bar("power cuts after which a job did not go on, or not to the same end", wrong, "cuts", at_most=0)


# A slow worker.


def slow_worker(chosen: Namespace, scratch: Path, report: Report) -> None:
    """One worker gets a tenth of the core it uses: is it named, and what is done about it?"""
    if os.geteuid() != 0:
        report.note("the slow worker was left out: it needs root, for a control group")
        return
    undoing = Undoing(scratch / "undo")
    with Job(scratch, "slow", "faults_inside.py", "0.02", "0.002", nproc=1, nodes=2, spares=1) as job:
        job.wait_for_steps(100, within_s=300)
        time.sleep(WARM_S)
        rank, known = random.randrange(job.world_size), len(job.incidents())
        ground = Ground(scene=Steps(job), orders=job.scratch, undoing=undoing, group=f"holdfast-chaos-{os.getpid()}")
        hold_back(ground, rank, 0.1)
        at = time.time()
        try:
            found = job.wait_for_incident(known, within_s=120)
            time.sleep(30)  # For what is done about it.
            found = job.incidents()[found.id - 1]
            said = f"noticed after {found.opened_at - at:.1f} s: {what(found)}, ranks {leading(found.findings).ranks}; remedy: {remedy_of(found)}"
            named = leading(found.findings).ranks == (rank,)
        except TookTooLong:
            said, named = "not noticed within 120 s", False
        undoing.heal()
    say(f"rank {rank} ten times slower: {said}")
    report.note(f"A worker ten times slower: {said}")
    report.bar("a worker ten times slower: named", float(named), "", at_least=1)


if __name__ == "__main__":
    main()
