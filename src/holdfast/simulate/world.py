"""One made-up world and its story: `run(seed)` makes it, lets it happen, and holds the core to its promises.

Safety, all the time    every invariant of `core.check()`, and what the `judge` adds to it: see there.
Liveness                once nothing goes wrong any more, the job ends within bounded time, with an outcome that its faults allow.

A world has racks of nodes, a job on some of them, and a storm: faults from a plan, machines lost by a failure process, and small chances at every named
place. The job is about as long as the storm. `scale` makes all of it smaller, for tests that try every moment of a short story.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from holdfast.domain.effect import Effect
from holdfast.domain.event import Event
from holdfast.domain.job import JobSpec, Outcome, Policy
from holdfast.domain.mesh import parsed
from holdfast.simulate.clock import Clock
from holdfast.simulate.control import Crashed, Journal, MemoryJournal, VirtualControl
from holdfast.simulate.failures import Lost
from holdfast.simulate.faults import Faults
from holdfast.simulate.judge import Broken, Judge
from holdfast.simulate.node import VirtualNode
from holdfast.simulate.sites import SITES
from holdfast.simulate.training import Training
from holdfast.wire.codec import encode

_EPOCH = 1_000_000.0
_POISONED = (0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 0, 100)  # How many checkpoints, by seed.
_REJOINING = 0.4  # Of the scripts that have our lines.
_SHARDED = 0.3  # Of those.
_ELASTIC = 0.4  # Of the jobs that have more than one node.
_SPLIT = 0.3  # Of those: a replica is two nodes.
_CORDONS = (0, 0, 0, 1, 3)  # By chance.
_NOTICES = (0, 0, 0, 1, 4)
_CHECKS = (0, 0, 0, 1, 4)
PATIENCE_S = 3600.0  # Virtual seconds from the last fault to the end of the job, at most, beside the time that training takes.


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    seed: int
    outcome: str
    events: int  # That the core took.
    virtual_s: float
    generations: int
    faults: tuple[str, ...]
    hits: dict[str, int]  # Fault site to how often something went wrong there.
    hash: str  # Over the event log and all that happened around it, in order: the same seed gives the same one.


@dataclass(slots=True)
class World:
    dice: random.Random
    clock: Clock
    spec: JobSpec
    latency_s: float
    nodes: dict[str, VirtualNode] = field(default_factory=dict)
    racks: dict[str, list[str]] = field(default_factory=dict)
    control: VirtualControl = field(init=False)
    training: Training = field(init=False)
    faults: Faults = field(init=False)
    judge: Judge = field(init=False)
    hits: dict[str, int] = field(default_factory=lambda: dict.fromkeys(SITES, 0))
    gone: int = 0  # Machines that never come back.
    lines: list[str] | None = None  # The whole story, if somebody wants to read it.
    digest: hashlib.blake2b = field(default_factory=lambda: hashlib.blake2b(digest_size=16))
    _ports: int = 20000

    def note(self, *what: object) -> None:
        line = f"{self.clock.now:.6f} {' '.join(map(str, what))}"
        self.digest.update(line.encode())
        if self.lines is not None:
            self.lines.append(line)

    def wrote(self, event: Event, effects: Sequence[Effect]) -> None:
        """The event is in the journal."""
        kind, body = encode(event)
        self.digest.update(body)
        self.note(kind, *(type(effect).__name__ for effect in effects))

    def hit(self, site: str) -> None:
        self.hits[site] += 1

    def port(self) -> int:
        self._ports += 1
        return self._ports

    def has_store(self, generation: int, port: int) -> bool:
        return any(node.is_up and node.stores.get(generation) == port for node in self.nodes.values())


def run(
    seed: int,
    *,
    journal: Callable[[], Journal] = MemoryJournal,
    severity: float = 1.0,
    scale: float = 1.0,
    failures: Sequence[Lost] = (),
    crash_before_write: int = 0,
    crash_after_write: int = 0,
    poisoned: int | None = None,
    nodes: int | None = None,
    lines: list[str] | None = None,
) -> Report:
    """One world from one seed. Raises `Broken`, or whatever the core raised, when a promise is not kept.

    `failures` is a recording of lost machines, else the seed makes them up. `poisoned` of the newest checkpoints turn to NaN at some time; by default the seed
    says how many. `nodes`: of the gang, where it is not for the seed to say; one more of 32 is a spare.
    """
    world = _make(seed, journal(), severity, scale, lines, nodes)
    if severity:
        _make_trouble(world, scale, failures)
        _operate(world, seed)
    _poison(world, seed, poisoned if poisoned is not None or not severity else _POISONED[seed % len(_POISONED)])
    world.faults.crash_before_write, world.faults.crash_after_write = crash_before_write, crash_after_write
    _live(world)
    world.judge.ended()
    if world.dice.random() < 0.5 and world.control.core.state.outcome is not Outcome.FINISHED:
        _resume(world)
    state = world.control.core.state
    world.control.journal.close()
    return Report(
        seed=seed, outcome=str(state.outcome), events=world.control.writes, virtual_s=world.clock.now - _EPOCH, generations=state.generation,
        faults=tuple(world.faults.done), hits=world.hits, hash=world.digest.hexdigest(),
    )  # fmt: skip


def _make(seed: int, journal: Journal, severity: float, scale: float, lines: list[str] | None, nodes: int | None = None) -> World:
    dice = random.Random(seed)
    spec = JobSpec(
        job=f"seed-{seed}", argv=("train.py",),
        nodes=dice.randint(1, 1 + round(8 * scale)), spares=dice.choice((0, 1, 2, 4)), ranks_per_node=dice.choice((1, 2)),
        policy=Policy(max_restarts=3 if dice.random() < 0.06 else None, node_wait_s=dice.choice((60.0, 600.0, 600.0))),
    )  # fmt: skip
    if nodes is not None:
        spec = replace(spec, nodes=nodes, spares=max(spec.spares, nodes // 32))
    spec, split = _split(_elastic(spec, seed), seed)
    world = World(dice, Clock(now=_EPOCH), spec, latency_s=dice.choice((0.001, 0.02, 0.5)), lines=lines)
    world.control = VirtualControl(world, journal)
    world.judge = Judge(world)
    storm_s = dice.choice((1200.0, 2400.0, 4800.0)) * scale
    steps_total = max(5, round(dice.randint(300, 700) * scale))
    world.training = Training(
        world, steps_total=steps_total, step_s=storm_s * dice.uniform(0.5, 1.2) / steps_total, save_every=dice.choice((1, 3, 10)), guarded=dice.random() < 0.85
    )
    world.training.split = split
    world.training.rejoins = world.training.guarded and random.Random(f"rejoin {seed}").random() < _REJOINING
    world.training.sharded = world.training.rejoins and random.Random(f"sharded {seed}").random() < _SHARDED
    world.faults = Faults(world, dice, until=_EPOCH + storm_s, severity=severity)
    world.clock.after(0.0, world.control.start)
    in_rack = dice.choice((1, 2, 4))
    for index in range(spec.nodes + spec.spares):
        rack = f"r{index // in_rack}"
        world.nodes[f"n{index}"] = node = VirtualNode(world, f"n{index}", rack)
        world.racks.setdefault(rack, []).append(node.name)
        world.clock.after(dice.uniform(0.0, 2.0), node.start_agent)
    return world


def _elastic(spec: JobSpec, seed: int) -> JobSpec:
    """Some gangs may be smaller. With dice of its own, as below."""
    dice = random.Random(f"elastic {seed}")
    if spec.nodes == 1 or dice.random() >= _ELASTIC:
        return spec
    return replace(spec, min_nodes=dice.randint(1, spec.nodes - 1), policy=replace(spec.policy, resize_every_s=dice.choice((0.0, 30.0, 300.0))))


def _split(spec: JobSpec, seed: int) -> tuple[JobSpec, str]:
    """In some jobs the state is split over two nodes, and replicated over pairs of them, which stand side by side or with all the others between them. Half of
    the users say so; of the others it is seen. With dice of its own."""
    dice = random.Random(f"split {seed}")
    if spec.nodes == 1 or dice.random() >= _SPLIT:
        return spec, ""
    nodes = spec.nodes // 2 * 2
    split = dice.choice((f"dp={nodes // 2},pp=2,tp={spec.ranks_per_node}", f"pp=2,dp={nodes // 2},tp={spec.ranks_per_node}"))
    spec = replace(spec, nodes=nodes, min_nodes=min(spec.min_nodes, nodes), mesh=parsed(split) if dice.random() < 0.5 else None)
    return (replace(spec, min_nodes=-(-spec.min_nodes // 2) * 2) if spec.mesh is not None else spec), split


def _operate(world: World, seed: int) -> None:
    """In some worlds a person takes nodes out of service, and gives each back; in some it is known of nodes that they will go; in some checks are asked for."""
    dice, storm_s = random.Random(f"operate {seed}"), world.faults.until - _EPOCH
    for _ in range(dice.choice(_CORDONS)):
        name, at, drain = dice.choice(sorted(world.nodes)), dice.uniform(0.05, 0.8) * storm_s, dice.random() < 0.6
        world.clock.after(at, lambda name=name, drain=drain: world.faults.cordoned(name, drain=drain))  # type: ignore[misc]
        world.clock.after(at + dice.uniform(0.0, 0.2) * storm_s, lambda name=name: world.faults.uncordoned(name))  # type: ignore[misc]
    dice = random.Random(f"notices {seed}")
    for _ in range(dice.choice(_NOTICES)):
        name, at, within_s = dice.choice(sorted(world.nodes)), dice.uniform(0.05, 0.8) * storm_s, dice.choice((5.0, 30.0, 120.0, 600.0))
        withdrawn = dice.random() < 0.3
        world.clock.after(at, lambda name=name, s=within_s, back=withdrawn: world.faults.noticed(name, s, withdrawn=back))  # type: ignore[misc]
    dice = random.Random(f"checks {seed}")
    for _ in range(dice.choice(_CHECKS)):
        at, mended_s = dice.uniform(0.05, 0.8) * storm_s, dice.uniform(0.05, 0.25) * storm_s
        world.clock.after(at, lambda mended_s=mended_s: world.faults.check_asked(mended_s))  # type: ignore[misc]


def _make_trouble(world: World, scale: float, failures: Sequence[Lost]) -> None:
    dice, faults, training, storm_s = world.dice, world.faults, world.training, world.faults.until - _EPOCH
    faults.plan(max(2, round(dice.choice((70, 140, 200)) * scale)), storm_s)
    faults.plan_lost_nodes(storm_s, failures)
    if dice.random() < 0.06:
        training.failing_step = dice.randint(1, training.steps_total)
    if dice.random() < 0.32:
        at, how = dice.uniform(0.3, 1.0) * storm_s, dice.choice(("gently", "gently, then now", "now"))
        if how != "now":
            world.clock.after(at, lambda: faults.stop_asked(now=False))
        if how != "gently":
            world.clock.after(at + dice.uniform(0.0, 2.0), lambda: faults.stop_asked(now=True))


def _poison(world: World, seed: int, count: int | None) -> None:
    """With dice of its own: the rest of a seed's story is the same without it."""
    if count:
        dice, training = random.Random(f"poisoned {seed}"), world.training
        at = 3.0 + dice.uniform(0.2, 1.0) * training.steps_total * training.step_s
        world.clock.after(at, lambda: world.faults.checkpoints_poisoned(count))


