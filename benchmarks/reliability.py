"""Reliability: the goodput of one job on 16,384 GPUs at Llama 3's published rate of failures and mix of causes, for 54 days. It is a simulation.

No such fleet was used. What does not grow with the size of a job is ours and was measured by other benchmarks here, or is measured by this one: an exit or a
lost node noticed, a hang noticed, the decision, ranks parted, a process started, state back from memory by the GB. What does grow is published by those who
have such fleets, each figure at its slow end: group build, replacement of a node, state over the network, the first step, the stall of a save, the search after
a NaN. The report begins with how the result hangs on each of them, and has every time of ours multiplied by ten. Best published: 97 % on 9,600 GPUs
(ByteRobust).

What is done about a failure: survivors part and go on with what they have, and give it to ranks that are new. A node is lost with the whole replica it is part
of, 16 nodes, of which 15 then stand idle: the other 127 replicas go on at once, and it comes back, with state from a live one, when its node is replaced, no
sooner than the product's cool-down of 300 s allows. Assumed with it: that each replica holds all of the state, as in DistributedDataParallel. Where the
optimizer is sharded over the replicas (ZeRO, FSDP across them) that holds only if the shards are copied; rows say what is left without it.

Explicit: all 419 failures end a process or a node. With hangs and NaN: whatever concerns the network hangs (49 of 419), silent corruption is a NaN (6).
"""

from __future__ import annotations

import random
import statistics
import time
from collections import Counter
from dataclasses import dataclass, replace

from harness.measure import Report, arguments, console, percentile, say
from rich.table import Table

from holdfast.core import Core
from holdfast.detect.silent_rank import Look, SilentRank
from holdfast.domain.event import EffectDone, Event, GangRestored, JobSubmitted, NodeHeard, ProgressSeen, WorkerExited
from holdfast.domain.exit import Exit, ExitKind
from holdfast.domain.goodput import Bucket
from holdfast.domain.job import JobSpec, Policy
from holdfast.domain.mesh import parsed
from holdfast.recover.interval import LONGEST_S
from holdfast.simulate.reliability import goodput, interval, published, spares
from holdfast.simulate.reliability.fleet import Chances, Lives, play
from holdfast.simulate.reliability.goodput import Fault, Running
from holdfast.simulate.reliability.lived import Pace, live
from holdfast.simulate.reliability.published import DAY_S, Shows

GPUS, GPUS_PER_NODE, DAYS = 16384, 8, 54
NODES = GPUS // GPUS_PER_NODE
STATE_GB_PER_GPU = 405e9 * 18 / GPUS / 1e9  # AdamW in mixed precision, 18 bytes a parameter, spread over all.
LINK_GB_PER_S = 15 / 8  # The slowest links on which copies in memory were tried: 15 Gb/s in a cloud (PCcheck, ASPLOS'25).
REPAIR_S = DAY_S  # Assumed, as nobody publishes it; spares are as many as make running out of them a chance of one in a thousand.
STOCK_OUT = 0.001
REPLICAS = 128  # Of data parallelism, as Llama 3 was trained: 8 by tensor and 16 by pipeline make one of 128 GPUs, or 16 nodes.
EXPLICIT_BAR, MIXED_BAR = 99.0, 98.0
CORE_LIVES = 9
CORE_NODES = 4  # Of a replica, where the real core lives it: it takes time as the square of the nodes, and 16 would take half an hour.


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """Seconds, and what else the result hangs on."""

    # Ours.
    exit_noticed: float = 0.03
    node_noticed: float = 3.7
    hang_noticed: float
    decided: float
    stacks: float = Policy().stacks_wait_s
    stopped: float = Policy().abort_grace_s
    parted: float = Policy().part_wait_s
    started: float = 0.64 + 0.45
    restored_per_gb: float = (0.138 + 1.4) / 7.55
    # Published, at the slow end.
    group_build: float = published.GROUP_BUILD.worst_s
    replaced: float = published.REPLACEMENT.worst_s
    fetched: float = published.STATE_OVER_NETWORK.worst_s
    first_step: float = published.FIRST_STEP.worst_s
    save: float = published.SAVE_STALL.worst_s
    nan_found: float = published.NAN_FOUND.best_s  # The mean of theirs: what is lost in the long run is the mean. Their slowest has a row of its own.
    # Circumstances.
    failures: float = 419.0
    repair: float = REPAIR_S
    spares: int = 0  # 0: as many as are needed for REPAIR_S.
    both_copies_lost: float = 0.0  # Share of lost nodes.
    shape: float = 1.0
    save_every: float = 0.0  # 0: the best interval of whole steps.
    # What is done.
    rejoins: bool = True  # Survivors go on with what they have. Else all start again from copies in memory.
    smaller: bool = True  # The other replicas go on while a node is replaced.
    replicas: int = REPLICAS
    resize_every: float = Policy().resize_every_s


