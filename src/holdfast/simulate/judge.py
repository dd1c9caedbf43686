"""The judge: what the core, its control and its agents are held to, beside what `core.check()` asks after each step. A promise not kept is `Broken`.

While it happens    processes are started once for an effect, on a node where nothing older lives and that saw nothing newer; nothing older lives on any node
                    that counts as ready; all ranks of a generation are started, by distinct nodes, and restore the same, which is whole and trusted. A gang
                    is never smaller than it may be, and on no node that a person has taken out of service. What
                    reaches an agent, and what is acknowledged, is written down; an effect has an id of its own; a message counts once in a life of
                    control. An exit that is believed happened, to that rank of that generation. A restart is counted, and there are no more than the
                    budget allows; after a stop was asked for nothing is started. What is asked of a node that is there reaches it; the time that control
                    was away counts against nobody. A gang that is examined for a hang has one. What is restored is the newest that was found. Whoever lives
                    on gives others what it holds whole, or restores what they do, all of them alike. A gang
                    that ran in peace has left a node before it went, if that was told a minute before and there was another. Whoever waits for its place is
                    given the one it had, or the one that is left of it in a gang of another size. Where the core knows that the state is split over two
                    nodes, a gang is pairs of them, and those who live on go on only with both parts, each with its own.
At the end          the journal, read again, gives the state that was live; "finished" means that every rank of one generation ran to its end, and that the
                    model has learned from every batch once, in order. Nothing runs but what cannot be killed. No good checkpoint was called poisoned; no gang
                    whose first steps after a restore control saw to be NaN ran to its end; going back ended within its budget, or where nothing good was
                    left. Nobody gives up for want of nodes that are there. By themselves profiles were taken once for an incident and not more often than
                    the policy says. What an agent told is acknowledged. No gang was stopped for more nodes sooner after the last change than the policy
                    says, and none finished on fewer nodes than were there for long.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from holdfast.core import leaving, membership, replicas
from holdfast.core.base import GOES_CODE
from holdfast.domain.diagnosis import Cause
from holdfast.domain.effect import Effect, StartGang, StartStore
from holdfast.domain.event import Event, FindingMade, JobResumed, JobSubmitted, NodeCordoned, StopAsked, Ticked
from holdfast.domain.finding import Finding
from holdfast.domain.job import JobPhase, Outcome
from holdfast.domain.state import NodeState, State
from holdfast.simulate.training import learned

if TYPE_CHECKING:
    from holdfast.simulate.node import VirtualNode
    from holdfast.simulate.training import Attempt
    from holdfast.simulate.world import World

ACKNOWLEDGED_S = 150.0  # On one connection, held up by everything at once.
THERE_S = 60.0  # A node that was connected for so long is there.
SAME_CORRUPT_MAX = 6  # A checkpoint that does not verify may be met again where another fault hid it; not for ever.


class Broken(AssertionError):
    """A promise was not kept."""


def encoded(state: State) -> bytes:
    """The state as bytes that depend on nothing but the state."""
    return msgspec.json.encode(state, order="deterministic")


@dataclass(slots=True)
class Judge:
    world: World
    _written: set[tuple[str, int]] = field(default_factory=set)
    _taken: set[tuple[int, str, int]] = field(default_factory=set)
    _issued: set[str] = field(default_factory=set)
    _save_every: dict[int, int | None] = field(default_factory=dict)  # Generation to what its first node was told.
    _restored: Counter[str] = field(default_factory=Counter)  # Checkpoint to how often a gang met that restored it, and it was corrupt.
    _generations_before: int = 0  # This run of the job.
    _stop_asked: bool = False
    _found: str = ""
    _awaited: frozenset[str] = frozenset()
    _exited: frozenset[int] = frozenset()
    _generation: int = 0
    _late_generation: int = -1
    _late_cordons: set[str] = field(default_factory=set)

    # What must hold whenever somebody acts.

    def before(self, state: State, event: Event) -> None:
        self._exited = frozenset(state.gang.exited) if state.gang is not None else frozenset()
        self._generation = state.generation
        was_away = isinstance(event, Ticked) and event.away
        if was_away and any(leaving.is_fixed(name) and at <= event.at for name, at in state.deadlines.items()):
            was_away = False  # A node that goes waits for no control.
        self._awaited = frozenset(state.pending) if was_away else frozenset()

    def written(self, state: State, event: Event, effects: Sequence[Effect]) -> None:
        """An event, and what was decided on it, is in the journal."""
        match event:
            case JobSubmitted() | JobResumed():
                self._generations_before, self._stop_asked = self._generation, False
            case StopAsked():
                self._stop_asked = True
            case NodeCordoned(node=node):
                kept = self._late_cordons if self._late_generation == state.generation else set()
                self._late_generation, self._late_cordons = state.generation, kept | {node}
            case FindingMade(finding=finding) if effects and finding.kind in ("silent_rank", "stopped_rank"):
                self._judge_hang(state, finding)
        if not self._awaited <= state.pending.keys():
            raise Broken("control was away, and that counts against those whom it had asked")
        for effect in effects:
            if effect.id in self._issued:
                raise Broken(f"{effect.id} was an effect already, and is another one now")
            self._issued.add(effect.id)
        self._judge_exits(state)
        if state.generation != self._generation:
            self._judge_budget(state)
        if self._stop_asked and any(isinstance(effect, StartGang | StartStore) for effect in effects):
            raise Broken("a stop was asked for, and something is started")
        starts = [effect for effect in effects if isinstance(effect, StartGang)]
        if starts:
            self._judge_starts(state, starts)

    def _judge_hang(self, state: State, finding: Finding) -> None:
        """Whoever is examined and stopped because a rank hangs, has one that does, or is broken anyway."""
        attempt = self.world.training.attempts.get(state.generation)
        if attempt is not None and not attempt.broken and len(attempt.ranks) == attempt.world_size:
            raise Broken(f"generation {state.generation} is examined because rank {finding.ranks} hangs, and it does not")

    def _judge_exits(self, state: State) -> None:
        gang = state.gang
        if gang is None or len(gang.exited) <= len(self._exited) or state.generation != self._generation:
            return
        for rank in gang.exited - self._exited:
            worker = self.world.nodes[gang.nodes[rank // self.world.spec.ranks_per_node]].workers.get(rank)
            if worker is not None and worker.generation == gang.generation:
                raise Broken(f"rank {rank} of generation {gang.generation} counts as gone, and runs")

    def _judge_budget(self, state: State) -> None:
        limit, formed = self.world.spec.policy.max_restarts, state.generation - self._generations_before
        moved = sum(change.by_choice and change.generation > self._generations_before for change in state.changes)
        if formed != len(state.attempts) + moved + 1:
            raise Broken(f"this is generation {formed} of the run, and {len(state.attempts)} restarts and {moved} moves are counted")
        if limit is not None and len(state.attempts) > limit:
            raise Broken(f"{limit} restarts are allowed, and this is number {len(state.attempts)}")

    def _judge_starts(self, state: State, starts: Sequence[StartGang]) -> None:
        spec, nodes = self.world.spec, {effect.node for effect in starts}
        ranks = sorted(rank for effect in starts for rank in effect.ranks)
        if not spec.least_nodes <= len(nodes) <= spec.nodes or len(nodes) < len(starts):
            raise Broken(f"a gang is started on {sorted(nodes)}; expected {spec.least_nodes} to {spec.nodes} nodes")
        if ranks != list(range(len(nodes) * spec.ranks_per_node)) or {effect.world_size for effect in starts} != {len(ranks)}:
            raise Broken(f"ranks {ranks} are started on {[effect.node for effect in starts]}; expected {len(nodes) * spec.ranks_per_node}, each once")
        if nodes & state.cordoned.keys() - self._cordoned_since_formed(state):
            raise Broken(f"a gang is started on {sorted(nodes & state.cordoned.keys())}, which a person has taken out of service")
        for effect in starts:
            waits = {worker.rank for worker in self.world.nodes[effect.node].workers.values() if worker.waits is not None}
            if effect.kept_of and waits - {rank + effect.moved for rank in effect.kept}:
                raise Broken(f"ranks {sorted(waits)} wait on {effect.node}, and {effect.kept}, {effect.moved} higher, are told to go on")
        self._judge_kept(starts)
        self._judge_parts(state, starts)
        if any(effect.restore != self._found for effect in starts if not effect.rejoin):
            raise Broken(f"{sorted({effect.restore for effect in starts})} is restored, and the newest that was found is {self._found!r}")
        distrusted = {effect.restore for effect in starts} & set(state.distrusted)
        if distrusted:
            raise Broken(f"{distrusted} is restored, and is not trusted")

    def _judge_kept(self, starts: Sequence[StartGang]) -> None:
        """All go on with what somebody holds whole, or all with what they restore: never some so and some so, and nobody who lives on with what a start begins
        with."""
        if len({(effect.rejoin, effect.restore, effect.kept_of) for effect in starts}) > 1:
            raise Broken(f"some ranks are to take over a step and others are to restore one: {[(one.node, one.rejoin, one.restore) for one in starts]}")
        kept = [(self.world.nodes[effect.node].workers.get(rank + effect.moved), rank) for effect in starts for rank in effect.kept]
        # One that has ended since then is the next story.
        if starts[0].rejoin and not any(worker is None or worker.waits is None or worker.waits >= 0 for worker, _ in kept):
            raise Broken(f"ranks {[rank for _, rank in kept]} live on and are to give what they hold to the others, and none of them holds a step whole")
        if kept and not starts[0].rejoin and not starts[0].restore:
            raise Broken(f"ranks {[rank for _, rank in kept]} live on, and are to begin as if nothing had been trained")

    def _judge_parts(self, state: State, starts: Sequence[StartGang]) -> None:
        """A gang of which it is known that its state is split over two nodes has whole replicas; and those who live on go on only with all of the state, and
        each with what it holds."""
        training, gang = self.world.training, state.gang
        if not training.split or state.mesh is None or gang is None:
            return
        if len(starts) % 2:
            raise Broken(f"a gang is started on {len(starts)} nodes, and a replica is two")
        held = set()
        for effect in (effect for effect in starts if effect.rejoin):
            for rank in effect.kept:
                worker, holds = self.world.nodes[effect.node].workers.get(rank + effect.moved), training.part(rank, effect.world_size)
                if worker is None or worker.generation != effect.kept_of or worker.waits in (gang.restore_step, None):
                    held.add(holds)  # One that has ended since then is the next story.
                if worker is not None and training.part(worker.rank, training.attempts[worker.generation].world_size) != holds:
                    raise Broken(f"rank {worker.rank} of {effect.node} goes on as rank {rank}, which has another part of the state")
        if any(effect.rejoin for effect in starts) and len(held) < 2:
            raise Broken(f"those who live on hold part {held} of the state, and go on with step {gang.restore_step}")

    def _cordoned_since_formed(self, state: State) -> set[str]:
        """Nodes that were cordoned while the gang was being formed on them: it is not given up for that."""
        return self._late_cordons if state.generation == self._late_generation else set()

    def _judge_thrash(self, state: State) -> None:
        """By its own choice nobody stops a gang for more nodes so soon after the last change; one that has to leave a node may take others in as well."""
        every_s = self.world.spec.policy.resize_every_s
        for before, after in itertools.pairwise(state.changes):
            if after.by_choice and set(after.before) < set(after.after) and after.at - before.at < every_s:
                raise Broken(f"a gang was stopped for more nodes {after.at - before.at:.0f} s after the last change, and {every_s:.0f} s is the least")

    def _judge_grown(self, state: State) -> None:
        """Who finished on fewer nodes than there were for long had no save at which to take them in."""
        spec, training, gang = self.world.spec, self.world.training, state.gang
        if state.outcome is not Outcome.FINISHED or gang is None or not training.guarded or len(gang.nodes) == spec.nodes or spec.policy.mode != "auto":
            return
        rounds_s = 3 * training.save_every * training.step_s * spec.nodes / len(gang.nodes) + 60.0
        rests_s = spec.policy.resize_every_s * 2**membership.DOUBLED_MAX
        since = self.world.clock.now - rests_s - rounds_s
        could = [name for name, link in self.world.control.links.items() if link.opened_at < since and name not in (*gang.nodes, *state.cordoned)]
        changed = max((change.at for change in state.changes), default=0.0)
        quiet = max(gang.started_at, changed) < state.at - rests_s - rounds_s
        could = [name for name in could if state.nodes[name].state is NodeState.READY]
        if len(could) >= replicas.block(state) and quiet and self.world.faults.until < since:
            raise Broken(f"the job finished on {len(gang.nodes)} of {spec.nodes} nodes, and {could} was there for long")

    def _warned(self) -> bool:
        return self.world.hits["node.noticed"] + self.world.hits["node.notice_withdrawn"] > 0

    def noticed(self, node: str) -> Callable[[], None]:
        """It is told that a node will go. To be asked when it does."""
        control, state = self.world.control, self.world.control.core.state
        told_at, life, generation, incidents = self.world.clock.now, control.life, state.generation, len(state.incidents)

        def goes() -> None:
            gang, since_s = state.gang, self.world.clock.now - told_at
            peace = control.is_up and (control.life, state.generation, len(state.incidents)) == (life, generation, incidents)
            if gang is None or not peace or state.phase is not JobPhase.RUNNING or not (gang.ready and gang.beats and gang.started_at < told_at):
                return
            if since_s > THERE_S and node in gang.nodes and node in state.cordoned and leaving.has_place(state):
                raise Broken(f"{node} goes, which was told {since_s:.0f} s ago, and the gang is still there")

        return goes

    def found(self, checkpoint: str) -> None:
        """The newest that is whole and trusted."""
        self._found = checkpoint

    def reached(self, node: str, effect: Effect) -> None:
        if effect.id not in self._issued:
            raise Broken(f"{effect.id} reached {node} and was never written down")

    def due(self, state: State, now: float) -> None:
        """Before somebody's time is over: it must have been asked, if it was there all the time."""
        for id, pending in state.pending.items():
            if pending.deadline > now or pending.kind not in ("StartStore", "StartGang"):  # Other waits are too short to be sure.
                continue
            node, link = self.world.nodes[pending.node], self.world.control.links.get(pending.node)
            there = link is not None and node.agent is not None and node.agent.link is link and self.world.clock.now - link.opened_at > THERE_S
            if there and id not in node.disk.begun:
                raise Broken(f"{pending.kind} was asked of {pending.node}, which was there, and never reached it")

    def started(self, node: VirtualNode, effect: StartGang) -> None:
        world = self.world
        world.note("start", node.name, effect.generation, effect.ranks)
        if node.disk.starts[effect.id] > 1:
            raise Broken(f"{effect.id} started processes on {node.name} twice")
        kept = [worker for worker in node.workers.values() if worker.rank - effect.moved in effect.kept]
        if any(worker.waits is None for worker in kept):
            raise Broken(f"ranks {effect.kept} of {node.name} go over to generation {effect.generation}, and do not wait for it")
        others = [worker for worker in node.workers.values() if worker not in kept]
        older = [worker.generation for worker in others if worker.generation != effect.generation]
        if older:
            raise Broken(f"generation {effect.generation} starts on {node.name} while ranks of {sorted(set(older))} live there")
        if any(worker.rank in effect.ranks for worker in others):
            raise Broken(f"ranks {effect.ranks} of generation {effect.generation} start on {node.name}, where some of them run already")
        if self._save_every.setdefault(effect.generation, effect.save_every) != effect.save_every:
            raise Broken(f"generation {effect.generation} saves every {effect.save_every} steps on {node.name} and not so elsewhere")
        if node.disk.newest > effect.generation:
            raise Broken(f"generation {effect.generation} starts on {node.name} after generation {node.disk.newest} was started there")
        node.disk.newest = effect.generation
        for name, known in world.control.core.state.nodes.items():
            others = [worker for worker in world.nodes[name].workers.values() if not (effect.kept_of and worker.waits is not None)]
            forgotten = {worker.generation for worker in others if worker.generation < effect.generation}
            if forgotten and known.state is NodeState.READY:
                raise Broken(f"generation {effect.generation} starts while ranks of {sorted(forgotten)} live on {name}, which counts as ready")

    def restored(self, attempt: Attempt) -> None:
        """All ranks have met and read what they were told to."""
        one = self.world.training.saved.get(attempt.restore)
        if one is not None and one.missing:
            raise Broken(f"{attempt.restore} was restored, and the parts of {sorted(one.missing)} were never written")

    def corrupt(self, checkpoint: str) -> None:
        self._restored[checkpoint] += 1
        if self._restored[checkpoint] > SAME_CORRUPT_MAX:
            raise Broken(f"{checkpoint} does not verify, and was restored {self._restored[checkpoint]} times")

    def told(self, instance: str, seq: int, life: int) -> None:
        self._written.add((instance, seq))
        if (life, instance, seq) in self._taken:
            raise Broken(f"message {seq} of {instance} was taken twice")
        self._taken.add((life, instance, seq))

    def acknowledged(self, instance: str, seq: int) -> None:
        if (instance, seq) not in self._written:
            raise Broken(f"message {seq} of {instance} was acknowledged and never written down")

    # What must hold at the end.

    def ended(self) -> None:
        control, training, world = self.world.control, self.world.training, self.world
        self.read_again()
        state = control.core.state
        allowed = {
            Outcome.FINISHED: training.completed is not None,
            Outcome.STOPPED: world.hits["job.stop_asked"] + world.hits["job.stop_asked_now"] > 0 or (self._warned() and state.code == GOES_CODE),
            Outcome.PERMANENT: training.failing_step > 0 or self.nothing_good_left(),
            Outcome.FAILED: len(state.attempts) > (9 if world.spec.policy.max_restarts is None else world.spec.policy.max_restarts),
            # A step that fails each time, met first by a gang of fewer nodes, looks as if the script did not run on so few.
            Outcome.BROKEN: replicas.whole(state, self._nodes_there()) < replicas.least(state) or (training.failing_step > 0 and bool(state.refused)),
        }
        if state.outcome is None or not allowed[state.outcome]:
            raise Broken(f"the job is {state.outcome} ({state.because}), which its faults do not explain: {world.faults.done}")
        if state.step_best > training.best:
            raise Broken(f"step {state.step_best} counts as done, and no gang came further than {training.best}")
        self.learned(state)
        self.going_back()
        self._judge_thrash(state)
        self._judge_grown(state)
        self._judge_profiles(state)
        self._judge_acknowledged()
        for node in world.nodes.values():
            node.take_down()
            if node.workers.keys() - node.unkillable:
                raise Broken(f"{node.name} still runs ranks {sorted(node.workers)} after the end")

    def read_again(self) -> None:
        control = self.world.control
        if encoded(control.core.state) != encoded(control.journal.load().state):
            raise Broken("the journal, read again, does not give the state that was live")

    def learned(self, state: State) -> None:
        """The model of a finished job is the one of a run in which nothing went wrong."""
        training = self.world.training
        if state.outcome is Outcome.FINISHED and training.completed is not None:
            weights = 0
            for batch in range(training.steps_total):
                weights = learned(weights, batch)
            if training.completed.weights != weights:
                raise Broken("the job finished, and has not learned from every batch once and in order")

    def nothing_good_left(self) -> bool:
        """Whether going back had to end: nothing but NaN is there, or training came to the same step anew and what it saved there was NaN again."""
        state, training = self.world.control.core.state, self.world.training
        steps = [attempt.step for attempt in state.attempts if attempt.cause == Cause.POISONED_CHECKPOINT]
        good = {one.name for one in training.saved.values() if one.whole} - training.poisoned - set(state.distrusted)
        return bool(steps or state.poisoned) and (not good or len(set(steps)) < len(steps))  # A job that is resumed has made no attempt yet.

    def going_back(self) -> None:
        state, training, policy = self.world.control.core.state, self.world.training, self.world.spec.policy
        accused = set(state.poisoned) - training.poisoned
        if accused:
            raise Broken(f"checkpoints {sorted(accused)} are good and were called poisoned")
        last = training.attempts.get(state.generation)
        while last is not None and last.kept_of:
            last = training.attempts[last.kept_of]  # What rejoins holds what a gang before it has restored.
        if state.outcome is Outcome.FINISHED and last is not None and last.not_finite and _watched(last, self.world.control.life):
            raise Broken("the job finished on NaN, and control had seen it from its first steps")
        back = itertools.groupby(state.attempts, lambda one: one.cause == Cause.POISONED_CHECKPOINT and not one.progressed)
        longest = max((len(list(row)) for went_back, row in back if went_back), default=0)
        if longest > (policy.restarts_in_a_row if policy.max_restarts is None else policy.max_restarts) + 1:
            raise Broken("going back went on beyond its budget")

    def _nodes_there(self) -> int:
        """Nodes that control could use, and knows of for long."""
        world = self.world
        since = world.clock.now - THERE_S
        there = [node for name, node in world.nodes.items() if (link := world.control.links.get(name)) is not None and link.opened_at < since]
        return sum(not node.distrusted and node.name not in world.control.core.state.cordoned for node in there)

    def _judge_profiles(self, state: State) -> None:
        taken = [one for one in state.profiles if one.incident]
        if len({one.incident for one in taken}) < len(taken):
            raise Broken("an incident was profiled by itself more than once")
        assert state.spec is not None and state.spec.policy.profile_every_s is not None
        if any(after.asked_at - before.asked_at < state.spec.policy.profile_every_s for before, after in itertools.pairwise(taken)):
            raise Broken("profiles were taken by themselves more often than the policy allows")

    def _judge_acknowledged(self) -> None:
        world = self.world
        for node in world.nodes.values():
            agent = node.agent
            if agent is None or agent.link is None or not agent.link.is_open or agent.link.life != world.control.life:
                continue
            for told in agent.outbox.unacknowledged()[:1]:
                waits_s = world.clock.now - max(agent.told_at[told.seq], agent.link.opened_at)
                if waits_s > ACKNOWLEDGED_S:
                    raise Broken(f"message {told.seq} of {agent.instance} was told {waits_s:.0f} s ago and is not acknowledged")


def _watched(attempt: Attempt, life: int) -> bool:
    """Whether the control that is there at the end saw two of the first steps: one that died may have taken what it saw along."""
    early = {step for seen_in, step in attempt.looks if seen_in == life and step <= attempt.step_started + 4}
    return len(early) >= 2
