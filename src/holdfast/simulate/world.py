"""One made-up world and its story: `run(seed)` makes it, lets it happen, and holds the core to its promises.

Safety, all the time    every invariant of `core.check()`; no rank is started on a node where an older generation still lives, nor of a generation older than
                        one that was started there; processes are started once for each effect; all ranks of a generation restore the same
                        checkpoint, meet at the same store and save equally often; what is acknowledged is written down.
At the end              the journal, read again, gives the state that was live; "finished" means that every rank of one generation ran to its end;
                        nothing runs but what cannot be killed. No good checkpoint was called poisoned; no gang whose first steps after a restore
                        control saw to be NaN ran to its end; going back ended within its budget, or where nothing good was left. By themselves
                        profiles were taken once for an incident and not more often than the policy says.
Liveness                once nothing goes wrong any more, the job ends within bounded time, with an outcome that its faults allow.
"""

from __future__ import annotations

import itertools
import random
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from holdfast.domain.diagnosis import Cause
from holdfast.domain.effect import StartGang
from holdfast.domain.job import JobSpec, Outcome, Policy
from holdfast.domain.state import State
from holdfast.simulate.clock import Clock
from holdfast.simulate.control import Crashed, Journal, MemoryJournal, VirtualControl
from holdfast.simulate.faults import Faults
from holdfast.simulate.node import VirtualNode
from holdfast.simulate.training import Attempt, Training

_EPOCH = 1_000_000.0
_POISONED = (0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 0, 100)  # How many checkpoints, by seed.
PATIENCE_S = 3600.0  # Virtual seconds from the last fault to the end of the job, at most.


