"""A life as the real core lives it: the same job and the same faults as a fleet that is played (`fleet.py`), event by event, and the ledger that comes of it.

    failures from dice ─► exits and silent nodes ─► Core.step ─► effects ─► answered after the times of the fault ─► steps again

What is done about a failure is not told to it: whether survivors part, whether the gang goes on smaller, when it grows back. The rules of `recover` say so,
with what the job has measured by then. So it can be asked whether what the formulas take for granted is what the product does.

A replica of the model may be several nodes, by the mesh of the job: one is lost, the others of its replica stand idle until it is replaced.

Is wrong    where the ledger cannot see: a step that is broken off counts as productive, half a step a failure. Saves cost nothing here. Every answer comes.
Costs       some 0.03 s of a core for each failure in a gang of 128 nodes, 0.25 s in one of 512.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from holdfast.core import Core
from holdfast.domain.effect import Effect, EndJob, FindCheckpoint, PartGang, StartGang, StartStore, StopGang
from holdfast.domain.event import CheckpointSaved, EffectDone, Event, GangRestored, JobSubmitted, NodeHeard, NodeSilent, ProgressSeen, Ticked, WorkerExited
from holdfast.domain.exit import Exit, ExitKind
from holdfast.domain.job import JobPhase, JobSpec
from holdfast.domain.state import NodeState, State
from holdfast.simulate.reliability.goodput import Running

_LATE_S = 1e-3  # A tick that is due comes so late.


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How long the parts of a recovery take, whatever is done."""

    parted_s: float
    stopped_s: float
    started_s: float  # From the order to start to ranks that are up,
    built_s: float  # to the groups they make,
    fetched_s: float  # to the state that ranks which are new get from those who live on,
    restored_s: float  # or all from a checkpoint,
    first_step_s: float  # and to the end of the first step, all of which counts as lost.
    replaced_s: float  # From the loss of a node to another one that can be used.
    step_s: float


def live(running: Running, pace: Pace, spec: JobSpec, horizon_s: float, *, seed: int) -> State:
    """One life, to its horizon."""
    return _Life(running, pace, spec, random.Random(seed)).to(horizon_s)