OURS = ("exit_noticed", "node_noticed", "hang_noticed", "decided", "stacks", "stopped", "parted", "started", "restored_per_gb")
SOURCES = {
    "exit_noticed": "ours: detection.py, 99th percentile of 100", "node_noticed": "ours: detection.py, slowest of 6",
    "hang_noticed": "ours: the detector as it is, on virtual time, steps of 6 s, 99th percentile; measured in this run",
    "decided": f"ours: the core, from the exit to all answers of {NODES:,} nodes; measured in this run",
    "stacks": "ours: the longest that stacks of a hang are waited for", "stopped": "ours: the longest between SIGTERM and SIGKILL of a broken gang",
    "parted": "ours: the longest that survivors may take to leave a broken gang; then they are ended",
    "started": "ours: recovery.py, slowest of 100 from kill to a finished step, 4 ranks; and a CUDA context on the H200, slowest",
    "restored_per_gb": "ours: checkpoint.py on the H200, copy and registering of 7.55 GB, a GB",
    "group_build": published.GROUP_BUILD.source, "replaced": published.REPLACEMENT.source, "fetched": published.STATE_OVER_NETWORK.source,
    "first_step": published.FIRST_STEP.source, "save": published.SAVE_STALL.source, "nan_found": published.NAN_FOUND.source,
}  # fmt: skip


def main() -> None:
    chosen = arguments(
        __doc__ or "", lives=(1000, 100, "lives of the job, a seed each"), core_days=(54, 6, "days of it that the real core lives, in nine lives")
    )
    report = Report("Reliability: 16,384 GPUs for 54 days, a simulation")
    inputs = Inputs(hang_noticed=hang_noticed(chosen.seed, report), decided=decision(report))
    began = time.perf_counter()
    rows = sensitivity(inputs, chosen.lives, chosen.seed)
    report.note(f"{len(rows)} rows of {chosen.lives} lives, twice, in {time.perf_counter() - began:.0f} s.")
    show(inputs, rows, report)
    for mixed, name, bar in ((False, "explicit failures", EXPLICIT_BAR), (True, "with hangs and NaN", MIXED_BAR)):
        lives = played(inputs, chosen.lives, chosen.seed, mixed=mixed)
        spread(report, name, lives)
        tenfold = played(times_ten(inputs), chosen.lives, chosen.seed, mixed=mixed)
        spread(report, f"{name}, every time of ours × 10", tenfold)
        where(report, name, inputs, lives, mixed=mixed)
        report.bar(f"goodput, {name}", 100 * float(lives.goodput.mean()), "%", at_least=bar)
    by_the_core(inputs, chosen.core_days, chosen.seed, report)
    report.finish(chosen)


# What is measured here.


def hang_noticed(seed: int, report: Report) -> float:
    """Eight ranks of one node in steps of 6 s; one sleeps. The detector that the agent runs, looked at once a second."""
    dice, seen = random.Random(seed), []
    for _ in range(100):
        detector, now, beat_at, step = SilentRank(), 0.0, 0.0, 0
        ends = published.STEP_S * dice.lognormvariate(0.0, 0.1)
        hangs_at = 600.0 + 60.0 * dice.random()
        found = False
        while not found:
            now += 1.0
            while ends <= min(now, hangs_at):
                beat_at, step, ends = ends, step + 1, ends + published.STEP_S * dice.lognormvariate(0.0, 0.1)
            looks = {
                rank: Look(pid=rank + 1, step=step, phase="step", phase_since=beat_at, beat_at=beat_at, process_state="S", cpu_s=min(now, hangs_at), steps=step)
                for rank in range(GPUS_PER_NODE)
            }
            found = bool(detector.look(looks, now)) and now > hangs_at
        seen.append(now - hangs_at)
    report.series("a hang noticed, steps of 6 s", "s", seen, "the detector on virtual time")
    slow = percentile(seen, 0.99)
    assert slow is not None
    return slow