class Broken(AssertionError):
    """A promise was not kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    seed: int
    outcome: str
    events: int  # That the core took.
    virtual_s: float
    generations: int
    faults: tuple[str, ...]
    trace: int  # A checksum over all that happened, in order: the same seed gives the same one.


@dataclass(slots=True)
class World:
    dice: random.Random
    clock: Clock
    spec: JobSpec
    latency_s: float
    nodes: dict[str, VirtualNode] = field(default_factory=dict)
    control: VirtualControl = field(init=False)
    training: Training = field(init=False)
    faults: Faults = field(init=False)
    written: set[tuple[str, int]] = field(default_factory=set)
    save_every: dict[int, int | None] = field(default_factory=dict)  # Generation to what its first node was told.
    trace: int = 0
    lines: list[str] | None = None  # The whole story, if somebody wants to read it.
    _ports: int = 20000

    def note(self, *what: object) -> None:
        line = f"{self.clock.now:.6f} {' '.join(map(str, what))}"
        self.trace = zlib.crc32(line.encode(), self.trace)
        if self.lines is not None:
            self.lines.append(line)

    def now_ns(self) -> int:
        return int(self.clock.now * 1e9)

    def port(self) -> int:
        self._ports += 1
        return self._ports

    def has_store(self, generation: int, port: int) -> bool:
        return any(node.is_up and node.stores.get(generation) == port for node in self.nodes.values())

    # What must hold whenever somebody acts.

    def started(self, node: VirtualNode, effect: StartGang) -> None:
        self.note("start", node.name, effect.generation, effect.ranks)
        if node.disk.starts[effect.id] > 1:
            raise Broken(f"{effect.id} started processes on {node.name} twice")
        older = [worker.generation for worker in node.workers.values() if worker.generation != effect.generation]
        if older:
            raise Broken(f"generation {effect.generation} starts on {node.name} while ranks of {sorted(set(older))} live there")
        if any(worker.rank in effect.ranks for worker in node.workers.values()):
            raise Broken(f"ranks {effect.ranks} of generation {effect.generation} start on {node.name}, where some of them run already")
        if self.save_every.setdefault(effect.generation, effect.save_every) != effect.save_every:
            raise Broken(f"generation {effect.generation} saves every {effect.save_every} steps on {node.name} and not so elsewhere")
        if node.disk.newest > effect.generation:
            raise Broken(f"generation {effect.generation} starts on {node.name} after generation {node.disk.newest} was started there")
        node.disk.newest = effect.generation

    def acknowledged(self, instance: str, seq: int) -> None:
        if (instance, seq) not in self.written:
            raise Broken(f"message {seq} of {instance} was acknowledged and never written down")


def run(
    seed: int,
    *,
    journal: Callable[[], Journal] = MemoryJournal,
    severity: float = 1.0,
    crash_before_write: int = 0,
    crash_after_write: int = 0,
    poisoned: int | None = None,
    lines: list[str] | None = None,
) -> Report:
    """One world from one seed. Raises `Broken`, or whatever the core raised, when a promise is not kept.

    `poisoned` of the newest checkpoints turn to NaN at some time; by default the seed says how many.
    """
    world = _make(seed, journal(), severity, lines)
    _poison(world, seed, poisoned if poisoned is not None or not severity else _POISONED[seed % len(_POISONED)])
    if severity:
        _slow_down(world, seed)
    world.faults.crash_before_write, world.faults.crash_after_write = crash_before_write, crash_after_write
    _live(world)
    _judge(world)
    if world.dice.random() < 0.3 and world.control.core.state.outcome is not Outcome.FINISHED:
        _resume(world)
    state = world.control.core.state
    world.control.journal.close()
    return Report(
        seed=seed, outcome=str(state.outcome), events=world.control.writes, virtual_s=world.clock.now - _EPOCH, generations=state.generation,
        faults=tuple(world.faults.done), trace=world.trace,
    )  # fmt: skip


def encoded(state: State) -> bytes:
    """The state as bytes that depend on nothing but the state."""
    return msgspec.json.encode(state, order="deterministic")


def _make(seed: int, journal: Journal, severity: float, lines: list[str] | None) -> World:
    dice = random.Random(seed)
    spec = JobSpec(
        job=f"seed-{seed}", argv=("train.py",), nodes=dice.choice((1, 2, 2, 3)), spares=dice.choice((0, 1, 2)), ranks_per_node=dice.choice((1, 2)),
        policy=Policy(max_restarts=dice.choice((None, None, None, 3))),
    )  # fmt: skip
    world = World(dice, Clock(now=_EPOCH), spec, latency_s=dice.choice((0.001, 0.02, 0.5)), lines=lines)
    world.control = VirtualControl(world, journal)
    world.training = Training(
        world, steps_total=dice.randint(5, 100), step_s=dice.choice((0.1, 0.5, 3.0)), save_every=dice.choice((1, 5, 10)), guarded=dice.random() < 0.8
    )
    storm_s = dice.choice((10.0, 60.0, 240.0))
    world.faults = Faults(world, dice, until=_EPOCH + storm_s, severity=severity)
    world.clock.after(0.0, world.control.start)
    for index in range(spec.nodes + spec.spares):
        world.nodes[f"n{index}"] = node = VirtualNode(world, f"n{index}")
        world.clock.after(dice.uniform(0.0, 2.0), node.start_agent)
    if severity:
        _make_trouble(world, storm_s)
    return world


def _make_trouble(world: World, storm_s: float) -> None:
    dice, faults, training = world.dice, world.faults, world.training
    faults.plan(dice.choice((0, 2, 6, 15, 40)), storm_s)
    if dice.random() < 0.1:
        training.failing_step = dice.randint(1, training.steps_total)
    if dice.random() < 0.15:
        at = dice.uniform(0.0, storm_s)
        world.clock.after(at, lambda: faults.stop_asked(now=False))
        if dice.random() < 0.5:
            world.clock.after(at + dice.uniform(0.0, 5.0), lambda: faults.stop_asked(now=True))


def _poison(world: World, seed: int, count: int | None) -> None:
    """With dice of its own: the rest of a seed's story is the same without it."""
    if count:
        dice, training = random.Random(f"poisoned {seed}"), world.training
        at = 3.0 + dice.uniform(0.2, 1.0) * training.steps_total * training.step_s
        world.clock.after(at, lambda: world.faults.checkpoints_poisoned(count))


def _slow_down(world: World, seed: int) -> None:
    """Ranks that are slow for a while, and people who want to know why. With dice of its own, as above."""
    dice, faults = random.Random(f"slow {seed}"), world.faults
    for _ in range(dice.choice((0, 0, 1, 3))):
        at, rank = dice.uniform(0.0, 120.0), dice.randrange(world.spec.world_size)
        world.clock.after(at, lambda rank=rank: faults.rank_slow(rank))  # type: ignore[misc]
        world.clock.after(at + dice.uniform(0.0, 60.0), lambda rank=rank: faults.rank_slow(rank, over=True))  # type: ignore[misc]
        world.clock.after(dice.uniform(0.0, 120.0), faults.profile_asked)


def _live(world: World) -> None:
    """Let it happen, until the job has ended or patience has."""
    clock, control, limit = world.clock, world.control, world.faults.until + PATIENCE_S
    while not (control.is_up and control.ended):
        do = clock.take(limit)
        if do is None:
            state = control.core.state
            raise Broken(f"the job did not end within {PATIENCE_S:.0f} s of its last fault; it is {state.phase}: {state.because}")
        try:
            do()
        except Crashed:
            if control.is_up:
                control.crash()
                clock.after(world.dice.choice((0.2, 1.0, 5.0, 30.0, 120.0)) * world.dice.random(), control.start)


