"""Histories of jobs that never ran: the real core, told what a small fleet would have told it. What people see is tested on what the core really says."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from holdfast.cli.report import Sample
from holdfast.control.journal import Entry
from holdfast.core import Core
from holdfast.domain.effect import Effect
from holdfast.domain.event import (
    CheckpointSaved,
    EffectDone,
    Event,
    FindingMade,
    GangRestored,
    IntervalChosen,
    JobSubmitted,
    NodeHeard,
    NodeSilent,
    ProgressSeen,
    StopAsked,
    Ticked,
    WorkerExited,
)
from holdfast.domain.exit import Exit, ExitKind
from holdfast.domain.finding import Finding
from holdfast.domain.job import JobSpec, Policy
from holdfast.domain.state import State

BEGAN = 1_700_000_000.0
TRACEBACK = (
    "step 41: 100%|##########| 41/41\rstep 42: 100%|##########| 42/42\nTraceback (most recent call last):\n"
    '  File "train.py", line 57, in <module>\n    main()\n  File "train.py", line 48, in main\n    loss = model(batch[rank])\n'
    "ValueError: batch <3> has \x1b[31m0\x1b[0m rows & cannot be used\n"
)


@dataclass(slots=True)
class History:
    """A job told to the core, second by second."""

    name: str = "demo"
    nodes: int = 2
    spares: int = 1
    steps_per_s: float = 8.0
    at: float = BEGAN
    step: int = 0
    core: Core = field(default_factory=Core)
    entries: list[Entry] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)

    @property
    def state(self) -> State:
        return self.core.state

    def tell(self, event: Event) -> tuple[Effect, ...]:
        effects = self.core.step(event)
        self.core.check()
        self.entries.append(Entry(seq=len(self.entries) + 1, event=event, effects=effects))
        return effects

    def submit(self) -> History:
        spec = JobSpec(job=self.name, argv=("train.py", "--steps", "1000"), nodes=self.nodes, spares=self.spares, ranks_per_node=2, policy=Policy())
        self.tell(JobSubmitted(at=self.at, spec=spec))
        return self.heard()

    def heard(self) -> History:
        """Every node says that it is there."""
        for index in range(self.nodes + self.spares):
            self.at += 0.05
            self.tell(NodeHeard(at=self.at, node=f"node{index}", host="127.0.0.1"))
        return self

    def answer(self, *, took_s: float = 0.08) -> History:
        """Everything asked for is done, until nothing is pending."""
        while self.state.pending:
            self.at += took_s
            for id, pending in sorted(self.state.pending.items()):
                saved = self.state.saved_step
                found = {"checkpoint": f"step-{saved}" if saved >= 0 else "", "checkpoint_step": saved} if pending.kind == "FindCheckpoint" else {}
                stacks = {str(rank): f'File "train.py", line 48, in main\n  all_reduce(gradients)  # rank {rank}' for rank in range(2 * self.nodes)}
                done = EffectDone(
                    at=self.at, effect=id, generation=pending.generation, node=pending.node, port=29500 if pending.kind == "StartStore" else 0,
                    stacks=stacks if pending.kind == "CaptureStacks" else {}, **found,
                )  # fmt: skip
                self.tell(done)
        return self

    def up(self) -> History:
        """The gang is started, has restored, and has finished a step."""
        self.answer()
        self.step = max(self.state.saved_step, 0)
        self.at += 0.12
        self.tell(GangRestored(at=self.at, generation=self.state.generation, step=self.step, restore_s=0.05))
        return self.train(1)

    def train(self, steps: int, *, save_every: int = 20) -> History:
        for _ in range(steps):
            self.step += 1
            self.at += 1 / self.steps_per_s
            if self.step % 5 == 0:
                self.samples.append(self.sample())
            if self.step % save_every == 0:
                self.tell(CheckpointSaved(at=self.at, generation=self.state.generation, step=self.step))
            save_s = 0.004 * (self.step - max(self.state.gang.restore_step, 0))
            self.tell(ProgressSeen(at=self.at, generation=self.state.generation, step=self.step, save_s=save_s))
        return self

    def choose(self, every: int) -> History:
        """How often to save."""
        because = "a save costs 0.04 s, a failure is expected every 11 h (3.6 to 210 h, none seen in 82 s)"
        chosen = IntervalChosen(
            at=self.at, generation=self.state.generation, every=every, from_step=self.step + 41, automatic=True, because=because, overhead=0.0014,
            interval_s=every / self.steps_per_s, goodput=0.99, cheapest=every, step_s=1 / self.steps_per_s, failures=0, stall_s=0.04,
        )  # fmt: skip
        self.tell(chosen)
        return self

    def sample(self) -> Sample:
        wobble = 0.05 * math.sin(self.step * 1.7) + 0.03 * math.sin(self.step * 0.37)
        rate = self.steps_per_s * (1 + 0.04 * math.sin(self.step))
        return Sample(at=self.at, step=self.step, loss=1.4 + 3.2 * math.exp(-self.step / 180) + wobble, steps_per_s=rate, generation=self.state.generation)

    def exits(self, exit: Exit) -> History:
        self.at += 0.02
        self.tell(WorkerExited(at=self.at, node=self.state.gang.nodes[exit.rank // 2], generation=self.state.generation, exit=exit))
        return self

    def killed(self, rank: int) -> History:
        return self.exits(Exit(rank=rank, pid=100, kind=ExitKind.SIGNAL, signal=9, because=f"rank {rank} was ended by SIGKILL", step=self.step)).up()

    def raises(self, rank: int) -> History:
        exit = Exit(
            rank=rank, pid=100, kind=ExitKind.EXCEPTION, code=1, exception="ValueError", message="batch has 0 rows", fingerprint="ValueError:main",
            because=f"rank {rank} raised ValueError: batch <3> has 0 rows & cannot be used", tail=TRACEBACK, step=self.step,
        )  # fmt: skip
        self.exits(exit)
        echo = Exit(rank=0, pid=99, kind=ExitKind.EXCEPTION, code=1, exception="RuntimeError", message="gloo: connection closed", because="rank 0 lost a peer")
        self.exits(echo)
        return self.answer() if self.state.outcome is None else self

    def hangs(self, rank: int) -> History:
        began, self.at = self.at, self.at + 4.0
        finding = Finding(
            kind="stopped_rank", ranks=(rank,), node="node0", since=began, because=f"rank {rank} is stopped by a signal and has been silent for 4.0 s",
            evidence=("its process is in state T", "no CPU was used for 4.0 s"),
        )  # fmt: skip
        self.tell(FindingMade(at=self.at, generation=self.state.generation, finding=finding))
        return self.up()

    def loses(self, node: str) -> History:
        began, self.at = self.at, self.at + 2.5
        self.tell(NodeSilent(at=self.at, node=node, since=began, because=f"{node} has not been heard for 2.5 s"))
        return self.up()

    def finish(self) -> History:
        for rank in range(2 * self.nodes):
            self.at += 0.01
            exit = Exit(rank=rank, pid=100 + rank, kind=ExitKind.FINISHED, code=0, because=f"rank {rank} ran to its end", step=self.step)
            self.tell(WorkerExited(at=self.at, node=self.state.gang.nodes[rank // 2], generation=self.state.generation, exit=exit))
        self.at += 0.3
        self.tell(Ticked(at=self.at))
        return self

    def stop_asked(self) -> History:
        self.at += 0.5
        self.tell(StopAsked(at=self.at, because="Ctrl-C", code=130))
        return self

    def stop(self) -> History:
        return self.stop_asked().answer()


Make = Callable[[], History]


def calm(steps_per_s: float = 8.0) -> History:
    return History(steps_per_s=steps_per_s).submit().up().train(60).finish()


def stormy(steps_per_s: float = 8.0) -> History:
    """Four faults of four kinds, and an end."""
    story = History(name="storm <&> gpt", steps_per_s=steps_per_s).submit().up().train(110).choose(458).killed(2).train(150).hangs(1).train(170)
    story = story.loses("node1").train(120).killed(0).train(11).killed(3).train(230)
    return story.finish()


def failed() -> History:
    """The same exception twice at the same step: permanent."""
    story = History().submit().up().train(41).raises(3).up()
    return story.train(42 - story.step).raises(3)


def stopped() -> History:
    return History().submit().up().train(30).stop()
