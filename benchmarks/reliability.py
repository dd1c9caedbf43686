"""Reliability: the goodput of one job on 16,384 GPUs at Llama 3's published rate of failures and mix of causes, for 54 days. It is a simulation.

No such fleet was used. What does not grow with the size of a job is ours and was measured by other benchmarks here, or is measured by this one: an exit or a
lost node noticed, a hang noticed, the decision, ranks parted, a process started, state back from memory by the GB. What does grow is published by those who
have such fleets, each figure at its slow end: group build, replacement of a node, state over the network, the first step, the stall of a save, the search after
a NaN. The report begins with how the result hangs on each of them, and has every time of ours multiplied by ten. Best published: 97 % on 9,600 GPUs
(ByteRobust).

What is done about a failure: survivors part and go on with what they have, and give it to ranks that are new; all wait while it is given. A node is lost with
the whole replica it is part of, the nodes of which then stand idle: the other replicas go on at once, and it comes back, with state from a live one, at the
first save after its node is replaced and the cool-down is over.

The layout is Llama 3's, tensor 8 and pipeline 16, with the optimizer sharded over 8 of 128 data-parallel ranks (HSDP): 16 replicas of 1,024 GPUs. It is what
fits: more replicas leave too little memory for activations at the speed that Llama 3 had, fewer stand more GPUs idle. What a new GPU gets is its part of the
state, over its own link, at the slowest rate that somebody has published for it. Cool-down and time from save to save are those that the product has by itself;
rows say what others leave.

Explicit: all 419 failures end a process or a node. With hangs and NaN: whatever concerns the network hangs (49 of 419), silent corruption is a NaN (6).
"""

from __future__ import annotations

import math
import random
import statistics
import time
from collections import Counter
from dataclasses import dataclass, replace

from harness.measure import Report, arguments, console, percentile, say
from rich.table import Table

from holdfast.core import Core
from holdfast.detect.phases import Phases
from holdfast.detect.silent_rank import HangLimits, judge
from holdfast.detect.standstill import Sight
from holdfast.domain.event import EffectDone, Event, GangRestored, JobSubmitted, NodeHeard, ProgressSeen, WorkerExited
from holdfast.domain.exit import Exit, ExitKind
from holdfast.domain.goodput import Bucket
from holdfast.domain.job import JobSpec, Policy
from holdfast.domain.mesh import parsed
from holdfast.domain.signs import ELSEWHERE, Signs
from holdfast.recover.interval import LONGEST_S
from holdfast.simulate.reliability import goodput, interval, published, spares
from holdfast.simulate.reliability.fleet import Chances, Lives, play
from holdfast.simulate.reliability.goodput import Fault, Running
from holdfast.simulate.reliability.lived import Pace, live
from holdfast.simulate.reliability.published import DAY_S, Shows