def _live(world: World) -> None:
    """Let it happen, until the job has ended or patience has."""
    clock, control, training = world.clock, world.control, world.training
    patience_s = PATIENCE_S + 3 * training.steps_total * training.step_s * world.spec.nodes / world.spec.least_nodes
    limit = max(clock.now, world.faults.until) + patience_s
    while not (control.is_up and control.ended):
        do = clock.take(limit)
        if do is None:
            state = control.core.state
            raise Broken(f"the job did not end within {patience_s:.0f} s of its last fault; it is {state.phase}: {state.because}")
        try:
            do()
        except Crashed:
            if control.is_up:
                control.crash()
                clock.after(world.dice.choice((0.2, 1.0, 5.0, 30.0, 120.0)) * world.dice.random(), control.start)


def _resume(world: World) -> None:
    """The same job again, on fresh machines and in peace: it must finish."""
    world.control.crash()
    world.clock.forget()
    world.note("resume")
    training, spec, judge = world.training, world.spec, world.judge
    for name in sorted(world.nodes):
        world.nodes[name] = node = VirtualNode(world, name, world.nodes[name].rack)
        world.clock.after(world.dice.uniform(0.0, 2.0), node.start_agent)
    world.clock.now += 100.0
    world.faults.until = world.clock.now
    world.control.paused_until = 0.0
    world.clock.after(0.0, lambda: world.control.start(resume=True))
    for name in sorted(world.control.core.state.cordoned):
        world.clock.after(1.0, lambda name=name: world.faults.uncordoned(name))  # type: ignore[misc]
    _live(world)
    state = world.control.core.state
    expected = (Outcome.PERMANENT, Outcome.FAILED) if training.failing_step > 0 else (Outcome.FINISHED,)
    may_fail = training.poisoned or (spec.policy.max_restarts is not None and training.corrupt)
    excused = (state.outcome is Outcome.FAILED and may_fail) or (state.outcome is Outcome.PERMANENT and judge.nothing_good_left())
    if state.outcome not in expected and not excused:
        raise Broken(f"the job was resumed, nothing went wrong any more, and it is {state.outcome}: {state.because}")
    judge.learned(state)
    judge.going_back()
    judge.read_again()