@dataclass(slots=True)
class _Life:
    running: Running
    pace: Pace
    spec: JobSpec
    dice: random.Random
    now: float = 0.0
    core: Core = field(default_factory=Core)
    due: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    count: itertools.count[int] = field(default_factory=itertools.count)
    step: float = 0.0  # How far training is, with the part of the step under way,
    since: float | None = None  # since when it runs on; None: it stands.
    saved: int = 0

    def to(self, horizon_s: float) -> State:
        self.tell(JobSubmitted(at=0.0, spec=self.spec))
        for node in range(self.spec.nodes):
            self.tell(NodeHeard(at=0.0, node=f"n{node:04d}", host="127.0.0.1"))
        self.after(self.gap(), self.fail)
        while self.due and self.due[0][0] <= horizon_s:
            self.now, _, do = heapq.heappop(self.due)
            do()
        self.now = horizon_s
        self.tell(Ticked(at=horizon_s))
        return self.core.state

    def gap(self) -> float:
        return self.dice.expovariate(self.running.per_s)

    def after(self, seconds: float, do: Callable[[], None]) -> None:
        heapq.heappush(self.due, (self.now + seconds, next(self.count), do))

    def tell(self, event: Event) -> None:
        for effect in self.core.step(replace(event, at=self.now)):
            self.perform(effect)
        deadline = self.core.next_deadline()
        if deadline is not None:
            self.after(deadline + _LATE_S - self.now, self.tick)

    def tick(self) -> None:
        deadline = self.core.next_deadline()
        if deadline is not None and deadline <= self.now:
            self.tell(Ticked(at=self.now))

    # What is asked.

    def perform(self, effect: Effect) -> None:
        pace, gang = self.pace, self.core.state.gang
        assert gang is not None
        match effect:
            case StartStore():
                self.answer(0.0, effect, port=29500)
            case FindCheckpoint():
                self.answer(0.0, effect, checkpoint=f"step-{self.saved}" if self.saved else "", checkpoint_step=self.saved if self.saved else -1)
            case PartGang():
                self.stand()
                waiting = {str(rank): int(self.step) for rank in self.ranks_on(effect.node) if rank not in effect.culprits}
                self.answer(pace.parted_s, effect, waiting=waiting)
            case StopGang():
                self.stand()
                self.answer(pace.stopped_s, effect)
            case StartGang():
                self.answer(pace.started_s, effect)
                if effect.node_rank == 0:
                    new = len(gang.kept) < effect.world_size
                    state_s = (pace.fetched_s if new else 0.0) if effect.rejoin else pace.restored_s
                    self.step = float(gang.restore_step if gang.restore_step >= 0 else 0)
                    up_s = pace.started_s + pace.built_s + state_s + pace.first_step_s
                    self.after(up_s, lambda: self.up(effect.generation, state_s))
            case EndJob():
                raise AssertionError(f"the job has ended: {effect.because}")
            case _:
                pass  # Profiles and checks are of other stories.

    def answer(self, seconds: float, effect: Effect, **known: object) -> None:
        done = EffectDone(at=0.0, effect=effect.id, generation=effect.generation, node=effect.node, **known)  # type: ignore[arg-type]
        self.after(seconds, lambda: self.tell(done))

    def ranks_on(self, node: str) -> range:
        gang, each = self.core.state.gang, self.spec.ranks_per_node
        assert gang is not None
        return range(gang.nodes.index(node) * each, (gang.nodes.index(node) + 1) * each)

    def up(self, generation: int, restore_s: float) -> None:
        if self.is_up(generation):
            self.tell(GangRestored(at=0.0, generation=generation, step=int(self.step), restore_s=restore_s))
            self.since = self.now
            self.say_progress(generation)
            behind = max(0, self.core.state.step_best - int(self.step))
            self.after(behind * self.pace.step_s * self.spec.world_size / self.core.state.world_size + _LATE_S, lambda: self.say_progress(generation))
            self.after(self.running.interval_s, lambda: self.save(generation))

    def is_up(self, generation: int) -> bool:
        return self.core.state.phase is JobPhase.RUNNING and self.core.state.generation == generation

    # Training.

    def go(self) -> None:
        if self.since is not None:
            speed = self.core.state.world_size / self.spec.world_size / self.pace.step_s
            self.step, self.since = self.step + (self.now - self.since) * speed, self.now

    def stand(self) -> None:
        self.go()
        self.since = None

    def say_progress(self, generation: int) -> None:
        """When it begins, when it has caught up with where it was, and before something happens."""
        if self.is_up(generation) and self.since is not None:
            self.go()
            self.tell(ProgressSeen(at=0.0, generation=generation, step=int(self.step), save_s=0.0, rejoins=True))

    def save(self, generation: int) -> None:
        """Told only where the core may do something about it, and at the first."""
        if not self.is_up(generation) or self.since is None:
            return
        self.go()
        self.saved = int(self.step)
        state = self.core.state
        there = sum(node.state is NodeState.READY for node in state.nodes.values())
        if state.gang is not None and (len(state.gang.nodes) < min(there, self.spec.nodes) or state.saved_step < 0):
            self.tell(CheckpointSaved(at=0.0, generation=generation, step=self.saved))
        self.after(self.running.interval_s, lambda: self.save(generation))

    # What goes wrong.

    def fail(self) -> None:
        """One at a time, of whatever kind; in a gang that is being formed too."""
        self.after(self.gap(), self.fail)
        fault = self.dice.choices(self.running.faults, [one.share for one in self.running.faults])[0]
        state, gang = self.core.state, self.core.state.gang
        if gang is None:
            return
        self.say_progress(state.generation)
        self.stand()
        rank = self.dice.randrange(state.world_size)
        node = gang.nodes[rank // self.spec.ranks_per_node]
        if fault.needs_node:
            self.after(self.pace.replaced_s, lambda: self.tell(NodeHeard(at=0.0, node=node, host="127.0.0.1")))
            silent = NodeSilent(at=0.0, node=node, since=self.now, because=f"{node} is lost")
            self.after(fault.detect_s, lambda: self.tell(silent))
        else:
            exit = Exit(rank=rank, pid=1, kind=ExitKind.SIGNAL, signal=9, because=f"rank {rank} was ended by SIGKILL", step=int(self.step))
            exited = WorkerExited(at=0.0, node=node, generation=gang.generation, exit=exit)
            self.after(fault.detect_s, lambda: self.tell(exited))