GPUS, GPUS_PER_NODE, DAYS = 16384, 8, 54
NODES = GPUS // GPUS_PER_NODE
PARAMETERS = 405e9
MODEL_GPUS = 8 * 16  # Tensor and pipeline parallel, as Llama 3 was trained: so many GPUs hold the model once.
GIVEN_BYTES = 14.0  # A parameter, AdamW in mixed precision: weights 2, master 4, moments 8. Who is new needs no gradients; what survivors give has none.
WHOLE_BYTES = 2.0  # Weights that every data-parallel rank keeps between forward and backward (Llama 3, section 3.3.2), and 16 more, gradients 4 among them,
SHARDED_BYTES = 16.0  # that are sharded over the replica.
# Activations of the first stage without recomputing: 34 bytes × sequence × hidden size / tensor parallel for a layer (arXiv 2205.05198, equation 4 and
# selective), 7 layers, since Llama 3 took one from that stage, 16 micro-batches of one sequence in flight.
ACTIVATIONS_GB = 34 * 8192 * 16384 / 8 * 7 * 16 / 1e9
GPU_GB = 80.0
REPAIR_S = DAY_S  # Assumed, as nobody publishes it; spares are as many as make running out of them a chance of one in a thousand.
STOCK_OUT = 0.001
REPLICAS = 16  # The most that fit beside the activations, of powers of two: see `memory_gb`.
SEQUENCES = 2048  # Of 8,192 tokens in a batch of 16 M: 16 for each of 128 data-parallel ranks.
EXPLICIT_BAR, MIXED_BAR = 99.0, 98.0
LAYOUTS = (4, 8, 16, 32, 64, 128)
CORE_LIVES = 9
CORE_NODES = 16  # Of a replica, where the real core lives it: it takes time as the square of the nodes, and 128 would take an hour.


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
    gb_per_s: float = published.PEER_GB_PER_S.worst  # Of state, from a GPU to one of another node.
    first_step: float = published.FIRST_STEP.worst_s
    save: float = published.SAVE_STALL.worst_s
    nan_found: float = published.NAN_FOUND.best_s  # The mean of theirs: what is lost in the long run is the mean. Their slowest has a row of its own.
    # Circumstances.
    failures: float = 419.0
    repair: float = REPAIR_S
    spares: int = 0  # 0: as many as are needed for REPAIR_S.
    both_copies_lost: float = 0.0  # Share of lost nodes.
    shape: float = 1.0
    remote: bool = False  # State of who is new is in the remote store, and with no peer.
    first_step_works: bool = False  # The first step counts as the work it is, and only what it takes longer as lost; the ledger counts all of it as lost.
    whole_micro_batches: bool = False  # Fewer replicas share out the same batch by whole sequences, and all wait for those who have one more.
    # What is done.
    rejoins: bool = True  # Survivors go on with what they have. Else all start again from copies in memory.
    smaller: bool = True  # The other replicas go on while a node is replaced.
    replicas: int = REPLICAS
    resize_every: float = Policy().resize_every_s
    save_every: float | None = 0.0  # None: as is best, with what a smaller gang lacks until a save; 0: as the product chooses, which does not count that.

    @property
    def given_gb(self) -> float:
        """What a GPU that is new gets: its part of the state of a replica."""
        return PARAMETERS * GIVEN_BYTES * self.replicas / GPUS / 1e9

    @property
    def memory_gb(self) -> float:
        """Of a GPU of the first stage."""
        return PARAMETERS * (WHOLE_BYTES / MODEL_GPUS + SHARDED_BYTES * self.replicas / GPUS) / 1e9 + ACTIVATIONS_GB

    @property
    def fetched(self) -> float:
        return published.REMOTE_LOAD.worst_s if self.remote else self.given_gb / self.gb_per_s

    @property
    def copied(self) -> float:
        """So far a copy on another node lags behind."""
        return self.given_gb / self.gb_per_s

    @property
    def kept(self) -> float:
        """Of the speed, without one replica."""
        if not self.whole_micro_batches:
            return 1.0 - 1.0 / self.replicas
        ranks = GPUS // MODEL_GPUS
        return (SEQUENCES / ranks) / math.ceil(SEQUENCES / (ranks - ranks / self.replicas))

    @property
    def again(self) -> float:
        """Start, group build and first step."""
        return self.started + self.group_build + self.first_step - (published.STEP_S if self.first_step_works else 0.0)