def decision(report: Report) -> float:
    """What the real core needs of a processor for one lost worker of 2,048 nodes: from the exit to the order to start, all answers of nodes included."""
    core, at = Core(), 1_000_000.0

    def tell(event: Event) -> float:
        began = time.process_time()  # Of the processor: others may be using it.
        core.step(event)
        return time.process_time() - began

    def answers() -> float:
        spent = 0.0
        while core.state.pending:
            for id, pending in sorted(core.state.pending.items()):
                if id in core.state.pending:
                    spent += tell(EffectDone(at=at, effect=id, generation=pending.generation, node=pending.node, port=29500))
        return spent

    tell(JobSubmitted(at=at, spec=JobSpec(job="large", argv=("train.py",), nodes=NODES, ranks_per_node=GPUS_PER_NODE)))
    for node in range(NODES):
        tell(NodeHeard(at=at, node=f"n{node:04d}", host="127.0.0.1"))
    answers()
    taken = []
    for kill in range(3):
        step = 10 * (kill + 1)
        tell(GangRestored(at=at, generation=core.state.generation, step=step - 1))
        tell(ProgressSeen(at=at, generation=core.state.generation, step=step, save_s=0.0))
        at += 60.0
        exit = Exit(rank=7, pid=100, kind=ExitKind.SIGNAL, signal=9, because="rank 7 was ended by SIGKILL", step=step)
        spent = tell(WorkerExited(at=at, node=core.state.gang.nodes[0], generation=core.state.generation, exit=exit)) if core.state.gang is not None else 0.0
        taken.append(spent + answers())
        say(f"the core decided about {NODES:,} nodes in {taken[-1]:.2f} s")
    report.series(f"the core, one exit in a gang of {NODES:,} nodes", "s", taken, "of one core")
    return max(taken)


# What is played.


def faults(inputs: Inputs, interval_s: float, *, mixed: bool) -> tuple[Fault, ...]:
    share = published.shares(published.LLAMA3_CAUSES)
    anew = _all_start_again(inputs)
    exits = _survivors_go_on(anew, inputs) if inputs.rejoins else anew
    node = replace(exits, name=Shows.NODE, share=share[Shows.NODE], detect_s=inputs.node_noticed, needs_node=True)
    node = _others_go_on(node, inputs, interval_s) if inputs.smaller else _replaced(node, inputs)
    hang = replace(node, name=Shows.HANG, share=share[Shows.HANG], detect_s=inputs.hang_noticed, diagnose_s=inputs.decided + inputs.stacks)
    # Survivors of a NaN hold NaN: all go back, and the node is replaced.
    nan = _replaced(replace(anew, name=Shows.NAN, share=share[Shows.NAN], detect_s=inputs.node_noticed, diagnose_s=inputs.decided + inputs.nan_found), inputs)
    found = (exits, node, hang, nan) if mixed else published.explicit_only((exits, node, hang, nan))
    if not inputs.both_copies_lost:
        return found
    # From the remote store: what was saved when the upload that was finished last began. Who has live peers needs no copy.
    bare = [one for one in found if one.needs_node and one.live_s is None]
    far = [replace(one, restore_s=one.restore_s - inputs.fetched + published.REMOTE_LOAD.worst_s, behind_s=2 * published.REMOTE_LOAD.best_s) for one in bare]
    lost = [replace(one, name=f"{one.name}, both copies", share=one.share * inputs.both_copies_lost) for one in far]
    return (*(replace(one, share=one.share * (1 - inputs.both_copies_lost)) if one in bare else one for one in found), *lost)


def _all_start_again(inputs: Inputs) -> Fault:
    """An exit, and every rank restores what is in its node's memory."""
    return Fault(
        name=Shows.EXIT, share=published.shares(published.LLAMA3_CAUSES)[Shows.EXIT], detect_s=inputs.exit_noticed, diagnose_s=inputs.decided,
        stop_s=inputs.stopped, rendezvous_s=inputs.started + inputs.group_build + inputs.first_step, restore_s=inputs.restored_per_gb * STATE_GB_PER_GPU,
    )  # fmt: skip


def _survivors_go_on(fault: Fault, inputs: Inputs) -> Fault:
    """The rank that is new gets its state from a live replica."""
    return replace(fault, stop_s=inputs.parted, restore_s=inputs.fetched, live_s=published.STEP_S)


def _replaced(fault: Fault, inputs: Inputs) -> Fault:
    """All wait for a node in the place of the lost one, and for its state."""
    state_s = 0.0 if fault.live_s is not None else inputs.fetched  # Already in it.
    behind_s = 0.0 if fault.live_s is not None else STATE_GB_PER_GPU * GPUS_PER_NODE / LINK_GB_PER_S
    return replace(fault, replace_s=inputs.replaced, restore_s=fault.restore_s + state_s, behind_s=behind_s, needs_node=True)


