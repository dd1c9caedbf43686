"""Virtual control: the real core and a journal, between virtual agents. It may die before and after every write, and between any two effects.

It keeps the contract of the real one: an event is decided and written down before it is acknowledged and before anything is performed; after a death the core
comes from the journal, agents say what they run, and what was never answered is sent again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

import msgspec

from holdfast.core import Core
from holdfast.detect.poisoned import Look, Poisoned
from holdfast.domain.effect import CONTROL, ChooseRanks, Effect, EndJob, FindCheckpoint
from holdfast.domain.event import (
    CheckpointSaved,
    EffectDone,
    Event,
    FindingMade,
    GangRestored,
    IntervalChosen,
    JobResumed,
    JobSubmitted,
    NodeHeard,
    NodeSilent,
    ProgressSeen,
    Ticked,
)
from holdfast.domain.state import NodeState, State
from holdfast.simulate.link import Link
from holdfast.wire.codec import decode_effect, decode_event, encode
from holdfast.wire.messages import Ack, Told
from holdfast.wire.outbox import Inbox

if TYPE_CHECKING:
    from holdfast.simulate.node import Agent, VirtualNode
    from holdfast.simulate.training import Attempt
    from holdfast.simulate.world import World


_SNAPSHOT_EVERY = 200


class Crashed(Exception):
    """Control died here."""


class Journal(Protocol):
    """What control needs of a journal; the real one fits."""

    def append(self, event: Event, effects: Sequence[Effect], state: State) -> None: ...
    def load(self) -> Core: ...
    def effects(self, ids: Iterable[str]) -> tuple[Effect, ...]: ...
    def close(self) -> None: ...


@dataclass(slots=True)
class MemoryJournal:
    """A journal that outlives control and no more: the same bytes and snapshots, no disk."""

    _events: list[tuple[str, bytes]] = field(default_factory=list)
    _effects: dict[str, tuple[str, bytes]] = field(default_factory=dict)
    _snapshot: tuple[int, bytes] = (0, b"")  # After how many events, and the state then.

    def append(self, event: Event, effects: Sequence[Effect], state: State) -> None:
        self._events.append(encode(event))
        self._effects.update({effect.id: encode(effect) for effect in effects})
        if len(self._events) % _SNAPSHOT_EVERY == 0:
            self._snapshot = (len(self._events), msgspec.json.encode(state))

    def load(self) -> Core:
        after, body = self._snapshot
        core = Core(msgspec.json.decode(body, type=State)) if after else Core()
        for kind, event in self._events[after:]:
            core.step(decode_event(kind, event))
        return core

    def effects(self, ids: Iterable[str]) -> tuple[Effect, ...]:
        wanted = set(ids)
        return tuple(decode_effect(*row) for id, row in self._effects.items() if id in wanted)

    def close(self) -> None:
        pass


@dataclass(slots=True)
class VirtualControl:
    world: World
    journal: Journal
    core: Core = field(default_factory=Core)
    inbox: Inbox = field(default_factory=Inbox)
    is_up: bool = False
    life: int = 0
    ended: bool = False
    writes: int = 0
    paused_until: float = 0.0
    clock_ahead_s: float = 0.0  # Of this machine; what control goes by is `now`.
    links: dict[str, Link] = field(default_factory=dict)
    _left_at: dict[str, float] = field(default_factory=dict)
    _tick_at: float = float("inf")
    _seen: tuple[int, bool, bool, bool] = (-1, False, False, False)  # Generation; restored, ready, caught up: what was told of it.
    _told_at: float = 0.0
    _saved_step: int = -1
    _poisoned: Poisoned = field(default_factory=Poisoned)
    _offset_s: float = 0.0

    # Living and dying.

    def start(self, *, resume: bool = False) -> None:
        if self.is_up:
            return
        world = self.world
        self.core, self.inbox, self.is_up, self.ended = self.journal.load(), Inbox(), True, False
        self.life += 1
        world.faults.clock_at_start()
        self._set_clock()
        self._tick_at, self._seen, self._saved_step, self._poisoned = float("inf"), (-1, False, False, False), -1, Poisoned()
        world.note("control", self.life)
        state = self.core.state
        if state.spec is None:
            self.accept(JobSubmitted(at=self.now(), spec=world.spec))
        elif resume:
            self.accept(JobResumed(at=self.now(), spec=world.spec))
        else:
            self.accept(Ticked(at=self.now(), away=True))
            for name in state.nodes:
                self._expect_back(name)
            for effect in self.journal.effects(id for id, pending in state.pending.items() if pending.node == CONTROL):
                self._perform(effect)
            self.ended = state.outcome is not None
        self._arm()
        if world.faults.strikes("control.dies.coming_back", 0.03):
            raise Crashed

    def now(self) -> float:
        """As the real one: what it woke up with and the time since, whatever is done to the machine's clock meanwhile."""
        return max(self.world.clock.now + self._offset_s, self.core.state.at)

    def _set_clock(self) -> None:
        """Time goes on from the last event at least, else nothing would be due until the machine's clock has come so far again."""
        self._offset_s = max(self.world.clock.now + self.clock_ahead_s, self.core.state.at) - self.world.clock.now

    def crash(self) -> None:
        self.is_up = False
        self.world.note("control dies", self.life)
        self.links = {}
        for node in self.world.nodes.values():
            if node.agent is not None and node.agent.link is not None:  # Also one whose first message is still on its way.
                node.agent.link.cut(dead=True)
                node.disconnected(node.agent.link)

    # Taking events.

    def accept(self, event: Event) -> None:
        world, judge = self.world, self.world.judge
        judge.before(self.core.state, event)
        effects = self.core.step(event)
        self.core.check()
        self.writes += 1
        world.faults.at_write(self.writes, before=True)
        self.journal.append(event, effects, self.core.state)
        world.wrote(event, effects)
        judge.written(self.core.state, event, effects)
        world.faults.at_write(self.writes, before=False)
        for effect in effects:
            self._perform(effect)
            if world.faults.strikes("control.dies.between_effects", 0.0007):
                raise Crashed
        self._leave_the_lost()
        self._arm()

    def _perform(self, effect: Effect) -> None:
        world, life = self.world, self.life
        match effect:
            case FindCheckpoint():
                world.clock.after(0.01, lambda: self._find_checkpoint(effect, life))
            case ChooseRanks():
                world.clock.after(0.01, lambda: self._choose_ranks(effect, life))
            case EndJob():
                self.ended = True
            case _:
                link = self.links.get(effect.node)
                agent = world.nodes[effect.node].agent
                if link is not None and agent is not None and agent.link is link:
                    link.to_agent(lambda message: world.nodes[effect.node].hear(agent, message), effect)

    def _find_checkpoint(self, effect: FindCheckpoint, life: int) -> None:
        if self.is_up and self.life == life:
            found = self.world.training.newest(effect.distrusted)
            name, step = (found.name, found.step) if found is not None else ("", -1)
            self.world.judge.found(name)
            done = EffectDone(at=self.now(), effect=effect.id, generation=effect.generation, node=CONTROL, checkpoint=name, checkpoint_step=step)
            self.accept(done)

    def _choose_ranks(self, effect: ChooseRanks, life: int) -> None:
        if self.is_up and self.life == life:
            slow = effect.ranks or (0,)
            beside = tuple(rank for rank in range(self.core.state.world_size) if rank not in slow)[:1]
            done = EffectDone(at=self.now(), effect=effect.id, generation=effect.generation, node=CONTROL, slow=slow, beside=beside)
            self.accept(done)

    def _arm(self) -> None:
        """Come back when the core's next deadline is due, a little late as every clock is."""
        due = self.core.next_deadline()
        if due is None or due >= self._tick_at:
            return
        life = self.life
        self._tick_at = due
        self.world.clock.after(due - self.now() + 0.2 * self.world.dice.random(), lambda: self._tick(due, life))

    def _tick(self, due: float, life: int) -> None:
        if not self.is_up or self.life != life or self._tick_at != due:
            return
        if self._waits(lambda: self._tick(due, life)):
            return
        self._tick_at = float("inf")
        deadline = self.core.next_deadline()
        if deadline is not None and deadline <= self.now():
            self.world.judge.due(self.core.state, self.now())
            self.accept(Ticked(at=self.now()))
        self._arm()

    def _waits(self, do: Callable[[], None]) -> bool:
        """Whether control stands still; then this is done when it goes on."""
        if self.paused_until > self.world.clock.now:
            self.world.clock.at(self.paused_until, do)
            return True
        return False

    # Agents.

    def hello(self, node: VirtualNode, agent: Agent, link: Link, running: dict[str, tuple[int, ...]]) -> None:
        if not self.is_up or link.life != self.life or not link.is_open:
            return
        old = self.links.pop(node.name, None)
        if old is not None and old is not link:
            old.cut()
        self.links[node.name] = link
        self._left_at.pop(node.name, None)
        self.accept(NodeHeard(at=self.now(), node=node.name, host="127.0.0.1", running=running, warm=node.warm))
        if self.links.get(node.name) is link:
            for effect in self.journal.effects(id for id, pending in self.core.state.pending.items() if pending.node == node.name):
                link.to_agent(lambda message: node.hear(agent, message), effect)

    def told(self, node: VirtualNode, agent: Agent, link: Link, message: Told) -> None:
        if not self.is_up or link.life != self.life:
            return
        if self.inbox.is_new(agent.instance, message.seq):
            self.accept(replace(decode_event(message.kind, message.body), at=self.now()))
            self.world.judge.told(agent.instance, message.seq, self.life)
        link.to_agent(lambda message: node.hear(agent, message), Ack(seq=message.seq))

    def lost(self, name: str, link: Link) -> None:
        """A connection ended, and control sees it."""
        link.cut()
        if self.links.get(name) is link:
            del self.links[name]
            self._expect_back(name)
        self.world.nodes[name].disconnected(link)

    def frozen(self, name: str, link: Link) -> None:
        """Nothing comes through any more, and nobody was told."""
        link.cut()
        self.world.nodes[name].disconnected(link)
        self._expect_back(name, within_s=10.0)

    def _expect_back(self, name: str, within_s: float = 2.5) -> None:
        since, life = self.world.clock.now, self.life
        self._left_at[name] = since
        self.world.clock.after(within_s + 0.2, lambda: self._still_silent(name, since, life))

    def _still_silent(self, name: str, since: float, life: int) -> None:
        if self.is_up and self.life == life and self._left_at.get(name) == since and not self._waits(lambda: self._still_silent(name, since, life)):
            del self._left_at[name]
            self.accept(NodeSilent(at=self.now(), node=name, since=since + self._offset_s, because=f"node {name} is not heard"))

    def _leave_the_lost(self) -> None:
        """A node that counts as lost must say anew what it runs: its connection is closed, and it comes back with a new one."""
        for name, node in self.core.state.nodes.items():
            if node.state is NodeState.LOST and name in self.links:
                self.lost(name, self.links[name])
                self._left_at.pop(name, None)

    # What the observer would say.

    def readings(self, attempt: Attempt) -> None:
        """Every rank was read. As in the real one, few of these become events."""
        state, world = self.core.state, self.world
        gang = state.gang
        heard = gang is not None and gang.generation == attempt.generation and all(name in self.links for name in gang.nodes)
        if not (self.is_up and world.training.guarded and heard and state.phase == "running") or self.paused_until > world.clock.now:
            return
        now, generation, step = self.now(), attempt.generation, attempt.step
        of, restored, ready, caught_up = self._seen
        if of != generation:
            restored = ready = caught_up = False
            self._saved_step, self._poisoned = -1, Poisoned()
        catches_up, stepped = step >= state.step_best, step > attempt.step_started
        events: list[Event] = []
        if not restored:
            events.append(GangRestored(at=now, generation=generation, step=attempt.step_started, restore_s=0.05))
        if stepped and step % 7 == 0:
            events.append(_chosen(now, generation, step))
        if stepped and (not ready or (catches_up and not caught_up) or now - self._told_at >= 10.0):
            self._told_at = now
            rejoins, sharded = world.training.rejoins, world.training.sharded
            events.append(ProgressSeen(at=now, generation=generation, step=step, save_s=attempt.save_s, rejoins=rejoins, sharded=sharded))
            ready, caught_up = True, catches_up
        if attempt.saved_step > self._saved_step:
            self._saved_step = attempt.saved_step
            events.append(CheckpointSaved(at=now, generation=generation, step=attempt.saved_step))
        if stepped:
            attempt.looks.add((self.life, step))
        look = Look(step=step, step_started=attempt.step_started, finite=not attempt.not_finite if stepped else None)
        assert gang is not None
        finding = self._poisoned.look(dict.fromkeys(attempt.ranks, look), gang.restore or "", gang.restore_step, up_at=gang.started_at, now=now)
        if finding is not None:
            events.append(FindingMade(at=now, generation=generation, finding=finding))
        self._seen = (generation, True, ready, caught_up)
        for event in events:
            self.accept(event)


def _chosen(at: float, generation: int, step: int) -> IntervalChosen:
    every = 1 + step % 5
    return IntervalChosen(
        at=at, generation=generation, every=every, from_step=step + 2, automatic=step % 3 != 0, because="it is time", interval_s=float(every), overhead=0.01,
        goodput=0.9, cheapest=every, step_s=1.0, failures=0,
    )  # fmt: skip