OURS = ("exit_noticed", "node_noticed", "hang_noticed", "decided", "stacks", "stopped", "parted", "started", "restored_per_gb")
OURS_IS, LIMIT, PUBLISHED, DERIVED = "measured by us", "policy limit of ours", "published", "derived"
SOURCES = {
    "exit_noticed": (OURS_IS, "detection.py, 99th percentile of 100"), "node_noticed": (OURS_IS, "detection.py, slowest of 6"),
    "hang_noticed": (OURS_IS, "the detector as it is, on virtual time, steps of 6 s, ranks that wait for GPUs, 99th percentile; in this run; not run on NCCL"),
    "decided": (OURS_IS, f"the core, from the exit to all answers of {NODES:,} nodes; in this run"),
    "stacks": (LIMIT, "the longest that stacks of a hang are waited for"), "stopped": (LIMIT, "the longest between SIGTERM and SIGKILL of a broken gang"),
    "parted": (LIMIT, "the longest that survivors may take to leave a broken gang; then they are ended"),
    "started": (OURS_IS, "recovery.py, slowest of 100 from kill to a finished step, 4 ranks; and a CUDA context on the H200, slowest"),
    "restored_per_gb": (OURS_IS, "checkpoint.py on the H200, copy and registering of 7.55 GB, a GB"),
    "group_build": (PUBLISHED, published.GROUP_BUILD.source), "replaced": (DERIVED, published.REPLACEMENT.source),
    "gb_per_s": (DERIVED, published.PEER_GB_PER_S.source),
    "fetched": (DERIVED, "14 bytes a parameter, over the GPUs of a replica, at that rate"), "copied": (DERIVED, "the same, to another node's memory"),
    "first_step": (PUBLISHED, published.FIRST_STEP.source), "save": (PUBLISHED, published.SAVE_STALL.source),
    "nan_found": (PUBLISHED, published.NAN_FOUND.source), "resize_every": (LIMIT, "--resize-every-s, its default"),
    "repair": ("assumed", "nobody publishes it"),
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
    """Eight ranks in steps of 6 s, each with a GPU on which the same collective does not end. The judgement that control makes once a second."""
    dice, seen = random.Random(seed), []
    for _ in range(100):
        phases, beat_at = Phases(), 0.0
        hangs_at = 600.0 + 60.0 * dice.random()
        while (ends := beat_at + published.STEP_S * dice.lognormvariate(0.0, 0.1)) <= hangs_at:
            phases.note("step", ends - beat_at)
            beat_at = ends
        now, found = float(math.ceil(hangs_at)), False
        while not found:
            now += 1.0
            quiet_s = now - beat_at
            signs = Signs(
                quiet_s=quiet_s, usual_s=phases.usual_s("step"), quick=phases.quick, process_state="R", inside=ELSEWHERE, stack_s=quiet_s, sampled_s=1.0,
                children_idle_s=quiet_s, io_idle_s=quiet_s, on_gpu=True, pending_s=now - hangs_at,
            )  # fmt: skip
            gang = [Sight(rank=rank, node="n0", phase="step", step=100, signs=signs) for rank in range(GPUS_PER_NODE)]
            found = any(finding.kind == "silent_rank" for finding in judge(gang, HangLimits()))
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
        stop_s=inputs.stopped, rendezvous_s=inputs.again, restore_s=inputs.restored_per_gb * inputs.given_gb,
    )  # fmt: skip


def _survivors_go_on(fault: Fault, inputs: Inputs) -> Fault:
    """The rank that is new gets its state from a live replica."""
    return replace(fault, stop_s=inputs.parted, restore_s=inputs.fetched, live_s=published.STEP_S)


def _replaced(fault: Fault, inputs: Inputs) -> Fault:
    """All wait for a node in the place of the lost one, and for its state."""
    state_s = 0.0 if fault.live_s is not None else inputs.fetched  # Already in it.
    behind_s = 0.0 if fault.live_s is not None else inputs.copied
    return replace(fault, replace_s=inputs.replaced, restore_s=fault.restore_s + state_s, behind_s=behind_s, needs_node=True)


def _others_go_on(fault: Fault, inputs: Inputs, interval_s: float) -> Fault:
    """Nobody is new at first; the replica is taken in again at the first save after the cool-down, which is one more stop."""
    alive = fault.live_s is not None
    again_s = fault.stop_s + fault.rendezvous_s + inputs.fetched + (0.0 if alive else fault.restore_s)
    behind_s = 0.0 if alive else inputs.copied
    return replace(
        fault, restore_s=0.0 if alive else fault.restore_s + inputs.fetched, behind_s=behind_s, kept=inputs.kept, grow_s=again_s,
        smaller_s=max(inputs.replaced, inputs.resize_every) + interval_s / 2.0,
    )  # fmt: skip


def running(inputs: Inputs, *, mixed: bool) -> Running:
    interval_s = save_every_s(inputs)
    return Running(per_s=inputs.failures / (DAYS * DAY_S), interval_s=interval_s, stall_s=inputs.save, faults=faults(inputs, interval_s, mixed=mixed))


