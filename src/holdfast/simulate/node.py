"""A virtual node: a machine with a disk, the processes on it, and the agent that looks after them.

The agent keeps the contract of the real one. An effect is recorded before it is performed, its answer before it is told, what is told is kept in the real
`Outbox` until it is acknowledged. It may die between any two of these; its workers go on, and the next agent adopts them and tells the exits it missed.
A machine that is lost takes its disk along.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.domain.effect import CaptureProfile, CaptureStacks, CheckNode, Effect, PartGang, StartGang, StartStore, StopGang
from holdfast.domain.event import EffectDone, EffectFailed, Event, FindingMade, MeshSeen, NodeWarmed, WorkerExited
from holdfast.domain.exit import Exit, ExitKind
from holdfast.domain.finding import Finding
from holdfast.simulate.link import Link
from holdfast.simulate.training import Worker
from holdfast.wire.codec import encode
from holdfast.wire.messages import Ack, Told
from holdfast.wire.outbox import Outbox

if TYPE_CHECKING:
    from holdfast.simulate.world import World

ORPHAN_GRACE_S = 30.0
PLACE_S = 120.0  # So long a rank that has parted waits for its place.


@dataclass(slots=True)
class Disk:
    """What an agent finds again after its death, and a new machine does not."""

    begun: set[str] = field(default_factory=set)
    answers: dict[str, dict[str, Any]] = field(default_factory=dict)
    exits: list[tuple[int, Exit]] = field(default_factory=list)  # With the generation.
    last_start: tuple[int, tuple[int, ...]] = (-1, ())
    newest: int = -1  # Generation ever started here.
    under_way: dict[int, tuple[int, ...]] = field(default_factory=dict)  # Generation to ranks that the parent was told to start.
    stopped: set[int] = field(default_factory=set)  # Generations told to stop.
    starts: dict[str, int] = field(default_factory=dict)  # Effect to how often processes were started for it: never more than once.


@dataclass(slots=True)
class Agent:
    instance: str
    outbox: Outbox = field(default_factory=Outbox)
    link: Link | None = None
    busy: set[str] = field(default_factory=set)
    told_at: dict[int, float] = field(default_factory=dict)


@dataclass(slots=True)
class VirtualNode:
    world: World
    name: str
    rack: str
    is_up: bool = True
    reachable: bool = True
    disk: Disk = field(default_factory=Disk)
    agent: Agent | None = None
    agent_died_at: float = 0.0
    workers: dict[int, Worker] = field(default_factory=dict)
    stores: dict[int, int] = field(default_factory=dict)  # Generation to port.
    unkillable: set[int] = field(default_factory=set)  # Ranks whose process will not die.
    distrusted: bool = False  # It had such a rank once, and may be given up for good.
    instances: int = 0
    disk_slow_s: float = 0.0  # Added to whatever is written.
    network_slow_s: float = 0.0  # Added to whatever is said, at most.
    clock_ahead_s: float = 0.0
    warm: bool = True  # Its ranks can be forked at once.

    # The machine.

    def now_ns(self) -> int:
        """By its own clock."""
        return int((self.world.clock.now + self.clock_ahead_s) * 1e9)

    def lose(self) -> None:
        """Everything on the machine is gone at once, its disk too."""
        self.kill_agent(comes_back=False)
        gone = list(self.workers.values())
        self.is_up, self.disk, self.workers, self.stores, self.unkillable = False, Disk(), {}, {}, set()
        for worker in gone:
            self.world.training.left(worker, ExitKind.SIGNAL)

    def come_back(self) -> None:
        if not self.is_up:
            self.is_up, self.warm = True, False
            self.world.hit("node.cold")
            self.start_agent()
            self.world.clock.after(random.Random(f"cold {self.name} {self.instances}").uniform(0.0, 20.0), self.get_warm)

    def get_warm(self) -> None:
        """Its warm parent has imported all. An agent that is dead just now says so when it comes back."""
        self.warm = self.is_up
        if self.agent is not None:
            self._tell(self.agent, NodeWarmed(at=0.0, node=self.name))

    def leave(self, worker: Worker, exit: Exit) -> None:
        """A worker ended. Its parent writes that down; the agent, if there is one, tells."""
        if self.workers.get(worker.rank) is not worker:
            return
        del self.workers[worker.rank]
        self.disk.exits.append((worker.generation, exit))
        self.world.note("left", self.name, worker.generation, worker.rank, exit.kind)
        if self.agent is not None:
            self._tell(self.agent, WorkerExited(at=0.0, node=self.name, generation=worker.generation, exit=exit))
        self.world.training.left(worker, exit.kind)

    def lose_parent(self) -> None:
        """The warm parent dies, and its workers with it: nobody saw how they ended."""
        for worker in list(self.workers.values()):
            self.leave(worker, Exit(rank=worker.rank, pid=1, kind=ExitKind.VANISHED, because="its parent died", at_ns=self.now_ns()))
        self.stores.clear()

    def _kill(self, generation: int) -> None:
        for worker in [one for one in self.workers.values() if one.generation == generation]:
            self._end(worker)
        self.stores.pop(generation, None)

    def _end(self, worker: Worker) -> None:
        if worker.rank not in self.unkillable:
            because = f"rank {worker.rank} was stopped"
            self.leave(worker, Exit(rank=worker.rank, pid=1, kind=ExitKind.SIGNAL, signal=9, because=because, stopped_by_us=True, at_ns=self.now_ns()))

    # The agent's life.

    def start_agent(self) -> None:
        if not self.is_up or self.agent is not None:
            return
        self.instances += 1
        agent = self.agent = Agent(instance=f"{self.name}.{self.instances}")
        self.world.note("agent", agent.instance)
        generation, ranks = self.disk.last_start
        ended = {exit.rank: exit for of, exit in self.disk.exits if of == generation}
        for rank in ranks:
            vanished = Exit(rank=rank, pid=0, kind=ExitKind.VANISHED, because=f"rank {rank} is gone", at_ns=self.now_ns())
            if rank in ended or rank not in self.workers:
                self._tell(agent, WorkerExited(at=0.0, node=self.name, generation=generation, exit=ended.get(rank, vanished)))
        self._connect(agent)

    def kill_agent(self, *, comes_back: bool = True) -> None:
        agent, self.agent = self.agent, None
        if agent is None:
            return
        self.agent_died_at = self.world.clock.now
        if agent.link is not None:
            self.world.control.lost(self.name, agent.link)
        if comes_back:
            dice = self.world.dice
            self.world.clock.after(dice.choice((0.3, 1.0, 4.0, 40.0)) * dice.random(), self.start_agent)
            self.world.clock.after(ORPHAN_GRACE_S, lambda: self._orphaned(self.agent_died_at))

    def _orphaned(self, died_at: float) -> None:
        if self.agent is None and self.is_up and self.agent_died_at == died_at <= self.world.clock.now - ORPHAN_GRACE_S + 1e-6:
            self.lose_parent()

    def take_down(self) -> None:
        """The job has ended: nothing is left but what cannot be killed."""
        self.kill_agent(comes_back=False)
        for generation in {worker.generation for worker in self.workers.values()}:
            self._kill(generation)
        self.stores.clear()

    # Talking.

    def _connect(self, agent: Agent) -> None:
        if self.agent is not agent or agent.link is not None:
            return
        world = self.world
        if not (self.reachable and world.control.is_up):
            world.clock.after(0.5, lambda: self._connect(agent))
            return
        link = agent.link = Link(world, self, world.control.life)
        running: dict[str, tuple[int, ...]] = {}
        for rank, worker in sorted(self.workers.items()):
            running[str(worker.generation)] = (*running.get(str(worker.generation), ()), rank)
        for generation, ranks in self.disk.under_way.items():  # The parent is asked, and answers when it has done what it was told before.
            running[str(generation)] = ranks
        generation, ranks = self.disk.last_start
        if ranks and str(generation) not in running and world.faults.strikes("agent.lies.stale_report", 0.1):
            running[str(generation)] = ranks
        link.to_control(lambda _: world.control.hello(self, agent, link, running), None)
        for told in agent.outbox.unacknowledged():
            self._send(agent, link, told)

    def disconnected(self, link: Link) -> None:
        """The connection broke; try again in a moment."""
        agent = self.agent
        if agent is not None and agent.link is link:
            agent.link = None
            self.world.clock.after(self.world.dice.uniform(0.05, 0.5), lambda: self._connect(agent))

    def _send(self, agent: Agent, link: Link, told: Told) -> None:
        link.to_control(lambda message: self.world.control.told(self, agent, link, message), told)

    def _tell(self, agent: Agent, event: Event) -> None:
        told = agent.outbox.tell(*encode(event))
        agent.told_at[told.seq] = self.world.clock.now
        if agent.link is not None:
            self._send(agent, agent.link, told)

    def hear(self, agent: Agent, message: Ack | Effect) -> None:
        if self.agent is not agent:
            return
        if isinstance(message, Ack):
            self.world.judge.acknowledged(agent.instance, message.seq)
            agent.outbox.acknowledged(message.seq)
            return
        self.world.judge.reached(self.name, message)
        if message.id not in agent.busy:
            agent.busy.add(message.id)
            self._perform(agent, message)

    # Effects.

    def _perform(self, agent: Agent, effect: Effect) -> None:
        disk, world = self.disk, self.world
        if effect.id in disk.answers:
            self._answer(agent, effect, disk.answers[effect.id])
            return
        begun = effect.id in disk.begun
        disk.begun.add(effect.id)
        if not begun and world.faults.strikes("agent.dies.before_acting", 0.004):
            self.kill_agent()
            return

        def answer(row: dict[str, Any]) -> None:
            if self.agent is not agent or self.disk is not disk:
                return
            if world.faults.strikes("agent.dies.before_answering", 0.004):
                self.kill_agent()
                return
            disk.answers[effect.id] = row
            if world.faults.strikes("agent.dies.before_telling", 0.004):
                self.kill_agent()
                return
            self._answer(agent, effect, row)

        match effect:
            case StartStore():
                self._start_store(effect, begun, answer)
            case StartGang():
                self._start_gang(effect, begun, answer)
            case CaptureStacks():
                stacks = {str(rank): "in allreduce" for rank, worker in self.workers.items() if worker.generation == effect.generation}
                late_s = 20.0 if world.faults.strikes("stacks.late", 0.05) else 0.0
                world.clock.after(world.dice.choice((0.1, 1.0)) + late_s, lambda: answer({"stacks": stacks}))
            case CaptureProfile():
                late_s = 400.0 if world.faults.strikes("profile.late", 0.2) else 0.0
                world.clock.after(world.dice.choice((0.5, 5.0, 30.0)) + late_s, lambda: answer(self._profiled(effect)))
            case StopGang():
                self._stop_gang(effect, answer)
            case PartGang():
                self._part_gang(effect, answer)
            case CheckNode():
                # Whoever listens says only where; whether the link is well is seen by who calls.
                passed = effect.part == "listen" or not world.faults.strikes("check.fails", 0.3)
                seen = {"passed": passed, "said": "as it should be" if passed else "not as it should be"}
                port = world.port() if effect.part == "listen" else 0
                world.clock.after(world.dice.choice((0.5, 3.0, 20.0)), lambda: answer({**seen, "port": port}))
            case _:
                raise AssertionError(f"{effect} is not for an agent")

    def _profiled(self, effect: CaptureProfile) -> dict[str, Any]:
        here = [rank for rank in effect.ranks if rank in self.workers and self.workers[rank].generation == effect.generation]
        parts = {"compute": 1.0, "communication": 0.1}
        taken = [{"rank": rank, "generation": effect.generation, "first_step": 1, "steps": effect.steps, "step_s": 1.1, "parts": parts} for rank in here]
        return {"profiles": taken, "missing": {str(rank): "it is gone" for rank in effect.ranks if rank not in here}}

    def _answer(self, agent: Agent, effect: Effect, row: dict[str, Any]) -> None:
        kind: type[EffectDone] | type[EffectFailed] = EffectFailed if "because" in row else EffectDone
        generation = effect.generation + (1 if self.world.faults.strikes("agent.lies.wrong_generation", 0.002) else 0)
        row = {"at": 0.0, "effect": effect.id, "generation": generation, "node": self.name, **row}
        agent.busy.discard(effect.id)
        self._tell(agent, msgspec.convert(row, type=kind))

    def _start_store(self, effect: StartStore, begun: bool, answer: Callable[[dict[str, Any]], None]) -> None:
        disk, world = self.disk, self.world
        if begun:
            none = {"because": "the agent died while it started the store, and no such store runs"}
            world.clock.after(0.5, lambda: answer({"port": self.stores[effect.generation]} if effect.generation in self.stores else none))
            return

        def start() -> None:
            if self.is_up and self.disk is disk:
                self.stores[effect.generation] = world.port()
                answer({"port": self.stores[effect.generation]})

        world.clock.after(world.dice.uniform(0.02, 0.5) + self.disk_slow_s, start)

    def _start_gang(self, effect: StartGang, begun: bool, answer: Callable[[dict[str, Any]], None]) -> None:
        disk, world = self.disk, self.world
        if begun:
            # Orders to the warm parent keep their order: what was under way is seen.
            world.clock.after(1.0, lambda: answer(self._found_gang(effect)))
            return
        if world.faults.strikes("agent.cannot_start", 0.002):
            answer({"because": "cannot fork: out of process ids"})
            return

        def start() -> None:
            if not self.is_up or self.disk is not disk:
                return
            disk.under_way.pop(effect.generation, None)
            if effect.generation in disk.stopped:
                answer({"because": "the generation was stopped before it started"})
                return
            was = [rank + effect.moved for rank in effect.kept]
            if any(rank not in self.workers or self.workers[rank].generation != effect.kept_of for rank in was):
                answer({"because": f"ranks {was} waited for their place, and not all of them are there"})
                return
            disk.starts[effect.id] = disk.starts.get(effect.id, 0) + 1
            disk.last_start = (effect.generation, effect.ranks)
            world.judge.started(self, effect)
            for rank in was:  # One that is kept is the same process, and another part of the story.
                del self.workers[rank]
            for rank in effect.ranks:
                self.workers[rank] = Worker(rank=rank, generation=effect.generation, effect=effect.id, node=self)
                world.training.joined(self.workers[rank], effect.restore, effect.store_port, effect.world_size, effect.kept_of if effect.rejoin else 0)
            answer({})

        if effect.rejoin and not effect.kept and world.faults.strikes("node.lost_joining", 0.05):
            world.clock.after(world.dice.uniform(0.0, 2.0), lambda: world.faults.node_lost(self.name, "node.lost"))
        disk.under_way[effect.generation] = effect.ranks
        world.clock.after(world.dice.uniform(0.05, 1.0) + self.disk_slow_s, start)

    def _found_gang(self, effect: StartGang) -> dict[str, Any]:
        ended = {exit.rank for generation, exit in self.disk.exits if generation == effect.generation}
        found = ended | {rank for rank, worker in self.workers.items() if worker.generation == effect.generation}
        return {} if found >= set(effect.ranks) else {"because": "the agent died while it started its ranks"}

    def _stop_gang(self, effect: StopGang, answer: Callable[[dict[str, Any]], None]) -> None:
        """Graceful: ranks leave at their next step with the code of a stop, or are killed when the grace is over."""
        world, disk = self.world, self.disk
        disk.stopped.add(effect.generation)
        of_it = [worker for worker in self.workers.values() if worker.generation == effect.generation]
        for worker in of_it:
            if world.faults.strikes("worker.unkillable", 0.0011):
                self.unkillable.add(worker.rank)
                self.distrusted = True
        takes_s = world.dice.uniform(0.01, 0.3)
        if effect.graceful and of_it:
            world.clock.after(world.dice.random() * world.training.step_s, lambda: self._leave_gracefully(effect.generation))
            takes_s = min(effect.grace_s, world.training.step_s + takes_s)

        def stop() -> None:
            if not self.is_up or self.disk is not disk:
                return
            self._kill(effect.generation)
            left = tuple(rank for rank, worker in self.workers.items() if worker.generation == effect.generation)
            answer({"because": f"ranks {left} survived SIGKILL", "unkillable": left} if left else {})

        world.clock.after(takes_s, stop)

    def _part_gang(self, effect: PartGang, answer: Callable[[dict[str, Any]], None]) -> None:
        """Who can leaves and waits; the others are killed. Done again by an agent that died in the middle, it comes to the same."""
        world, disk = self.world, self.disk
        disk.stopped.add(effect.generation)
        if world.faults.strikes("node.lost_parting", 0.01):
            world.clock.after(world.dice.uniform(0.0, 2 * effect.within_s), lambda: world.faults.node_lost(self.name, "node.lost"))

        def part() -> None:
            if not self.is_up or self.disk is not disk:
                return
            attempt = world.training.attempts[effect.generation]
            attempt.broken = True
            for worker in [one for one in self.workers.values() if one.generation == effect.generation and one.waits is None]:
                deaf = worker.hung or worker.rank in effect.culprits or world.faults.strikes("worker.does_not_part", 0.03)
                if deaf or worker.rank in self.unkillable:
                    self._end(worker)
                else:
                    torn = world.faults.strikes("worker.parts_torn", 0.05)
                    worker.waits = -1 if torn or world.training.sharded else attempt.step
                    world.clock.after(PLACE_S, lambda worker=worker: self._forgotten(worker))  # type: ignore[misc]
            left = tuple(worker.rank for worker in self.workers.values() if worker.generation == effect.generation and worker.waits is None)
            waiting = {str(rank): worker.waits for rank, worker in self.workers.items() if worker.generation == effect.generation}
            self.stores.pop(effect.generation, None)
            reached = dict.fromkeys(waiting, attempt.step)
            answer({"because": f"ranks {left} survived SIGKILL", "unkillable": left} if left else {"waiting": waiting, "reached": reached})

        world.clock.after(world.dice.uniform(0.01, effect.within_s), part)

    def _forgotten(self, worker: Worker) -> None:
        if worker.waits is not None:
            self.leave(worker, Exit(rank=worker.rank, pid=1, kind=ExitKind.CODE, code=78, because="nobody gave it a place", at_ns=self.now_ns()))

    def _leave_gracefully(self, generation: int) -> None:
        training = self.world.training
        training.save_at_stop(generation)
        code = 143 if training.guarded else 0
        kind = ExitKind.CODE if code else ExitKind.FINISHED
        for worker in [one for one in self.workers.values() if one.generation == generation and not one.hung and one.rank not in self.unkillable]:
            exit = Exit(rank=worker.rank, pid=1, kind=kind, code=code, because="it was asked to stop", stopped_by_us=True, at_ns=self.now_ns())
            self.leave(worker, exit)

    def tell_mesh(self, generation: int, holds: dict[str, int], dimensions: tuple[tuple[str, int, bool], ...]) -> None:
        """One that is dead just then does not see it; the next gang's is seen again."""
        if self.agent is not None:
            self._tell(self.agent, MeshSeen(at=0.0, node=self.name, generation=generation, holds=holds, dimensions=dimensions))

    def found_silent(self, worker: Worker, kind: str) -> None:
        """The detector speaks, as soon as an agent is there to hear it."""
        if self.workers.get(worker.rank) is not worker or not self.is_up or worker.rank in self.unkillable or worker.waits is not None:
            return
        if self.agent is None:
            self.world.clock.after(10.0, lambda: self.found_silent(worker, kind))
            return
        because = f"rank {worker.rank} made no progress"
        since = self.world.clock.now + self.clock_ahead_s - 3.0
        finding = Finding(kind=kind, node=self.name, ranks=(worker.rank,), since=since, because=because, evidence=("no CPU",))
        self._tell(self.agent, FindingMade(at=0.0, generation=worker.generation, finding=finding))
        # An agent that dies before this is written down is followed by one that finds it again.
        self.world.clock.after(60.0, lambda: self.found_silent(worker, kind))

    # Lies. Each is something that an agent with a mistake in it, or one that was away for long, may say.

    def answer_again(self, which: int) -> bool:
        """An effect that was answered long ago is answered once more."""
        answered = sorted(self.disk.answers)
        if self.agent is not None and answered:
            event = EffectDone(at=0.0, effect=answered[which % len(answered)], generation=0, node=self.name, port=1, checkpoint="none")
            self._tell(self.agent, event)
            return True
        return False

    def answer_for_another(self, effect: str, generation: int) -> bool:
        if self.agent is not None:
            self._tell(self.agent, EffectDone(at=0.0, effect=effect, generation=generation, node=self.name, port=1))
            return True
        return False

    def tell_old(self, generation: int, rank: int, *, exit: bool) -> bool:
        """Of a generation that is over."""
        if self.agent is None:
            return False
        if exit:
            told = Exit(rank=rank, pid=1, kind=ExitKind.SIGNAL, signal=9, because=f"rank {rank} died long ago", at_ns=self.now_ns())
            self._tell(self.agent, WorkerExited(at=0.0, node=self.name, generation=generation, exit=told))
        else:
            finding = Finding(kind="silent_rank", node=self.name, ranks=(rank,), since=self.world.clock.now, because=f"rank {rank} made no progress")
            self._tell(self.agent, FindingMade(at=0.0, generation=generation, finding=finding))
        return True