def _judge(world: World) -> None:
    control, training, done = world.control, world.training, world.faults.done
    live, replayed = encoded(control.core.state), encoded(control.journal.load().state)
    if live != replayed:
        raise Broken("the journal, read again, does not give the state that was live")
    outcome = control.core.state.outcome
    restarts = len(control.core.state.attempts)
    allowed = {
        Outcome.FINISHED: training.completed,
        Outcome.STOPPED: any("stop is asked" in what for what in done),
        Outcome.PERMANENT: training.failing_step > 0 or _nothing_good_left(world),
        Outcome.FAILED: restarts > (world.spec.policy.max_restarts or 9),
        Outcome.BROKEN: any(what == "chance" or "lost" in what or "cut off" in what or "agent" in what for what in done),
    }
    if outcome is None or not allowed[outcome]:
        raise Broken(f"the job is {outcome} ({control.core.state.because}), which its faults do not explain: {done}")
    _judge_going_back(world)
    _judge_profiles(control.core.state)
    for node in world.nodes.values():
        node.take_down()
        if node.workers.keys() - node.unkillable:
            raise Broken(f"{node.name} still runs ranks {sorted(node.workers)} after the end")


def _judge_profiles(state: State) -> None:
    taken = [one for one in state.profiles if one.incident]
    if len({one.incident for one in taken}) < len(taken):
        raise Broken("an incident was profiled by itself more than once")
    assert state.spec is not None and state.spec.policy.profile_every_s is not None
    if any(after.asked_at - before.asked_at < state.spec.policy.profile_every_s for before, after in itertools.pairwise(taken)):
        raise Broken("profiles were taken by themselves more often than the policy allows")


def _nothing_good_left(world: World) -> bool:
    """Whether going back had to end: nothing but NaN is there, or training came to the same step anew and what it saved there was NaN again."""
    state, training = world.control.core.state, world.training
    steps = [attempt.step for attempt in state.attempts if attempt.cause == Cause.POISONED_CHECKPOINT]
    good = {one.name for one in training.saved} - training.poisoned - set(state.distrusted)
    return bool(steps) and (not good or len(set(steps)) < len(steps))


def _judge_going_back(world: World) -> None:
    state, training, policy = world.control.core.state, world.training, world.spec.policy
    accused = set(state.poisoned) - training.poisoned
    if accused:
        raise Broken(f"checkpoints {sorted(accused)} are good and were called poisoned")
    last = training.attempts.get(state.generation)
    if state.outcome is Outcome.FINISHED and last is not None and last.not_finite and _watched(last, world.control.life):
        raise Broken("the job finished on NaN, and control had seen it from its first steps")
    back = itertools.groupby(state.attempts, lambda one: one.cause == Cause.POISONED_CHECKPOINT and not one.progressed)
    longest = max((len(list(row)) for went_back, row in back if went_back), default=0)
    if longest > (policy.restarts_in_a_row if policy.max_restarts is None else policy.max_restarts) + 1:
        raise Broken("going back went on beyond its budget")


def _watched(attempt: Attempt, life: int) -> bool:
    """Whether the control that is there at the end saw two of the first steps: one that died may have taken what it saw along."""
    early = {step for seen_in, step in attempt.looks if seen_in == life and step <= attempt.step_started + 4}
    return len(early) >= 2


def _resume(world: World) -> None:
    """The same job again, on fresh machines and in peace: it must finish."""
    world.control.crash()
    world.clock.forget()
    world.note("resume")
    training = world.training
    for name in sorted(world.nodes):
        world.nodes[name] = node = VirtualNode(world, name)
        world.clock.after(world.dice.uniform(0.0, 2.0), node.start_agent)
    world.clock.now += 100.0
    world.faults.until = world.clock.now
    world.clock.after(0.0, lambda: world.control.start(resume=True))
    _live(world)
    state = world.control.core.state
    expected = (Outcome.PERMANENT, Outcome.FAILED) if training.failing_step > 0 else (Outcome.FINISHED,)
    may_fail = training.poisoned or (world.spec.policy.max_restarts is not None and training.corrupt)
    excused = (state.outcome is Outcome.FAILED and may_fail) or (state.outcome is Outcome.PERMANENT and _nothing_good_left(world))
    if state.outcome not in expected and not excused:
        raise Broken(f"the job was resumed, nothing went wrong any more, and it is {state.outcome}: {state.because}")
    _judge_going_back(world)
    if encoded(state) != encoded(world.control.journal.load().state):
        raise Broken("the journal, read again after a resume, does not give the state that was live")