def save_every_s(inputs: Inputs) -> float:
    """One job, one interval: for all kinds of failures, whatever is then played. A failure that leaves a smaller gang costs what that lacks until a save, and
    so weighs as much as such a part of one that goes back to a save."""
    if inputs.save_every:
        return inputs.save_every
    per_s = inputs.failures / (DAYS * DAY_S)
    kinds = faults(inputs, 0.0, mixed=True)
    weight = goodput.going_back(per_s, kinds)
    if inputs.save_every is None:
        weight += sum(one.share * (1.0 - one.kept) for one in kinds)
    return min(LONGEST_S, interval.best_s(inputs.save, per_s * weight, step_s=published.STEP_S))


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
        inputs, group_build=published.GROUP_BUILD.best_s, replaced=published.REPLACEMENT.best_s, gb_per_s=published.PEER_GB_PER_S.best,
        first_step=published.FIRST_STEP.best_s, save=published.SAVE_STALL.best_s,
    )  # fmt: skip


def changes(inputs: Inputs) -> list[tuple[str, Inputs]]:
    """Every row of the table: what is changed, and to what."""

    def by(name: str, factor: float, text: str) -> tuple[str, Inputs]:
        return f"{text} × {factor:g}: {factor * getattr(inputs, name):.3g} s", replace(inputs, **{name: factor * getattr(inputs, name)})

    words = {
        "replaced": "replacement of a node", "group_build": "group build", "first_step": "first step",
        "save": "stall of a save", "nan_found": "search after a NaN", "hang_noticed": "a hang noticed", "node_noticed": "a lost node noticed",
        "exit_noticed": "an exit noticed", "decided": "decision", "stacks": "stacks of a hang", "stopped": "stop", "parted": "parting",
        "started": "processes started",
        "restored_per_gb": "state from memory, a GB",
    }  # fmt: skip
    rows = [("as it is", inputs), ("every time of ours × 10", times_ten(inputs))]
    rows += [by(name, factor, words[name]) for name in words for factor in ((10.0,) if name in OURS else (0.5, 2.0))]
    low, high = published.RATES["llama3"][0].limits_per_s(GPUS)
    rows += [(f"state at {speed:.2g} GB/s a GPU: {text}", replace(inputs, gb_per_s=speed)) for text, speed in published.PEER_SPEEDS]
    rows += [(in_words(one), one) for one in (replace(inputs, replicas=count) for count in LAYOUTS if count != inputs.replicas)]
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
        ("no live peers, as with an optimizer sharded over all replicas: all wait for the node", replace(inputs, rejoins=False, smaller=False)),
        ("a smaller gang shares out the same batch by whole sequences: 18 a rank for 16", replace(inputs, whole_micro_batches=True)),
        ("the first step counts as the 6 s of work it is", replace(inputs, first_step_works=True)),
        ("both of these", replace(inputs, whole_micro_batches=True, first_step_works=True)),
        ("a save as often as is best where a smaller gang grows back at one", replace(inputs, save_every=None)),
        ("cool-down of 5 min", replace(inputs, resize_every=300.0)),
        ("cool-down of 30 min: who is lost meanwhile is taken in in one go", replace(inputs, resize_every=1800.0)),
        ("all that is published at its fast end", fast_end(inputs)),
        ("replacement has the group build in it", replace(inputs, replaced=inputs.replaced - inputs.group_build)),
        ("group build: 44 s, NCCL's 265 s on 98,304 GPUs by ranks (arXiv 2510.20171)", replace(inputs, group_build=265.0 * GPUS / 98304)),
        ("a hang noticed only by the collective's timeout: 600 s", replace(inputs, hang_noticed=published.HANG_NOTICED.worst_s)),
        ("search after a NaN: 7,200 s, ByteRobust's slowest", replace(inputs, nan_found=published.NAN_FOUND.worst_s)),
        ("every new rank gets its state from the remote store: 129 s (ByteCheckpoint)", replace(inputs, remote=True)),
        ("5 % of lost nodes take their copy with them (RSC-2): state from the remote store", replace(inputs, both_copies_lost=0.05)),
        (f"repair takes 7 days, and {spares_for(inputs)} spares all the same", replace(inputs, repair=7 * DAY_S)),
        (f"repair takes 7 days, and 7 times the spares: {7 * spares_for(inputs)}", replace(inputs, repair=7 * DAY_S, spares=7 * spares_for(inputs))),
        ("a save every 5 min", replace(inputs, save_every=300.0)),
        ("a save every 30 min", replace(inputs, save_every=1800.0)),
    ]