def _others_go_on(fault: Fault, inputs: Inputs, interval_s: float) -> Fault:
    """Nobody is new at first; the replica is taken in again at the first save after the cool-down, which is one more stop."""
    alive = fault.live_s is not None
    again_s = fault.stop_s + fault.rendezvous_s + inputs.fetched + (0.0 if alive else fault.restore_s)
    behind_s = 0.0 if alive else STATE_GB_PER_GPU * GPUS_PER_NODE / LINK_GB_PER_S
    return replace(
        fault, restore_s=0.0 if alive else fault.restore_s + inputs.fetched, behind_s=behind_s, kept=1.0 - 1.0 / inputs.replicas, grow_s=again_s,
        smaller_s=max(inputs.replaced, inputs.resize_every) + interval_s / 2.0,
    )  # fmt: skip


def running(inputs: Inputs, *, mixed: bool) -> Running:
    """A save is as often as is best for the failures that lose work: what the product counts."""
    per_s = inputs.failures / (DAYS * DAY_S)
    back = goodput.going_back(per_s, faults(inputs, 0.0, mixed=mixed))
    interval_s = inputs.save_every or min(LONGEST_S, interval.best_s(inputs.save, per_s * back, step_s=published.STEP_S))
    return Running(per_s=per_s, interval_s=interval_s, stall_s=inputs.save, faults=faults(inputs, interval_s, mixed=mixed))


def spares_for(inputs: Inputs) -> int:
    """For the rate of the row and the assumed repair, whatever repair the row then has."""
    return spares.spares_for(STOCK_OUT, spares.in_repair(inputs.failures / (DAYS * DAY_S), REPAIR_S))


def played(inputs: Inputs, lives: int, seed: int, *, mixed: bool) -> Lives:
    chances = Chances(spares=inputs.spares or spares_for(inputs), repair_s=inputs.repair, repair_sigma=1.5, shape=inputs.shape)
    return play(running(inputs, mixed=mixed), DAYS * DAY_S, lives, seed=seed, chances=chances)


def times_ten(inputs: Inputs) -> Inputs:
    return replace(inputs, **{name: 10 * getattr(inputs, name) for name in OURS})


def fast_end(inputs: Inputs) -> Inputs:
    return replace(
        inputs, group_build=published.GROUP_BUILD.best_s, replaced=published.REPLACEMENT.best_s, fetched=published.STATE_OVER_NETWORK.best_s,
        first_step=published.FIRST_STEP.best_s, save=published.SAVE_STALL.best_s,
    )  # fmt: skip


