"""The core: all that is known about a job, and what to do next. Read this first.

    event ──► Core.step ──► effects          pure: no clock, no I/O, no randomness, no log

One story runs through it. A gang is formed on nodes, its store and its ranks are started, it runs. Something goes wrong: an exit, a finding, a node that
falls silent. An incident opens; where a rank hangs, stacks are captured before anything is killed; the gang is stopped; when every node says that nothing
of it is left, `diagnose` names the cause and `recover` chooses the rung; a new generation is formed. Each second of it lands in one bucket of the ledger.

Whatever arrives late carries an old generation and is dropped. Whatever is asked has an id and a deadline, and silence past it is an answer too.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import assert_never

from holdfast import asking, membership, profiling, promises, rejoining, standing, verifying
from holdfast.diagnose.collectives import sharpen
from holdfast.diagnose.first_cause import diagnose
from holdfast.diagnose.taxonomy import CLASSES, Permanence
from holdfast.domain.diagnosis import Cause, Diagnosis
from holdfast.domain.effect import CaptureProfile, CaptureStacks, ChooseRanks, Effect, EndJob, FindCheckpoint, PartGang, StartGang, StartStore, StopGang
from holdfast.domain.event import (
    CheckpointSaved,
    EffectDone,
    EffectFailed,
    Event,
    FindingEnded,
    FindingMade,
    GangRestored,
    IntervalChosen,
    JobResumed,
    JobSubmitted,
    NodeCordoned,
    NodeHeard,
    NodeSilent,
    NodeUncordoned,
    PlanApproved,
    PlanVetoed,
    ProfileAsked,
    ProgressSeen,
    StopAsked,
    Ticked,
    WorkerExited,
)
from holdfast.domain.exit import Exit, ExitKind
from holdfast.domain.finding import Finding
from holdfast.domain.fitting import Fitting
from holdfast.domain.goodput import Bucket
from holdfast.domain.incident import Incident, IncidentPhase
from holdfast.domain.job import JobPhase, JobSpec, Mode, Outcome, Policy
from holdfast.domain.plan import Plan, Rung
from holdfast.domain.state import Gang, Node, NodeState, Pending, State, Store
from holdfast.recover.costs import costs_of, node_wait
from holdfast.recover.ladder import Fleet, decide
from holdfast.recover.memory import adjust

PERMANENT_CODE = 80  # `holdfast run` exits with this when it judged that trying again cannot help.
AWAY_S = 2.0  # A deadline that is answered this late was not missed by the others: control was not there to see it kept.
BROKEN_CODE = 81  # And with this when Holdfast itself could not go on.
CORRECTED = 0.95  # How sure a person's word makes it.
_OF_THE_SIZE = (Cause.EXCEPTION, Cause.EXIT_CODE, Cause.OUT_OF_MEMORY)  # What a script may come to on fewer nodes than it was written for.
LIMIT_CODE = 124  # And with this when the job was stopped because its time was over, as timeout(1) does.


@dataclass(slots=True)
class Core:
    """`step` is the only way in, its return value the only way out."""

    state: State = field(default_factory=State)
    _out: list[Effect] = field(default_factory=list)

    def step(self, event: Event) -> tuple[Effect, ...]:
        state = self.state
        if isinstance(event, JobResumed):
            state.ledger.enter(Bucket.DOWN, state.at)  # Nobody ran the job since the last event.
        self._excuse_absence(event)
        state.at = max(state.at, event.at)
        state.ledger.run_to(state.at)
        self._out = []
        if state.outcome is None or isinstance(event, JobResumed):
            self._take(event)
        return tuple(self._out)

    def next_deadline(self) -> float | None:
        """When the shell should send `Ticked`, if nothing else happens before."""
        times = [*self.state.deadlines.values(), *(pending.deadline for pending in self.state.pending.values())]
        return min(times, default=None) if self.state.outcome is None else None

    def _excuse_absence(self, event: Event) -> None:
        """Control itself was away, or slept through a deadline. Nobody could be heard meanwhile, so the time it was away counts against nobody."""
        state, due = self.state, self.next_deadline()
        back = isinstance(event, Ticked) and event.away
        if due is None or (event.at - due <= AWAY_S and not back):
            return
        away_s = max(0.0, event.at - state.at)
        state.deadlines = {name: deadline + away_s for name, deadline in state.deadlines.items()}
        state.pending = {id: replace(pending, deadline=pending.deadline + away_s) for id, pending in state.pending.items()}

    def _take(self, event: Event) -> None:
        match event:
            case JobSubmitted() | JobResumed():
                self._submitted(event)
            case NodeHeard():
                self._node_heard(event)
            case NodeSilent():
                self._node_silent(event)
            case WorkerExited():
                self._worker_exited(event)
            case FindingMade():
                self._finding_made(event)
            case FindingEnded():
                standing.ended(self.state, event, calm_s=self._policy.calm_s)
            case GangRestored() | ProgressSeen() | CheckpointSaved():
                self._progressed(event)
            case IntervalChosen():
                self._interval_chosen(event)
            case EffectDone():
                self._effect_done(event)
            case EffectFailed():
                self._effect_failed(event)
            case StopAsked():
                self._stop_asked(event)
            case ProfileAsked():
                self._profile_asked(event)
            case PlanApproved() | PlanVetoed() | NodeCordoned() | NodeUncordoned():
                self._person_said(event)
            case Ticked():
                self._ticked()
            case _:
                assert_never(event)

    # The job and its nodes.

    def _submitted(self, event: JobSubmitted | JobResumed) -> None:
        state = self.state
        if isinstance(event, JobResumed):
            # Nothing of the earlier run is alive, and its nodes report anew. What was learned stays.
            self._give_up_incident("the run ended before it was resolved")
            standing.close_all(state, "the run ended")
            profiling.end(state, "the run ended")
            if state.outcome is Outcome.PERMANENT:
                # Whoever runs it again has changed something; it may have been that, and not the checkpoints.
                state.distrusted, state.poisoned = tuple(name for name in state.distrusted if name not in state.poisoned), ()
            state.nodes, state.pending, state.deadlines, state.attempts = {}, {}, {}, []
            state.gang, state.store, state.outcome, state.stop, state.code, state.step = None, None, None, None, 0, -1
            state.smaller, state.moving, state.refused, state.draining = "", "", {}, ()
            state.fitting = state.fitting.upwards() if state.spec is not None and state.spec.argv == event.spec.argv else Fitting()
        state.spec = event.spec
        state.avoided = event.spec.learned.suspects if event.spec.learned is not None else ()
        state.generation = max(state.generation, event.spec.generations_before)
        state.ledger.enter(Bucket.START, state.at)
        self._enter(JobPhase.WAITING, f"waiting for {event.spec.nodes} nodes")
        self._wait_for_nodes()

    def _node_heard(self, event: NodeHeard) -> None:
        state = self.state
        node = state.nodes.get(event.node)
        if node is None:
            node = state.nodes[event.node] = Node(host=event.host)
        node.host, node.peer = event.host, event.peer
        node.isolation, node.unkept = event.isolation, event.unkept
        if node.state is NodeState.GIVEN_UP:
            return
        membership.came_back(state, event.node)
        # The next generation's store may be up already. Of the others, only the one we count on may run.
        counted_on = self._generation_on(event.node)
        wanted = (counted_on, state.generation + 1, *rejoining.waited_for(state, event.node))
        stale = sorted(generation for generation in map(int, event.running) if generation not in wanted)
        being_stopped = {state.pending[id].generation for id in self._stops_of(event.node)}
        for generation in stale:
            if generation not in being_stopped:
                self._stop_on(event.node, generation, graceful=False, because=f"generation {generation} is over")
        if counted_on < 0:
            # A node that comes back with old ranks alive is not used again before they are ended.
            node.state = NodeState.CLEANING if self._stops_of(event.node) else NodeState.READY
        self._note_missing(event)
        self._form_if_possible()

    def _generation_on(self, name: str) -> int:
        """The generation that may run on a node: the gang's, as long as the gang counts on the node or waits for it to stop there."""
        state, gang = self.state, self.state.gang
        if gang is None or name not in gang.nodes or state.nodes[name].state is not NodeState.READY or state.phase is JobPhase.WAITING:
            return -1
        return gang.generation

    def _note_missing(self, event: NodeHeard) -> None:
        """A node that restarted so fast that it was never silent may have lost its ranks. Their exits may be on their way: they get a moment."""
        state, gang = self.state, self.state.gang
        if gang is None or event.node not in gang.started or state.phase not in (JobPhase.STARTING, JobPhase.RUNNING, JobPhase.EXAMINING):
            return
        first = gang.nodes.index(event.node) * self._spec.ranks_per_node
        ranks = set(range(first, first + self._spec.ranks_per_node))
        gang.missing = (gang.missing - ranks) | (ranks - gang.exited - set(event.running.get(str(gang.generation), ())))
        if gang.missing:
            state.deadlines.setdefault("missing", state.at + self._policy.kill_wait_s)

    def _ranks_missing(self) -> None:
        gang = self.state.gang
        assert gang is not None
        for rank in sorted(gang.missing - gang.exited):
            node = gang.nodes[rank // self._spec.ranks_per_node]
            because = f"rank {rank} no longer runs on {node}, and nobody saw it end"
            exit = Exit(rank=rank, pid=0, kind=ExitKind.VANISHED, because=because)
            self._worker_exited(WorkerExited(at=self.state.at, node=node, generation=gang.generation, exit=exit))

    def _node_silent(self, event: NodeSilent) -> None:
        state = self.state
        node = state.nodes.get(event.node)
        if node is None or node.state in (NodeState.LOST, NodeState.GIVEN_UP):
            return
        self._lose(event.node, NodeState.LOST)
        if state.gang is not None and event.node in state.gang.nodes:
            finding = Finding(kind="silent_node", node=event.node, since=event.since, because=event.because)
            self._trouble(finding, began_at=event.since)
        self._stopped_if_done()

    def _lose(self, name: str, to: NodeState) -> None:
        """Nothing is expected of the node any more, and a store on it cannot be relied on."""
        state, node = self.state, self.state.nodes[name]
        node.state, node.lost_at = to, node.lost_at or state.at
        for id in [id for id, one in state.pending.items() if one.node == name]:
            del state.pending[id]
        if state.store is not None and state.store.node == name:
            state.store = None

    def _form_if_possible(self) -> None:
        """Form a gang when the job waits for one and there are nodes enough."""
        state = self.state
        if state.phase is not JobPhase.WAITING or state.spec is None or {"back_off", asking.DEADLINE} & state.deadlines.keys():
            return
        kept = state.gang.nodes if state.gang is not None else ()
        chosen = self._choose_nodes(kept, membership.size(state))
        if chosen is None or self._leave_behind(chosen):
            return
        for name in ("nodes", "patience"):
            state.deadlines.pop(name, None)
        state.generation += 1
        state.gang = rejoining.formed(state.gang, Gang(generation=state.generation, nodes=chosen))
        membership.formed(state, kept)
        self._enter(JobPhase.STARTING, f"starting generation {state.generation} on {', '.join(chosen)}")
        if state.ledger.open_bucket not in (Bucket.START, Bucket.REPLACE):
            state.ledger.enter(Bucket.RENDEZVOUS, state.at)
        self._ask_store(state.generation, chosen[0])
        if state.gang.restore is None:
            self._find_checkpoint()
        self._start_if_ready()

    def _leave_behind(self, chosen: tuple[str, ...]) -> bool:
        """Stop ranks that wait where the next gang cannot take them over. Whether it must wait until that is done."""
        left = rejoining.left_behind(self.state, chosen)
        for node in left:
            assert self.state.gang is not None
            self.state.nodes[node].state = NodeState.CLEANING
            self._stop_on(node, self.state.gang.generation, graceful=False, because="its ranks waited for a gang that is formed otherwise")
        return bool(set(left) & set(chosen))

    def _find_checkpoint(self) -> None:
        state = self.state
        self._emit(FindCheckpoint(id=self._id(), generation=state.generation, because="every rank must restore the same one", distrusted=state.distrusted))

    def _checkpoint_found(self, gang: Gang, found: EffectDone) -> None:
        """After a poisoned checkpoint only an older one will do: what is no older was saved by the gang that restored it, and holds the same NaN."""
        state = self.state
        last = state.attempts[-1] if state.attempts else None
        if found.checkpoint and last is not None and last.cause == Cause.POISONED_CHECKPOINT and found.checkpoint_step >= last.step:
            state.distrusted = (*state.distrusted, found.checkpoint)
            incident = self._open_incident()
            if incident is not None:
                self._keep(incident.tell(state.at, f"{found.checkpoint} is passed over: it is no older than what gave a loss that is not finite"))
            self._find_checkpoint()
        elif not found.checkpoint and state.poisoned:
            self._nothing_to_go_back_to()
        else:
            gang.restore, gang.restore_step, gang.sources = found.checkpoint, found.checkpoint_step, found.sources
            self._start_if_ready()

    def _nothing_to_go_back_to(self) -> None:
        """Starting from scratch would throw away all that was trained, most likely to come to the same place again."""
        names = ", ".join(self.state.poisoned)
        because = (
            f"no checkpoint is left to go back to: {names} gave a loss that is not finite as soon as restored. The data or the code at that step is a likelier "
            "cause than a checkpoint, and nothing is started from scratch: mend it and resume, or run it under another name"
        )
        self._end(Outcome.PERMANENT, PERMANENT_CODE, because)

    def _choose_nodes(self, kept: tuple[str, ...], count: int) -> tuple[str, ...] | None:
        return membership.choose(self.state, kept, count)

    def _move_if_due(self) -> None:
        """At a save: stop a gang that should have other nodes, with time to save, to form it anew."""
        state, gang = self.state, self.state.gang
        because = membership.why_move(state)
        if not because or gang is None or self._open_incident() is not None or profiling.taking(state) is not None:
            return
        state.moving = because
        state.smaller = state.smaller or because  # The node it leaves may have nobody in its place.
        self._leave_running()
        standing.close_all(state, "the gang it was seen beside is stopped")
        state.ledger.enter(Bucket.STOP, state.at)
        self._enter(JobPhase.STOPPING, because)
        self._stop_standing(gang, graceful=True, because=because)
        chosen = self._choose_nodes(gang.nodes, membership.size(state))
        if chosen is not None:
            self._ask_store(gang.generation + 1, chosen[0])
        self._stopped_if_done()

    # Starting.

    def _ask_store(self, generation: int, node: str) -> None:
        """Ask for the store of a generation, unless it is up or asked for already."""
        state = self.state
        if state.store is not None and (state.store.generation, state.store.node) == (generation, node):
            return
        asked = [id for id, one in state.pending.items() if one.kind == "StartStore"]
        if not any((state.pending[id].generation, state.pending[id].node) == (generation, node) for id in asked):
            self._forget("StartStore")  # One that was asked for elsewhere would answer in this one's place.
            self._emit(StartStore(id=self._id(), generation=generation, node=node, because="each generation has a store of its own"))

    def _start_if_ready(self) -> None:
        """Once the store answers and the checkpoint is known, every node starts its ranks."""
        state, gang, spec, store = self.state, self.state.gang, self.state.spec, self.state.store
        if gang is None or spec is None or store is None or (store.generation, store.node) != (gang.generation, gang.nodes[0]):
            return
        if state.phase is not JobPhase.STARTING or gang.restore is None or gang.asked:
            return
        gang.asked = True
        state.step = -1
        for node_rank, node in enumerate(gang.nodes):
            first = node_rank * spec.ranks_per_node
            ranks = tuple(range(first, first + spec.ranks_per_node))
            self._emit(
                StartGang(
                    id=self._id(), generation=gang.generation, node=node, ranks=ranks, node_rank=node_rank, sources=self._peers_with(ranks, node),
                    nodes=len(gang.nodes), world_size=state.world_size, store_host=state.nodes[gang.nodes[0]].host,
                    store_port=store.port, store_hosted=store.hosted, restarts=len(state.attempts), restore=gang.restore, env=spec.env,
                    save_every=self._save_every(), save_asked=spec.save_every is not None, fitting=state.fitting,
                    because=rejoining.beginning(gang), rejoin=bool(gang.kept), kept=tuple(rank for rank in gang.kept if rank in ranks), kept_of=gang.kept_of,
                )
            )  # fmt: skip

    def _save_every(self) -> int | None:
        """What `--checkpoint-every` said in steps, or what was chosen last: a new generation need not find it out again."""
        asked, chosen = self._spec.save_every, self.state.interval
        if asked is not None and asked.steps is not None:
            return asked.steps
        return chosen.every if chosen is not None and chosen.automatic else None

    def _peers_with(self, ranks: tuple[int, ...], node: str) -> dict[str, str]:
        """For each of these ranks whose part is in the memory of another node than `node`: where to get it."""
        state, gang = self.state, self.state.gang
        assert gang is not None
        held = {str(rank): gang.sources[str(rank)] for rank in ranks if gang.sources.get(str(rank), node) != node}
        return {rank: state.nodes[holder].peer for rank, holder in held.items() if holder in state.nodes}

    def _gang_up(self) -> None:
        state, gang, spec = self.state, self.state.gang, self.state.spec
        assert gang is not None and spec is not None
        gang.started_at = state.at
        self._enter(JobPhase.RUNNING, f"generation {gang.generation} is up")
        if state.ledger.open_bucket is not Bucket.START:
            state.ledger.enter(Bucket.RENDEZVOUS, state.at)
        if gang.kept and not gang.ready:
            state.deadlines["rejoin"] = state.at + spec.policy.rejoin_wait_s
        if gang.ready:
            self._enter_running_bucket()
        elif state.unguarded and not gang.beats:
            self._unguarded()
        elif not gang.beats and not gang.kept:
            state.deadlines["unguarded"] = state.at + spec.policy.unguarded_after_s
        self._finished_if_all_left()

    # Running.

    def _progressed(self, event: GangRestored | ProgressSeen | CheckpointSaved) -> None:
        state, gang = self.state, self.state.gang
        if gang is None or event.generation != gang.generation or state.phase not in (JobPhase.RUNNING, JobPhase.STARTING):
            return
        gang.beats = True
        state.unguarded = False
        state.deadlines.pop("unguarded", None)
        match event:
            case GangRestored(step=step, restore_s=restore_s):
                state.step = max(state.step, step)  # A control that was restarted tells it again.
                state.deadlines.pop("rejoin", None)
                if state.ledger.open_bucket is Bucket.RENDEZVOUS:
                    gang.restore_s = state.ledger.move(restore_s, out_of=Bucket.RENDEZVOUS, into=Bucket.RESTORE)
                    self._enter_running_bucket()
            case CheckpointSaved(step=step):
                state.saved_step = max(state.saved_step, step)
                self._move_if_due()
            case ProgressSeen(step=step, save_s=save_s):
                state.step = max(state.step, step)
                gang.rejoins = event.rejoins
                if not gang.ready:
                    self._settled(step)
                state.ledger.move(save_s - gang.save_s, out_of=Bucket.RECOMPUTE if step <= state.step_best else Bucket.PRODUCTIVE, into=Bucket.SAVE)
                gang.save_s = max(gang.save_s, save_s)
                if step > state.step_best and state.attempts and not state.attempts[-1].progressed:
                    state.attempts[-1] = replace(state.attempts[-1], progressed=True)
                self._bill_work_done_again(state.at)
                self._enter_running_bucket()
                state.step_best = max(state.step_best, step)

    def _interval_chosen(self, event: IntervalChosen) -> None:
        state, gang = self.state, self.state.gang
        if gang is not None and event.generation == gang.generation and state.phase is JobPhase.RUNNING:
            state.interval = event

    def _enter_running_bucket(self) -> None:
        state = self.state
        if state.phase is JobPhase.RUNNING:
            again = state.step < state.step_best
            state.ledger.enter(Bucket.RECOMPUTE if again else Bucket.PRODUCTIVE, state.at)

    def _settled(self, step: int) -> None:
        """The gang works again: whatever incident was open is resolved."""
        gang = self.state.gang
        assert gang is not None
        gang.ready = True
        gang.ready_after_s = max(0.0, self.state.at - gang.started_at) if step >= 0 and gang.started_at else None
        self.state.fitting = self.state.fitting.fitted()
        incident = self._open_incident()
        if incident is not None and incident.phase is IncidentPhase.ACTING:
            said = f"every rank has finished step {step}" if step >= 0 else "all ranks are up; the script does not beat, so no more can be seen"
            self._close(incident, IncidentPhase.RESOLVED, said, step_after=max(gang.restore_step, 0) if step >= 0 else -1)
            verifying.begin(self.state)

    def _worker_exited(self, event: WorkerExited) -> None:
        state, gang, exit = self.state, self.state.gang, event.exit
        if gang is None or event.generation != gang.generation or exit.rank in gang.exited or state.phase is JobPhase.WAITING:
            return
        gang.exited.add(exit.rank)
        if exit.kind is ExitKind.FINISHED and (gang.beats or not exit.stopped_by_us):
            # A worker that was told to stop and has our trainer inside says so with its code; another may call a stop success.
            gang.finished.add(exit.rank)
            if len(gang.finished) == state.world_size:
                state.step = max(state.step, exit.step)  # Exact, where what was told in life may be seconds old.
                state.step_best = max(state.step_best, state.step)
        if exit.kind is ExitKind.FINISHED or state.phase is JobPhase.STOPPING:
            self._keep_exit(exit)
            self._finished_if_all_left()
            return
        finding = Finding(kind="worker_exited", node=event.node, ranks=(exit.rank,), since=state.at, because=exit.because)
        self._trouble(finding, began_at=state.at, exit=exit)

    def _keep_exit(self, exit: Exit) -> None:
        incident = self._open_incident()
        if incident is not None:
            self._keep(replace(incident, exits=(*incident.exits, exit)))

    def _finished_if_all_left(self) -> None:
        state, gang, spec = self.state, self.state.gang, self.state.spec
        assert gang is not None and spec is not None
        if state.phase in (JobPhase.RUNNING, JobPhase.EXAMINING) and len(gang.finished) == state.world_size:
            self._finish("every rank ran to its end")

    def _finish(self, because: str) -> None:
        incident, gang = self._open_incident(), self.state.gang
        assert gang is not None
        if incident is not None:
            self._close(incident, IncidentPhase.RESOLVED, because, step_after=max(gang.restore_step, -1))
        verifying.passed(self.state, because)
        self._end(Outcome.FINISHED, 0, because)

    # Trouble.

    def _finding_made(self, event: FindingMade) -> None:
        gang = self.state.gang
        if gang is None or event.generation != gang.generation:
            return
        if event.finding.breaks and self._policy.mode is Mode.ADVISE and self.state.phase is JobPhase.RUNNING:
            self._advise(event.finding)
        elif event.finding.breaks:
            # What a rank does is seen in its stack; what is wrong with its numbers is not.
            self._trouble(event.finding, began_at=event.finding.since, examine=event.finding.kind != "poisoned_checkpoint")
        elif self.state.phase in (JobPhase.RUNNING, JobPhase.EXAMINING):
            standing.found(self.state, event.finding)
            incident = profiling.wanted(self.state, event.finding)
            if incident is not None:
                begun = profiling.begin(self.state, why=event.finding.kind, because=event.finding.because, incident=incident.id)
                self._emit(ChooseRanks(id=self._id(), generation=gang.generation, because=begun.because, ranks=event.finding.ranks))
            self._stop_if_over_time(event.finding)

    def _stop_if_over_time(self, finding: Finding) -> None:
        """Only where that was asked for: as if somebody had asked for a stop now, with all the time to save that one gets."""
        limits = self._spec.limits
        if finding.kind == "over_time" and limits is not None and limits.stop and self.state.stop is None:
            self._stop_asked(StopAsked(at=self.state.at, because=f"its time is over: {finding.because}", code=LIMIT_CODE))

    def _trouble(self, finding: Finding, *, began_at: float, examine: bool = False, exit: Exit | None = None) -> None:
        """Something is wrong with the gang. Open an incident or add to the open one; examine first if asked, else stop at once."""
        state, gang = self.state, self.state.gang
        assert gang is not None
        incident = self._open_incident()
        if state.phase is JobPhase.WAITING or (state.phase is JobPhase.STOPPING and incident is None):
            return  # The gang is gone, or is going because somebody asked: what still breaks changes nothing.
        began_at = max(min(began_at, state.at), gang.started_at)
        if incident is None:
            self._bill_work_done_again(began_at)
            incident = standing.take_over(state, finding, began_at)
            if incident is None:
                incident = Incident(id=len(state.incidents) + 1, generation=gang.generation, opened_at=state.at, began_at=began_at, step_before=state.step)
                state.incidents.append(incident)
            incident = incident.tell(state.at, f"noticed: {finding.because}")
        else:
            incident = incident.tell(state.at, f"and: {finding.because}")
        self._keep(replace(incident, findings=(*incident.findings, finding), exits=(*incident.exits, exit) if exit is not None else incident.exits))
        if state.phase is JobPhase.STOPPING or (examine and state.phase is JobPhase.EXAMINING):
            return
        if state.phase is not JobPhase.EXAMINING:
            state.ledger.enter(Bucket.DETECT, began_at)
        if examine:
            self._examine(finding)
        else:
            self._stop_gang(finding.because)

    def _examine(self, finding: Finding) -> None:
        state, gang, spec = self.state, self.state.gang, self.state.spec
        assert gang is not None and spec is not None
        state.ledger.enter(Bucket.DIAGNOSE, state.at)
        self._enter(JobPhase.EXAMINING, finding.because)
        incident = self._open_incident()
        assert incident is not None
        self._keep(incident.move(IncidentPhase.EXAMINING, at=state.at, because="stacks of all ranks are captured before anything is killed"))
        for node in self._standing(gang):
            self._emit(CaptureStacks(id=self._id(), generation=gang.generation, node=node, because=finding.because))

    def _examined_if_done(self) -> None:
        if self.state.phase is JobPhase.EXAMINING and not self._awaiting("CaptureStacks"):
            self._stop_gang(self.state.because)

    def _stop_gang(self, because: str) -> None:
        """Break the gang: every node that still stands ends its ranks now."""
        state, gang, spec = self.state, self.state.gang, self.state.spec
        assert gang is not None and spec is not None
        self._leave_running()
        standing.close_all(state, "the gang it was seen beside is stopped")
        state.ledger.enter(Bucket.STOP, state.at)
        self._enter(JobPhase.STOPPING, because)
        incident = self._open_incident()
        parts = incident is not None and not rejoining.why_not(state)
        if incident is not None and incident.phase is not IncidentPhase.STOPPING:
            said = "whoever can leaves its loop and waits; the others are stopped" if parts else "the whole gang is stopped"
            self._keep(incident.move(IncidentPhase.STOPPING, at=state.at, because=said))
        if parts and incident is not None:
            self._part(gang, self._judged(incident).ranks, because)
        else:
            self._stop_standing(gang, graceful=False, because=because)
        chosen = self._choose_nodes(gang.nodes, membership.size(state))
        if chosen is not None:
            # The next generation will want a store; it comes up while the old ranks go down.
            self._ask_store(gang.generation + 1, chosen[0])
        self._stopped_if_done()

    def _part(self, gang: Gang, culprits: tuple[int, ...], because: str) -> None:
        """Whoever lives on keeps what it has: a new gang is made around it. If all are to blame, who is will be seen by who does not leave."""
        culprits = () if len(culprits) == self.state.world_size else culprits
        for node in self._standing(gang):
            self._emit(
                PartGang(id=self._id(), generation=gang.generation, node=node, because=because, culprits=culprits, within_s=self._policy.part_wait_s)
            )

    def _leave_running(self) -> None:
        self._forget("StartStore", "StartGang", "FindCheckpoint", "CaptureStacks", "ChooseRanks", "CaptureProfile")
        profiling.end(self.state, "the gang was stopped meanwhile")
        for name in ("unguarded", "missing", "rejoin"):
            self.state.deadlines.pop(name, None)

    def _stop_on(self, node: str, generation: int, *, graceful: bool, because: str) -> None:
        policy = self._policy
        grace_s = policy.stop_grace_s if graceful else policy.abort_grace_s
        self._emit(StopGang(id=self._id(), generation=generation, node=node, because=because, graceful=graceful, grace_s=grace_s))

    def _stopped_if_done(self) -> None:
        """When nothing of the generation is left anywhere: say what it was, choose what to do, and do it."""
        state, gang = self.state, self.state.gang
        if state.phase is not JobPhase.STOPPING or gang is None:
            return
        of_it = (gang.generation, gang.kept_of) if gang.kept else (gang.generation,)
        if any(pending.kind in ("StopGang", "PartGang") and pending.generation in of_it for pending in state.pending.values()):
            return
        incident = self._open_incident()
        if state.stop is not None:
            self._stopped_as_asked(state.stop, gang)
            return
        if self._ran_to_its_end(gang):
            self._finish("every rank ran to its end before it had to stop")
            return
        if state.moving:
            self._enter(JobPhase.WAITING, state.moving)
            state.ledger.enter(Bucket.RENDEZVOUS, state.at)
            self._form_if_possible()
            self._wait_for_nodes()
            return
        assert incident is not None
        state.ledger.enter(Bucket.DIAGNOSE, state.at)
        incident = self._note_how_far_it_was(incident)
        diagnosis = self._judged(incident)
        if diagnosis.step < 0 <= state.step:
            diagnosis = replace(diagnosis, step=state.step)
        if state.attempts and self._ran_healthily():
            state.attempts[-1] = replace(state.attempts[-1], progressed=True)
        verifying.judge(state, incident, diagnosis)
        plan = self._decide(diagnosis)
        if gang.waiting and not rejoining.keeps(plan):
            self._stop_waiting(gang, plan.because)
            return
        state.attempts.append(verifying.attempt(state, diagnosis, plan.rung, self._blamed(diagnosis, gang)))
        incident = replace(
            incident, diagnoses=(*incident.diagnoses, diagnosis), plans=(*incident.plans, plan),
            exits_judged=len(incident.exits), findings_judged=len(incident.findings),
        )  # fmt: skip
        self._keep(incident.tell(state.at, f"diagnosed: {diagnosis.cause} ({diagnosis.confidence:.0%}): {diagnosis.because}"))
        self._act(plan, diagnosis)

    def _judged(self, incident: Incident) -> Diagnosis:
        """What is wrong, by all that came since the last plan."""
        diagnosis = diagnose(incident.exits[incident.exits_judged :], incident.findings[incident.findings_judged :], incident.stacks)
        return self._as_corrected(sharpen(diagnosis, incident.collectives, incident.communication))

    def _stop_waiting(self, gang: Gang, because: str) -> None:
        """They were kept for a rejoin that is not what is to be done."""
        gang.waiting = {}
        state = self.state
        state.ledger.enter(Bucket.STOP, state.at)
        self._stop_standing(gang, graceful=False, because=because)
        self._stopped_if_done()

    def _as_corrected(self, diagnosis: Diagnosis) -> Diagnosis:
        """Where a person has said what a failure of this fingerprint is, that is what it is; and whether trying again can help follows from it."""
        learned = self._spec.learned
        said = dict(learned.corrections).get(diagnosis.fingerprint, "") if learned is not None and diagnosis.fingerprint else ""
        if said not in CLASSES:
            return diagnosis
        because = f"{said}, as somebody corrected an earlier one of the same fingerprint: {diagnosis.because}"
        permanent = CLASSES[said].permanence is Permanence.PERMANENT
        return replace(diagnosis, corrected=said, permanent=permanent, confidence=max(diagnosis.confidence, CORRECTED), because=because)

    def _note_how_far_it_was(self, incident: Incident) -> Incident:
        """The dead tell exactly how far they were; what was told in life may be seconds old."""
        state = self.state
        reached = [exit.step for exit in incident.exits[incident.exits_judged :] if exit.step >= 0]
        if reached:
            state.step = max(state.step, min(reached))
            state.step_best = max(state.step_best, state.step)
        return replace(incident, step_before=max(incident.step_before, state.step))

    def _ran_to_its_end(self, gang: Gang) -> bool:
        """What did so on NaN has nothing to show for it."""
        incident = self._open_incident()
        poisoned = incident is not None and any(finding.kind == "poisoned_checkpoint" for finding in incident.findings[incident.findings_judged :])
        return len(gang.finished) == self.state.world_size and not poisoned

    def _stopped_as_asked(self, stop: StopAsked, gang: Gang) -> None:
        if self._ran_to_its_end(gang):
            self._finish("every rank ran to its end before it had to stop")
        else:
            self._end(Outcome.STOPPED, stop.code, stop.because)

    def _ran_healthily(self) -> bool:
        """A script that does not beat shows progress only by staying up."""
        gang = self.state.gang
        assert gang is not None
        return not gang.beats and gang.started_at > 0 and self.state.at - gang.started_at >= self._policy.healthy_s

    def _decide(self, diagnosis: Diagnosis) -> Plan:
        state, gang = self.state, self.state.gang
        assert gang is not None
        usable, spec, policy = membership.usable(state), self._spec, self._policy
        adjustment = adjust(diagnosis, state.fitting)
        if adjustment is None:
            self._note_refused(diagnosis, gang)
        cleaning = self._count(NodeState.CLEANING)
        fleet = Fleet(
            gang=gang.nodes, spares=tuple(name for name in usable if name not in gang.nodes), lost=tuple(sorted(state.nodes.keys() - set(usable))),
            checkpoint=gang.restore or "", blamed=self._blamed(diagnosis, gang), avoided=state.avoided, asked=spec.nodes, least=spec.least_nodes,
            refused={int(nodes): why for nodes, why in state.refused.items()}, costs=costs_of(state.incidents, self._first_s(gang)),
            can_rejoin=rejoining.cannot(gang),
            node_wait=node_wait(
                state.absences, otherwise_s=policy.node_wait_s, cleaning_s=policy.kill_wait_s if len(usable) + cleaning >= spec.nodes else None
            ),
        )  # fmt: skip
        return decide(diagnosis, state.attempts, fleet, policy, spec.learned, at=state.at, job=spec.job, adjustment=adjustment)

    def _first_s(self, gang: Gang) -> float | None:
        return None if gang.ready_after_s is None else gang.ready_after_s + self._policy.abort_grace_s

    def _note_refused(self, diagnosis: Diagnosis, gang: Gang) -> None:
        """A script that fails before its first step on fewer nodes, in the same way twice, and took steps on more, does not run on so few."""
        state, count, last = self.state, len(gang.nodes), self.state.attempts[-1] if self.state.attempts else None
        if count == self._spec.nodes or gang.ready or state.step_best < 0 or diagnosis.cause not in _OF_THE_SIZE:
            return
        if diagnosis.permanent or (last is not None and (last.fingerprint, last.nodes) == (diagnosis.fingerprint, count)):
            state.refused[str(count)] = diagnosis.because

    def _blamed(self, diagnosis: Diagnosis, gang: Gang) -> str:
        """The node to blame: as diagnosed, else the one on which all culprits ran."""
        nodes = {gang.nodes[rank // self._spec.ranks_per_node] for rank in diagnosis.ranks if 0 <= rank < self.state.world_size}
        return diagnosis.node or (nodes.pop() if len(nodes) == 1 else "")

    def _act(self, plan: Plan, diagnosis: Diagnosis) -> None:
        state = self.state
        incident = self._open_incident()
        assert incident is not None
        if plan.rung is Rung.STOP:
            outcome, code = (Outcome.PERMANENT, PERMANENT_CODE) if plan.permanent else (Outcome.FAILED, diagnosis.own_code)
            self._end(outcome, code, plan.because)
            return
        if self._policy.mode is not Mode.AUTO and state.approved != incident.id:
            said = asking.proposal(incident, self._spec.job)
            self._keep(incident.tell(state.at, said))
            self._enter(JobPhase.WAITING, said)
            state.ledger.enter(Bucket.WAIT, state.at)
            state.deadlines[asking.DEADLINE] = state.at + self._policy.answer_wait_s
            return
        state.approved = 0
        self._keep(incident.move(IncidentPhase.ACTING, at=state.at, because=f"{plan.rung.name.lower()}: {plan.because}"))
        state.avoided = (*state.avoided, *(name for name in plan.drop if state.nodes[name].state is NodeState.READY and name not in state.cordoned))
        state.fitting = plan.fitting or state.fitting
        if plan.distrust:
            state.distrusted = (*state.distrusted, plan.distrust)
            state.poisoned = (*state.poisoned, plan.distrust) if diagnosis.cause is Cause.POISONED_CHECKPOINT else state.poisoned
        self._enter(JobPhase.WAITING, plan.because)
        state.ledger.enter(Bucket.WAIT if plan.wait_s else Bucket.REPLACE if plan.rung is Rung.REPLACE else Bucket.RENDEZVOUS, state.at)
        if plan.rung is Rung.SHRINK:
            state.smaller = plan.because
        elif len(plan.take) < len(plan.drop):
            state.smaller = ""  # Nodes are waited for, also where a gang before this one was smaller.
        if plan.wait_s:
            state.deadlines["back_off"] = state.at + plan.wait_s
        if plan.patience_s is not None:
            state.deadlines["patience"] = state.at + plan.wait_s + plan.patience_s
        self._form_if_possible()
        self._wait_for_nodes()

    def _out_of_patience(self) -> None:
        state = self.state
        if state.phase is JobPhase.WAITING:
            state.smaller = "no node came within the time that waiting for one is worth"
            self._form_if_possible()

    def _wait_for_nodes(self) -> None:
        state = self.state
        if state.phase is JobPhase.WAITING and not {"back_off", asking.DEADLINE} & state.deadlines.keys():
            if state.ledger.open_bucket is not Bucket.START:
                state.ledger.enter(Bucket.WAIT, state.at)
            state.deadlines["nodes"] = state.at + self._policy.node_wait_s

    # What people say.

    def _advise(self, finding: Finding) -> None:
        """A gang that still runs is left as it is, and what would be done is said."""
        state, gang = self.state, self.state.gang
        assert gang is not None
        standing.found(state, finding)
        incident = next(one for one in reversed(state.incidents) if one.is_open and any(known.key == finding.key for known in one.findings))
        if incident.plans:
            return
        diagnosis = diagnose((), incident.findings, {})
        incident = replace(incident, diagnoses=(diagnosis,), plans=(self._decide(diagnosis),))
        self._keep(incident.tell(state.at, asking.proposal(incident, self._spec.job)))

    def _person_said(self, event: asking.Said) -> None:
        """What is refused was told to whoever said it."""
        state = self.state
        if asking.refused(state, event):
            return
        match event:
            case NodeCordoned():
                state.cordoned[event.node] = event.because
                if event.drain and state.gang is not None and event.node in state.gang.nodes and event.node not in state.draining:
                    state.draining = (*state.draining, event.node)
            case NodeUncordoned():
                del state.cordoned[event.node]
                state.draining = tuple(name for name in state.draining if name != event.node)
                self._form_if_possible()
            case PlanApproved() | PlanVetoed():
                incident = asking.waiting(state)
                assert incident is not None
                self._plan_answered(event, incident)

    def _plan_answered(self, event: PlanApproved | PlanVetoed, incident: Incident) -> None:
        state, plan = self.state, incident.plans[-1]
        state.deadlines.pop(asking.DEADLINE, None)
        who = event.who or "somebody"
        if isinstance(event, PlanVetoed):
            if not event.instead:
                self._keep(incident.tell(state.at, f"vetoed by {who}{': ' if event.because else ''}{event.because}"))
                if not incident.stands:
                    self._end(Outcome.STOPPED, incident.diagnoses[-1].own_code, f"its plan was vetoed by {who}")
                return
            plan = asking.chosen(plan, event)
        said = "vetoed" if isinstance(event, PlanVetoed) else "approved"
        self._keep(replace(incident, plans=(*incident.plans[:-1], plan)).tell(state.at, f"{said} by {who}; to be done: {plan.rung.name.lower()}"))
        state.approved = incident.id
        if incident.stands:
            self._trouble(incident.findings[0], began_at=incident.findings[0].since, examine=True)
        else:
            if state.attempts:
                state.attempts[-1] = replace(state.attempts[-1], rung=plan.rung)
            self._act(plan, incident.diagnoses[-1])

    # Profiles.

    def _profile_asked(self, event: ProfileAsked) -> None:
        """What is refused was told to whoever asked."""
        if not profiling.refused(self.state, event):
            begun = profiling.begin(self.state, why="asked", because=event.because, steps=event.steps, wish=event.id)
            ranks, exactly = event.ranks, bool(event.ranks)
            self._emit(ChooseRanks(id=self._id(), generation=begun.generation, because=event.because, ranks=ranks, exactly=exactly, all=event.all))

    def _capture_profile(self, slow: tuple[int, ...], beside: tuple[int, ...]) -> None:
        for node, ranks in profiling.chosen(self.state, slow, beside).items():
            profile = profiling.taking(self.state)
            assert profile is not None
            self._emit(
                CaptureProfile(
                    id=self._id(), generation=profile.generation, node=node, because=profile.because, ranks=ranks, steps=profile.steps, name=profile.name,
                    within_s=self._policy.profile_wait_s,
                )
            )  # fmt: skip
        self._profiled_if_done()

    def _profiled_if_done(self, because: str = "") -> None:
        if not self._awaiting("ChooseRanks") and not self._awaiting("CaptureProfile"):
            profiling.end(self.state, because)

    def _profile_taken(self, event: EffectDone) -> None:
        profiling.took(self.state, event.profiles, event.missing)
        profile = profiling.taking(self.state)
        if profile is not None and profile.incident:
            self._keep(_with_collectives(self.state.incidents[profile.incident - 1], event))
        self._profiled_if_done()

    # Being asked to stop.

    def _stop_asked(self, event: StopAsked) -> None:
        state, gang = self.state, self.state.gang
        again = state.stop is not None
        state.stop = event
        if gang is None or state.phase is JobPhase.WAITING:
            self._end(Outcome.STOPPED, event.code, event.because)
            return
        if state.phase is JobPhase.STOPPING:
            if again and event.now:
                self._hurry(gang, event.because)
            return
        self._leave_running()
        state.ledger.enter(Bucket.STOP, state.at)
        self._enter(JobPhase.STOPPING, event.because)
        self._stop_standing(gang, graceful=not event.now, because=event.because)
        self._stopped_if_done()

    def _hurry(self, gang: Gang, because: str) -> None:
        """Whoever still takes the time it was given is told to take no more."""
        pending = self.state.pending
        for id in [id for id, one in pending.items() if one.kind == "StopGang" and one.generation == gang.generation]:
            self._stop_on(pending.pop(id).node, gang.generation, graceful=False, because=because)

    def _stop_standing(self, gang: Gang, *, graceful: bool, because: str) -> None:
        for node in self._standing(gang):
            self._stop_on(node, gang.generation, graceful=graceful, because=because)
            if any(rank in gang.kept for rank in self._ranks_on(gang, node)) and node not in gang.started:
                self._stop_on(node, gang.kept_of, graceful=graceful, because=because)  # They may not have been told that they are of the new one.

    def _end(self, outcome: Outcome, code: int, because: str) -> None:
        state = self.state
        self._give_up_incident(because)
        profiling.end(state, "the job has ended")
        standing.close_all(state, "the job has ended")
        state.outcome, state.code, state.pending, state.deadlines = outcome, code, {}, {}
        self._enter(JobPhase.ENDED, because)
        state.ledger.enter(Bucket.END, state.at)
        self._out.append(EndJob(id=self._id(), generation=state.generation, because=because, outcome=outcome, code=code))

    # Answers and deadlines.

    def _effect_done(self, event: EffectDone) -> None:
        state, gang = self.state, self.state.gang
        pending = self._answered(event)
        if pending is None:
            return
        current = gang is not None and pending.generation == gang.generation
        match pending.kind:
            case "StartStore":
                state.store = Store(generation=pending.generation, node=pending.node, port=event.port, hosted=event.hosted)
                self._start_if_ready()
            case "FindCheckpoint" if gang is not None and current:
                self._checkpoint_found(gang, event)
            case "StartGang" if gang is not None and current:
                gang.started.add(pending.node)
                if state.phase is JobPhase.STARTING and gang.started == set(gang.nodes):
                    self._gang_up()
            case "CaptureStacks":
                incident = self._open_incident()
                if incident is not None:
                    self._keep(_with_collectives(replace(incident, stacks={**incident.stacks, **event.stacks}), event))
                self._examined_if_done()
            case "ChooseRanks" if current:
                self._capture_profile(event.slow, event.beside)
            case "CaptureProfile":
                self._profile_taken(event)
            case "StopGang":
                self._stopped_on(pending.node)
            case "PartGang" if gang is not None and current:
                gang.waiting |= event.waiting
                self._stopped_on(pending.node)

    def _stopped_on(self, node: str) -> None:
        known = self.state.nodes[node]
        if known.state is NodeState.CLEANING and not self._stops_of(node):
            known.state = NodeState.READY
        self._stopped_if_done()
        self._form_if_possible()

    def _answered(self, event: EffectDone | EffectFailed) -> Pending | None:
        """What this answers. None: it was answered, or given up, before; or another one was asked, who alone can say what runs there."""
        pending = self.state.pending.get(event.effect)
        if pending is None or pending.node != event.node:
            return None
        return self.state.pending.pop(event.effect)

    def _effect_failed(self, event: EffectFailed) -> None:
        pending = self._answered(event)
        if pending is not None:
            self._failed(pending, event.because, permanent=event.permanent, unkillable=event.unkillable)

    def _failed(self, pending: Pending, because: str, *, permanent: bool = False, unkillable: tuple[int, ...] = ()) -> None:
        state, gang = self.state, self.state.gang
        current = gang is not None and pending.generation == gang.generation
        match pending.kind:
            case "StartStore" | "StartGang" if current and state.phase is JobPhase.STARTING:
                kind = "not_startable" if permanent else "start_failed"
                self._trouble(Finding(kind=kind, node=pending.node, since=state.at, because=because), began_at=state.at)
            case "FindCheckpoint" if current:
                # Starting fresh over checkpoints that cannot be read would lose them.
                self._end(Outcome.BROKEN, BROKEN_CODE, f"the checkpoints cannot be read: {because}")
            case "CaptureStacks":
                self._examined_if_done()
            case "ChooseRanks" | "CaptureProfile":
                profiling.lost(state, pending.node, because)
                self._profiled_if_done(because)
            case "StopGang" | "PartGang":
                self._node_not_stopped(pending, because, unkillable)

    def _node_not_stopped(self, pending: Pending, because: str, unkillable: tuple[int, ...]) -> None:
        """A node that cannot end its processes, or does not say so, is not used again."""
        state, gang = self.state, self.state.gang
        self._lose(pending.node, NodeState.GIVEN_UP if unkillable else NodeState.LOST)
        if gang is not None and pending.node in gang.nodes:
            kind = "unkillable" if unkillable else "silent_node"
            self._trouble(Finding(kind=kind, node=pending.node, since=state.at, because=because), began_at=state.at)
        self._stopped_if_done()

    def _ticked(self) -> None:
        state = self.state
        for id, pending in sorted(state.pending.items()):
            if pending.deadline <= state.at and id in state.pending:
                del state.pending[id]
                self._failed(pending, f"{pending.node} did not answer {pending.kind} within its time")
        for name in sorted(name for name, at in state.deadlines.items() if at <= state.at):
            if state.deadlines.pop(name, None) is None:
                continue
            match name:
                case "back_off":
                    self._form_if_possible()
                    self._wait_for_nodes()
                case "nodes":
                    self._nodes_did_not_come()
                case asking.DEADLINE:
                    self._end(Outcome.STOPPED, BROKEN_CODE, f"nobody answered within {self._policy.answer_wait_s:.0f} s: {state.because}")
                case "patience":
                    self._out_of_patience()
                case verifying.DEADLINE:
                    verifying.passed(state, f"nothing of it was seen for {self._policy.verify_s:.0f} s")
                case "missing":
                    self._ranks_missing()
                case "rejoin":
                    self._rejoin_failed()
                case "unguarded":
                    self._unguarded()
                case _ if name.startswith(standing.CALM):
                    standing.calmed(state, name, calm_s=self._policy.calm_s)

    def _nodes_did_not_come(self) -> None:
        state, spec, ready, cleaning = self.state, self._spec, len(membership.usable(self.state)), self._count(NodeState.CLEANING)
        if spec.least_nodes <= ready < spec.nodes and not state.smaller:
            state.smaller = f"{ready} of {spec.nodes} nodes are usable, and no more came in time"
            self._form_if_possible()
        if state.phase is not JobPhase.WAITING:
            return
        if ready + cleaning >= spec.nodes or ready < spec.least_nodes <= ready + cleaning:
            state.deadlines["nodes"] = state.at + self._policy.kill_wait_s  # A node that is being cleaned is usable in a moment, or lost.
            return
        refused = "".join(f"; the script does not run on {nodes}: {why}" for nodes, why in sorted(state.refused.items()))
        cordoned = f"; {', '.join(sorted(state.cordoned))} cordoned: `holdfast uncordon` gives them back" if state.cordoned else ""
        least = f"{spec.least_nodes} to {spec.nodes}" if spec.least_nodes < spec.nodes else str(spec.nodes)
        self._end(Outcome.BROKEN, BROKEN_CODE, f"{least} nodes are needed, {ready} are usable, and no more came in time{refused}{cordoned}")

    def _rejoin_failed(self) -> None:
        state, gang = self.state, self.state.gang
        assert gang is not None
        because = f"the ranks were not in their loops again {self._policy.rejoin_wait_s:.0f} s after they were told to rejoin"
        self._trouble(Finding(kind="start_failed", node=gang.nodes[0], since=state.at, because=because), began_at=state.at)

    def _unguarded(self) -> None:
        """No beat came: the script does not carry our lines. All that can be seen is that its workers are up."""
        state, gang = self.state, self.state.gang
        assert gang is not None
        state.unguarded = True
        state.ledger.enter(Bucket.PRODUCTIVE, gang.started_at)
        self._settled(-1)

    # Small hands.

    @property
    def _spec(self) -> JobSpec:
        assert self.state.spec is not None
        return self.state.spec

    @property
    def _policy(self) -> Policy:
        return self._spec.policy

    def _id(self) -> str:
        self.state.effects += 1
        return f"e{self.state.effects}"

    def _emit(self, effect: Effect) -> None:
        """Send an effect and remember until when it must be answered."""
        policy = self._policy
        match effect:
            case StartStore() | StartGang():
                wait_s = policy.start_wait_s
            case CaptureStacks() | ChooseRanks():
                wait_s = policy.stacks_wait_s
            case StopGang(grace_s=grace_s):
                wait_s = grace_s + 2 * policy.kill_wait_s
            case PartGang(within_s=within_s):
                wait_s = within_s + 2 * policy.kill_wait_s
            case CaptureProfile(within_s=within_s):
                wait_s = within_s + 2 * policy.kill_wait_s
            case _:
                wait_s = policy.fetch_wait_s if self._spec.remote else policy.node_wait_s
        self.state.pending[effect.id] = Pending(kind=type(effect).__name__, node=effect.node, generation=effect.generation, deadline=self.state.at + wait_s)
        self._out.append(effect)

    def _forget(self, *kinds: str) -> None:
        """Their answers no longer matter."""
        pending = self.state.pending
        for id in [id for id, one in pending.items() if one.kind in kinds]:
            del pending[id]

    def _stops_of(self, node: str) -> list[str]:
        return [id for id, one in self.state.pending.items() if one.node == node and one.kind == "StopGang"]

    def _awaiting(self, kind: str) -> bool:
        return any(pending.kind == kind for pending in self.state.pending.values())

    def _standing(self, gang: Gang) -> tuple[str, ...]:
        return tuple(name for name in gang.nodes if self.state.nodes[name].state is NodeState.READY)

    def _ranks_on(self, gang: Gang, node: str) -> range:
        first = gang.nodes.index(node) * self._spec.ranks_per_node
        return range(first, first + self._spec.ranks_per_node)

    def _count(self, state: NodeState) -> int:
        return sum(1 for node in self.state.nodes.values() if node.state is state)

    def _enter(self, phase: JobPhase, because: str) -> None:
        self.state.phase, self.state.because = phase, because

    def _open_incident(self) -> Incident | None:
        """The one the gang was, or is being, stopped for."""
        return next((one for one in reversed(self.state.incidents) if one.is_open and not one.stands), None)

    def _keep(self, incident: Incident) -> None:
        assert self.state.incidents[incident.id - 1].id == incident.id
        self.state.incidents[incident.id - 1] = incident

    def _close(self, incident: Incident, to: IncidentPhase, because: str, *, step_after: int = -1) -> None:
        """End an incident and write its bill: what the ledger holds since it began."""
        state = self.state
        costs: dict[str, float] = {}
        for span in state.ledger.spans:
            seconds = min(span.until, state.at) - max(span.since, incident.began_at)
            if seconds > 0 and span.bucket is not Bucket.PRODUCTIVE:
                costs[span.bucket] = costs.get(span.bucket, 0.0) + seconds
        if state.gang is not None and state.gang.restore_s and Bucket.RENDEZVOUS in costs:
            costs[Bucket.RESTORE] = min(state.gang.restore_s, costs[Bucket.RENDEZVOUS])
            costs[Bucket.RENDEZVOUS] -= costs[Bucket.RESTORE]
        self._keep(replace(incident.move(to, at=state.at, because=because), costs=costs, step_after=step_after))

    def _bill_work_done_again(self, until: float) -> None:
        """It belongs to the price of the incident that lost the work, which is closed as soon as the gang works again."""
        state = self.state
        incident = next((one for one in reversed(state.incidents) if not one.stands), None)
        if state.ledger.open_bucket is Bucket.RECOMPUTE and incident is not None and incident.phase is IncidentPhase.RESOLVED:
            seconds = max(0.0, until - max(state.ledger.spans[-1].since, incident.began_at))
            self._keep(replace(incident, costs={**incident.costs, Bucket.RECOMPUTE: seconds}))

    def _give_up_incident(self, because: str) -> None:
        incident = self._open_incident()
        if incident is not None:
            self._close(incident, IncidentPhase.GAVE_UP, because)

    def check(self) -> None:
        """What must always hold, for tests and simulation: called after each step there."""
        promises.check(self.state)


def _with_collectives(incident: Incident, event: EffectDone) -> Incident:
    """NCCL has one answer for all nodes that ask."""
    said = tuple(dict.fromkeys((*incident.communication, *event.communication)))
    return replace(incident, collectives={**incident.collectives, **event.collectives}, communication=said)