def in_words(inputs: Inputs) -> str:
    fits = "fits" if inputs.memory_gb <= GPU_GB else "does not fit"
    return (
        f"{inputs.replicas} replicas of {GPUS // inputs.replicas:,} GPUs: {inputs.given_gb:.1f} GB to fetch in {inputs.fetched:.1f} s; "
        f"{inputs.memory_gb:.0f} of {GPU_GB:.0f} GB: {fits}"
    )


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
    title = "A simulation, not a measurement: goodput of a job on 16,384 GPUs, mean of all lives, in %: what changes it, worst first"
    table = Table(title=title, title_justify="left", box=None, padding=(0, 2))
    for name in ("changed", "explicit", "", "with hangs and NaN", ""):
        table.add_column(name, justify="left" if name == "changed" else "right")
    for row in (first, *others):
        apart = (f"{row.explicit - first.explicit:+.2f}", f"{row.mixed - first.mixed:+.2f}") if row is not first else ("", "")
        table.add_row(row.changed, f"{row.explicit:.2f}", apart[0], f"{row.mixed:.2f}", apart[1])
    console.print()
    console.print(table)
    used = Table(title="What went in", title_justify="left", box=None, padding=(0, 2))
    for name in ("", "seconds", "what it is", "where from"):
        used.add_column(name, justify="right" if name == "seconds" else "left")
    for name, (kind, source) in SOURCES.items():
        used.add_row("GB/s of state, a GPU" if name == "gb_per_s" else name.replace("_", " "), f"{getattr(inputs, name):.3g}", kind, source)
    console.print(used)
    report.raw["sensitivity"] = [{"changed": row.changed, "explicit": row.explicit, "mixed": row.mixed} for row in rows]
    report.raw["inputs"] = {name: {"value": getattr(inputs, name), "kind": kind, "source": source} for name, (kind, source) in SOURCES.items()}
    made = running(inputs, mixed=True)
    report.note("It is a simulation: nothing was run on 16,384 GPUs. Failures are independent and memoryless, one job, nodes that are all alike.")
    report.note(
        f"Layout: {in_words(inputs)}, of which {ACTIVATIONS_GB:.0f} GB are activations without recomputing (derived). Its step is taken to be Llama 3's 6 s."
    )
    report.note(
        f"A save every {made.interval_s:.0f} s, cool-down {inputs.resize_every:.0f} s, both as the product has them by itself. "
        f"{spares_for(inputs)} spares, repair {REPAIR_S / 3600:.0f} h in the mean (assumed), log-normal."
    )
    report.note(
        "How soon a hang is noticed is taken from our detector, since its limit comes from the time of a step and not from the number of GPUs; "
        "what a collective's timeout of 600 s would make of it has a row of its own."
    )
    explicit_s, mixed_s = ((share - bar) / 100 / made.per_s for share, bar in ((first.explicit, EXPLICIT_BAR), (first.mixed, MIXED_BAR)))
    report.note(
        f"One failure every {1 / made.per_s / 3600:.2f} h: 99 % allow {0.01 / made.per_s:.0f} s each, 98 % {0.02 / made.per_s:.0f} s. "
        f"Left over of that: {explicit_s:.1f} s of explicit failures, {mixed_s:.1f} s with hangs and NaN."
    )
    report.note(
        "Productive is what the ledger counts: the whole first step of a gang as lost, though its work stays, and of a smaller gang its share of the nodes, "
        "though whole sequences may make it slower. Rows have both otherwise."
    )
    report.note(
        f"Assumed: a replica's {GPUS // REPLICAS:,} GPUs hold all of the state, so that each new one can be given its part by one that has the same. "
        "That was run with four ranks of FSDP2 in two replicas; with tensors and stages it was not, nor over NCCL between machines."
    )
    report.note(f"The product's core knows which nodes make a replica, and is asked here with replicas of {CORE_NODES} nodes.")


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
        fetched_s=inputs.fetched, restored_s=inputs.restored_per_gb * inputs.given_gb, first_step_s=inputs.first_step, replaced_s=inputs.replaced,
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