def changes(inputs: Inputs) -> list[tuple[str, Inputs]]:
    """Every row of the table: what is changed, and to what."""

    def by(name: str, factor: float, text: str) -> tuple[str, Inputs]:
        return f"{text} × {factor:g}: {factor * getattr(inputs, name):.3g} s", replace(inputs, **{name: factor * getattr(inputs, name)})

    words = {
        "replaced": "replacement of a node", "group_build": "group build", "first_step": "first step", "fetched": "state over the network",
        "save": "stall of a save", "nan_found": "search after a NaN", "hang_noticed": "a hang noticed", "node_noticed": "a lost node noticed",
        "exit_noticed": "an exit noticed", "decided": "decision", "stacks": "stacks of a hang", "stopped": "stop", "parted": "parting",
        "started": "processes started",
        "restored_per_gb": "state from memory, a GB",
    }  # fmt: skip
    rows = [("as it is", inputs), ("every time of ours × 10", times_ten(inputs))]
    rows += [by(name, factor, words[name]) for name in words for factor in ((10.0,) if name in OURS else (0.5, 2.0))]
    low, high = published.RATES["llama3"][0].limits_per_s(GPUS)
    return [
        *rows,
        ("failures at the lower 95 % limit", replace(inputs, failures=low * DAYS * DAY_S)),
        ("failures at the upper 95 % limit", replace(inputs, failures=high * DAYS * DAY_S)),
        ("failures × 2: 838 in 54 days", replace(inputs, failures=838.0)),
        ("planned stops too: 466 in 54 days", replace(inputs, failures=466.0)),
        ("failures in clusters (Weibull gaps, shape 0.7)", replace(inputs, shape=0.7)),
        ("replacement: 42 s, ByteRobust's fast end", replace(inputs, replaced=published.REPLACEMENT.best_s)),
        ("survivors go on, and wait until a node is replaced", replace(inputs, smaller=False)),
        ("no live peers: all start again from copies in memory, smaller meanwhile (not built: another size reads the disk)", replace(inputs, rejoins=False)),
        ("no live peers, as with an optimizer sharded over replicas: all wait for the node", replace(inputs, rejoins=False, smaller=False)),
        ("8 replicas of 256 nodes: an eighth stands idle meanwhile", replace(inputs, replicas=8)),
        ("no cool-down before it grows back", replace(inputs, resize_every=0.0)),
        ("all that is published at its fast end", fast_end(inputs)),
        ("replacement has the group build in it", replace(inputs, replaced=inputs.replaced - inputs.group_build)),
        ("group build: 44 s, NCCL's 265 s on 98,304 GPUs by ranks (arXiv 2510.20171)", replace(inputs, group_build=265.0 * GPUS / 98304)),
        ("a hang noticed only by the collective's timeout: 600 s", replace(inputs, hang_noticed=published.HANG_NOTICED.worst_s)),
        ("search after a NaN: 7,200 s, ByteRobust's slowest", replace(inputs, nan_found=published.NAN_FOUND.worst_s)),
        ("every new node gets its state from the remote store: 129 s (ByteCheckpoint)", replace(inputs, fetched=published.REMOTE_LOAD.worst_s)),
        ("5 % of lost nodes take their copy with them (RSC-2): state from the remote store", replace(inputs, both_copies_lost=0.05)),
        (f"repair takes 7 days, and {spares_for(inputs)} spares all the same", replace(inputs, repair=7 * DAY_S)),
        (f"repair takes 7 days, and 7 times the spares: {7 * spares_for(inputs)}", replace(inputs, repair=7 * DAY_S, spares=7 * spares_for(inputs))),
        ("a save every 5 min", replace(inputs, save_every=300.0)),
        ("a save every 30 min", replace(inputs, save_every=1800.0)),
    ]


# What is said.


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    changed: str
    explicit: float
    mixed: float


def sensitivity(inputs: Inputs, lives: int, seed: int) -> list[Row]:
    """The dice are the same in every row, so that differences are those of the inputs."""

    def of(one: Inputs, *, mixed: bool) -> float:
        return 100 * float(played(one, lives, seed, mixed=mixed).goodput.mean())

    rows = []
    for changed, one in changes(inputs):
        rows.append(Row(changed=changed, explicit=of(one, mixed=False), mixed=of(one, mixed=True)))
        say(f"{changed}: {rows[-1].explicit:.2f} %, {rows[-1].mixed:.2f} %")
    return rows


def show(inputs: Inputs, rows: list[Row], report: Report) -> None:
    first, *others = rows
    others.sort(key=lambda row: row.mixed)
    table = Table(title="Goodput of a simulated job, mean of all lives, in %: what changes it, worst first", title_justify="left", box=None, padding=(0, 2))
    for name in ("changed", "explicit", "", "with hangs and NaN", ""):
        table.add_column(name, justify="left" if name == "changed" else "right")
    for row in (first, *others):
        apart = (f"{row.explicit - first.explicit:+.2f}", f"{row.mixed - first.mixed:+.2f}") if row is not first else ("", "")
        table.add_row(row.changed, f"{row.explicit:.2f}", apart[0], f"{row.mixed:.2f}", apart[1])
    console.print()
    console.print(table)
    used = Table(title="What went in", title_justify="left", box=None, padding=(0, 2))
    for name in ("", "seconds", "source"):
        used.add_column(name, justify="right" if name == "seconds" else "left")
    for name, source in SOURCES.items():
        used.add_row(name.replace("_", " "), f"{getattr(inputs, name):.3g}", source)
    console.print(used)
    report.raw["sensitivity"] = [{"changed": row.changed, "explicit": row.explicit, "mixed": row.mixed} for row in rows]
    report.raw["inputs"] = {name: {"seconds": getattr(inputs, name), "source": source} for name, source in SOURCES.items()}
    made = running(inputs, mixed=True)
    report.note("It is a simulation: nothing was run on 16,384 GPUs. Failures are independent and memoryless, one job, nodes that are all alike.")
    report.note(
        f"{STATE_GB_PER_GPU:.2f} GB of state a GPU; a save every {made.interval_s:.0f} s; copies {made.faults[-1].behind_s:.1f} s behind; "
        f"{spares_for(inputs)} spares, repair {REPAIR_S / 3600:.0f} h in the mean (assumed), log-normal."
    )
    report.note(
        "How soon a hang is noticed is taken from our detector, since its limit comes from the time of a step and not from the number of GPUs; "
        "what a collective's timeout of 600 s would make of it has a row of its own."
    )
    report.note(f"One failure every {1 / made.per_s / 3600:.2f} h: 99 % allow {0.01 / made.per_s:.0f} s each.")
    report.note(
        f"Assumed: each of {REPLICAS} replicas holds all of the state, so that a live one can give it. Where the optimizer is sharded over them it is not so, "
        "and the product starts all ranks again: the row with no live peers and all waiting."
    )
    report.note(
        f"Which nodes make a replica the product's core knows, and is asked here with replicas of {CORE_NODES} nodes. Live ranks of one that is split give "
        "their state part by part; that was run with four ranks in two replicas, and not with tensors and stages."
    )


def spread(report: Report, name: str, lives: Lives) -> None:
    shares = [100 * one for one in lives.goodput.tolist()]
    deviation = statistics.stdev(shares)
    lost_s = (1 - lives.goodput.mean()) * lives.horizon_s / lives.failures.mean()
    report.series(f"goodput, {name}", "%", shares, f"mean {statistics.fmean(shares):.2f}, standard deviation {deviation:.2f}; {lost_s:.0f} s a failure")


def where(report: Report, name: str, inputs: Inputs, lives: Lives, *, mixed: bool) -> None:
    """What each failure costs by bucket; and whether the formula says the same. It has no spares that run out, so it is asked against lives without."""
    seconds = lives.seconds.sum(axis=0) / lives.failures.sum()
    lost = {bucket: float(each) for bucket, each in zip(lives.parts(), seconds, strict=True) if bucket is not Bucket.PRODUCTIVE and each > 0.005}
    by_size = sorted(lost.items(), key=lambda one: -one[1])
    report.note(f"{name}: of a failure's loss, " + ", ".join(f"{bucket} {each:.1f} s" for bucket, each in by_size))
    made = running(inputs, mixed=mixed)
    apart = abs(float(play(made, DAYS * DAY_S, len(lives.failures), seed=1).goodput.mean()) / goodput.goodput(made) - 1)
    report.bar(f"formula against simulation, {name}", 100 * apart, "%", at_most=1)


def by_the_core(inputs: Inputs, days: int, seed: int, report: Report) -> None:
    """Explicit failures as the real core answers them, with replicas of several nodes: whether it does what is played, by its own ledger."""
    made = running(inputs, mixed=False)
    pace = Pace(
        parted_s=inputs.decided + inputs.parted, stopped_s=inputs.decided + inputs.stopped, started_s=inputs.started, built_s=inputs.group_build,
        fetched_s=inputs.fetched, restored_s=inputs.restored_per_gb * STATE_GB_PER_GPU, first_step_s=inputs.first_step, replaced_s=inputs.replaced,
        step_s=published.STEP_S,
    )  # fmt: skip
    policy = Policy(resize_every_s=inputs.resize_every, unguarded_after_s=600.0)  # A group build is longer than the default.
    mesh = parsed(f"dp={REPLICAS},pp={CORE_NODES}")
    spec = JobSpec(job="life", argv=("train.py",), nodes=mesh.world_size, min_nodes=mesh.world_size // 2, mesh=mesh, policy=policy)
    began, shares, rungs = time.perf_counter(), [], Counter[str]()
    for number in range(CORE_LIVES):
        state = live(made, pace, spec, days * DAY_S / CORE_LIVES, seed=seed + number)
        shares.append(state.ledger.goodput - made.per_s * published.STEP_S / 2.0 - made.stall_s / (made.interval_s + made.stall_s))
        rungs.update(one.plans[-1].rung.name.lower() for one in state.incidents if one.plans)
        say(f"the core's life {number + 1} of {CORE_LIVES}: {100 * shares[-1]:.2f} %")
    report.series("goodput, explicit failures, by the real core", "%", [100 * one for one in shares], f"in {time.perf_counter() - began:.0f} s")
    report.note(f"The real core, {days} days in {CORE_LIVES} lives: {', '.join(f'{count} × {rung}' for rung, count in rungs.most_common())}.")
    report.note("Of what its ledger says the step that is broken off and the stall of saves, which it does not see here, are taken off.")
    report.bar("formula against the real core, explicit failures", 100 * abs(statistics.fmean(shares) / goodput.goodput(made) - 1), "%", at_most=1)


if __name__ == "__main__":
    main()
